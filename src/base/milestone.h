// A number that only grows, and on which threads can sleep until it has grown. An engine counts its
// complete operations in one, and each gate waits for one. In the control pages of a pool each rank
// has one, its release line (pool/host/release_ledger.h).
#pragma once
#include <atomic>
#include <bit>
#include <cstdint>

#include "base/futex.h"
#include "fsccl/transport.h"

namespace fsccl {

struct alignas(64) Milestone {
  uint64_t position = 0;
  uint32_t sleepers = 0;
  // Returns the position. The caller sees what the rank did before it reached the position.
  uint64_t reached() const {
    // This load pairs with the store in reach().
    return std::atomic_ref(const_cast<uint64_t&>(position)).load(std::memory_order_acquire);
  }
  // Advances the position. One thread at a time calls this.
  void reach(uint64_t to) {
    // This store pairs with the load in reached().
    std::atomic_ref(position).store(to, std::memory_order_release);
    futex_wake_sleepers(word(), &sleepers);
  }
  // The word to sleep on: the low half of the position, which comes first, because FSCCL runs on
  // little endian machines only. It is read by the kernel and by futex_load() alone.
  uint32_t* word() { return reinterpret_cast<uint32_t*>(&position); }
  void fill_word(fsccl_transport_word_t* to) const {
    auto* const self = const_cast<Milestone*>(this);
    to->word = self->word();
    to->value = static_cast<uint32_t>(reached());
    to->sleepers = &self->sleepers;
    to->processor = -1;
  }
};
static_assert(std::endian::native == std::endian::little);

}  // namespace fsccl
