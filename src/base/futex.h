// Sleeping on a 32-bit word in memory that processes share, and the rule that makes it safe: a sleeper counts itself in `sleepers`
// with a full barrier before it looks at the word a last time, and a signaller writes the word with a full barrier (an exchange)
// before it looks at `sleepers`. One of the two always sees the other.
//
// A signaller that has no time for the barrier stores and looks: its store can be seen later than its look was, by less than
// kBriefNs, since no processor keeps a store to itself for longer than the stores before it take. Who sleeps on such a word sleeps
// briefly first, stays counted, and looks again (futex_sleep_counted): then it sees the store, or any later look sees the sleeper.
#pragma once
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdint>
#include <ctime>

namespace fsccl {

inline void futex_wake_all(uint32_t* word) { syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

// Returns when *word differs from `value`, somebody woke us, or the time is over: the caller looks again.
inline void futex_wait(uint32_t* word, uint32_t value, int64_t timeout_ns) {
  const timespec timeout{timeout_ns / 1'000'000'000, timeout_ns % 1'000'000'000};
  syscall(SYS_futex, word, FUTEX_WAIT, value, &timeout, nullptr, 0);
}

inline constexpr int64_t kBriefNs = 200'000;

// The sleeper's half of the rule.
inline void futex_sleep(uint32_t* word, uint32_t value, uint32_t* sleepers, int64_t timeout_ns) {
  std::atomic_ref<uint32_t> count(*sleepers);
  count.fetch_add(1, std::memory_order_seq_cst);
  if (std::atomic_ref<uint32_t>(*word).load(std::memory_order_seq_cst) == value) futex_wait(word, value, timeout_ns);
  count.fetch_sub(1, std::memory_order_relaxed);
}

// The same on a word that is signalled without a barrier.
inline void futex_sleep_counted(uint32_t* word, uint32_t value, uint32_t* sleepers, int64_t timeout_ns) {
  std::atomic_ref<uint32_t> count(*sleepers);
  count.fetch_add(1, std::memory_order_seq_cst);
  for (const int64_t slice_ns : {std::min(timeout_ns, kBriefNs), timeout_ns - kBriefNs})
    if (slice_ns > 0 && std::atomic_ref<uint32_t>(*word).load(std::memory_order_seq_cst) == value)
      futex_wait(word, value, slice_ns);
  count.fetch_sub(1, std::memory_order_relaxed);
}

// The signaller's half: stores and wakes whoever sleeps.
inline void futex_store(uint32_t* word, uint32_t value, uint32_t* sleepers) {
  std::atomic_ref<uint32_t>(*word).exchange(value, std::memory_order_seq_cst);
  if (std::atomic_ref<uint32_t>(*sleepers).load(std::memory_order_relaxed) != 0) [[unlikely]]
    futex_wake_all(word);
}

}  // namespace fsccl
