// How this rank tells its peers which bytes it uses no more. Collective memory events are numbered; each is done at some time, in
// any order (a reduce that was submitted early may end late). The ledger publishes the largest position up to which everything is
// done: peers that want to rewrite bytes given back at position p wait for p. Lock-free: the thread of the program and the service
// thread both report.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>

#include "base/clock.h"
#include "base/status.h"
#include "engine/operation.h"

namespace fsccl {

class ReleaseLedger {
 public:
  static constexpr uint64_t kWindow = 4096;   // positions that may be open at once
  static constexpr uint64_t kOfOneCall = 64;  // and as many that one call may open
  explicit ReleaseLedger(ReleaseLine* line) : line_(line) {}

  // Opens and returns the next position. One thread. False from `room` while too many are open.
  uint64_t next() { return ++opened_; }
  uint64_t opened() const { return opened_; }
  bool room() const { return opened_ - published() < kWindow - kOfOneCall; }
  uint64_t published() const { return line_->reached(); }
  void done(uint64_t position);
  // Of what was opened last, by whom it was opened. Nothing behind it can be done, so that where all before it is, nobody else
  // writes the line; who reads it sees what other threads did before theirs.
  void done_last() {
    if (published() + 1 != opened_) [[unlikely]]
      return done(opened_);
    line_->reach(opened_);
  }

 private:
  void publish(uint64_t* from, uint64_t to);

  ReleaseLine* line_;
  uint64_t opened_ = 0;
  std::array<std::atomic<uint64_t>, kWindow> done_{};  // [p % kWindow] == p: done
};

// Waits until the line has reached `position`; false at the deadline. Rare: what was given back long ago is released. `meanwhile`
// is called between looks, and its error ends the wait.
Result<bool> wait_for_release(const ReleaseLine& line, uint64_t position, Deadline deadline,
                              const std::function<Status()>& meanwhile);

}  // namespace fsccl
