#include "transports/mirror/mirrors.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>

#include "base/round_up.h"
#include "fsccl/transport.h"
#include "plan/turn.h"

namespace fsccl::mirror {
namespace {

constexpr size_t kLeastSlotBytes = 16u << 10;
// The bytes that one slot of each rank takes, over all ranks. The rings of a channel hold
// FSCCL_TRANSPORT_SLOTS slots a rank, so they take that many times as much.
constexpr size_t kSlotsBytes = 4u << 20;

}  // namespace

Result<std::shared_ptr<Mirrors>> Mirrors::make(size_t bytes) {
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED)
    return fail_errno(
        errno, fmt::format("cannot map {} bytes for the slots of a channel between hosts", bytes));
  madvise(base, bytes, MADV_DONTFORK);
  return std::make_shared<Mirrors>(static_cast<std::byte*>(base), bytes);
}
Mirrors::~Mirrors() { munmap(base_, bytes_); }

size_t chosen_slot_bytes(size_t ranks, size_t most) {
  return std::clamp(kSlotsBytes / ranks, kLeastSlotBytes, most);
}
// A ring has room of its own for small slots. If its slots are larger than a turn, it has room for
// turns as well: most plans use no more of a slot than a turn, and would go round past the caches.
size_t ring_bytes_of(size_t slot_bytes, size_t ranks) {
  const size_t turn = turn_bytes(slot_bytes, true, static_cast<int>(ranks)),
               apart = (turn < slot_bytes ? turn : 0) + turn / 16;
  return FSCCL_TRANSPORT_SLOTS * (slot_bytes + round_up(apart, Mirrors::kPage));
}

}  // namespace fsccl::mirror
