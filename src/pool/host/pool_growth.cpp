// The memory of slots grows and shrinks on all ranks or on none. The history of calls determines
// the place of a slot, so it is the same on all ranks. Each rank's blocks and machine decide,
// however, whether it has memory for the slot. The ranks that take a slot therefore agree whenever
// memory has to be made: each makes its own, votes, and gives it back if any of them has failed. In
// that case all of them return the same error and can continue. A step that fits the existing
// memory makes none, and does not communicate.
//
// Bytes go back to the system only when every rank has released them. Their return is an event of
// the history. A rank that takes a slot there later waits until every rank has passed the event, so
// that no rank returns bytes that another rank has written since.
#include <algorithm>

#include "pool/host/host_pool.h"

namespace fsccl {
namespace {

// A rank's vote on memory that all ranks must have.
struct GrowthVote {
  uint64_t lacking = 0;  // bytes that it could not make; 0: it has its memory
  uint64_t limit = 0;
};

constexpr uint8_t kGrowing = 0x80;  // flag of the fingerprint: the ranks agree on memory

Status gather_votes(const HostPool::Requester& requester, const GrowthVote& mine,
                    std::vector<GrowthVote>* all) {
  all->assign(static_cast<size_t>(requester.comm.size()), mine);
  if (all->size() == 1) return success();
  CollectiveCall call;
  call.op = OpCode::all_gather;
  call.input = &mine;
  call.output = all->data();
  call.count = sizeof mine;
  const auto claim_growth = [&](Operation& op) {
    const uint64_t sequence = op.fingerprint.sequence;
    op.fingerprint = requester.operation;
    op.fingerprint.sequence = sequence;
    op.fingerprint.flags |= kGrowing;
  };
  call.prepare = claim_growth;
  fsccl_status_t state;
  return requester.comm.run(call, true, &state);
}

}  // namespace

bool HostPool::MemoryChange::empty() const {
  return given_back[0].empty() && given_back[1].empty() && made[0].empty() && made[1].empty();
}

void HostPool::MemoryChange::add(PartKind part, BackedBytes::Change&& change) {
  given_back[static_cast<size_t>(part)] = std::move(change.given_back);
  made[static_cast<size_t>(part)] = std::move(change.made);
  released = std::max(released, change.released);
}

// Votes on memory. `mine` is success if this rank has its memory, and *lacking is the number of
// bytes that it lacks. *lacking is set to the most that any rank lacks, or to 0 if all have their
// memory or if the agreement itself has failed.
Status HostPool::agree_on_memory(const Requester& requester, Status mine, uint64_t* lacking) const {
  const GrowthVote vote =
      mine.ok() ? GrowthVote{} : GrowthVote{std::max<uint64_t>(*lacking, 1), memory_->limit()};
  *lacking = 0;
  std::vector<GrowthVote> all;
  FSCCL_TRY(gather_votes(requester, vote, &all));
  const auto worst = std::max_element(
      all.begin(), all.end(),
      [](const GrowthVote& a, const GrowthVote& b) { return a.lacking < b.lacking; });
  *lacking = worst->lacking;
  if (!*lacking) return success();
  if (!mine.ok())
    return mine.code() == FSCCL_ERR_OUT_OF_MEMORY
               ? std::move(mine)
               : fail(FSCCL_ERR_OUT_OF_MEMORY, "{}", mine.text());
  return fail(FSCCL_ERR_OUT_OF_MEMORY,
              "pool '{}' of rank {} has no room for {} bytes more, within its limit of {} or on "
              "its machine: what was asked for is "
              "refused on all ranks, and nothing has changed. Free blocks on that rank, or raise "
              "its FSCCL_POOL_LIMIT or limit_bytes; "
              "its own error says more",
              name_, worst - all.begin(), worst->lacking, worst->limit);
}

// Carries out the change. All ranks of the requester call it at the same place in their histories.
// Memory that is given back stays given back. Memory is made on all ranks or on none. If it is made
// on none, the error says so, and *lacking is set to the missing bytes. After any other error the
// communicator has failed.
Status HostPool::carry_out(const MemoryChange& change, const Requester& requester,
                           uint64_t* lacking) {
  *lacking = 0;
  if (change.empty()) return success();
  if (!change.given_back[0].empty() || !change.given_back[1].empty()) {
    if (Status released = wait_released(change.released); !released.ok()) {
      requester.comm.engine().fail_all(released.error());  // the other ranks may wait for this one
      return released;
    }
    take_back(change.given_back, {true, true});
  }
  Status mine;
  std::array<bool, 2> made{};
  for (const PartKind part : {PartKind::shared, PartKind::own}) {
    const auto p = static_cast<size_t>(part);
    const BackedBytes::Ranges& ranges = change.made[p];
    if (ranges.empty() || !mine.ok()) continue;
    mine = memory_->sparse() ? memory_->make(part, owner_of(part), ranges, lacking)
                             : memory_->grow(part, owner_of(part), ranges.back().second, lacking);
    made[p] = mine.ok();
  }
  Status agreed;
  if (!change.made[0].empty() || !change.made[1].empty())
    agreed = agree_on_memory(requester, std::move(mine), lacking);
  if (!agreed.ok()) take_back(change.made, made);
  set_room();
  look_if_ready();
  return agreed;
}

// Gives ranges of both parts back. `there` says, for each part, whether this rank has their memory.
void HostPool::take_back(const std::array<BackedBytes::Ranges, 2>& ranges,
                         const std::array<bool, 2>& there) {
  const uint64_t position = ledger_.next();
  for (const PartKind part : {PartKind::shared, PartKind::own}) {
    const auto p = static_cast<size_t>(part);
    if (there[p] && !memory_->sparse() && !ranges[p].empty())
      memory_->cut(part, owner_of(part), ranges[p].front().first);
    for (const auto& [begin, end] : ranges[p]) {
      if (there[p] && memory_->sparse()) memory_->give_back(part, owner_of(part), begin, end);
      region(part).give_up(begin, end, position);
    }
  }
  ledger_.done(position);
}

// Adds the growth of a part that is not sparse to the change.
void HostPool::add_growth(PartKind part, MemoryChange* change) {
  const uint64_t exists = memory_->extent(part), extent = region(part).extent();
  if (extent <= exists) return;
  const uint64_t room =
      memory_->slot_room(claim(part == PartKind::shared ? PartKind::own : PartKind::shared));
  change->made[static_cast<size_t>(part)] = {{exists, memory_->rounded(extent, room)}};
}

Status HostPool::grow(PartKind part, const Requester& requester) {
  MemoryChange change;
  add_growth(part, &change);
  uint64_t lacking = 0;
  return carry_out(change, requester, &lacking);
}

}  // namespace fsccl
