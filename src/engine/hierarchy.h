// Collectives of a communicator between hosts, by hosts: inside each host through its own communicator, between hosts over as many
// lanes as a host has ranks, each of which joins the ranks with the same place on their hosts. A byte then crosses between two
// hosts once, not once for every rank there. An operation is made of operations of these communicators, one behind the other, and
// the whole communicator's own, without steps, which is over when the last of them is:
//
//   all_gather       lanes gather what their ranks bring; then each host gathers what its lanes have
//   reduce_scatter   each host sums, for every rank of a lane; then lanes sum over hosts
//   all_reduce       each host sums, a part for every lane; lanes sum their parts over hosts; each host gathers the parts
//   broadcast        in the root's host; then each lane carries its part to the other hosts; those gather the parts
//
// Sums are thus over the ranks of a host, in rank order and rounded to the type, and then over hosts: other bits than in rank order
// over all ranks, the same in every run. FSCCL_REPRODUCIBLE=placement keeps to rank order.
//
// For hosts with equally many ranks, numbered host by host.
#pragma once
#include <memory>
#include <vector>

#include "engine/list.h"

namespace fsccl {

class Communicator;

class Hierarchy {
 public:
  // Collective over the ranks of `whole`, which lie on several hosts. Null where hosts differ or have one rank each.
  static Result<std::unique_ptr<Hierarchy>> create(Communicator& whole);
  ~Hierarchy();

  // Whether a call goes by hosts. The same on all ranks.
  bool takes(const CollectiveCall& call) const;
  // A call that was checked.
  Status run(const CollectiveCall& call, bool wait, fsccl_status_t* state);

 private:
  explicit Hierarchy(Communicator& whole);
  Status all_gather(const CollectiveCall& call);
  Status reduce_scatter(const CollectiveCall& call);
  Status all_reduce(const CollectiveCall& call);
  Status broadcast(const CollectiveCall& call);
  Status gather_parts(const CollectiveCall& call, const std::byte* own);
  Status on(Communicator& part, CollectiveCall call, bool last_sum = false);
  Status on_host(ListCall call);
  void follow(Operation& op, bool last_sum) const;
  void cut(uint64_t count, fsccl_dtype_t dtype);
  Status finish();

  Communicator& whole_;
  std::unique_ptr<Communicator> host_, lane_;
  size_t hosts_ = 0, per_host_ = 0;
  bool always_ = false;       // whatever the size
  bool sums_ = true;          // reductions, too
  Engine* before_ = nullptr;  // of the operation that the next stage follows, and its number there
  uint64_t before_sequence_ = 0;
  std::vector<size_t> counts_, displacements_;  // of the parts of a stage
  std::vector<fsccl_tensor_t> tensors_;         // of a stage
  std::vector<std::byte> partial_;              // sums over this host
  Plan nothing_;
};

}  // namespace fsccl
