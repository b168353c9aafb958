// Collectives of a communicator of several hosts in two levels. The ranks of a host communicate
// through its own communicator, and hosts communicate over lanes (hosts.h). A byte then crosses
// between two hosts once, and not once for every rank there. A collective has several stages, which
// are operations of these communicators and run one after the other. A last operation of the whole
// communicator has no steps, and ends when the stages have ended. The stages are:
//
//   all_gather       A host that has ranks without a lane gathers its parts first. Lanes gather the
//                    parts that their ranks have. Each host gathers the parts of its lanes.
//   reduce_scatter   Each rank of a host sums the parts of its lane over the host. Lanes sum over
//                    the hosts. Ranks without a lane get their sums from a rank of their host.
//   all_reduce       Each rank of a host sums a part for its lane. Lanes sum their parts over the
//                    hosts. Each host gathers the parts.
//   barrier          Each host has a barrier, and then each lane. A host that has ranks without a
//                    lane has another one.
//   broadcast        The root's host broadcasts. Each lane sends its part to the other hosts. These
//                    gather the parts.
//
// The v forms and the lists have the same stages with other parts. Hosts and their ranks may be
// numbered in any order, and hosts may have different numbers of ranks.
//
// Sums are made over the ranks of a host, in rank order, and then over hosts, in the order of their
// first ranks. Their bits differ from those of sums in rank order over all ranks, and are the same
// in every run. With FSCCL_REPRODUCIBLE=placement sums are made in rank order. A host's sum of
// 16-bit floats is sent to other hosts in fp32, in which it was accumulated. This takes twice the
// bytes, and the result is rounded to 16 bits only once.
#pragma once
#include <memory>
#include <vector>

#include "comm/chain.h"
#include "comm/hosts.h"
#include "comm/list.h"
#include "select/stages.h"

namespace fsccl {

class Communicator;

// Returns the type in which the sum of a host's ranks is sent to other hosts. It is the type in
// which it was accumulated, if the operator can use it.
fsccl_dtype_t partial_dtype(fsccl_dtype_t dtype, fsccl_op_t op);

class Hierarchy {
 public:
  Hierarchy(Communicator& whole, const Hosts& hosts);

  // Returns true if a call can run in two levels and this was chosen for it. The result is the same
  // on all ranks.
  bool takes(const CollectiveCall& call) const;
  bool takes(const ListCall& call) const;
  HostsChoice choose(const CollectiveCall& call, const Shape& shape) const;
  // Runs a call that was checked.
  Status run(const CollectiveCall& call, bool wait, fsccl_status_t* state);
  Status run(const ListCall& call, bool wait, fsccl_status_t* state);

 private:
  // A rank's part: the input of an all-gather, or the result of a reduce-scatter.
  struct Part {
    size_t rank = 0, tensor = 0;  // parts of a tensor lie one behind the other, on every rank
    size_t count = 0;
    fsccl_dtype_t dtype{};
    fsccl_dtype_t partial_dtype{};  // type of the part's sum over this host
    std::byte* at = nullptr;        // its place among the parts of all ranks
    std::byte* own = nullptr;       // the place where this rank's part lies alone
    uint64_t partial = 0;           // offset in scratch_ of its sum over this host
    uint64_t result = 0;  // offset in scratch_ of its sum over all hosts, for a rank without a lane
  };
  // A part in a stage, and the rank that sends it or gets it.
  struct Held {
    size_t holder = 0, count = 0;
    fsccl_dtype_t dtype{}, received{};  // types of the part as it is sent and as it is received
    bool joins = false;                 // it is in the same tensor as the part before
    std::byte *at = nullptr, *own = nullptr;
  };
  // Says which parts are joined in one tensor. holders: parts of successive holders; all: also
  // several parts of one holder, which lie end to end.
  enum class Join : uint8_t { never, holders, all };

  template <class Call>
  Status run_stages(const Call& call, bool wait, fsccl_status_t* state);
  Status stages(const CollectiveCall& call);
  Status stages(const ListCall& call);
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
  Status barrier();
  Status broadcast(const CollectiveCall& call);
  Status broadcast(const ListCall& call);
  Status gather_cut(const CollectiveCall& call, const std::byte* own);
  template <class Call>
  Status on(Communicator& part, Call call, bool last_sum = false);
  void follow(Operation& op, bool last_sum) const;
  void cut(uint64_t count, fsccl_dtype_t dtype);
  Status end(const Fingerprint& fingerprint, bool wait, fsccl_status_t* state);
  Status finish();

  Communicator& whole_;
  const Hosts& at_;
  const std::vector<Hosts::Place>& places_;  // by rank
  const Hosts::Place own_place_;
  Communicator* const host_;
  Communicator* const lane_;  // null on a rank without a lane
  const HierarchyMode mode_;
  const uint64_t least_list_;     // bytes of a list that runs in two levels
  const bool sums_;               // reductions run in two levels, too
  OpCode called_ = OpCode::none;  // the call whose stages run
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
