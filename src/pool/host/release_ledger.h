// How this rank tells its peers which bytes it uses no more. Collective memory events are numbered;
// each is done at some time, in any order (a reduce that was submitted early may end late). The
// ledger publishes the largest position up to which everything is done: peers that want to rewrite
// bytes given back at position p wait for p. Lock-free: the thread of the program and the service
// thread both report.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "engine/engine.h"

namespace fsccl {

class ReleaseLedger {
 public:
  static constexpr uint64_t kMostOpen = 4096;           // positions that may be open at once
  static constexpr uint64_t kMostOpenedByOneCall = 64;  // and as many that one call may open
  explicit ReleaseLedger(ReleaseLine* line) : line_(line) {}

  // Opens and returns the next position. One thread. False from `room` while too many are open.
  uint64_t next() { return ++opened_; }
  uint64_t opened() const { return opened_; }
  bool room() const { return opened_ - released() < kMostOpen - kMostOpenedByOneCall; }
  uint64_t released() const { return line_->reached(); }
  void done(uint64_t position);
  // Marks the position that was opened last as done; the thread that opened it calls this. No later
  // position can be done yet, so if all earlier positions are done, no other thread writes the
  // line. A reader of the line sees the writes of other threads before their own positions.
  void done_last() {
    if (released() + 1 != opened_) [[unlikely]]
      return done(opened_);
    line_->reach(opened_);
  }

 private:
  void advance_line(uint64_t* from, uint64_t to);

  ReleaseLine* line_;
  uint64_t opened_ = 0;
  std::array<std::atomic<uint64_t>, kMostOpen> done_{};  // [p % kMostOpen] == p: done
};

// Waits until `peer` of the engine's communicator has released everything before `position`, which
// its line shows. This is rare: bytes that were given back long ago are released. Moves this rank's
// own operations on meanwhile, because the peer may wait for them. An error when the communicator
// fails, is aborted, or loses a rank; when the peer leaves without a release; and when the deadline
// passes, which ends the communicator. `what` says in the error what is waited for.
Status wait_for_release(Engine& engine, int peer, const ReleaseLine& line, uint64_t position,
                        Deadline deadline, const std::string& what);

}  // namespace fsccl
