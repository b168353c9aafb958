// The engine of a communicator runs its operations, in order. A thread that submits an operation
// runs it until a peer is not there yet. After that any thread of the process that waits, or the
// service thread, moves it on. No work is given to another thread merely to be asynchronous.
//
// Its parts are these. The Queue holds operations and says which thread drives. The TickWindow says
// which ticks and slots may be used. The Runner carries out the steps of plans. EngineFailure ends
// all operations. wait.cpp says how a thread waits.
#pragma once
#include <atomic>
#include <optional>

#include "base/futex.h"
#include "base/wait.h"
#include "engine/queue.h"
#include "engine/runner.h"
#include "engine/sites.h"
#include "engine/sums_apart.h"
#include "engine/yield_rest.h"
#include "plan/turn.h"
#include "record/recorder.h"

namespace fsccl {

class Engine {
 public:
  explicit Engine(EngineOptions options);
  ~Engine();
  Engine(const Engine&) = delete;

  int rank() const { return options_.rank; }
  int ranks() const { return options_.ranks; }
  const std::string& name() const { return options_.name; }
  const EngineOptions& options() const { return options_; }
  int known_as(int rank) const { return options_.known_as(rank); }
  // Returns true if private memory of peers can be read.
  bool single_copy() const { return runner_.can_read(); }
  size_t slot_bytes() const { return runner_.slot_bytes(); }
  // Returns the part of a slot that plans use in which all ranks send.
  size_t turn_bytes() const { return fsccl::turn_bytes(slot_bytes(), mirrored(), ranks()); }
  // Returns the most bytes of this process's memory that its rings take. Pages of mirrors exist
  // once they are written.
  uint64_t transport_bytes() const {
    return runner_.slots_reserved()
               ? runner_.ring_bytes() * (mirrored() ? static_cast<uint64_t>(ranks()) : 1)
               : 0;
  }
  bool one_process() const { return runner_.one_process(); }
  // Peers see copies of this rank's slots, with only those bytes that were put for them.
  bool mirrored() const { return runner_.mirrored(); }
  // Returns true if no rank touches the buffers of another one.
  bool only_slots() const { return mirrored() || options_.checksum; }

  // Gives the next free operation, with these settings, and sets its fingerprint's sequence. While
  // the ring is full, it drives older operations.
  Status acquire(Operation** operation, const OperationSettings& settings,
                 const Fingerprint& fingerprint);
  // Lets the operation run. With `wait` the call returns when the operation is complete. Otherwise
  // *state says whether it is complete, or FSCCL_IN_PROGRESS. `later` lets the service thread begin
  // it.
  enum class Begins : uint8_t { now, later };
  Status submit(Operation& operation, bool wait, fsccl_status_t* state,
                Begins begins = Begins::now);

  // Returns true if a small call (small_call.h) that is waited for may take the fast path now. The
  // fast path does not check payloads, so a call with checksums does not take it.
  bool may_run_small() const {
    return !options_.checksum && queue_.idle() && !failure_.failed() && !sums_under_way();
  }
  Status run_small(const SmallCall& call, fsccl_status_t* state);
  // Makes the sums of reductions apart (sums_apart.h), on `sums`, an engine of this rank alone.
  void make_sums_apart(Engine& sums) { apart_.set_engine(&sums); }
  // Makes room for reductions over so many ranks, for an engine that makes sums apart.
  void reduce_over(int ranks) { runner_.reserve_sources(static_cast<size_t>(ranks)); }
  // Submits a reduction whose sums are made apart. `enters` has its plan without the sums. `sums`
  // is an operation of the other engine, which makes them. They give slots back at `position`.
  // *state is the state of the sums. With `later` the service thread begins the sums, unless `wait`
  // is set.
  Status submit_apart(Operation& enters, Operation& sums, uint64_t position, bool wait, bool later,
                      fsccl_status_t* state);
  // Returns the engine whose operation *sequence ends when the operation *sequence of this engine
  // does. If the sums are made apart, it sets *sequence to their operation and returns their
  // engine.
  Engine* ends_in(uint64_t* sequence);
  bool sums_under_way() const {
    const Engine* const sums = apart_.engine();
    return sums && sums->under_way();
  }
  // Moves on everything that was submitted, as far as possible. Returns false if the engine fails.
  bool move_on();
  // Lets the operations of this engine go on in the middle of an operation of another engine.
  void let_pass();

  // Sets the call site of the operations that are submitted next, here and in the parts of this
  // engine (sites.h).
  void set_site(uint64_t key);
  // Return true if the next call begins with the plan that touches no peer's buffers: a call in
  // which every rank needs something of every other one, and a call with a root (foresight.h).
  bool foresees_unreachable() const { return runner_.foresees_unreachable(); }
  bool skips_asking() const { return runner_.skips_asking(); }

  // The number by which the program knows the engine's communicator, for whoever made the engine.
  // It is given before the program has the communicator.
  void set_key(uint64_t key) { key_ = key; }
  uint64_t key() const { return key_; }

  uint64_t submitted() const { return queue_.submitted(); }
  // Returns how many operations were submitted to this engine and to those that are bound to it.
  uint64_t submitted_with_parts();
  uint64_t completed() const { return queue_.completed(); }
  uint64_t under_way() const { return queue_.under_way(); }
  // Returns a milestone that grows to the number of an operation when the operation completes.
  // Operations of other engines can have it as their gate.
  const Milestone* milestone() const { return queue_.milestone(); }
  // Both are about the operation with this sequence number. test() gives OK, IN_PROGRESS or an
  // error. wait() gives the same, after at most timeout_ms (negative: no limit of its own).
  // `elsewhere` says that the caller drives another engine, so the service thread calls
  // notifications.
  enum class Calls : uint8_t { here, elsewhere };
  Status test(uint64_t sequence, fsccl_status_t* state, Calls calls = Calls::here);
  Status wait(uint64_t sequence, int64_t timeout_ms, fsccl_status_t* state);

  // Returns true if `peer` has begun the operation that this rank would submit next. Returns
  // nothing while operations are under way, or another thread drives. Only the thread that submits
  // calls this.
  std::optional<bool> has_come(int peer);
  // Returns true if the rank has left, and nothing that it sent before can be under way any more.
  // Only the thread that submits calls this.
  bool is_gone(int peer);

  // Notifies once of the end of a submitted operation. If the operation is over, it does so at
  // once. Otherwise the thread that drives it to its end does so, or the service thread, which
  // attends the operation from now on. No lock of the engine is held then. Any thread may call
  // this.
  void notify(uint64_t sequence, Notification notification);

  // Waits until no thread touches an operation any more, so that the plans and parts that
  // operations use may be destroyed. The engine must have failed or have nothing under way: a
  // thread that drives it then leaves after its present step.
  void retire();
  // If the engine has failed: completes what its signals show to be complete, and then retires.
  void retire_failed() noexcept;

  // The following functions concern its failure (failure.h).
  bool failed() const { return failure_.failed(); }
  Status failure() const { return failure_.status(); }
  fsccl_status_t failure_code() const { return failure_.code(); }
  Status intact() { return failure_.intact(); }
  void fail_all(const Error& error) noexcept { failure_.fail_all(error); }
  // Fails the engine for a call that cannot submit the rest of its operations, because of `why` or,
  // if that is null, for lack of memory. When it returns, no thread touches the buffers of the
  // call.
  void give_up(const Error* why) noexcept;
  void look_for_failure() noexcept { failure_.look(); }
  void lost(int rank, bool left, const std::string& silence = {}) noexcept {
    failure_.lost(rank, left, silence);
  }
  void bind(Engine& part) {
    part.sites_.set(sites_.key());
    failure_.bind(part.failure_);
  }
  void unbind() { failure_.unbind(); }
  void make_heir(Engine& heir) { failure_.make_heir(heir.failure_); }
  void disinherit(const Engine& heir) { failure_.disinherit(heir.failure_); }
  // Returns true if the rank has left the job, or has closed its channel of this communicator or,
  // if this is a pair, of the communicator around it.
  bool has_left(int rank) const { return around_left(rank) || options_.channel->left(rank); }
  // While this object lives, the flight recorder says that this rank waits for `peer` outside of
  // operations, and what the peer must do.
  class RecordedWait {
   public:
    RecordedWait(const Engine& engine, int peer, recording::Duty duty)
        : options_(engine.options_), peer_(peer) {
      if (options_.recorder) options_.recorder->waits(options_.recorded_as, job_rank(), duty);
    }
    ~RecordedWait() {
      if (options_.recorder) options_.recorder->goes_on(options_.recorded_as, job_rank());
    }
    RecordedWait(const RecordedWait&) = delete;

   private:
    int job_rank() const {
      return options_.members.empty() ? peer_ : options_.members[static_cast<size_t>(peer_)];
    }
    const EngineOptions& options_;
    const int peer_;
  };

  Tally& tally() { return tally_; }
  const Tally& tally() const { return tally_; }

  // The service thread uses the following functions (progress.h).
  bool unattended() const { return under_way() && !failed(); }
  bool needs_service() const { return unattended() || queue_.notifications.due(completed()); }
  enum class Attempt { idle, blocked, busy };
  Attempt try_progress(fsccl_transport_word_t* word);
  std::atomic<bool> attended{false};  // the service thread visits this engine

 private:
  using Outcome = Runner::Outcome;
  using Blocked = Runner::Blocked;

  void go_on_in_ring(const SmallCursor& cursor);
  // Puts the operation behind the sums that were submitted before it.
  Status follow_sums(Operation& op);
  // Returns true if the operation at the head waits for a slot that sums of this rank free.
  bool waits_for_sums() const;
  // Returns the reduction that frees the slot for which the operation at the head waits. 0: not
  // known.
  uint64_t freed_by() const;
  // Ends the operation at the head, and returns its number.
  uint64_t complete(const Operation& operation);

  // The following functions drive. drive() runs operations from the head on, until one is blocked,
  // or until a notification is due (`done`).
  Outcome drive() noexcept;
  Outcome drive_on();
  bool gate_open(Operation& operation);  // false: blocked, or this engine failed as the gate's did
  void stop_driving(Calls calls);
  void rest();
  void notify_due();
  // Returns true if no thread and no peer touches buffers any more after a failure, and nothing
  // completes any more. This holds for this engine and for those that are bound to it: a call by
  // hosts has its stages on them, and returns its buffers when the whole communicator has looked
  // back.
  bool look_back() noexcept;
  // Does the same for this engine alone, when no thread drives it. It waits at most kDriversMs for
  // peers that touch buffers. The first thread that may drive completes the operations, from the
  // head on, that only had to wait for signals that have arrived, because their peers may have
  // completed them and returned success.
  bool look_at_head() noexcept;
  void await_drivers() noexcept;

  // The following functions wait (wait.cpp). await() waits until the operation is complete, this
  // engine has failed, or `until_ns` has passed. It returns false only in the last case.
  bool await(uint64_t sequence, int64_t until_ns, Calls calls = Calls::here);
  bool await_driving(uint64_t sequence, int64_t until_ns);
  bool poll_blocked();
  bool peer_answers_soon();
  WaitEnd await_gate(int64_t until_ns, Operation& op);
  WaitEnd await_sums(int64_t until_ns);
  template <class Look, class Pause>
  WaitEnd await_blocked(int64_t until_ns, const Look& look, const Pause& pause);
  void sleep_blocked(FutexSleeper& sleeper, int64_t ns);
  bool on_our_core(const Blocked& blocked) const;

  // The following functions look for what ends a wait other than its peer (blocked.cpp): the
  // deadline, lost peers, the failure board.
  void check_blocked(Operation& operation) noexcept;
  void look_at_blocked(Operation& operation);
  bool around_left(int peer) const;
  bool hearsay(const Operation& operation) const;
  std::string missing(const Operation& operation) const;
  std::string awaited_release() const;
  std::string silence_of(int rank) const;  // text for an error: empty, or " (suspect: ...)"
  uint64_t awaited(uint64_t sequence) const;
  // Returns true if a signal that this rank waits for may still come from a rank that has left.
  bool still_under_way(uint64_t sequence);
  bool left_lately(uint64_t sequence);
  void record(recording::Event event, const Fingerprint& what, int peer) {
    if (options_.recorder) options_.recorder->record(event, options_.recorded_as, what, peer);
  }
  void record_blocked();

  EngineOptions options_;
  Tally tally_;
  EngineFailure failure_;
  Queue queue_;
  Sites sites_;
  uint64_t key_ = 0;
  SumsApart apart_;
  Runner runner_;
  std::atomic<bool> looked_back_{false};  // nothing completes any more

  // Only the driver uses the following members.
  bool drove_ = false;    // it has driven since it last told the transport to rest
  YieldRest yield_rest_;  // wait.cpp
  // The number of polls that the service thread leaves out, now, and after the next poll in vain
  // (wait.cpp).
  int polls_to_leave_out_ = 0, leaves_out_ = 0;
  uint64_t recorded_blocked_ = 0;  // operation and peer of the last such record
  // The state of still_under_way(): operation and peer, the time of the last look, and how long it
  // has been looking.
  uint64_t looked_for_ = 0;
  int64_t looked_at_ns_ = 0, looked_ns_ = 0;
  // The state of left_lately(): operation and peer, and when the peer was first found to have left.
  uint64_t left_for_ = 0;
  int64_t left_ns_ = 0;
  int64_t gone_ns_ = 0;  // is_gone() first heard then that a peer has left; 0: it did not
};

}  // namespace fsccl
