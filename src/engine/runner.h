// The runner of an engine carries out the steps of plans. It works over a cursor, which says how
// far a call has come: that of an operation of the queue, or that of a small call (small_call.h). A
// step that cannot go on leaves the cursor where it is; the next run goes on from there.
//
// Steps are the plan's. Addresses come from the call's buffers, from the window of ticks (slots),
// and, for buffers that peers published, from their enter signals.
//
// The runner belongs to the driver of the engine (queue.h): one thread at a time uses it.
#pragma once
#include <array>
#include <atomic>
#include <memory>
#include <vector>

#include "engine/checksums.h"
#include "engine/engine_options.h"
#include "engine/failure.h"
#include "engine/foresight.h"
#include "engine/sites.h"
#include "engine/slot_stores.h"
#include "engine/small_call.h"
#include "engine/tick_window.h"
#include "record/tally.h"

namespace fsccl {

class Runner {
 public:
  enum class Outcome : uint8_t { done, blocked, failed };
  // The signal or the release that a blocked cursor waits for.
  struct Blocked {
    const Milestone* release = nullptr;  // to reach `position`; null: a line of `peer` at `tick`
    uint64_t position = 0;
    int peer = 0;
    uint32_t tick = 0;
    const std::byte* data = nullptr;  // fetched into the cache while the thread polls
    uint32_t data_bytes = 0;
    int64_t until_ns = 0;  // the wait is over by then, come what may; 0: it has no such end
  };

  // `sites`: for errors' texts.
  Runner(const EngineOptions& options, EngineFailure& failure, Tally& tally, const Sites& sites);

  // Private memory of peers can be read, and all ranks are threads of this process.
  bool can_read() const { return can_read_; }
  bool one_process() const { return one_process_; }
  // Peers see of this rank's slots what is put there for them, and nothing else.
  bool mirrored() const { return traits_.mirrors; }
  // How often a peer is looked for before anything else is done. Bare polls see a peer soonest that
  // is nearly there; between hosts each poll asks the network's driver.
  int bare_polls() const { return mirrored() ? 20 : 400; }
  size_t slot_bytes() const { return slot_bytes_; }
  size_t ring_bytes() const { return ring_bytes_; }
  bool slots_reserved() const { return slots_reserved_.load(std::memory_order_relaxed); }

  // Gives an operation its first tick, and the other plan where that is foreseen.
  void begin(Operation& op);
  // Runs the operation until its plan is done, a peer is not there yet, or the engine has failed.
  Outcome run(Operation& op);
  // The operation goes on with the plan that its completion hook has given it.
  void begin_again(Operation& op);
  // Behind a failure: finishes the operation if all that is left are waits for signals that have
  // come, and sums of what they carried. Returns false if the operation is not complete. Nothing
  // that peers may have given back is touched.
  bool finish_from_signals(Operation& op);

  // Carries out a small call. Returns false if the call goes on in the ring, with the same cursor.
  bool run(SmallCursor& call, Recorder* recorder, uint16_t recorded_as);
  bool foresees_unreachable() const { return foresight_.unreachable(); }
  // Operations reduce over so many ranks, though the engine has fewer.
  void reserve_sources(size_t ranks) { sources_.resize(std::max(ranks, sources_.size())); }

  const Blocked& blocked() const { return blocked_; }
  void block_on(const Milestone* release, uint64_t position) {
    blocked_ = {release, position, rank_, 0};
  }
  bool met(const Blocked& blocked) const;  // true if the signal or release has come
  // Fills in the word on which a blocked thread may sleep.
  void fill_word(const Blocked& blocked, fsccl_transport_word_t* word) const;
  // A rank that has to wait tells what it calls, also where that is optional, and looks at what
  // others told of calls that it was not to hear of: ranks that disagree about such a call might
  // otherwise wait for each other.
  void look_at_quiet(Operation& op);
  // Returns true if the peer has begun the operation that comes next.
  bool has_come(int peer) const { return channel_.poll(peer, ticks_.next_tick()) != nullptr; }
  // Bytes that were copied into slots are seen before what this thread stores next: before a peer
  // is told of them, and before another thread drives. Many small copies may fill a slot, and a
  // fence waits for memory, so there is one fence behind them all.
  void fence_slots() {
    if (!unfenced_) return;
    fence_stores();
    unfenced_ = false;
  }

  // Returns the step that follows a wait, if that is a copy or a reduction from the slot whose
  // signal was waited for: its lines and the signal can arrive together. Null else.
  static const Step* reads_slot_behind(const Plan& plan, uint32_t wait) {
    if (wait + 1 >= plan.steps.size()) return nullptr;
    const Step& next = plan.steps[wait + 1];
    if (next.kind != StepKind::copy && next.kind != StepKind::reduce) return nullptr;
    const Buffer& buffer = plan.buffers[next.src.buffer];
    return buffer.slot && buffer.slot_tick == plan.steps[wait].tick ? &next : nullptr;
  }
  // Returns true if `step` is a signal to all peers, and the next step that is no put is another
  // signal to all peers. Neither may be optional. A transport between hosts then holds the first
  // signal back and sends it with the second.
  static bool signals_again(const Plan& plan, uint32_t step);

 private:
  // bytes of a slot that are fetched while its signal is waited for
  static constexpr uint64_t kFetchAheadBytes = 2048;
  // bytes of the next slot to be written: fetching more takes longer than peers leave the slot
  // alone
  static constexpr uint64_t kFetchedSlotBytes = 512;

  // Elements of a step that its plan moves in the present round.
  struct Slice {
    uint64_t begin, count;
  };
  template <class C>
  static constexpr bool kSmall = std::is_same_v<C, SmallCursor>;

  // Steps. False: blocked, failed, or (a small call) to go on in the ring.
  Outcome outcome() const { return failure_.failed() ? Outcome::failed : Outcome::blocked; }
  bool run_round(Operation& op);
  template <class C>
  bool perform(C& cursor, const Step& step);
  template <class C>
  void signal(C& cursor, const Step& step);
  template <class C>
  bool wait(C& cursor, const Step& step);
  template <class C>
  bool move(C& cursor, const Step& step);  // copy and cast
  template <class C>
  bool put(C& cursor, const Step& step);
  bool code(Operation& op, const Step& step);
  bool code(SmallCursor&, const Step&) { return false; }  // no small call has such a step
  bool reduce(Operation& op, const Step& step);
  bool reduce(SmallCursor& call, const Step& step);
  bool reduce_local(Operation& op, const Step& step);
  bool reduce_local(SmallCursor& call, const Step& step);
  bool wait_released(Operation& op);
  bool switch_to_fallback(Operation& op);

  // Entering: the fingerprint of a peer is compared, and where its buffers are is learned.
  template <class C>
  bool enter(C& cursor, int peer, const fsccl_transport_line_t& line);
  bool enter_relayed(Operation& op, int peer, const fsccl_transport_line_t& line);
  template <class C>
  bool learn(C& cursor, int rank, uint32_t index, const Location& location);
  bool learn_place(const Cursor& cursor, const OperationSettings& how, int rank, uint32_t index,
                   const Location& location, bool* unreachable);
  // Returns true if some rank cannot touch a buffer that lies there; all ranks judge alike. The
  // system reads, but does not write.
  bool out_of_reach(const Location& location, const Buffer& buffer,
                    const OperationSettings& how) const {
    return location.arena == kPrivate && !one_process_ &&
           !(how.reads && buffer.role == Role::input);
  }

  // Looking for a peer's line.
  const fsccl_transport_line_t* look(SmallCursor& call, int peer, uint32_t tick) const;
  const fsccl_transport_line_t* look(Operation& op, int peer, uint32_t tick);

  // The window of ticks. False: blocked, or failed.
  bool may_begin(uint32_t end_tick) {
    return ticks_.may_begin(end_tick) || confirm_entered(end_tick - kTickWindow);
  }
  bool confirm_entered(uint32_t tick);
  bool all_entered(uint32_t tick);
  bool end_round(const Cursor& cursor);
  bool place_slots(const Plan& plan, uint32_t tick);
  bool reserve_slots();
  void fetch_next(const Plan& plan, uint32_t tick) const;

  // Claims (claims.cpp). False: the ranks disagree, or the line is not what was sent, and the
  // engine has failed.
  bool check_enter(const Fingerprint& mine, int peer, const fsccl_transport_line_t& line) {
    if (!options_.checksum && equal(mine, line.fingerprint)) [[likely]]
      return true;
    return check_claim(mine, peer, line);
  }
  bool check_claim(const Fingerprint& mine, int peer, const fsccl_transport_line_t& line);
  bool await_earlier(int peer);
  Fingerprint claimed(const fsccl_transport_line_t& line) const;
  void mismatch(const Fingerprint& mine, int peer, const Fingerprint& theirs);
  // Fails the engine: the bytes that came from this peer are not those that it sent.
  void damaged(const Fingerprint& mine, int peer, const std::string& what,
               const std::string& checksums);
  void give_up(const Operation& op, fsccl_status_t code, int peer, std::string text);
  int known_as(int rank) const { return options_.known_as(rank); }

  // Addresses.
  std::byte* slot_of(const Buffer& buffer, int rank) const {
    return slots_[static_cast<size_t>(rank)] + ticks_.slot_at(buffer.slot_tick);
  }
  template <class C>
  static std::byte* local(const C& cursor, const Operand& operand) {
    return cursor.own(operand.buffer) + operand.offset;
  }
  // `begin`: elements of `dtype` that earlier rounds did.
  template <class C>
  Remote remote_of(const C& cursor, const Operand& operand, int rank, uint64_t begin,
                   fsccl_dtype_t dtype) const;
  const Remote& remote(const OperationSettings& how, uint32_t buffer, int rank) const {
    return remote_[(buffer == how.published[0] ? 0 : static_cast<size_t>(ranks_)) +
                   static_cast<size_t>(rank)];
  }
  template <class C>
  static Slice slice(const C& cursor, const Step& step) {
    if constexpr (kSmall<C>)
      return {0, step.count};
    else
      return slice(*cursor.plan, step, cursor.round);
  }
  static Slice slice(const Plan& plan, const Step& step, uint32_t round);

  // Moving (runner_moves.cpp).
  // How a step writes `bytes` of a slot of `into` bytes; what goes past the caches has its fence
  // later.
  SlotStores::Write write_slot(uint64_t bytes, uint64_t into) {
    SlotStores::Write write = slot_stores_.begin(bytes, into);
    if (write.stores == Stores::streaming) {
      unfenced_ = true;
      write.stores = Stores::unfenced;
    }
    return write;
  }
  // Copies bytes of a step. `into`: the bytes of the slot that all steps together fill, or 0.
  void copy(void* to, const void* from, uint64_t bytes, uint64_t into, bool from_slot,
            const OperationSettings& how) {
    const SlotStores::Write write = into ? write_slot(bytes, into) : SlotStores::Write{how.stores};
    if ((into || from_slot) && how.in_cache && write.stores == Stores::cached &&
        slot_stores_.side_by_side(into != 0))
      copy_between_cores(to, from, bytes, slot_stores_.cores());
    else
      copy_bytes(to, from, bytes, write.stores);
    if (write.watched) slot_stores_.wrote(write);
  }
  bool read(const Operation& op, const Remote& remote, int rank, void* dst, uint64_t bytes);
  // Bytes that are copied out of mirrors in this round, and in those that peers may begin
  // meanwhile, can go straight to where it is copied to.
  void expect_ahead(Operation& op);
  void expect(const Operation& op, uint32_t round, uint32_t tick,
              const std::array<size_t, kMaxTicks>& slot_at);
  bool was_placed(const Operation& op, const Step& step, uint64_t bytes) const;

  // Reducing (runner_reduce.cpp).
  // The sources of a reduction from one buffer: a block of each rank.
  const void* const* blocks(const std::byte* first, uint64_t stride) {
    for (size_t q = 0; q < static_cast<size_t>(ranks_); q++) sources_[q] = first + q * stride;
    return sources_.data();
  }
  bool reduce_in_pieces(Operation& op, const Step& step, const Slice& part);
  bool reduce_by_reads(Operation& op, const Step& step, const Slice& part);
  bool deliver(Operation& op, const Step& step, const void** sources, uint64_t begin,
               uint64_t count);
  bool reduce_range(Operation& op, const Step& step, const void* const* sources, std::byte* dst,
                    uint64_t count, Stores stores);
  Remote source_of(const Operation& op, const Step& step, int rank, uint64_t begin) const;

  // Checksums of what lies in slots (checksums.h).
  bool checksum_moved(Operation& op, const Step& step, const void* src, const void* dst,
                      uint64_t count);
  bool checksum_reduced(Operation& op, const Step& step, const Slice& part);
  void put_checksum(const Operation& op, const Operand& operand, const void* data, uint64_t bytes);
  bool verify_checksum(Operation& op, const Operand& operand, int rank, const void* data,
                       uint64_t bytes);
  uint32_t& checksum_of(const Operation& op, const Operand& operand, int rank) const;

  const EngineOptions& options_;
  Channel& channel_;
  const ChannelTraits& traits_;
  EngineFailure& failure_;
  Tally& tally_;
  const Sites& sites_;
  const int rank_, ranks_;
  const bool can_read_;
  const bool checksums_;  // slots have tables of checksums
  bool one_process_ = true;
  int looks_ = 0;  // polls of a small call, before it goes on in the ring
  size_t ring_bytes_ = 0, slot_bytes_ = 0;
  std::vector<std::byte*> slots_;  // the ring of each rank
  std::atomic<bool> slots_reserved_{false};

  TickWindow ticks_;
  Foresight foresight_;
  SlotStores slot_stores_{UINT64_MAX, 0, 0, SideBySide::none};
  // The present signal leaves with the next one, and until then the transport reads what was put.
  bool held_ = false;
  bool unfenced_ = false;  // slots were written past the caches, since the last fence
  Blocked blocked_;
  int64_t verdict_ns_ = 0;  // by then ranks that disagree are told so (await_earlier()); 0: none do
  // The locations that peers published with their enter signals of the call that runs, by published
  // buffer and rank.
  std::vector<Remote> remote_;
  std::vector<const void*> sources_;
  std::unique_ptr<std::byte[]> scratch_;  // through which private memory of peers is reduced
  // The ring up to the last round of the running operation whose bytes were said to be expected.
  SlotRing expected_ring_;
  uint32_t expected_rounds_ = 0;
  // the state of look_at_quiet(): the operation, and how often it was found blocked
  uint64_t waited_for_ = 0, waits_ = 0;
};

}  // namespace fsccl
