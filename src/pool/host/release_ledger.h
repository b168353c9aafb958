// The release ledger tells peers which bytes this rank no longer uses. Each time that slots are
// given back, the thread of the program opens the next release position: the positions number these
// events from 1, alike on all ranks. A position is done when the operations of this rank no longer
// use the bytes that were given back at it. Positions are done in any order, because an operation
// that was submitted early may end late.
//
// The ledger keeps a release line in memory that all ranks share. The line has the largest position
// p such that all positions up to and including p are done: this rank has released p. A rank that
// wants to write to bytes which were given back at p waits until the line of every rank has reached
// p. The ledger is lock-free, because the thread of the program and the service thread both mark
// positions as done.
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
  static constexpr uint64_t kMostOpen = 4096;  // positions that may be open at once
  // room() leaves this many positions free, because one call may open several
  static constexpr uint64_t kMostOpenedByOneCall = 64;
  explicit ReleaseLedger(Milestone* line) : line_(line) {}

  // Opens and returns the next position. Only the thread of the program calls this.
  uint64_t next() { return ++opened_; }
  uint64_t opened() const { return opened_; }
  // Returns false while so many positions are open that no call may open more.
  bool room() const { return opened_ - released() < kMostOpen - kMostOpenedByOneCall; }
  // Returns the position that must be released before there is room again.
  uint64_t room_from() const { return opened_ + kMostOpenedByOneCall + 1 - kMostOpen; }
  uint64_t released() const { return line_->reached(); }
  // Marks a position as done. Any thread may call this.
  void done(uint64_t position);
  // Marks the position that was opened last as done; the thread that opened it calls this. No later
  // position can be done yet, so if all earlier positions are done, no other thread writes the
  // line. A rank that reads the new position also sees what other threads did before they marked
  // earlier ones: they stored these in the line afterwards, and released() has loaded that here.
  void done_last() {
    if (released() + 1 != opened_) [[unlikely]]
      return done(opened_);
    line_->reach(opened_);
  }

 private:
  void advance_line(uint64_t* from, uint64_t to);

  Milestone* line_;
  uint64_t opened_ = 0;
  std::array<std::atomic<uint64_t>, kMostOpen> done_{};  // [p % kMostOpen] == p: done
};

// Waits until `peer` of the engine's communicator has released all positions up to and including
// `position`, as its line shows. A wait is rare, because bytes that were given back long ago are
// released. Meanwhile this thread moves this rank's own operations on, because the peer may wait
// for them. Returns an error if the communicator fails, is aborted, or loses a rank; if the peer
// leaves before it has released; and if the deadline passes, which ends the communicator. `what`
// names the waiting call in the error.
Status wait_for_release(Engine& engine, int peer, const Milestone& line, uint64_t position,
                        Deadline deadline, const std::string& what);

}  // namespace fsccl
