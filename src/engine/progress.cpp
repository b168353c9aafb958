#include "engine/progress.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <ctime>

#include "base/futex.h"
#include "base/reactor.h"
#include "base/wait.h"
#include "engine/engine.h"

#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif

namespace fsccl {

namespace {

constexpr uint32_t kFutex32 = 2;
constexpr size_t kMostWords = 100;
constexpr int64_t kSliceNs = 10'000'000;
constexpr int64_t kShortSliceNs = 200'000;

// Waits for one of the futexes. Returns 0 or an errno, which is ENOSYS if the kernel has no
// futex_waitv.
int wait_any(const std::vector<FutexWait>& entries, int64_t slice_ns) {
  timespec until;
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_nsec += slice_ns;
  if (until.tv_nsec >= 1'000'000'000) until.tv_sec++, until.tv_nsec -= 1'000'000'000;
  return syscall(SYS_futex_waitv, entries.data(), entries.size(), 0, &until, CLOCK_MONOTONIC) < 0
             ? errno
             : 0;
}

}  // namespace

Progress& Progress::instance() {
  static Immortal<Progress> progress;
  return progress.get();
}

Progress::Progress() {
  words_.reserve(kMostWords);
  entries_.reserve(kMostWords + 1);
}

void Progress::expect() {
  const std::lock_guard lock(mutex_);
  engines_.reserve(expected_ + 1);
  expected_++;
  if (hook_ < 0) hook_ = Reactor::instance().add_hook([this] { return visit(); });
}

void Progress::attend(Engine* engine) {
  {
    const std::lock_guard lock(mutex_);
    engine->attended.store(true, std::memory_order_seq_cst);
    if (std::find(engines_.begin(), engines_.end(), engine) == engines_.end())
      engines_.push_back(engine);
  }
  std::atomic_ref(kicks_).fetch_add(1, std::memory_order_seq_cst);
  if (std::atomic_ref(sleeping_).load(std::memory_order_seq_cst))
    futex_wake_all(&kicks_);
  else
    Reactor::instance().kick();
}

void Progress::end_sleep() {
  std::atomic_ref(kicks_).fetch_add(1, std::memory_order_seq_cst);
  futex_wake_all(&kicks_);
}

void Progress::end_old_sleeps() {
  std::unique_lock lock(mutex_);
  const uint64_t visit = visits_;
  end_sleep();
  // Nothing but the service thread ends this wait: it ends every visit, and end_sleep() has woken
  // it.
  wait_until([&] { return !visiting_ || visits_ != visit; }, Deadline::never(), kNothingBreaks,
             UntilNotified{lock, ended_});
}

void Progress::forget(Engine* engine) {
  std::unique_lock lock(mutex_);
  end_sleep();
  const auto forgotten = [&] {
    std::erase(engines_, engine);  // a call during the visit may have added it again
    return !visiting_ || std::find(visited_.begin(), visited_.end(), engine) == visited_.end();
  };
  wait_until(forgotten, Deadline::never(), kNothingBreaks, UntilNotified{lock, ended_});
  expected_--;
}

int64_t Progress::visit() {
  uint32_t kicks;
  {
    const std::lock_guard lock(mutex_);
    visited_ = engines_;  // before the visit begins, because the copy may take memory
    visiting_ = true;
    visits_++;
    kicks = std::atomic_ref(kicks_).load(std::memory_order_seq_cst);
  }
  const bool any = move_on(kicks);
  {
    const std::lock_guard lock(mutex_);
    visiting_ = false;
  }
  ended_.notify_all();
  return any ? 0 : -1;
}

// Returns true if any of the engines has something left to do.
bool Progress::move_on(uint32_t kicks) {
  bool any = false;
  words_.clear();
  for (Engine* engine : visited_) {
    fsccl_transport_word_t word{};
    const Engine::Attempt attempt = engine->try_progress(&word);
    if (attempt == Engine::Attempt::idle && !engine->needs_service()) {
      const std::lock_guard lock(mutex_);
      engine->attended.store(false, std::memory_order_seq_cst);
      if (!engine->needs_service()) {
        std::erase(engines_, engine);
        continue;
      }
      engine->attended.store(true, std::memory_order_seq_cst);  // one was submitted in between
    }
    any = true;
    if (attempt == Engine::Attempt::blocked && words_.size() < kMostWords) words_.push_back(word);
  }
  if (!any) return false;
  // The counts of sleepers are raised while the visit still holds the engines, so that no word is
  // unmapped before.
  for (const fsccl_transport_word_t& word : words_)
    std::atomic_ref(*word.sleepers).fetch_add(1, std::memory_order_seq_cst);
  sleep(kicks);
  for (const fsccl_transport_word_t& word : words_)
    std::atomic_ref(*word.sleepers).fetch_sub(1, std::memory_order_relaxed);
  return true;
}

void Progress::sleep(uint32_t kicks) {
  entries_.clear();
  entries_.push_back({kicks, reinterpret_cast<uint64_t>(&kicks_), kFutex32, 0});
  for (const fsccl_transport_word_t& word : words_)
    entries_.push_back({word.value, reinterpret_cast<uint64_t>(word.word), kFutex32, 0});
  std::atomic_ref(sleeping_).store(1, std::memory_order_seq_cst);
  int woke = wait_any(entries_, kBriefNs);  // futex.h
  if (woke == ETIMEDOUT) woke = wait_any(entries_, kSliceNs);
  // The system may lack the call (ENOSYS), or a filter may forbid it (EPERM and others).
  if (woke != 0 && woke != EAGAIN && woke != EINTR && woke != ETIMEDOUT)
    futex_wait(&kicks_, kicks, kShortSliceNs);
  std::atomic_ref(sleeping_).store(0, std::memory_order_seq_cst);
}

}  // namespace fsccl
