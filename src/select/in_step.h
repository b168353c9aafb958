// Two ranks of a channel that was just opened measure something in step with each other, while all
// others wait; everybody then has what one of them found, so that all choose alike.
#pragma once
#include <cstdint>
#include <cstring>
#include <optional>

#include "base/wait.h"
#include "select/startup.h"

namespace fsccl {

class InStep {
 public:
  InStep(const Startup& startup, int peer, uint32_t tick)
      : startup_(startup), peer_(peer), tick_(tick) {}

  // Signals and sees the other's signal, with the word that it gave. When either has had enough,
  // both know, and get nothing.
  std::optional<uint64_t> exchange(uint64_t word = 0) {
    if (stopped_) return std::nullopt;
    const Signal mine{stop_, word};
    const int64_t before_ns = now_ns();
    startup_.signal_to(peer_, tick_, mine);
    signalling_ns_ += now_ns() - before_ns;
    const fsccl_transport_line_t* other = nullptr;
    const auto come = [&] { return (other = startup_.channel->poll(peer_, tick_)) != nullptr; };
    bool there = false;
    for (int polls = 0; polls < kBarePolls && !there; polls++) there = come();
    const auto given_up = [&] {
      stop_ |= now_ns() - began_ns_ > kEnoughNs;
      return stop_ && startup_.over();
    };
    if (!there) wait_until(come, Deadline::never(), given_up, Yields());
    Signal theirs;
    if (other) std::memcpy(&theirs, other->payload, sizeof theirs);
    stopped_ = !other || mine.stop || theirs.stop;
    tick_++;
    return stopped_ ? std::nullopt : std::optional(theirs.word);
  }
  // This rank knows enough: the exchanges end as soon as the other one knows.
  void stop() { stop_ = true; }
  bool stopped() const { return stopped_; }
  // all exchanges together: what giving the signals took
  int64_t signalling_ns() const { return signalling_ns_; }
  uint32_t tick() const { return tick_; }  // the next one
  int peer() const { return peer_; }
  const Startup& startup() const { return startup_; }

 private:
  // A look at the clock must not be part of what is measured.
  static constexpr int kBarePolls = 1000;
  static constexpr int64_t kEnoughNs = 20'000'000;  // somebody does not run: the defaults then
  struct Signal {
    uint64_t stop = 0, word = 0;
  };
  const Startup& startup_;
  const int peer_;
  uint32_t tick_;
  const int64_t began_ns_ = now_ns();
  bool stop_ = false, stopped_ = false;
  int64_t signalling_ns_ = 0;
};

// Lets rank 0 and `other` measure, and returns to all ranks the findings of `other`. Collective.
// Uses ticks from *tick on, and leaves the next unused one there, the same on all ranks. `probe`
// gets an InStep and takes at most `ticks` of them.
//
// The two may have stopped, both after the same exchange, long before the last of the ticks that
// are kept for them; the lines of that tick and of the engine's first ones may lie where those of
// that exchange lie. So nobody signals them before each of the two has seen the other's: rank 0
// says so with the tick that comes next.
template <class Findings, class Probe>
Findings found_in_step(const Startup& startup, int other, uint32_t ticks, uint32_t* tick,
                       const Probe& probe) {
  const uint32_t begin = *tick, last = begin + ticks + 1;
  *tick = last + 1;
  Findings found{};
  if (startup.rank != 0 && startup.rank != other) {
    startup.signal(begin);
  } else {
    // Their lines go round many times: first all others must have read what lies there.
    for (int peer = 1; peer < startup.ranks; peer++)
      if (peer != other) startup.await_napping(peer, begin);
    InStep both(startup, other - startup.rank, begin);
    found = probe(both);
    if (startup.rank == 0) {
      startup.signal(both.tick());
    } else {
      if (!startup.await_napping(0, both.tick())) return {};
      startup.signal(last, found);
      return found;
    }
  }
  found = {};
  if (const unsigned char* of_other = startup.await_napping(other, last))
    std::memcpy(&found, of_other, sizeof found);
  return found;
}

}  // namespace fsccl
