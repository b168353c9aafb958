// A track is a sequence of operations of a unit on a GPU: those on its parameters, or those on its
// gradients. It has the words with which streams signal their progress to peers, and for which they
// wait. The operations of a track follow each other, even if the caller names another stream.
// Tracks do not wait for each other.
//
// A track has these words in the line that a rank has for each peer:
//   ready   "my part is in my slot": a hash of everything that ranks must agree on. A waiting rank
//           waits for equality, so a rank that runs another operation is never read. There are two
//           words, for odd and even operations: a peer is ahead by one at most, because it enters
//           its next operation only after this rank has entered the present one.
//   done    "I no longer read your slot": the number of the operation. The next writer of the slot
//           waits for it, at any later time: the pool has such waits, so a track stays until they
//           are over.
// It has these words in the line that a rank has for itself, from which the host reads the progress
// of its own streams:
//   begun, ended   numbers of steps, which are operations and the taking of slots.
//
// `ready` orders a peer's cast before this rank's copy. `done` orders this rank's copy before the
// peer's next write to that slot. No word goes backwards, because the operations of a track follow
// each other. The hash in `ready` is made of the definition, the operation and its mode, its number
// and the history of slots, so the offset at which a peer's slot is read is the peer's own.
//
// CUDA is therefore not asked which operations are over: the watchdog (watchdog.h) only reads
// memory.
#pragma once
#include <array>
#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "plan/fingerprint.h"
#include "unit/device/inboxes.h"

namespace fsccl {

class Track {
 public:
  enum class Kind : uint8_t { parameters, gradients };
  Track(Communicator& comm, InboxChannel channel, Kind kind);
  ~Track();
  Track(const Track&) = delete;

  int rank() const { return inboxes().rank(); }
  int ranks() const { return inboxes().ranks(); }

  // A step: begin() before slots are taken for it, then enter() if it is an operation, or
  // take_only(), then the work of the step, then end(). Work on the stream that begin() was given
  // follows the step before. After an error that peers do not have, the ranks are no longer in
  // step, so the caller fails the communicator.
  Status begin(cuda::CUstream stream);
  // `hash` is a hash of everything that ranks must agree on. `op` and `flags` are for texts of the
  // watchdog.
  void enter(OpCode op, uint8_t flags, uint64_t hash);
  void take_only(OpCode op);
  Status signal(int tick, cuda::CUstream stream);
  // Waits for these peers, or for all if `peers` is empty.
  Status wait(const std::vector<int>& peers, int tick, cuda::CUstream stream);
  // `reads_no_more` says that this rank no longer reads peers' slots and has not signalled it yet.
  Status end(cuda::CUstream stream, bool reads_no_more);
  // Returns waits that are over when every peer has read this rank's slot in the last operation
  // that moved bytes.
  std::vector<cuda::CUstreamBatchMemOpParams> released() const;
  Status wait_released(cuda::CUstream stream) { return put(released(), stream); }
  // Puts waits of another track on the stream, within a step.
  Status wait_for(std::vector<cuda::CUstreamBatchMemOpParams> waits, cuda::CUstream stream) {
    return put(std::move(waits), stream);
  }

  bool idle() const {
    return inboxes().reached(inboxes().read(number(), rank(), begun_ + 1), steps_);
  }
  // Waits on the host until all steps have ended. The watchdog makes sure that they end.
  void finish() const;

 private:
  friend class Watchdog;
  static constexpr size_t kMostOutstanding = 64;
  struct Outstanding {
    uint64_t step = 0;
    Inboxes::LogEntry entry;  // number 0: it only takes a slot
    int64_t deadline_ns = 0;  // 0: no look has found yet that its stream has reached it
  };

  Inboxes& inboxes() const { return *channel_.inboxes; }
  uint32_t number() const { return channel_.number; }
  int ready_word(uint64_t sequence) const { return ready_ + static_cast<int>(sequence % 2); }
  void finish_with_peers();  // also waits until no peer reads this rank's slots any more
  Status put(std::vector<cuda::CUstreamBatchMemOpParams> operations, cuda::CUstream stream) const;
  void note(const Outstanding& one);
  template <class Holds>
  void wait_for_streams(const Holds& holds) const;

  // The watchdog calls these in its thread.
  bool look();            // returns false if no operation is outstanding
  void let_streams_go();  // lets this rank's streams go, as far as one look can
  void compare_logs(const Outstanding& one);
  void check_time(Outstanding& one);
  std::string describe(const Inboxes::LogEntry& entry) const;
  std::string missing(const Outstanding& one, int* peer) const;

  Communicator& comm_;
  const InboxChannel channel_;
  // words; begun_ is in the line of this rank itself, and `ended` is behind it
  const int ready_, done_, begun_;
  cuda::CUstream stream_ = nullptr;
  uint64_t steps_ = 0, sequence_ = 0, hash_ = 0;
  std::atomic<uint64_t> moved_{0};  // the last operation whose end says `done`
  mutable std::mutex mutex_;        // guards the members below
  std::array<Outstanding, kMostOutstanding> outstanding_;
  uint64_t first_ = 0, next_ = 0;  // numbers of the outstanding operations, in order
};

}  // namespace fsccl
