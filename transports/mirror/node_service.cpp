// The service of a node. A thread that polls moves the node on; if there is none, the node's own
// thread does (node.h).
#include <poll.h>

#include <algorithm>
#include <chrono>

#include "base/wait.h"
#include "transports/mirror/node.h"

namespace fsccl::mirror {
namespace {

// The longest time between need() and the sleep that it announces.
constexpr int64_t kNeededNs = 2'000'000;
// How long the service thread sleeps while another thread polls.
constexpr int64_t kFirstNapNs = 20'000, kLongestNapNs = 500'000;
// How long the service thread sleeps at most when nothing comes.
constexpr int kSleepMs = 100;
// How long the service thread sleeps between two looks while peers may wait for answers.
constexpr int64_t kFirstLookNs = 1'000'000, kLastLookNs = 100'000'000;
// How often a thread moves the node on before it lets others have the mutex.
constexpr int kTurn = 256;

}  // namespace

Status Node::start_service() {
  const SignalsBlocked blocked;
  return thread_.start([this] { serve(); });
}

void Node::stop_service() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(sleep_mutex_);
    stop_ = true;
    wake_.notify_all();
  }
  interrupt();
  thread_.join();
}

void Node::hear_out() {
  const std::lock_guard lock(mutex_);
  take_turn();
}

void Node::wake() {
  if (!dozing_.load(std::memory_order_seq_cst)) return;
  const std::lock_guard lock(sleep_mutex_);
  wake_.notify_all();
}

void Node::need() {
  needed_until_ns_.store(now_ns() + kNeededNs, std::memory_order_seq_cst);
  wake();
}

void Node::rest() {
  if (!unflushed_.load(std::memory_order_relaxed)) return;
  {
    const std::lock_guard lock(mutex_);
    if (flushed()) return;
  }
  leaving_.store(true, std::memory_order_seq_cst);
  wake();
}

// Sleeps until the service thread is wanted, and then returns true; returns false after `ns`.
bool Node::doze(const std::function<bool()>& wanted, int64_t ns) {
  const auto woken = [&] { return stop_ || wanted(); };
  std::unique_lock lock(sleep_mutex_);
  dozing_.store(true, std::memory_order_seq_cst);
  const Deadline deadline = ns == INT64_MAX ? Deadline::never() : Deadline::at(now_ns() + ns);
  const bool is =
      wait_until(woken, deadline, kNothingBreaks, UntilNotified{lock, wake_}) == WaitEnd::held;
  dozing_.store(false, std::memory_order_seq_cst);
  return is;
}

// Moves the node on, and returns how often something moved. The caller holds the mutex.
int Node::take_turn() {
  int turns = 0;
  while (turns < kTurn && move(-1)) turns++;
  return turns;
}

// Like take_turn(), but ends once a sleeper has been woken. The woken thread moves the node on from
// then on; the service thread would only compete with it for a core.
int Node::serve_sleepers() {
  int turns = 0;
  woken_ = false;
  while (turns < kTurn && !woken_ && move(-1)) turns++;
  return turns;
}

void Node::serve() {
  const auto wanted = [&] {
    return leaving_.load(std::memory_order_seq_cst) ||
           std::atomic_ref(sleepers).load(std::memory_order_seq_cst) > 0 ||
           now_ns() < needed_until_ns_.load(std::memory_order_seq_cst);
  };
  uint32_t polls = 0;
  int64_t nap_ns = kFirstNapNs, look_ns = kLastLookNs;
  while (!stop_) {
    if (!wanted()) {
      nap_ns = kFirstNapNs;
      const bool owes = owes_answers();
      const auto roused = [&] { return wanted() || owes_answers() != owes; };
      if (doze(roused, owes ? look_ns : INT64_MAX)) continue;
      const bool polled = std::exchange(polls, polls_.load(std::memory_order_relaxed)) != polls;
      const std::lock_guard lock(mutex_);
      look_ns = !polled && take_turn() > 0 ? kFirstLookNs : std::min(2 * look_ns, kLastLookNs);
      continue;
    }
    // If another thread polls, or is about to sleep, then the service thread would only be in its
    // way.
    const bool polled = std::exchange(polls, polls_.load(std::memory_order_relaxed)) != polls;
    if (std::atomic_ref(sleepers).load(std::memory_order_seq_cst) == 0 && (polled || !leaving_)) {
      sleep_ns(nap_ns);
      nap_ns = std::min(2 * nap_ns, kLongestNapNs);
      continue;
    }
    nap_ns = kFirstNapNs;
    bool armed = false, woken = false;
    {
      const std::lock_guard lock(mutex_);
      const int turns = serve_sleepers();
      if (leaving_) leaving_ = !flushed();
      woken = woken_;
      armed = !woken && turns < kTurn && arm();
    }
    if (woken) sleep_ns(kFirstNapNs);
    if (!armed) continue;
    pollfd ready{events(), POLLIN, 0};
    ::poll(&ready, 1, kSleepMs);
  }
}

}  // namespace fsccl::mirror
