// A unit: parameters that are gathered and freed together. Everything is made once, at creation:
// layout, slot maps, plans, shard storage, tables of where peers' slots are. A step then only takes
// slots, binds offsets and submits; see unit_step.cpp and unit_reduce.cpp for what each call
// composes.
//
// States of the parameters: sharded --unshard--> unsharded --reshard--> sharded. A kept unit's slot
// outlives reshard, and its contents are valid until the shards change. The gradient slot is taken
// by the first grad() and given back by reduce_grads().
//
// A unit by parameter has a slot for each of its parameters and gradients: unshard takes all slots
// of the former with one gather, release() gives one back early, grad() takes that of one gradient,
// and reduce_grads() is of some parameters, by a plan of these. Reductions of different parameters
// may be in flight together, because each has bindings of its own.
//
// The ranks may be on several hosts: each host has slots of its own, and what the plans do is then
// for the ranks of a host, with exchanges between hosts behind or before them (unit_hosts.cpp). An
// operation of the shard_comm ends when the last of them does.
#pragma once
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "comm/chain.h"
#include "layout/layout.h"
#include "plan/unit_plans.h"
#include "pool/host/pool.h"
#include "unit/host/grad_reduction.h"
#include "unit/host/host_span.h"
#include "unit/host/slot_set.h"
#include "unit/scaling.h"
#include "unit/unit_definition.h"

namespace fsccl {

struct ReduceRequest {
  // of a unit by parameter: 0: those whose gradient slots are held, or all that `grads` may name
  size_t first = 0, count = 0;
  double scale = 0;
  bool accumulate = false;
  bool defer_replicas = false;
  const void* const* grads = nullptr;
  void* const* sharded_grads = nullptr;
  fsccl_reduce_result_t* result = nullptr;
  void (*shard_ready)(void*, fsccl_unit_t, size_t) = nullptr;
  void* shard_ready_context = nullptr;
  fsccl_unit_t handle = nullptr;  // what the callback is told
};

// What a submitted operation hands to its work: which engine, which number.
struct Submitted {
  Engine* engine = nullptr;
  uint64_t sequence = 0;
};

class Unit {
 public:
  // Collective over the unit's communicators, blocking.
  static Result<std::unique_ptr<Unit>> create(UnitSpec spec);
  ~Unit();

  Status unshard(bool writable, bool wait, fsccl_status_t* state, Submitted* submitted);
  Status reshard();
  Status release(size_t index);
  Status param(size_t index, fsccl_view_t* view);
  Status shard(size_t index, fsccl_view_t* view) const;
  Status grad(size_t index, fsccl_view_t* view);
  Status sharded_grad(size_t index, fsccl_view_t* view);
  Status set_shards(void* const* shards);
  void mark_changed() { changed_ = true; }
  Status reduce_grads(const ReduceRequest& request, bool wait, fsccl_status_t* state,
                      Submitted* submitted);
  Status broadcast_state(int root, bool wait, fsccl_status_t* state, Submitted* submitted);
  Status verify_replicas();  // blocking
  Status check_idle();       // no operation of this unit runs: else an error
  Status check_zones();      // debug mode: nobody wrote beyond the slots that it holds

  std::string holdings() const;  // its name, and what it has in slots
  const UnitSpec& spec() const { return spec_; }
  const Layout& layout() const { return *layout_; }
  const SlotSet& parameter_slots() const { return slots_; }
  const SlotSet& gradient_slots() const { return grads_; }
  size_t slot_of(size_t index) const { return wire_map_.slot_of(layout_->owner(index)); }
  bool has_grad(size_t i) const { return !spec_.params[i].frozen; }
  bool keeps() const { return keep_; }
  bool unsharded() const { return unsharded_; }

 private:
  explicit Unit(UnitSpec spec) : spec_(std::move(spec)) {}
  Pool& pool() const { return *spec_.pool; }
  Communicator& comm() const { return *spec_.shard_comm; }
  Engine& engine() const { return spec_.shard_comm->engine(); }
  Communicator& here() const;  // the ranks of the shard_comm on this host
  size_t count() const { return spec_.params.size(); }
  bool copies_on_write() const { return spec_.sharing == FSCCL_SHARING_COPY_ON_WRITE; }
  bool shared() const { return spec_.sharing != FSCCL_SHARING_PRIVATE; }
  // The slots of the present unshard: the usual ones, or writable ones beside them.
  SlotSet& present_slots() { return writable_ && shared() ? writable_slots_ : slots_; }

  // creation
  Status span_hosts(UnitShape* unshard);
  void place_sums();
  Status place_shards();
  Status exchange_shards();
  void make_slots();
  void make_plans(const UnitShape& shape);
  void make_tables();
  void name_slots();
  template <class Visit>
  void each_slot_key(const Visit& visit) const;

  Status check_index(size_t index) const;
  Status finish(uint64_t sequence);           // waits for an operation of this unit
  Status finish_replicas(uint64_t sequence);  // ... on the replicate_comm
  Status wait_released(uint64_t position);    // by the calling thread, moving its own operations on
  // broadcast_state between hosts
  Status send_state(int root, bool wait, fsccl_status_t* state, Submitted* submitted);
  GradReduction& make_reduction(std::vector<size_t> params);
  void plan_reduction(GradReduction& reduction) const;
  GradReduction& wanted_reduction();
  Status want(const ReduceRequest& request);  // sets wanted_
  Status check_grads(const ReduceRequest& request) const;
  Status check_has_grad(size_t index) const;
  Status take_grad_slot(size_t k);
  // copies what peers need of the caller's gradients
  void publish_private(GradReduction& reduction, const void* const* grads);
  void place_sharded_grads(const GradReduction& reduction, void* const* places);
  void bind_grads(GradReduction& reduction) const;
  void add_range(Fingerprint* fingerprint) const;
  static Completion gathered(Operation& op);  // debug mode: the caller may touch the parameters
  Status check_reduce(const ReduceRequest& request) const;
  Status reduce_replicas(const ReduceRequest& request, bool wait, fsccl_status_t* state,
                         Submitted* submitted);
  // Hooks of the two phases of reduce_grads.
  struct Finish;
  static Finish& finish_of(Operation& op);
  static Unit& unit_of(Operation& op);
  static const GradReduction& reduction_of(Operation& op);
  static void shard_ready(Operation& op, size_t index);
  static void tell(const Finish& finish, size_t index);  // who asked for shard_ready
  static void shard_done(Operation& op, const Step& step);
  static Completion shards_summed(Operation& op);
  static Completion replicas_summed(Operation& op);
  void fill_fingerprint(Fingerprint* fingerprint, OpCode code, uint64_t elements,
                        uint8_t flags) const;
  void drop_writes();
  std::byte* seen_slot(size_t k);
  // parameter `index` is unsharded, not released
  Status check_there(size_t index, const char* call);
  void bind_slot(const SlotSet& slots, size_t k, Binding* binding) const;
  void run_plan(Operation& op, const PlannedUnit& planned, const Binding* bindings);
  OperationSettings gather_settings(uint64_t released) const;
  // Between hosts (unit_hosts.cpp).
  Status gather_between_hosts(const PlannedUnit& first, bool moves, bool writable,
                              uint64_t released, Chain* chain);
  Status sum_between_hosts(GradReduction& reduction, const OperationSettings& finishes,
                           Fingerprint fingerprint, Chain* chain);
  Status on_host(const PlannedUnit& planned, const Binding* bindings,
                 const OperationSettings& settings, const Fingerprint& fingerprint, Chain* chain);
  Status exchange(LaneExchange& pieces, Communicator& among, const SlotSet& slots,
                  const OperationSettings& settings, const Fingerprint& fingerprint, Chain* chain);
  void end_between_hosts(Operation& op, const Chain& chain) const;
  static Completion hosts_summed(Operation& op);

  UnitSpec spec_;
  uint64_t key_ = 0;
  uint64_t definition_hash_ = 0;
  std::unique_ptr<Layout> layout_;
  SlotMap wire_map_, grad_map_;
  std::vector<fsccl_dtype_t> wire_dtypes_;
  SlotSet slots_, writable_slots_, grads_;
  bool keep_ = false;
  int pool_host_ = 0;               // pool rank that hosts the shared slot
  std::unique_ptr<HostSpan> span_;  // null: on one host

  // per parameter, this rank's; null where it holds none
  std::vector<std::byte*> shards_, sharded_grads_;
  std::byte* shard_block_ = nullptr;  // owned storage in the pool
  std::byte* grad_block_ = nullptr;

  PlannedUnit unshard_plan_, writable_plan_, kept_plan_;
  std::vector<Binding> unshard_bindings_;
  UnitShape reduce_shape_;
  // of all gradients; by parameter then of each, and of others that were asked for
  std::deque<GradReduction> reductions_;
  std::vector<GradReduction*> alone_;         // by parameter: of its gradient
  std::vector<size_t> wanted_;                // parameters of the present request
  std::vector<Remote> regions_;               // own part of each shard rank of this host
  std::vector<const ReleaseLine*> releases_;  // likewise
  std::vector<Remote> replica_shards_;        // [parameter][replicate rank]
  std::vector<PlannedUnit> broadcast_plans_;  // per root, made at first use
  std::vector<Binding> broadcast_bindings_;
  std::vector<CollectiveCall> replica_sums_;  // what reduce_grads sums over the replicas
  // the last reduce_grads whose sum over the shard ranks is there, by its sequence
  ReleaseLine shards_summed_;

  // state
  bool unsharded_ = false;
  bool writable_ = false;  // the present slot is a private, writable one
  bool contents_valid_ = false;
  bool changed_ = true;
  bool replicas_pending_ = false;
  GradScaling scaling_;
  KeptSlot kept_slot_;  // of a unit that keeps its slot
  // position after which a kept slot may be rewritten
  uint64_t slot_released_ = 0;
  uint64_t unshard_sequence_ = 0, reduce_sequence_ = 0;  // of the last operations
  // of the last operation on the replicate_comm
  uint64_t replica_sequence_ = 0;
  uint64_t broadcast_sequence_ = 0;  // of the last broadcast_state
  bool counted_ = false;             // as a unit of its pool and communicators
  bool reduced_once_ = false;
  struct Reduced {
    uint64_t sequence = 0, position = 0;
  };
  std::vector<Reduced> reduced_;  // per gradient slot, the last time
};

}  // namespace fsccl
