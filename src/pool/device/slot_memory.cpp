#include "pool/device/slot_memory.h"

#include <algorithm>

#include "base/hash.h"
#include "base/round_up.h"
#include "base/undo.h"
#include "comm/consensus.h"
#include "comm/together.h"

namespace fsccl {

Result<std::unique_ptr<SlotMemory>> SlotMemory::create(Communicator& comm, DeviceMemory& memory,
                                                       const Reach& reach) {
  std::unique_ptr<SlotMemory> slots(new SlotMemory(comm, memory, reach.granularity));
  const auto reserve = [&]() -> Status {
    for (int rank = 0; rank < comm.size(); rank++) {
      if (rank == comm.rank() || !reach.reaches[static_cast<size_t>(rank)]) continue;
      FSCCL_ASSIGN(DeviceArena view, DeviceArena::reserve(memory.arena(DevicePart::slots).device(),
                                                          reach.slots_limit));
      slots->peers_.emplace(rank, std::move(view));
    }
    return success();
  };
  FSCCL_TRY(all_ok(comm, reserve(), "reserve addresses for the slots of its peers"));
  return slots;
}

Status SlotMemory::publish(uint64_t tag) {
  const DeviceArena& own = memory_.arena(DevicePart::slots);
  if (peers_.empty()) return success();
  FSCCL_ASSIGN(const Fd fd, own.export_segment(own.segments() - 1));
  return comm_.context().job().publish_fd(tag, fd.get());
}

Status SlotMemory::adopt(const std::vector<uint64_t>& tags, uint64_t bytes) {
  for (auto& [rank, view] : peers_) {
    const Engine::RecordedWait recorded(comm_.engine(), rank, recording::Duty::give_descriptor);
    FSCCL_ASSIGN(Fd fd, comm_.context().job().fetch_fd(
                            comm_.job_rank(rank), tags[static_cast<size_t>(rank)], comm_.deadline(),
                            [this] { return comm_.engine().intact(); }));
    FSCCL_TRY(view.adopt(std::move(fd), bytes));
  }
  return success();
}

// The ranks vote twice: first that every rank has its own memory, then that every rank has mapped
// the memory of its peers. Between the two votes they fetch descriptors of segments.
Status SlotMemory::grow_together(uint64_t extent) {
  const Together together(comm_);
  const uint64_t before = bytes(), more = round_up(extent, granularity_) - before;
  const uint64_t tag =
      mix_hash(mix_hash(comm_.tag(), 0x6770757365676d74), comm_.context().next_arena_number()) | 1;
  bool asked = false;
  Status status = memory_.grow(DevicePart::slots, more, &asked);
  Undo undo([&] { (void)shrink(before); });
  if (status.ok()) status = publish(tag);
  Undo withdraw([&] { comm_.context().job().withdraw_fd(tag); });
  FSCCL_TRY(
      all_ok(comm_, std::move(status), fmt::format("grow the pool's slots by {} bytes", more)));
  FSCCL_ASSIGN(const std::vector<uint64_t> tags, all_gather(comm_, tag));
  FSCCL_TRY(all_ok(comm_, adopt(tags, more), "map the slots of its peers"));
  undo.keep();
  return success();
}

uint64_t SlotMemory::shrink(uint64_t extent) {
  for (auto& [rank, view] : peers_) (void)view.shrink(extent);
  return memory_.shrink(DevicePart::slots, extent);
}

void SlotMemory::leak() {
  for (auto& [rank, view] : peers_) view.leak();
}

}  // namespace fsccl
