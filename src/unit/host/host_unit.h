// A unit on host memory. Slots, plans, the storage of shards and the tables of peers' slots are
// made when the unit is created; a reduction of some of the gradients gets its plan when it is
// first called. A step then only takes slots, binds offsets and submits operations; unit_step.cpp
// and unit_reduce.cpp have the calls of a step.
//
// A unit by parameter has a slot for each of its parameters and gradients. unshard takes all slots
// of parameters, with one gather; release() gives one of them back early; grad() takes the slot of
// one gradient; reduce_grads() reduces some gradients, by a plan for these. Reductions of different
// gradients may be in flight together, because each has bindings of its own.
//
// The ranks may be on several machines (hosts). Then each machine has slots of its own, the plans
// are of the ranks of one machine, and exchanges between machines run before or after them
// (unit_hosts.cpp). A last operation of the shard_comm ends when all of these have ended.
#pragma once
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "comm/chain.h"
#include "fsccl/insight.h"
#include "layout/layout.h"
#include "plan/unit_plans.h"
#include "pool/host/host_pool.h"
#include "unit/host/grad_reduction.h"
#include "unit/host/host_span.h"
#include "unit/host/slot_set.h"
#include "unit/unit.h"

namespace fsccl {

class HostUnit final : public Unit {
 public:
  // Collective over the unit's communicators, blocking. `pool` has its slots.
  static Result<std::unique_ptr<HostUnit>> create(UnitSpec spec, HostPool& pool);
  ~HostUnit() override;

  Status check_idle() override;
  Status check_zones() override;
  Status codec_report(fsccl_codec_report_t* report) const override;

  std::string holdings() const;  // returns the unit's name, and what it holds in slots
  const SlotSet& parameter_slots() const { return slots_; }
  const SlotSet& gradient_slots() const { return grads_; }
  size_t slot_of(size_t index) const { return definition_.wire_map.slot_of(layout().owner(index)); }

 private:
  HostUnit(UnitSpec spec, HostPool& pool) : Unit(std::move(spec)), pool_(pool) {}
  Status begin_call(void* stream) override { return refuse_stream(stream, "unit", spec_.name); }
  Status gather(bool writable, bool wait, fsccl_status_t* state, Submitted* submitted) override;
  Status give_back_params() override;
  Status give_back_param(size_t index) override;
  Result<std::byte*> param_slot(size_t index) override;
  Result<std::byte*> grad_slot(size_t index, void* stream) override;
  bool holds_grad(size_t index) const override {
    return grads_.held(definition_.grad_map.slot_of(index));
  }
  Status sum_grads(const ReduceRequest& request, bool wait, fsccl_status_t* state,
                   Submitted* submitted) override;
  Status check_reduced(size_t index) override;
  Status move_shards(void* const* shards) override;
  Status broadcast_shards(int root, bool wait, fsccl_status_t* state,
                          Submitted* submitted) override;
  Result<std::vector<uint64_t>> hash_shards() override;
  HostPool& pool() const { return pool_; }
  Communicator& host_comm() const;  // the ranks of the shard_comm on this host
  bool copies_on_write() const { return spec_.sharing == FSCCL_SHARING_COPY_ON_WRITE; }
  bool shared() const { return spec_.sharing != FSCCL_SHARING_PRIVATE; }
  // Returns the slots of the present unshard: slots_, or writable_slots_ if the unit shares slots
  // and the caller may write.
  SlotSet& present_slots() { return writable_ && shared() ? writable_slots_ : slots_; }

  // The following functions create the unit.
  Status span_hosts(UnitShape* unshard);
  void place_sums();
  Status place_shards();
  Status place_codecs();
  Status exchange_shards();
  void make_slots();
  void make_plans(const UnitShape& shape);
  void make_tables();
  void name_slots();
  template <class Visit>
  void each_slot_key(const Visit& visit) const;

  // Returns the engine whose operations end this unit's reductions.
  Engine& summing() const { return apart_ ? *apart_ : engine(); }
  Status make_sums_apart();
  template <class Visit>
  void each_engine(const Visit& visit) const;
  void await_failed() const;
  Status finish(Engine& engine, uint64_t sequence);  // waits for an operation of this unit
  Status finish_replicas(uint64_t sequence);         // waits for an operation on the replicate_comm
  // Waits in the calling thread, which moves its own operations on meanwhile.
  Status wait_released(uint64_t position);
  // Broadcasts the state between hosts.
  Status send_state(int root, bool wait, fsccl_status_t* state, Submitted* submitted);
  GradReduction& make_reduction(std::vector<size_t> params);
  void plan_reduction(GradReduction& reduction) const;
  GradReduction& wanted_reduction();
  Status take_grad_slot(size_t k);
  Status take_grad_slots(const GradReduction& reduction, bool callers);
  // Copies those pieces of the caller's gradients that peers reduce.
  void copy_private_gradients(GradReduction& reduction, const void* const* grads);
  void place_sharded_grads(const GradReduction& reduction, void* const* places);
  void bind_grads(GradReduction& reduction) const;
  void add_range(Fingerprint* fingerprint) const;
  static Completion gathered(Operation& op);  // debug mode: the caller may touch the parameters
  Status check_reduce(const ReduceRequest& request) const;
  struct Gather {
    bool writable, kept;        // the caller may write; the kept slot is valid
    uint64_t release_position;  // position at which the former contents were given back
  };
  Status submit_gather(const Gather& gather, Chain* chain, bool wait, fsccl_status_t* state,
                       Submitted* submitted);
  struct Reduction {
    const ReduceRequest& request;
    GradReduction& reduction;
    const OperationSettings& finishes;
    const Fingerprint& fingerprint;
    bool final;  // no more is added to these sums
  };
  Status submit_reduction(const Reduction& what, Chain* chain, bool wait, fsccl_status_t* state,
                          Submitted* submitted);
  Status reduce_replicas(const ReduceRequest& request, bool wait, fsccl_status_t* state,
                         Submitted* submitted);
  Status submit_replica_sums(const ReduceRequest& request, bool wait, fsccl_status_t* state);
  // Hooks of the two phases of reduce_grads.
  struct Finish;
  // `enters` is the operation on the communicator's engine that enters, if the sums are made apart.
  Status submit_sums(Operation& op, Operation* enters, const GradReduction& reduction, bool wait,
                     fsccl_status_t* state, Submitted* submitted);
  static Finish& finish_of(Operation& op);
  static HostUnit& unit_of(Operation& op);
  static const GradReduction& reduction_of(Operation& op);
  static void shard_ready(Operation& op, size_t index);
  static void tell(const Finish& finish, size_t index);  // calls the caller's shard_ready
  static bool telling();  // this thread is in a caller's shard_ready, of whatever unit
  static void shard_done(Operation& op, const Step& step);
  static Completion shards_summed(Operation& op);
  static Completion replicas_summed(Operation& op);
  void fill_fingerprint(Fingerprint* fingerprint, OpCode code, uint64_t elements,
                        uint8_t flags) const;
  void drop_writes();
  std::byte* seen_slot(size_t k);
  // Checks that the slot of parameter `index`, which is unsharded, was not released.
  Status check_there(size_t index);
  void bind_slot(const SlotSet& slots, size_t k, Binding* binding) const;
  void run_plan(Operation& op, const PlannedUnit& planned, const Binding* bindings);
  OperationSettings unshard_settings(uint64_t release_position) const;
  // The following functions are for units on several hosts or with a codec everywhere
  // (unit_hosts.cpp).
  Status unshard_between_hosts(const PlannedUnit& first, bool moves, bool writable,
                               uint64_t release_position, Chain* chain);
  Status sum_between_hosts(GradReduction& reduction, const OperationSettings& finishes,
                           Fingerprint fingerprint, Chain* chain);
  Status on_host(const PlannedUnit& planned, const Binding* bindings,
                 const OperationSettings& settings, const Fingerprint& fingerprint, Chain* chain);
  Status exchange(LaneExchange& pieces, Communicator& among, const SlotSet& slots,
                  const OperationSettings& settings, const Fingerprint& fingerprint, Chain* chain);
  void end_between_hosts(Operation& op, const Chain& chain) const;
  static Completion hosts_summed(Operation& op);

  HostPool& pool_;
  Engine* apart_ = nullptr;  // the engine that makes the sums of gradients, if they are made apart
  SlotSet slots_, writable_slots_, grads_;
  int shared_owner_ = 0;            // the pool rank in whose region shared slots lie
  std::unique_ptr<HostSpan> span_;  // null if all ranks are on one machine

  PlannedUnit unshard_plan_, writable_plan_, barrier_plan_;
  std::vector<Binding> unshard_bindings_;
  // The first is the reduction of all gradients. For a unit by parameter the reduction of each
  // gradient follows, and then those of other sets of gradients for which the program has asked.
  std::deque<GradReduction> reductions_;
  std::vector<GradReduction*> alone_;         // by parameter: the reduction of its gradient alone
  std::vector<Remote> regions_;               // the own part of each shard rank of this host
  std::vector<const Milestone*> releases_;    // by shard rank of this host
  std::vector<Remote> replica_shards_;        // [parameter][replicate rank]
  std::vector<PlannedUnit> broadcast_plans_;  // by root
  std::vector<Binding> broadcast_bindings_;
  std::vector<CollectiveCall> replica_sums_;  // tensors that reduce_grads sums over the replicas
  // The sequence number of the last reduce_grads whose sum over the shard ranks is complete.
  Milestone shards_summed_;

  // state
  bool writable_ = false;  // the present slot is a private, writable one
  KeptSlot kept_slot_;     // slot of a unit that keeps it
  // the release position of the last reshard of a unit that keeps its slot
  uint64_t kept_release_position_ = 0;
  uint64_t unshard_sequence_ = 0;  // number of the last unshard
  uint64_t reduce_sequence_ = 0;   // number of the last reduction in summing()
  // number of the last operation on the replicate_comm
  uint64_t replica_sequence_ = 0;
  uint64_t broadcast_sequence_ = 0;  // number of the last broadcast_state
  struct Reduced {
    uint64_t sequence = 0, position = 0;
  };
  std::vector<Reduced> reduced_;  // the last reduction of each gradient slot
};

}  // namespace fsccl
