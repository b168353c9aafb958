// The engine of a communicator: a queue of operations, run in order by whoever drives it.
// Submitting runs an operation in the calling thread until a peer is not there yet; after that any
// waiter of the process, or the service thread, moves it on. One flag (`driving_`) decides who;
// nothing is handed over just to be asynchronous.
//
// An empty ring. Then what is the driver's belongs to the thread that submits, once nobody drives:
// it does small calls at once (at_once.h) and takes no flag, since that is a locked instruction,
// which waits until the signals of the call before are out. Who takes the flag meanwhile finds
// nothing under way and touches nothing: it reads `tail_` before `done_`, and such a call moves
// `done_` before `tail_`.
//
// Order. One thread at a time submits (the API's rule), so `tail_` has one writer; the driver alone
// advances `done_`. Operations of a communicator run one after the other: when one completes on a
// rank, every peer has entered it, so every peer has left the one before (plan.h, rule 1). Lazy
// plans end sooner; what they have not seen is looked at later, in order:
//
// The window. Let `left_` be the tick where the last round began into which we have seen every peer
// enter: they have left all rounds before it. A round that ends before tick e begins only when
// left_ >= e - kWindow. So the slot of a tick t may be written again, and its bytes in the ring
// used for others (slot_ring.h), at t + kWindow. And a peer seen in the round at left_ has by the
// same rule seen us in all rounds up to left_ - kWindow: so 2 * kWindow lines of signals are
// enough. Rounds of quiet plans (plan.h) in which some ranks tell nothing do not count: left_ goes
// from one in which all do to the next such.
#pragma once
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "base/wait.h"
#include "engine/foresight.h"
#include "engine/notify.h"
#include "engine/operation.h"
#include "engine/sites.h"
#include "engine/slot_ring.h"
#include "engine/slot_stores.h"
#include "engine/sums.h"
#include "fsccl/transport.h"
#include "record/recorder.h"
#include "record/tally.h"

namespace fsccl {

class Engine;
class Job;
struct SmallCall;

struct EngineOptions {
  const fsccl_transport_ops_t* transport = nullptr;
  void* channel = nullptr;  // owned by the engine from here on
  uint32_t first_tick = 1;
  int rank = 0, ranks = 1;
  bool oversubscribed = false;  // more ranks than cores: do not spin
  int64_t timeout_ms = 0;
  int64_t spin_ns = 0;
  uint64_t slot_streaming_from = UINT64_MAX;  // for slot_stores.h, as the next one
  SideBySide side_by_side = SideBySide::none;
  double copy_rate = 0;
  std::string name;
  const ArenaTable* arenas = nullptr;
  Recorder* recorder = nullptr;  // or null; how it calls this communicator
  uint16_t recorded_as = 0;
  std::vector<int> members;        // ranks of the job, by rank
  const Job* job = nullptr;        // or null; knows who is silent
  std::vector<bool> same_process;  // per rank: its private memory is ours
  // Of two ranks of another engine, whose board it shares and which it fails with: that engine, and
  // their numbers there.
  Engine* inside = nullptr;
  std::vector<int> known_as;
  bool checksum = false;  // sums.h
};

class Engine {
 public:
  // Of a step. More takes so long that a place in the ring does not matter; and so much is copied
  // out of a mirror in less time than it takes to say where it is wanted.
  static constexpr uint64_t kSmallBytes = 32u << 10;

  explicit Engine(EngineOptions options);
  ~Engine();
  Engine(const Engine&) = delete;

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  const std::string& name() const { return options_.name; }
  const EngineOptions& options() const { return options_; }
  // A rank's number as errors tell it.
  int known_as(int rank) const {
    return options_.known_as.empty() ? rank : options_.known_as[static_cast<size_t>(rank)];
  }
  // Private memory of peers: can it be read, and is that the better way?
  bool single_copy() const { return can_read_; }
  size_t slot_bytes() const { return slot_bytes_; }
  // Memory of this process that its rings take.
  uint64_t transport_bytes() const {
    return slots_reserved_ ? ring_bytes_ * (mirrored() ? static_cast<uint64_t>(ranks_) : 1) : 0;
  }
  bool one_process() const { return one_process_; }
  // Peers see of this rank's slots what is put there for them, no more.
  bool mirrored() const { return transport_.put != nullptr; }
  // No rank touches another's buffers.
  bool only_slots() const { return mirrored() || options_.checksum; }

  // The next free operation, with these settings; drives older ones while the ring is full. Sets
  // its fingerprint's sequence.
  Status acquire(Operation** operation, const OperationSettings& settings,
                 const Fingerprint& fingerprint);
  // Makes it run. With `wait` returns when it is complete; else complete or FSCCL_IN_PROGRESS in
  // *state.
  Status submit(Operation& operation, bool wait, fsccl_status_t* state);

  // For a small call (at_once.h) that is waited for: true where nothing else is under way, so that
  // this thread may go on with run_at_once().
  bool may_run_at_once() const {
    return at_once_ && completed() == tail_.load(std::memory_order_relaxed) &&
           !driving_.load(std::memory_order_acquire) && !failed();
  }
  Status run_at_once(const SmallCall& call, fsccl_status_t* state);
  void set_site(uint64_t key);  // of what is submitted next, here and in parts (sites.h)
  bool foresees_unreachable() const { return foresight_.unreachable(); }  // then

  uint64_t submitted() const { return tail_.load(std::memory_order_relaxed); }
  uint64_t completed() const { return done_.reached(); }
  uint64_t under_way() const {
    const uint64_t tail = tail_.load(std::memory_order_acquire), done = completed();
    return tail > done ? tail - done : 0;
  }
  // Grows to the number of an operation when that completes: what operations of other engines can
  // have as their gate.
  const ReleaseLine* done_line() const { return &done_; }
  // Of the operation with this sequence number. test: OK, IN_PROGRESS or an error. wait: likewise,
  // after at most timeout_ms (negative: no limit of its own). elsewhere: inside another engine's
  // drive; the service thread calls back
  enum class Calls : uint8_t { here, elsewhere };
  Status test(uint64_t sequence, fsccl_status_t* state, Calls calls = Calls::here);
  Status wait(uint64_t sequence, int64_t timeout_ms, fsccl_status_t* state);

  // Returns whether `peer` has begun the operation that this rank would submit next. False also
  // while operations are under way.
  bool has_come(int peer);

  // Notifies once of the end of a submitted operation: at once when it is over, else from the
  // thread that drives it to its end or from the service thread, which attends the operation from
  // now on. No lock of the engine is held then. Any thread.
  void notify(uint64_t sequence, Notification notification);

  // No operation is touched any more when this returns: before what they use (plans, parts of the
  // engine) goes. Of one that has failed, or has nothing under way: who drives leaves after the
  // present step.
  void retire();

  // Ends this communicator on all ranks: every wait ends with this error. The first error stays.
  // Any thread.
  void fail_all(const Error& error) noexcept;
  // `part` works for this engine: when one of them fails, both do. Until unbind().
  void bind(Engine& part);
  void unbind();
  // When this engine fails, `heir` does, and its ranks can see that before anybody sees that this
  // one has. The other way round nothing happens. Until disinherit(), as often as it was called.
  void make_heir(Engine& heir);
  void disinherit(const Engine& heir);
  // `rank` was lost (died, or left: then it is an error only for an operation that waits for it).
  // `silence`: what is known of that, for the error's text.
  void lost(int rank, bool left, const std::string& silence = {}) noexcept;
  // The rank has left the job, or closed its channel of this communicator.
  bool has_left(int rank) const {
    return departed_[static_cast<size_t>(rank)].load(std::memory_order_acquire) ||
           transport_.left(channel_, rank) != 0;
  }
  // Takes over a failure that another rank has written to the board. Any thread.
  void look_for_failure() noexcept;
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  // Returns the failure of this engine, its own or one that another rank has published; success
  // while there is none. For waits that no operation of the engine ends (base/wait.h). Any thread.
  Status intact();
  // While this lives, the flight recorder says that this rank waits for `peer` outside of
  // operations, and what the peer has to do.
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
  Status failure() const;
  fsccl_status_t failure_code() const;  // likewise, and takes no memory

  Tally& tally() { return tally_; }
  const Tally& tally() const { return tally_; }

  // For the service thread (progress.h).
  bool unattended() const { return under_way() && !failed(); }
  bool needs_service() const { return unattended() || notifications_.due(completed()); }
  enum class Attempt { idle, blocked, busy };
  Attempt try_progress(fsccl_transport_word_t* word);
  std::atomic<bool> attended{false};  // the service thread visits this engine

 private:
  friend class Executor;
  friend class AtOnce;
  static constexpr uint64_t kRing = 64;
  static constexpr uint64_t kFetchAheadBytes = 2048;  // of a slot, while its signal is waited for
  // to be written next: more takes longer than peers leave it alone
  static constexpr uint64_t kFetchedSlotBytes = 512;
  // these see a peer that is nearly there soonest
  static constexpr int kBarePolls = 400;
  static constexpr int kNetworkPolls = 20;  // each asks the network's driver
  enum class Outcome : uint8_t { done, blocked, failed };

  // What the blocked operation waits for.
  struct Blocked {
    const ReleaseLine* release = nullptr;  // else a tick
    uint64_t position = 0;
    int peer = 0;
    uint32_t tick = 0;
    const std::byte* data = nullptr;  // fetched while we poll
    uint32_t data_bytes = 0;
  };

  // In the ring, where there is room for it.
  Operation& place(uint64_t sequence, const OperationSettings& settings,
                   const Fingerprint& fingerprint);
  void write_board(const Error& error);
  void fail_with(Error& error) noexcept;  // which it takes over
  void fail_without_memory() noexcept;
  void look_at_blocked(Operation& operation);
  void look_at_quiet(Operation& operation);
  // By any thread, or an engine that works for this one is. While that is so, what has failed may
  // still touch buffers.
  bool being_driven();
  void await_drivers();
  // Behind a failure, once: what had only to wait for signals that are there is complete. Peers may
  // have ended right behind it, and called it a success. False: somebody drives.
  bool look_back() noexcept;

  bool try_drive() {
    return !driving_.load(std::memory_order_relaxed) &&
           !driving_.exchange(true, std::memory_order_acquire);
  }
  void stop_driving(Calls calls);
  void rest();  // the transport, behind what this thread drove
  void notify_due();
  // Runs operations from done_ on, until one is blocked or (that is `done`) a notification is due;
  // driver only.
  Outcome drive() noexcept;
  Outcome drive_on();
  bool met(const Blocked& blocked) const;  // what we are blocked on has come
  bool gate_open(Operation& operation);    // false: blocked, or failed as the gate's engine has
  Operation& at_head() { return ring_[(completed() + 1) % kRing]; }
  // Looks at pending rounds until left_ has reached `tick`. False: blocked, or failed.
  bool settle(uint32_t tick);
  bool may_begin(uint32_t end_tick) {
    const uint32_t needed = end_tick - kWindow;
    return static_cast<int32_t>(left_ - needed) >= 0 || settle(needed);
  }
  bool place_slots(const Plan& plan, uint32_t tick);  // false: no memory, and we failed
  // Where the slots of the round go that comes next when `ring` has been used so far. Whether it
  // has any.
  bool next_slots(const Plan& plan, SlotRing* ring, std::array<size_t, kMaxTicks>* slot_at) const;
  bool reserve_slots();
  // What this rank writes first in the next round, at `tick`, should that be like this one: its
  // slot, then its signal.
  void fetch_next(const Plan& plan, uint32_t tick) const;
  // Whether not every rank can touch a buffer that lies there, judged alike by all. The system
  // reads, but does not write.
  bool out_of_reach(const Location& location, const Buffer& buffer,
                    const OperationSettings& how) const {
    return location.arena == kPrivate && !one_process_ &&
           !(how.reads && buffer.role == Role::input);
  }
  // Where the `index`th buffer that `asks` publishes is for a rank: noted for remote(). False:
  // where this rank cannot reach it. `unreachable` is set where not every rank can touch it.
  bool learn(int rank, uint32_t index, const Location& location, const Plan& asks,
             const OperationSettings& how, bool* unreachable);
  const Remote& remote(const OperationSettings& how, uint32_t buffer, int rank) const {
    return remote_[(buffer == how.published[0] ? 0 : static_cast<size_t>(ranks_)) +
                   static_cast<size_t>(rank)];
  }
  // Of a plan's step. `into`: bytes of the slot into which, all steps together, or 0. `from_slot`:
  // out of one.
  void copy(void* to, const void* from, uint64_t bytes, uint64_t into, bool from_slot,
            const OperationSettings& how) {
    const auto with = [&](Stores stores) {
      if ((into || from_slot) && how.in_cache && stores == Stores::cached &&
          slot_stores_.side_by_side(into != 0))
        copy_between_cores(to, from, bytes, slot_stores_.cores());
      else
        copy_bytes(to, from, bytes, stores);
    };
    if (!into) return with(how.stores);
    slot_stores_.write(bytes, into, [&](Stores stores) {
      unfenced_ |= stores == Stores::streaming;
      with(stores == Stores::streaming ? Stores::unfenced : stores);
    });
  }
  // What was copied into slots is seen before what this thread stores next: before who reads it is
  // told, and before another thread drives. A slot may be filled by many small copies, and a fence
  // waits for memory.
  void fence_slots() {
    if (!unfenced_) return;
    fence_stores();
    unfenced_ = false;
  }
  // What a fold takes from one buffer: a block of each rank.
  const void* const* blocks(const std::byte* first, uint64_t stride) {
    for (size_t q = 0; q < sources_.size(); q++) sources_[q] = first + q * stride;
    return sources_.data();
  }
  bool all_entered(uint32_t tick);
  // False: blocked, or failed. A round of a lazy plan is looked at later.
  bool end_round(const Plan& plan, uint32_t tick, const Fingerprint& what);
  void heard(uint32_t tick) {
    heard_.tick = tick;
    unheard_ = 0;
  }
  bool leaves_out(const Step& signal, const Plan& plan, uint32_t tick) const {
    return signal.optional && heard_.quiet(plan, tick);
  }
  // The operation at the head is over; returns its number.
  uint64_t complete(const Fingerprint& what);
  uint64_t count_completed(OpCode op);
  // False: they disagree, or the line is not what was sent, and we failed.
  bool check_enter(const Fingerprint& mine, int peer, const fsccl_transport_line_t& line) {
    if (!options_.checksum && equal(mine, line.fingerprint)) [[likely]]
      return true;
    return check_claim(mine, peer, line);
  }
  bool check_claim(const Fingerprint& mine, int peer, const fsccl_transport_line_t& line);
  Fingerprint claimed(const fsccl_transport_line_t& line) const;
  // What came from this peer is not what it meant.
  void damaged(const Fingerprint& mine, int peer, const std::string& what, const std::string& sums);
  // The sum of the piece that begins at `offset` of the slot of a tick.
  uint32_t& sum_at(int rank, uint16_t tick, uint64_t slot_bytes, uint64_t offset) const {
    std::byte* const table = slots_[static_cast<size_t>(rank)] + slot_at_[tick] + slot_bytes;
    return *reinterpret_cast<uint32_t*>(table + offset / kPerSum * sizeof(uint32_t));
  }
  uint64_t before_unheard(const Fingerprint& mine) const;
  void mismatch(const Fingerprint& mine, int peer, const Fingerprint& theirs);
  // Waits until the operation is complete, this engine has failed, or `until_ns`; false only for
  // the last.
  bool await(uint64_t sequence, int64_t until_ns, Calls calls = Calls::here);
  bool await_driving(uint64_t sequence, int64_t until_ns);
  // The last stage of await_driving(): `pause` until what the operation at the head waits for has
  // come, or drive() has another reason to look.
  template <class Look, class Pause>
  WaitEnd await_blocked(int64_t until_ns, const Look& look, const Pause& pause);
  void sleep_blocked(int64_t ns);
  void check_blocked(Operation& operation) noexcept;  // deadline, lost peers, the failure board
  bool on_our_core(const Blocked& blocked) const;     // what we wait for
  void fill_word(const Blocked& blocked, fsccl_transport_word_t* word) const;
  bool hearsay(const Operation& operation) const;
  std::string missing(const Operation& operation) const;
  std::string silence_of(int rank) const;  // for an error's text: empty, or " (suspect: ...)"
  void record(recording::Event event, const Fingerprint& what, int peer) {
    if (options_.recorder) options_.recorder->record(event, options_.recorded_as, what, peer);
  }
  void record_blocked();
  // what we are blocked on may come yet from a rank that has left
  bool still_under_way(uint64_t sequence);

  EngineOptions options_;
  const fsccl_transport_ops_t& transport_;
  void* channel_;
  const int rank_, ranks_;
  const bool can_read_;
  const bool sums_;     // slots have tables of sums
  const bool at_once_;  // what comes in a signal is what was sent
  // all ranks are threads of this process, and private memory may be read
  bool one_process_ = true;
  size_t ring_bytes_ = 0, slot_bytes_ = 0;
  std::vector<std::byte*> slots_;  // the ring of each rank

  alignas(64) std::atomic<bool> driving_{false};
  std::atomic<bool> missed_{false};  // somebody found us driving and left
  std::atomic<bool> failed_{false};
  std::atomic<bool> looked_back_{false};       // nothing completes any more
  ReleaseLine done_;                           // operations completed
  alignas(64) std::atomic<uint64_t> tail_{0};  // operations submitted
  // of the next plan to run; this and what follows is the driver's
  uint32_t next_tick_;
  uint32_t left_;  // see above
  // a round of a lazy plan: not all peers were seen to enter
  struct Pending {
    uint32_t tick = 0;
    int peer = 0;  // the next to look at
    bool quiet = false;
    Fingerprint fingerprint;
  };
  Foresight foresight_;
  Sites sites_;
  LastHeard heard_;
  // what the rounds since then were, which calls have in their history: some were told to nobody
  uint64_t unheard_ = 0;
  uint64_t unheard_first_ = 0, unheard_last_ = 0;  // the calls of the last such rounds
  // the last quiet round of which this rank did tell
  uint32_t told_;
  // of look_at_quiet(): the operation, and how often it was found blocked
  uint64_t waited_for_ = 0, waits_ = 0;
  int64_t no_yields_until_ = 0;  // driver only
  bool drove_ = false;           // since the transport was last told to rest
  bool unfenced_ = false;
  SlotStores slot_stores_{UINT64_MAX, 0, 0, SideBySide::none};
  // Where the slots of the ticks of the present round, which began with `placed_`, lie in the
  // rings.
  SlotRing slot_ring_;
  uint32_t placed_;
  std::array<size_t, kMaxTicks> slot_at_{};
  // Likewise up to the last round of the operation at the head whose bytes were said to be
  // expected.
  SlotRing expected_ring_;
  uint32_t expected_rounds_ = 0;
  std::atomic<bool> slots_reserved_{false};
  std::array<Pending, kWindow> pending_;
  uint32_t pending_begin_ = 0, pending_count_ = 0;
  Blocked blocked_;
  uint64_t recorded_blocked_ = 0;  // operation and peer of the last such record
  // Of still_under_way(): operation and peer, when we looked last, and how long we have been
  // looking.
  uint64_t looked_for_ = 0;
  int64_t looked_at_ns_ = 0, looked_ns_ = 0;
  // What peers published with their enter signal of the operation at the head: [published
  // buffer][rank].
  std::vector<Remote> remote_;
  std::unique_ptr<std::byte[]> window_;  // through which private memory of peers is reduced
  std::vector<const void*> sources_;
  std::array<Operation, kRing> ring_;
  Tally tally_;
  Notifications notifications_;

  std::mutex bound_mutex_;
  std::vector<Engine*> bound_, heirs_;
  mutable std::mutex failure_mutex_;
  Error error_;
  Error no_memory_;                          // made when there was some
  std::vector<std::atomic<bool>> departed_;  // per rank, as the job says
};

}  // namespace fsccl
