// Collectives of a communicator between hosts, by hosts: inside each host through its own
// communicator, between hosts over lanes (hosts.h). A byte then crosses between two hosts once, not
// once for every rank there. An operation is made of operations of these communicators, one behind
// the other, and the whole communicator's own, without steps, which is over when the last of them
// is:
//
//   all_gather       hosts with ranks without a lane gather; lanes gather what their ranks bring or
//                    carry; then each host gathers what its lanes have
//   reduce_scatter   each host sums, for every rank, where its lane is; then lanes sum over hosts;
//                    what is of ranks without a lane is gathered in their host
//   all_reduce       each host sums, a part for every lane; lanes sum their parts over hosts; each
//                    host gathers the parts
//   broadcast        in the root's host; then each lane carries its part to the other hosts; those
//                    gather the parts
//
// The v forms and the lists are the same with other parts. Hosts and their ranks may be numbered in
// any order, and hosts may differ.
//
// Sums are thus over the ranks of a host, in rank order, and then over hosts, in the order of their
// first ranks: other bits than in rank order over all ranks, the same in every run.
// FSCCL_REPRODUCIBLE=placement keeps to rank order. A host's sum of 16-bit floats crosses to other
// hosts as the fp32 that it was accumulated in, twice the bytes, so that the result is rounded to
// 16 bits once.
#pragma once
#include <memory>
#include <vector>

#include "comm/chain.h"
#include "comm/hosts.h"
#include "comm/list.h"
#include "select/stages.h"

namespace fsccl {

class Communicator;

// In which type the sum of a host's ranks goes to other hosts: that of the accumulator, where the
// operator can use it.
fsccl_dtype_t partial_dtype(fsccl_dtype_t dtype, fsccl_op_t op);

class Hierarchy {
 public:
  Hierarchy(Communicator& whole, const Hosts& hosts);

  // Returns true if a call can go by hosts, and if that is the choice for such a call. The same on
  // all ranks.
  bool takes(const CollectiveCall& call) const;
  bool takes(const ListCall& call) const;
  HostsChoice choose(const CollectiveCall& call, const Shape& shape) const;
  // A call that was checked.
  Status run(const CollectiveCall& call, bool wait, fsccl_status_t* state);
  Status run(const ListCall& call, bool wait, fsccl_status_t* state);

 private:
  // A rank's part: the input of an all-gather, or the result of a reduce-scatter.
  struct Part {
    size_t rank = 0, tensor = 0;  // parts of a tensor lie one behind the other, on every rank
    size_t count = 0;
    fsccl_dtype_t dtype{};
    fsccl_dtype_t partial_dtype{};  // type of its sum over this host
    std::byte* at = nullptr;        // among those of all
    std::byte* own = nullptr;       // this rank's: alone
    uint64_t partial = 0;           // in scratch_: its sum over this host
    uint64_t result = 0;  // type of its sum over all hosts, if another rank of this host carries it
  };
  // A part in a stage: who brings or gets it there.
  struct Held {
    size_t holder = 0, count = 0;
    fsccl_dtype_t dtype{}, received{};  // received: what is got has this one
    bool joins = false;                 // in one tensor with the one before
    std::byte *at = nullptr, *own = nullptr;
  };
  // all: parts of one holder lie one behind the other there, too
  enum class Join : uint8_t { never, holders, all };

  void parts_of(const CollectiveCall& call);
  void parts_of(const ListCall& call);
  size_t lane_of(const Part& part) const { return at_.lane_of(part.rank); }
  bool carried(const Part& part) const {
    return places_[part.rank].host == own_place_.host && places_[part.rank].index >= at_.lanes();
  }
  uint64_t place_partials();

  template <class Use>
  void hold(Join join, Use use);
  Status stage_list(Communicator& part, ListKind kind, fsccl_op_t reduction = FSCCL_SUM,
                    bool last_sum = false);
  Status stage_rounds(ListKind kind, std::byte* base, fsccl_op_t reduction = FSCCL_SUM);
  Status gather(std::byte* plain);
  Status reduce_scatter(fsccl_op_t reduction, bool plain);
  Status all_reduce(const CollectiveCall& call);
  Status all_reduce_wide(const CollectiveCall& call);
  Status reserve_scratch(uint64_t bytes);
  Status broadcast(const CollectiveCall& call);
  Status broadcast(const ListCall& call);
  Status gather_cut(const CollectiveCall& call, const std::byte* own);
  template <class Call>
  Status on(Communicator& part, Call call, bool last_sum = false);
  void follow(Operation& op, bool last_sum) const;
  void cut(uint64_t count, fsccl_dtype_t dtype);
  void begin();
  Status end(OpCode op, uint64_t count, bool wait, fsccl_status_t* state);
  Status finish();

  Communicator& whole_;
  const Hosts& at_;
  const std::vector<Hosts::Place>& places_;  // by rank
  const Hosts::Place own_place_;
  Communicator* const host_;
  Communicator* const lane_;  // null on a rank without one
  const HierarchyMode mode_;
  const bool sums_;  // reductions, too
  Chain chain_;
  std::vector<Part> parts_;                     // parts of a call
  std::vector<Held> held_;                      // pieces of a stage
  std::vector<size_t> counts_, displacements_;  // counts of a stage
  std::vector<size_t> seen_;                    // parts of each host
  std::vector<fsccl_tensor_t> tensors_;         // tensors of a stage
  std::vector<fsccl_dtype_t> received_;         // received types of a stage, by tensor
  std::vector<std::byte> scratch_;              // sums
  Plan empty_plan_;
};

}  // namespace fsccl
