// A unit has parameters that are gathered and freed together. This class keeps the state of a unit
// and checks every call against it. HostUnit (host memory) and DeviceUnit (memory of a GPU) move
// the bytes.
//
// States of the parameters: sharded --unshard--> unsharded --reshard--> sharded. A kept unit's slot
// outlives reshard, and its contents are valid until the shards change. The gradient slot is taken
// by the first grad() and given back by reduce_grads().
//
// Calls come from one thread at a time. All ranks of the unit's communicators make them in the same
// order.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "fsccl/insight.h"
#include "unit/scaling.h"
#include "unit/unit_definition.h"

namespace fsccl {

struct ReduceRequest {
  // The range of parameters, for a unit by parameter. If both are 0, it is all parameters whose
  // gradient slots are held, or all that `grads` may name.
  size_t first = 0, count = 0;
  double scale = 0;
  bool accumulate = false;
  bool defer_replicas = false;
  const void* const* grads = nullptr;
  void* const* sharded_grads = nullptr;
  fsccl_reduce_result_t* result = nullptr;
  void (*shard_ready)(void*, fsccl_unit_t, size_t) = nullptr;
  void* shard_ready_context = nullptr;
  fsccl_unit_t handle = nullptr;  // the handle that the callback gets
};

// The engine and the number of a submitted operation, for its work.
struct Submitted {
  Engine* engine = nullptr;
  uint64_t sequence = 0;
};

class Unit {
 public:
  virtual ~Unit() = default;

  // These are the functions of fsccl.h. With `wait` a call returns when the operation is complete.
  // Without it, *submitted is the operation to wait for, and *state says if it is complete already.
  Status unshard(bool writable, void* stream, bool wait, fsccl_status_t* state,
                 Submitted* submitted);
  Status reshard(void* stream);
  Status release(size_t index, void* stream);
  Status param(size_t index, fsccl_view_t* view);
  Status shard(size_t index, fsccl_view_t* view) const;
  Status grad(size_t index, void* stream, fsccl_view_t* view);
  Status sharded_grad(size_t index, fsccl_view_t* view);
  Status set_shards(void* const* shards);
  void mark_changed() { changed_ = true; }
  Status reduce_grads(const ReduceRequest& request, void* stream, bool wait, fsccl_status_t* state,
                      Submitted* submitted);
  Status broadcast_state(int root, void* stream, bool wait, fsccl_status_t* state,
                         Submitted* submitted);
  Status verify_replicas();  // blocking

  // Returns an error if an operation is in flight that the end of this unit does not wait for.
  virtual Status check_idle() = 0;
  // Fills in the report of the unit's codec. Returns an error if the unit has none.
  virtual Status codec_report(fsccl_codec_report_t* report) const;
  // Debug mode: returns an error if the program wrote beyond the slots that the unit holds.
  virtual Status check_zones() = 0;

  const UnitSpec& spec() const { return spec_; }
  const Layout& layout() const { return *definition_.layout; }
  bool has_grad(size_t i) const { return !spec_.params[i].frozen; }
  bool keeps() const { return keep_; }
  bool unsharded() const { return unsharded_; }

 protected:
  explicit Unit(UnitSpec spec) : spec_(std::move(spec)) {}

  // Begins a call, whose work goes on `stream`, which is NULL in host memory. Returns an error if
  // it cannot.
  virtual Status begin_call(void* stream) = 0;
  // Gathers the parameters, which are sharded.
  virtual Status gather(bool writable, bool wait, fsccl_status_t* state, Submitted* submitted) = 0;
  // Gives back the slots of the parameters, which are unsharded, or keeps them.
  virtual Status give_back_params() = 0;
  // Gives back the slot of one parameter of a unit by parameter, which is unsharded.
  virtual Status give_back_param(size_t index) = 0;
  // param_slot() returns the slot of this parameter, which is unsharded, for the caller to read.
  // grad_slot() returns the slot of its gradient, which the caller may write to on `stream`.
  virtual Result<std::byte*> param_slot(size_t index) = 0;
  virtual Result<std::byte*> grad_slot(size_t index, void* stream) = 0;
  // Returns true if the unit holds a slot with the gradient of this parameter, which is not tied.
  virtual bool holds_grad(size_t index) const = 0;
  virtual Status sum_grads(const ReduceRequest& request, bool wait, fsccl_status_t* state,
                           Submitted* submitted) = 0;
  // Returns an error while the gradient of this parameter is being reduced.
  virtual Status check_reduced(size_t index) = 0;
  // Moves the shards to `shards`, which has a pointer for each parameter, NULL if its shard stays.
  virtual Status move_shards(void* const* shards) = 0;
  virtual Status broadcast_shards(int root, bool wait, fsccl_status_t* state,
                                  Submitted* submitted) = 0;
  // Returns a hash of this rank's shard of each parameter.
  virtual Result<std::vector<uint64_t>> hash_shards() = 0;

  Communicator& comm() const { return *spec_.shard_comm; }
  Engine& engine() const { return spec_.shard_comm->engine(); }
  size_t count() const { return spec_.params.size(); }
  // Returns true if the unit keeps a slot of `slot_bytes`, as its config and its pool's budget say.
  // The bytes are then promised to it (Pool::kept_bytes).
  bool promise_kept(uint64_t slot_bytes);
  Status check_index(size_t index) const;
  // Returns the error of a call for a parameter that was released before.
  Status was_released(size_t index) const;
  // Sets `wanted_` to the parameters whose gradients are requested. Tied parameters are replaced by
  // their owners. Returns an error if the request is not valid.
  Status want(const ReduceRequest& request);
  Status check_grads(const ReduceRequest& request) const;
  Status check_has_grad(size_t index) const;

  UnitSpec spec_;
  UnitDefinition definition_;
  uint64_t key_ = 0;                    // key of the unit in its pool
  ShardMemory shards_, sharded_grads_;  // this rank's
  bool keep_ = false;
  bool counted_ = false;  // its pool and its communicators count this unit

  std::vector<size_t> wanted_;
  bool unsharded_ = false;
  bool contents_valid_ = false;  // the slot holds the values of the shards
  bool changed_ = true;          // the shards have changed since they were gathered
  bool reduced_once_ = false;
  bool replicas_pending_ = false;  // the last reduction left out the sum over the replicas
  GradScaling scaling_;
};

}  // namespace fsccl
