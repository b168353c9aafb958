// The runner of an engine carries out the steps of plans. It works over a cursor, which says how
// far a call has come: that of an operation of the queue, or that of a small call (small_call.h). A
// step that cannot go on leaves the cursor where it is; the next run goes on from there.
//
// The plan gives the steps. Addresses come from the call's buffers, from the window of ticks
// (slots), and from the peers' enter signals, for buffers that they published there.
//
// The runner belongs to the driver of the engine (queue.h): one thread at a time uses it.
#pragma once
#include <array>
#include <atomic>
#include <cstring>
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
    const Milestone* release = nullptr;  // the wait is for `position`; null: for a line of `peer`
    uint64_t position = 0;
    int peer = 0;
    uint32_t tick = 0;
    const std::byte* data = nullptr;  // fetched into the cache while the thread polls
    uint32_t data_bytes = 0;
    int64_t until_ns = 0;  // the wait is over by then in any case; 0: it has no such end
  };

  // `sites` is used for the texts of errors.
  Runner(const EngineOptions& options, EngineFailure& failure, Tally& tally, const Sites& sites);

  // can_read(): private memory of peers can be read. one_process(): all ranks are threads of this
  // process.
  bool can_read() const { return can_read_; }
  bool one_process() const { return one_process_; }
  // Peers see copies of this rank's slots, with only those bytes that were put for them.
  bool mirrored() const { return traits_.mirrors; }
  // Returns how often a peer's line is polled before the thread does anything else. Bare polls are
  // the fastest means to notice a peer that is nearly there. Between hosts there are fewer, because
  // each poll calls the network's driver. If ranks share cores there are fewer, too, because the
  // peer may be waiting for this core.
  int bare_polls() const { return mirrored() || options_.oversubscribed ? 20 : 400; }
  size_t slot_bytes() const { return slot_bytes_; }
  size_t ring_bytes() const { return ring_bytes_; }
  bool slots_reserved() const { return slots_reserved_.load(std::memory_order_relaxed); }

  // Gives an operation its first tick, and the fallback plan if it is foreseen that buffers cannot
  // be touched.
  void begin(Operation& op);
  // Runs the operation until its plan is done, a peer is not there yet, or the engine has failed.
  Outcome run(Operation& op);
  // Begins again with the plan that the operation's completion hook has set.
  void begin_again(Operation& op);
  // Finishes the operation after a failure, if only waits for signals that have arrived and sums of
  // their payloads are left. Returns false if the operation is not complete. It touches no memory
  // that peers may have given back.
  bool finish_from_signals(Operation& op);

  // Carries out a small call. Returns false if the call goes on in the ring, with the same cursor.
  bool run(SmallCursor& call, Recorder* recorder, uint16_t recorded_as);
  bool foresees_unreachable() const { return foresight_.unreachable(); }
  bool skips_asking() const { return rooted_foresight_.unreachable(); }
  // Makes room for operations that reduce over more ranks than the engine has.
  void reserve_sources(size_t ranks) { sources_.resize(std::max(ranks, sources_.size())); }

  const Blocked& blocked() const { return blocked_; }
  void block_on(const Milestone* release, uint64_t position) {
    blocked_ = {release, position, rank_, 0};
  }
  bool met(const Blocked& blocked) const;  // true if the signal or release is there
  // Fills in the word on which a blocked thread may sleep.
  void fill_word(const Blocked& blocked, fsccl_transport_word_t* word) const;
  // A rank that has to wait does two things, because ranks that disagree about a call without
  // mandatory signals might otherwise wait for each other. It sends its optional signal, which says
  // what it calls. And it looks at the optional signals of its peers for the calls that it
  // completed without them.
  void look_at_quiet(Operation& op);
  // Returns true if the peer has begun the operation that comes next.
  bool has_come(int peer) const { return channel_.poll(peer, ticks_.next_tick()) != nullptr; }
  // Makes bytes that were copied into slots visible before the next store of this thread: before a
  // peer is told of them, and before another thread drives. There is one fence after all copies
  // that fill a slot, because there may be many small ones and a fence waits for memory.
  void fence_slots() {
    if (!unfenced_) return;
    fence_stores();
    unfenced_ = false;
  }

  // Returns the step that follows a wait, if it copies or reduces from the slot whose signal was
  // waited for, or null. The lines of that slot and the signal can arrive together.
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
  // This many bytes of a slot are fetched while its signal is waited for.
  static constexpr uint64_t kFetchAheadBytes = 2048;
  // This many bytes of the next slot to be written are fetched. Fetching more would take longer
  // than peers leave the slot alone.
  static constexpr uint64_t kFetchedSlotBytes = 512;

  // The elements of a step that its plan moves in the present round.
  struct Slice {
    uint64_t begin, count;
  };
  template <class C>
  static constexpr bool kSmall = std::is_same_v<C, SmallCursor>;

  // These functions carry out steps. They return false if the cursor is blocked, if the engine has
  // failed, or if a small call has to go on in the ring.
  Outcome outcome() const { return failure_.failed() ? Outcome::failed : Outcome::blocked; }
  bool run_round(Operation& op);
  template <class C>
  bool perform(C& cursor, const Step& step);
  template <class C>
  void signal(C& cursor, const Step& step);
  template <class C>
  bool wait(C& cursor, const Step& step);
  bool move(Operation& op, const Step& step);  // copy and cast
  bool move(SmallCursor& call, const Step& step);
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
  // Takes over what a call that has ended says about the buffers of the next ones.
  void learn_from(const Cursor& ended, const OperationSettings& how);

  // When a peer enters, its fingerprint is compared, and the locations of its buffers are taken
  // over.
  template <class C>
  bool enter(C& cursor, int peer, const fsccl_transport_line_t& line);
  bool enter_relayed(Operation& op, int peer, const fsccl_transport_line_t& line);
  template <class C>
  bool learn(C& cursor, int rank, uint32_t index, const Location& location);
  // Takes over the location of a buffer of `rank`. Sets *unreachable, on all ranks alike, if some
  // rank cannot touch the buffer there. Returns false if this rank cannot find it.
  bool learn_place(const Cursor& cursor, const OperationSettings& how, int rank, uint32_t index,
                   const Location& location, bool* unreachable);

  // These poll for the line of a peer.
  const fsccl_transport_line_t* look(SmallCursor& call, int peer, uint32_t tick) const;
  const fsccl_transport_line_t* look(Operation& op, int peer, uint32_t tick);

  // These concern the window of ticks. They return false if the cursor is blocked or the engine
  // failed.
  bool may_begin(uint32_t end_tick) {
    return ticks_.may_begin(end_tick) || confirm_entered(end_tick - kTickWindow);
  }
  bool confirm_entered(uint32_t tick);
  bool all_entered(uint32_t tick);
  bool end_round(const Cursor& cursor);
  bool place_slots(const Plan& plan, uint32_t tick);
  bool reserve_slots();
  void fetch_next(const Plan& plan, uint32_t tick) const;

  // These check claims (claims.cpp). They return false if the ranks disagree, or if the line is not
  // what was sent; the engine has failed then.
  bool check_enter(const Fingerprint& mine, int peer, const fsccl_transport_line_t& line) {
    if (!options_.checksum && equal(mine, line.fingerprint)) [[likely]]
      return true;
    return check_claim(mine, peer, line);
  }
  bool check_claim(const Fingerprint& mine, int peer, const fsccl_transport_line_t& line);
  bool await_earlier(int peer);
  Fingerprint claimed(const fsccl_transport_line_t& line) const;
  void mismatch(const Fingerprint& mine, int peer, const Fingerprint& theirs);
  // Fails the engine: the bytes from this peer are not those that it sent.
  void damaged(const Fingerprint& mine, int peer, const std::string& what,
               const std::string& checksums);
  void give_up(const Operation& op, fsccl_status_t code, int peer, std::string text);
  int known_as(int rank) const { return options_.known_as(rank); }

  // These compute addresses.
  std::byte* slot_of(const Buffer& buffer, int rank) const {
    return at(ticks_.slot(buffer.slot_tick), rank);
  }
  std::byte* at(const SlotPlace& place, int rank) const {
    return rings_[static_cast<size_t>(place.exchanged ? 1 - rank : rank)] + place.at;
  }
  template <class C>
  static std::byte* local(const C& cursor, const Operand& operand) {
    return cursor.own(operand.buffer) + operand.offset;
  }
  // `begin` is the number of elements of `dtype` that earlier rounds did.
  Remote remote_of(const Operation& op, const Operand& operand, int rank, uint64_t begin,
                   fsccl_dtype_t dtype) const;
  // Returns the address of an operand of a small call. It is null if the call must not touch it
  // here, and has to go on in the ring.
  std::byte* address(const SmallCursor& call, const Operand& operand, int rank) const {
    const Buffer& buffer = call.plan->buffers[operand.buffer];
    if (call.has_slots && buffer.slot) return slot_of(buffer, rank) + operand.offset;
    // An engine that makes sums apart (sums_apart.h) has one rank, but runs the plans of another.
    if (rank == call.plan->rank) return local(call, operand);
    return address_at_peer(call, operand, rank);
  }
  std::byte* address_at_peer(const SmallCursor& call, const Operand& operand, int rank) const;
  const Remote& remote(const OperationSettings& how, uint32_t buffer, int rank) const {
    return remote_[(buffer == how.published[0] ? 0 : static_cast<size_t>(ranks_)) +
                   static_cast<size_t>(rank)];
  }
  // Returns true if the step copies or reduces from buffers of peers, or to one. Slots are none.
  static bool touches_peers(const Plan& plan, const Step& step) {
    const bool reduces = step.kind == StepKind::reduce;
    return (!plan.buffers[step.src.buffer].slot && (reduces || step.src.rank != plan.rank)) ||
           (!plan.buffers[step.dst.buffer].slot && (step.to_all || step.dst.rank != plan.rank));
  }
  template <class C>
  static Slice slice(const C& cursor, const Step& step) {
    if constexpr (kSmall<C>)
      return {0, step.count};
    else
      return slice(*cursor.plan, step, cursor.round);
  }
  static Slice slice(const Plan& plan, const Step& step, uint32_t round);

  // These move bytes (runner_moves.cpp).
  //
  // Returns how a step writes `bytes` of a slot of `into` bytes. If it writes past the caches, the
  // fence comes later.
  SlotStores::Write write_slot(uint64_t bytes, uint64_t into) {
    SlotStores::Write write = slot_stores_.begin(bytes, into);
    if (write.stores == Stores::streaming) {
      unfenced_ = true;
      write.stores = Stores::unfenced;
    }
    return write;
  }
  static constexpr uint64_t kFewBytes = 2048;
  static_assert(kFewBytes < kLeastMovedBytes);
  // Copies bytes of a step. `into` is the number of bytes of a slot that all steps together fill,
  // or 0.
  void copy(void* to, const void* from, uint64_t bytes, uint64_t into, bool from_slot,
            const OperationSettings& how) {
    const bool plain = into ? !slot_stores_.past_caches(into) : how.stores == Stores::cached;
    if (plain && bytes <= kFewBytes)
      std::memcpy(to, from, bytes);  // as all ways to copy so few bytes with plain stores do
    else if (into || from_slot)
      copy_by_slot(to, from, bytes, into, how);
    else
      copy_bytes(to, from, bytes, how.stores);
  }
  // Copies to or from a slot. It is no part of its callers, so that those that copy a few bytes
  // need not save registers.
  [[gnu::noinline]] void copy_by_slot(void* to, const void* from, uint64_t bytes, uint64_t into,
                                      const OperationSettings& how);
  // Runs `act`, the work of a step. If the step touches buffers of peers that are threads of this
  // process, none of them gets its buffers back meanwhile. Returns false without running it if the
  // channel has failed.
  template <class Act>
  bool touching(const Plan& plan, const Step& step, const Act& act) {
    if (!shares_process_ || !touches_peers(plan, step)) [[likely]]
      return act();
    touches_ = channel_.touch();
    if (!touches_) {
      failure_.look();
      return false;
    }
    const struct Last {
      Runner& runner;
      ~Last() { runner.end_touch(); }
    } last{*this};
    return act();
  }
  // An error ends it as well, because a rank that has failed waits for its peers.
  void end_touch() {
    if (std::exchange(touches_, false)) channel_.touched();
  }
  // The system reads private memory of a peer, or writes to it.
  bool read(const Operation& op, const Remote& remote, int rank, void* dst, uint64_t bytes);
  bool write(const Operation& op, const Remote& remote, int rank, const void* src, uint64_t bytes);
  bool by_system(const Operation& op, int rank, const Status& moved, const char* what);
  // Tells the transport where this rank wants the bytes that it will copy out of mirrors in this
  // round, and in the rounds that peers may begin meanwhile. They can then go straight there.
  void expect_ahead(Operation& op);
  void expect(const Operation& op, uint32_t round, uint32_t tick, const SlotPlaces& slots);
  bool was_placed(const Operation& op, const Step& step, uint64_t bytes) const;

  // These reduce (runner_reduce.cpp).
  //
  // Returns the sources of a reduction from one buffer that has a block of each rank.
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

  // These make and compare checksums of the bytes in slots (checksums.h).
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
  bool shares_process_ = false;  // some peer is a thread of this process
  const bool checksums_;         // slots have tables of checksums
  bool one_process_ = true;
  int looks_ = 0;  // polls of a small call, before it goes on in the ring
  size_t ring_bytes_ = 0, slot_bytes_ = 0;
  std::vector<std::byte*> rings_;  // the ring of each rank
  std::atomic<bool> slots_reserved_{false};

  TickWindow ticks_;
  Foresight foresight_;
  RootedForesight rooted_foresight_;
  SlotStores slot_stores_{UINT64_MAX, 0, 0, SideBySide::none};
  bool touches_ = false;  // a step touches memory of ranks in this process
  // The present signal leaves together with the next one. Until then the transport reads the bytes
  // that were put, so they must not change.
  bool held_ = false;
  bool unfenced_ = false;  // slots were written past the caches since the last fence
  Blocked blocked_;
  // By this time ranks that disagree have been told so (await_earlier()); 0: no rank disagrees.
  int64_t verdict_ns_ = 0;
  // The locations that peers published with their enter signals of the call that runs, by published
  // buffer and rank.
  std::vector<Remote> remote_;
  std::vector<const void*> sources_;
  std::unique_ptr<std::byte[]> scratch_;  // private memory of peers is read into it and reduced
  // The ring after the last round of the running operation for which expect() was called.
  SlotRing expected_ring_;
  uint32_t expected_rounds_ = 0;
  // The state of look_at_quiet(): the operation, and how often it was found blocked.
  uint64_t waited_for_ = 0, waits_ = 0;
};

}  // namespace fsccl
