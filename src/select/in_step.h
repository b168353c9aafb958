// A measurement at the start of a channel. Two ranks measure in lockstep, while all others wait.
// All ranks then get the findings of one of the two, so that all choose the same.
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

  // Signals with `word`, waits for the signal of the other rank, and returns its word. Returns
  // nothing once either rank has stopped, which both learn in the same exchange.
  std::optional<uint64_t> exchange(uint64_t word = 0) {
    if (stopped_) return std::nullopt;
    const Signal mine{stop_, word};
    const int64_t before_ns = startup_.clock();
    startup_.signal_to(peer_, tick_, mine);
    signalling_ns_ += startup_.clock() - before_ns;
    const fsccl_transport_line_t* other = nullptr;
    const auto come = [&] { return (other = startup_.channel->poll(peer_, tick_)) != nullptr; };
    bool there = false;
    for (int polls = 0; polls < kBarePolls && !there; polls++) there = come();
    const auto given_up = [&] {
      stop_ |= met_ && startup_.clock() - met_ns_ > kEnoughNs;
      return (stop_ || !met_) && startup_.over();
    };
    if (!there) wait_until(come, Deadline::never(), given_up, Yields());
    if (!met_) met_ns_ = startup_.clock();
    met_ = true;
    Signal theirs;
    if (other) std::memcpy(&theirs, other->payload, sizeof theirs);
    stopped_ = !other || mine.stop || theirs.stop;
    tick_++;
    return stopped_ ? std::nullopt : std::optional(theirs.word);
  }
  // Stops the exchanges: the next one tells the other rank.
  void stop() { stop_ = true; }
  bool stopped() const { return stopped_; }
  // Returns the time that it took to give the signals in all exchanges.
  int64_t signalling_ns() const { return signalling_ns_; }
  uint32_t tick() const { return tick_; }  // the next tick
  int peer() const { return peer_; }
  const Startup& startup() const { return startup_; }

 private:
  // The thread polls so often before it first looks at the clock, which would disturb the
  // measurement.
  static constexpr int kBarePolls = 1000;
  // A measurement that takes longer is ended, and the defaults are used, because one of the two
  // ranks does not run.
  static constexpr int64_t kEnoughNs = 30'000'000;
  struct Signal {
    uint64_t stop = 0, word = 0;
  };
  const Startup& startup_;
  const int peer_;
  uint32_t tick_;
  // The time of the measurement begins when the two have met: one may come to it late.
  int64_t met_ns_ = 0;
  bool met_ = false, stop_ = false, stopped_ = false;
  int64_t signalling_ns_ = 0;
};

// Lets rank 0 and `other` measure, and returns to all ranks the findings of `other`. Collective.
// Uses ticks from *tick on, and leaves the next unused one there, the same on all ranks. `probe`
// gets an InStep and takes at most `ticks` of them.
//
// The two ranks may stop long before the last of the ticks that are reserved for them, though both
// stop after the same exchange. Their last lines may lie where the lines of the last reserved tick
// and of the engine's first ticks lie. So no rank signals these ticks before each of the two has
// seen the other's last line: rank 0 confirms it with the next tick.
template <class Findings, class Probe>
Findings found_in_step(const Startup& startup, int other, uint32_t ticks, uint32_t* tick,
                       const Probe& probe) {
  const uint32_t begin = *tick, last = begin + ticks + 1;
  *tick = last + 1;
  Findings found{};
  if (startup.rank != 0 && startup.rank != other) {
    startup.signal(begin);
  } else {
    // The lines of the two ranks are used many times, so all others must first have read what is in
    // them.
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
