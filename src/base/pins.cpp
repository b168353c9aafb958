#include "base/pins.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <mutex>
#include <new>
#include <utility>

namespace fsccl {
namespace {

long membarrier(int command) { return syscall(SYS_membarrier, command, 0, 0); }

thread_local bool ended = false;  // true after this thread's destructors have run

}  // namespace

// g++ does not take the model over from the declaration.
[[gnu::tls_model("local-dynamic")]] constinit thread_local Pins::Record* Pins::mine = nullptr;
constinit std::atomic<Pins::Record*> Pins::all_{nullptr};
constinit std::atomic<bool> Pins::light_{false};

// Gives the record to a later thread when this one ends.
struct Pins::End {
  ~End() {
    if (Record* const record = std::exchange(mine, nullptr))
      // This store pairs with the exchange of `taken` in begin().
      record->taken.store(false, std::memory_order_release);
    ended = true;
  }
};

void Pins::prepare() {
  static std::once_flag once;
  std::call_once(once, [] {
    const long known = membarrier(MEMBARRIER_CMD_QUERY);
    light_.store(known > 0 && (known & MEMBARRIER_CMD_PRIVATE_EXPEDITED),
                 std::memory_order_relaxed);
  });
}

Pins::Record* Pins::begin() noexcept {
  if (ended) return nullptr;
  static thread_local End end;
  // This load pairs with the exchange of `all_` below. The exchange of `taken` pairs with the store
  // in ~End().
  for (Record* record = all_.load(std::memory_order_acquire); record; record = record->next) {
    if (record->taken.exchange(true, std::memory_order_acquire)) continue;
    return mine = record;
  }
  // The record is never freed, because a thread that ends an object may be reading it.
  auto* const record = new (std::nothrow) Record;
  if (!record) return nullptr;
  record->next = all_.load(std::memory_order_relaxed);
  // This exchange pairs with the loads of `all_` above, in fence_all_threads() and in held().
  while (!all_.compare_exchange_weak(record->next, record, std::memory_order_acq_rel)) {
  }
  return mine = record;
}

void Pins::fence_all_threads() noexcept {
  if (!light_.load(std::memory_order_relaxed)) return;
  const Record* const first = all_.load(std::memory_order_seq_cst);
  // In this case no other thread has ever pinned an object.
  if (first == mine && (!first || !first->next)) return;
  static const bool registered = membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0;
  if (registered && membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) == 0) return;
  (void)membarrier(MEMBARRIER_CMD_GLOBAL);
}

bool Pins::held(const void* what) noexcept {
  for (const Record* record = all_.load(std::memory_order_seq_cst); record; record = record->next)
    for (const Word& word : record->words)
      if (word.load(std::memory_order_seq_cst) == what) return true;  // pairs with clear()
  return false;
}

bool Pins::held_here(const void* what) noexcept {
  if (!mine) return false;
  for (const Word& word : mine->words)
    if (word.load(std::memory_order_relaxed) == what) return true;
  return false;
}

}  // namespace fsccl
