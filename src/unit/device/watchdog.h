// Watches, in the library's service thread, the work that units of this process have put on
// streams. It looks for peers that disagree, do not come before the deadline, or die, and for
// communicators that are aborted. In these cases it fails the communicator, so that the next call
// reports it, and releases this process's own streams, which would otherwise wait for ever. These
// streams then work on garbage that nobody uses.
//
// A process has one watchdog. While no operation is outstanding, it does nothing. It asks CUDA
// nothing and only reads memory that streams have written (track.h), so it disturbs neither a
// capture nor a device that hangs.
//
// The watchdog looks every 10 ms. If a peer's log names another operation, the result is
// FSCCL_ERR_MISMATCH with both calls. If a stream has come to an operation and does not end it
// within the communicator's deadline, the result is FSCCL_ERR_TIMEOUT with the ranks whose words
// have not come. A death or an abort gives the communicator's own error. The watchdog then writes
// the words for which this rank's streams wait into this rank's inbox until the streams are empty.
#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "base/immortal.h"

namespace fsccl {

class Track;

class Watchdog {
 public:
  static Watchdog& instance();
  void add(Track* track);
  void remove(Track* track);  // the watchdog does not use the track any more when this returns
  // Starts the watchdog's looks, because an operation is outstanding. The call is cheap while it is
  // looking already.
  void wake();

 private:
  friend class Immortal<Watchdog>;
  Watchdog() = default;
  int64_t look();

  std::mutex hook_mutex_;  // never taken by the hook itself
  int hook_ = -1;          // there while there are tracks
  std::mutex mutex_;
  std::vector<Track*> tracks_;
  std::atomic<bool> awake_{false};
};

}  // namespace fsccl
