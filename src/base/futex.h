// Sleeping on a 32-bit word in memory that processes share, without a memory barrier on the side of
// the signaller. The signaller stores the word and then looks whether anybody sleeps. A sleeper
// counts itself in `sleepers` with a full barrier before it looks at the word for the last time.
// The two can miss each other only while the signaller's store has not left its processor. This
// takes less than kBriefNs, because no processor keeps a store to itself for longer than the stores
// before it take. A sleeper therefore first sleeps briefly, stays counted, and looks again: then it
// sees the store, or a later look of the signaller sees the sleeper.
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

inline void futex_wake_all(uint32_t* word) {
  syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// Returns when *word differs from `value`, when another thread wakes this one, or when the time is
// over. It may also return for no reason, so the caller looks at the word again.
inline void futex_wait(uint32_t* word, uint32_t value, int64_t timeout_ns) {
  const timespec timeout{timeout_ns / 1'000'000'000, timeout_ns % 1'000'000'000};
  syscall(SYS_futex, word, FUTEX_WAIT, value, &timeout, nullptr, 0);
}

inline constexpr int64_t kBriefNs = 200'000;

// The word may be one half of a wider object (Milestone in base/milestone.h), so this function
// reads it through a type that may alias others.
inline uint32_t futex_load(const uint32_t* word) {
  using Aliasing [[gnu::may_alias]] = uint32_t;
  return __atomic_load_n(reinterpret_cast<const Aliasing*>(word), __ATOMIC_SEQ_CST);
}

// A thread that sleeps until a word changes: the sleeper's side of the protocol above. It counts
// itself with a full barrier at its first sleep on a word, and that sleep is brief. It stays
// counted between its sleeps, so the later ones take as long as the caller asks. The destructor
// ends that: the memory of `sleepers` has to outlive the object.
class FutexSleeper {
 public:
  FutexSleeper() = default;
  FutexSleeper(const FutexSleeper&) = delete;
  FutexSleeper& operator=(const FutexSleeper&) = delete;
  ~FutexSleeper() { leave(); }

  // Sleeps until the word differs from `value`, a signaller wakes this thread, or the time is over.
  // The caller looks again, and may call again.
  void sleep(uint32_t* word, uint32_t value, uint32_t* sleepers, int64_t timeout_ns) {
    if (word != word_ || value != value_ || sleepers != sleepers_) {
      leave();
      std::atomic_ref<uint32_t>(*sleepers).fetch_add(1, std::memory_order_seq_cst);
      word_ = word;
      value_ = value;
      sleepers_ = sleepers;
      const int64_t brief_ns = std::min(timeout_ns, kBriefNs);
      if (futex_load(word) == value) futex_wait(word, value, brief_ns);
      timeout_ns -= brief_ns;
    }
    if (timeout_ns > 0 && futex_load(word) == value) futex_wait(word, value, timeout_ns);
  }

 private:
  void leave() {
    if (sleepers_) std::atomic_ref<uint32_t>(*sleepers_).fetch_sub(1, std::memory_order_relaxed);
    sleepers_ = nullptr;
  }
  uint32_t* word_ = nullptr;
  uint32_t* sleepers_ = nullptr;
  uint32_t value_ = 0;
};

// Wakes the sleepers. The signaller calls this after its store. Returns true if somebody seemed to
// sleep.
inline bool futex_wake_sleepers(uint32_t* word, uint32_t* sleepers) {
  // The fence keeps the compiler from moving the load of `sleepers` before the signaller's store.
  std::atomic_signal_fence(std::memory_order_seq_cst);
  const bool any = std::atomic_ref<uint32_t>(*sleepers).load(std::memory_order_relaxed) != 0;
  if (any) [[unlikely]]
    futex_wake_all(word);
  return any;
}

inline bool futex_store(uint32_t* word, uint32_t value, uint32_t* sleepers) {
  // This store pairs with the loads of those who poll the word, such as poll() of
  // transports/shm.
  std::atomic_ref<uint32_t>(*word).store(value, std::memory_order_release);
  return futex_wake_sleepers(word, sleepers);
}

}  // namespace fsccl
