// Sparse parts, for slots of a step that is not planned (backed_bytes.h). Bytes exist only where
// slots lie: when a slot is taken, its bytes are made, and as many free bytes of both parts are
// given back. A pool thus has little more memory than its live bytes, and never more than its
// limit. A slot has room if there are few enough live bytes, wherever the free bytes lie. A slot is
// refused only if it and the live bytes exceed the limit, if one rank's blocks or machine leave no
// room for it, or if the free addresses are fragmented (FSCCL_POOL_REGION_BYTES).
//
// When a step is planned, all bytes of the plan exist again from the first slot after the second
// step boundary on. After that, no slot needs a system call.
#include "base/limits.h"
#include "cuda/device.h"
#include "pool/host/host_pool.h"

namespace fsccl {

// Returns true if a pool may be sparse. It may not be if a source, a network card or a GPU driver
// may keep its pages: these would not see that other pages lie at an address.
bool HostPool::may_be_sparse(Communicator& comm, const PoolSource& source) {
  return !source.stack() && !comm.context().network_keeps_pages() &&
         page_bytes() <= CollectiveRegion::kAlignment && !cuda::devices_may_be_there();
}

// Returns the change that makes the bytes of a placed slot exist, such that at most `most` bytes of
// slots exist.
HostPool::MemoryChange HostPool::backing(PartKind part, uint64_t begin, uint64_t end,
                                         uint64_t most) {
  const PartKind other = part == PartKind::shared ? PartKind::own : PartKind::shared;
  const uint64_t live = region(part).live(), beside = memory_->backed(other).bytes();
  const uint64_t spared = live + beside > most ? live + beside - most : 0;
  MemoryChange change;
  change.add(part, memory_->backed(part).place(begin, end, region(part), most - (beside - spared)));
  if (!change.made[static_cast<size_t>(part)].empty())
    change.add(other, memory_->backed(other).spare(spared, region(other)));
  return change;
}

// Makes the bytes of a slot exist. If a rank lacks memory, all ranks give back as many bytes that
// are in no slot, and try once more.
Status HostPool::back(PartKind part, Slot* slot, uint64_t bytes, const Requester& requester) {
  const uint64_t begin = slot->offset, end = begin + bytes;
  if (end <= memory_->backed(part).whole()) return success();
  uint64_t most = memory_->most_slots();
  for (bool again = false;; again = true) {
    const MemoryChange change = backing(part, begin, end, most);
    uint64_t exist = memory_->extent(PartKind::shared) + memory_->extent(PartKind::own),
             lacking = 0;
    for (const size_t p : {0, 1}) {
      for (const auto& [from, to] : change.made[p]) exist += to - from;
      for (const auto& [from, to] : change.given_back[p]) exist -= to - from;
    }
    Status status = carry_out(change, requester, &lacking);
    if (again)
      slot->release_position =
          std::max(slot->release_position, region(part).given_back(begin, end));
    const uint64_t live = shared_->live() + own_->live();
    if (status.ok() || !lacking || again || exist < live + lacking) return status;
    most = exist - lacking;
  }
}

// Returns how many bytes of each part should exist as a whole: whole huge pages if the limit has
// room for them.
std::array<uint64_t, 2> HostPool::whole_extents() const {
  const std::array<uint64_t, 2> exact{shared_->whole_extent(), own_->whole_extent()};
  std::array<uint64_t, 2> rounded{};
  for (const size_t p : {0, 1})
    rounded[p] = std::min(round_up(exact[p], PoolMemory::kGrowth), part_bytes_);
  return rounded[0] + rounded[1] <= memory_->most_slots() ? rounded : exact;
}

// Decides at a step boundary whether to make the plan's memory whole again. Bytes of the plan must
// have been missing at two successive boundaries, so that a single deviating step costs nothing
// more.
void HostPool::look_if_torn() {
  const std::array<uint64_t, 2> whole = whole_extents();
  const bool torn = !memory_->backed(PartKind::shared).is(whole[0]) ||
                    !memory_->backed(PartKind::own).is(whole[1]);
  mend_due_ = torn && torn_;
  torn_ = torn;
}

Status HostPool::plan_mending(MemoryChange* change) {
  const std::array<uint64_t, 2> whole = whole_extents();
  uint64_t bytes = 0;
  for (const PartKind part : {PartKind::shared, PartKind::own})
    bytes += memory_->backed(part).bytes_if_mended(whole[static_cast<size_t>(part)], region(part));
  if (bytes > memory_->most_slots()) return memory_->refuse_slot(bytes);
  for (const PartKind part : {PartKind::shared, PartKind::own})
    change->add(part, memory_->backed(part).mend(whole[static_cast<size_t>(part)], region(part)));
  return success();
}

// Makes all bytes of the plan exist. All ranks that take the next slot call it before they take it.
// If there is too little memory, the parts stay sparse.
Status HostPool::mend(const Requester& requester) {
  mend_due_ = torn_ = false;
  MemoryChange change;
  if (!plan_mending(&change).ok()) return success();
  uint64_t lacking = 0;
  Status status = carry_out(change, requester, &lacking);
  return lacking ? success() : std::move(status);
}

}  // namespace fsccl
