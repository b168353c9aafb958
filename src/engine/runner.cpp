#include "engine/runner.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/fetch.h"
#include "record/message_names.h"
#include "record/recorder.h"

namespace fsccl {
namespace {

// The pieces of a list follow each other in a slot. The processor's prefetching stops at the end of
// a piece, so the runner fetches the bytes that lie this far ahead.
constexpr uint64_t kPieceBytes = 8u << 10, kAheadBytes = 2048;

}  // namespace

Runner::Runner(const EngineOptions& options, EngineFailure& failure, Tally& tally,
               const Sites& sites)
    : options_(options),
      channel_(*options.channel),
      traits_(channel_.traits()),
      failure_(failure),
      tally_(tally),
      sites_(sites),
      rank_(options.rank),
      ranks_(options.ranks),
      can_read_(channel_.can_read()),
      checksums_(options.checksum && !mirrored()),
      looks_(options.oversubscribed ? 1 : bare_polls()),
      ticks_(options.first_tick, checksums_, failure),
      remote_(2 * static_cast<size_t>(options.ranks)),
      sources_(static_cast<size_t>(options.ranks)) {
  for (int rank = 0; rank < ranks_; rank++) {
    rings_.push_back(channel_.slots(rank, &ring_bytes_, &slot_bytes_));
    const bool same = can_read_ && options_.same_process[static_cast<size_t>(rank)];
    one_process_ &= same;
    shares_process_ |= same && rank != rank_;
  }
  const size_t turn = mirrored() ? turn_bytes(slot_bytes_, true, ranks_) : 0;
  ticks_.set_ring(SlotRing(ring_bytes_, slot_bytes_, turn), traits_.exchanges_rings(ranks_));
  if (checksums_) slot_bytes_ = slot_bytes_beside_checksums(slot_bytes_);
  slot_stores_ = SlotStores(options_.slot_streaming_from, ring_bytes_, options_.copy_rate,
                            options_.side_by_side);
}

void Runner::begin(Operation& op) {
  op.begun = true;
  op.tick = ticks_.next_tick();
  // The lower half of a message's history is its tag, which errors show.
  const uint64_t shown = op.fingerprint.op == OpCode::send ? 0xffff'ffff : 0;
  op.fingerprint.history ^= ticks_.unheard_history() & ~shown;
  op.asks = op.publishes ? op.plan : nullptr;
  const bool skips = op.asks_rarely && skips_asking();
  if (skips) op.asks = nullptr;
  if (skips || (op.foresees && foresight_.unreachable())) op.take_fallback();
}

void Runner::begin_again(Operation& op) {
  op.tick = ticks_.next_tick();
  op.step = op.round = 0;
  op.peer = 0;
  op.asks = op.publishes ? op.plan : nullptr;
}

Runner::Outcome Runner::run(Operation& op) {
  while (true) {
    if (!run_round(op)) [[unlikely]]
      return outcome();
    if (++op.round >= op.plan->rounds) break;
    op.tick += static_cast<uint32_t>(op.plan->ticks);
    op.step = 0;
  }
  ticks_.set_next_tick(op.tick + static_cast<uint32_t>(op.plan->ticks));
  learn_from(op, op);
  return Outcome::done;
}

void Runner::learn_from(const Cursor& ended, const OperationSettings& how) {
  if (how.foresees) foresight_.found(ended.unreachable);
  if (!how.asks_rarely) return;
  // switch_to_fallback() has cleared `asks` of a call that asked in vain.
  if (ended.asks || ended.unreachable)
    rooted_foresight_.found(ended.unreachable);
  else
    rooted_foresight_.did_not_ask();
}

// Carries out a step. If some buffer cannot be touched by all ranks, run_round() handles the choice
// of an operation. A small call then returns false and goes on in the ring.
template <class C>
bool Runner::perform(C& cursor, const Step& step) {
  switch (step.kind) {
    case StepKind::signal:
      held_ = traits_.mirrors && signals_again(*cursor.plan, cursor.step);
      if (!(step.optional && ticks_.quiet(*cursor.plan, cursor.tick))) signal(cursor, step);
      return true;
    case StepKind::wait:
      return wait(cursor, step);
    case StepKind::wait_released:
      if constexpr (kSmall<C>)
        return false;
      else
        return wait_released(cursor);
    case StepKind::copy:
    case StepKind::cast:
      return move(cursor, step);
    case StepKind::put:
      return put(cursor, step);
    case StepKind::code:
      return code(cursor, step);
    case StepKind::reduce:
      return reduce(cursor, step);
    case StepKind::reduce_local:
      return reduce_local(cursor, step);
    case StepKind::choose:
      return !kSmall<C> || !cursor.unreachable;
    case StepKind::native:  // comm/device carries out the plans with such steps
    case StepKind::divide:
      return FSCCL_INVARIANT(failure_,
                             step.kind != StepKind::native && step.kind != StepKind::divide);
  }
  return true;
}

bool Runner::run_round(Operation& op) {
  if (op.plan->ticks == 0) return true;  // a local operation, which signals no peer
  if (op.step == 0) {
    if (!may_begin(op.tick + static_cast<uint32_t>(op.plan->ticks))) return false;
    if (!ticks_.placed(op.tick)) {
      if (!place_slots(*op.plan, op.tick)) return false;
      expect_ahead(op);
    }
  }
  held_ = false;
  for (auto count = static_cast<uint32_t>(op.plan->steps.size()); op.step < count; op.step++) {
    if (failure_.failed() && !held_) [[unlikely]]
      return false;
    const Step& step = op.plan->steps[op.step];
    if (step.kind == StepKind::choose && op.unreachable) [[unlikely]]
      return switch_to_fallback(op);
    if (!perform(op, step)) return false;
  }
  return end_round(op);
}

bool Runner::run(SmallCursor& call, Recorder* recorder, uint16_t recorded_as) {
  const Plan& plan = *call.plan;
  call.tick = ticks_.next_tick();
  call.looks = looks_;
  call.fingerprint.history ^= ticks_.unheard_history();
  if (!may_begin(call.tick + static_cast<uint32_t>(plan.ticks))) return false;
  if (!call.has_slots)
    ticks_.place_none(call.tick);
  else if (slots_reserved())
    ticks_.place(plan, call.tick);
  else
    return false;
  const Step* const steps = plan.steps.data();
  for (const Step *step = steps + call.step, *const end = steps + plan.steps.size(); step != end;
       step++, call.step++) {
    if (!perform(call, *step)) return false;
    // The call is recorded behind its first signal, because peers wait for that.
    if (recorder && step->kind == StepKind::signal)
      std::exchange(recorder, nullptr)->at_once(recorded_as, call.fingerprint);
  }
  if (!end_round(call)) return false;
  ticks_.set_next_tick(call.tick + static_cast<uint32_t>(plan.ticks));
  learn_from(call, call.how());
  return true;
}

template <class C>
void Runner::signal(C& cursor, const Step& step) {
  fence_slots();
  // All of the line is initialized, because other processes read all of it.
  fsccl_transport_line_t line{.tick = cursor.tick + step.tick, .processor = -1};
  std::memcpy(line.fingerprint, &cursor.fingerprint, sizeof line.fingerprint);
  if (step.count) {
    copy_inline(line.payload, local(cursor, step.src), step.count);
  } else if (step.tick == 0 && cursor.asks) {
    Published published{};
    const OperationSettings& how = cursor.how();
    for (uint32_t i = 0; i < how.publishes; i++) {
      const Location& location = cursor.location(i);
      published.set(i, location);
      // The peers decide by this location whether all ranks can touch the buffer, and this rank
      // must decide by the same.
      if (location.arena == kPrivate)
        learn_place(cursor, how, rank_, i, location, &cursor.unreachable);
    }
    std::memcpy(line.payload, &published, sizeof published);
  }
  if (!kSmall<C> && options_.checksum) [[unlikely]]
    seal(line);
  if (step.peer != kAllPeers) return channel_.signal_to(step.peer, line);
  if (held_) channel_.hold();
  channel_.signal(line);
}

template void Runner::signal(Operation&, const Step&);

template <class C>
bool Runner::learn(C& cursor, int rank, uint32_t index, const Location& location) {
  if (learn_place(cursor, cursor.how(), rank, index, location, &cursor.unreachable)) return true;
  if constexpr (!kSmall<C>)
    give_up(cursor, FSCCL_ERR_PROTOCOL, rank,
            fmt::format("rank {} named a buffer for {} that rank {} cannot reach (arena {}, at "
                        "{}): use pools made on a communicator of both",
                        known_as(rank), describe_for(rank_, cursor.fingerprint), known_as(rank_),
                        location.arena, location.address));
  return false;
}

bool Runner::learn_place(const Cursor& cursor, const OperationSettings& how, int rank,
                         uint32_t index, const Location& location, bool* unreachable) {
  const Buffer& buffer = cursor.asks->buffers[how.published[index]];
  const auto at = static_cast<size_t>(rank);
  const uint64_t bytes = buffer.peer_bytes.empty() ? buffer.bytes : buffer.peer_bytes[at];
  Remote& remote = remote_[index * static_cast<size_t>(ranks_) + at];
  remote = {};
  if (location.arena >= kFirstArena) {
    remote.mapped = options_.arenas->resolve(location, bytes);
    return remote.mapped;
  }
  if (location.arena != kPrivate) return location.arena == kNowhere && bytes == 0;
  remote.address = location.address;
  if (can_read_ && options_.same_process[at])
    remote.mapped = reinterpret_cast<std::byte*>(location.address);
  // If the call may read private memory through the system, an input there is in reach.
  *unreachable |= !one_process_ && !(how.reads && buffer.role == Role::input);
  return true;
}

// Notes that a peer has entered the call. A small call takes no action if the fingerprint differs:
// it becomes an operation, which reports the error.
template <class C>
bool Runner::enter(C& cursor, int peer, const fsccl_transport_line_t& line) {
  if constexpr (kSmall<C>) {
    if (!equal(cursor.fingerprint, line.fingerprint)) return false;
  } else if (!check_enter(cursor.fingerprint, peer, line)) {
    return false;
  }
  if (!cursor.asks) return true;
  Published published;
  std::memcpy(&published, line.payload, sizeof published);
  for (uint32_t i = 0; i < cursor.how().publishes; i++)
    if (!learn(cursor, peer, i, published.at(i))) return false;
  return true;
}

// A peer that calls something else may have sent all signals of its call, and may be in its next
// call at the tick for which this rank waits.
bool Runner::enter_relayed(Operation& op, int peer, const fsccl_transport_line_t& line) {
  if (line.tick != op.tick && !equal(op.fingerprint, line.fingerprint))
    if (const fsccl_transport_line_t* first = channel_.poll(peer, op.tick))
      if (!enter(op, peer, *first)) return false;
  return enter(op, peer, line);
}

inline const fsccl_transport_line_t* Runner::look(SmallCursor& call, int peer,
                                                  uint32_t tick) const {
  if (call.has_slots)
    if (const Step* const next = reads_slot_behind(*call.plan, call.step)) {
      const uint64_t bytes = next->count * dtype_size(next->from);
      if (bytes <= kFetchAheadBytes)
        fetch_to_read(slot_of(call.plan->buffers[next->src.buffer], peer) + next->src.offset,
                      bytes);
    }
  const fsccl_transport_line_t* line;
  do line = channel_.poll(peer, tick);
  while (!line && --call.looks > 0);
  return line;
}

inline const fsccl_transport_line_t* Runner::look(Operation& op, int peer, uint32_t tick) {
  const fsccl_transport_line_t* const line = channel_.poll(peer, tick);
  if (line) return line;
  blocked_ = {nullptr, 0, peer, tick};
  if (const Step* const next = reads_slot_behind(*op.plan, op.step)) {
    const uint64_t bytes = slice(op, *next).count * dtype_size(next->from);
    if (bytes <= kFetchAheadBytes) {
      blocked_.data = slot_of(op.plan->buffers[next->src.buffer], peer) + next->src.offset;
      blocked_.data_bytes = static_cast<uint32_t>(bytes);
    }
  }
  return nullptr;
}

template <class C>
bool Runner::wait(C& cursor, const Step& step) {
  const bool all = step.peer == kAllPeers;
  const uint32_t tick = cursor.tick + step.tick;
  for (int peer = all ? cursor.peer : step.peer, last = all ? ranks_ - 1 : step.peer; peer <= last;
       peer++) {
    if (peer == rank_) continue;
    cursor.peer = peer;
    const fsccl_transport_line_t* const line = look(cursor, peer, tick);
    if (!line) return false;
    if constexpr (!kSmall<C>) {
      if (cursor.plan->relayed) {
        if (!enter_relayed(cursor, peer, *line)) return false;
      } else if (step.tick && step.count && options_.checksum &&
                 !check_enter(cursor.fingerprint, peer, *line)) {
        return false;
      }
    }
    if (step.tick == 0 && !(!kSmall<C> && cursor.plan->relayed) && !enter(cursor, peer, *line))
      return false;
    if (step.count) copy_inline(local(cursor, step.dst), line->payload, step.count);
  }
  cursor.peer = 0;
  return true;
}

bool Runner::wait_released(Operation& op) {
  for (; op.peer < ranks_; op.peer++) {
    const Milestone* line = op.releases[op.peer];
    if ((op.peer == rank_ && !op.releases_elsewhere) || line->reached() >= op.released) continue;
    blocked_ = {line, op.released, op.peer, 0};
    return false;
  }
  op.peer = 0;
  return true;
}

Remote Runner::remote_of(const Operation& op, const Operand& operand, int rank, uint64_t begin,
                         fsccl_dtype_t dtype) const {
  const Buffer& buffer = op.plan->buffers[operand.buffer];
  if (op.has_slots && buffer.slot) return {slot_of(buffer, rank) + operand.offset, 0};
  const uint64_t offset = operand.offset + (begin ? begin * dtype_size(dtype) : 0);
  // An engine that makes sums apart (sums_apart.h) has one rank, but runs the plans of another
  // engine.
  if (rank == op.plan->rank) return {op.own(operand.buffer) + offset, 0};
  const Binding& binding = op.bindings[operand.buffer];
  if (buffer.shared) return {binding.base + offset, 0};
  if (binding.table) return binding.table[rank].plus(binding.table_offset + offset);
  return remote(op.how(), operand.buffer, rank).plus(offset);
}

// A small call is not stopped between its steps, so it must not touch memory that peers may have
// taken back.
std::byte* Runner::address_at_peer(const SmallCursor& call, const Operand& operand,
                                   int rank) const {
  if (failure_.failed()) return nullptr;
  return remote(call.how(), operand.buffer, rank).plus(operand.offset).mapped;
}

// An operand that only the system can reach is null here, and the call goes on in the ring. No
// small call casts (small_enough).
bool Runner::move(SmallCursor& call, const Step& step) {
  const OperationSettings& how = call.how();
  if (how.dry_run || step.count == 0) return true;
  const std::byte* const src = address(call, step.src, step.src.rank);
  std::byte* const dst = address(call, step.dst, step.dst.rank);
  if (!src || !dst) return false;
  if (src == dst) return true;
  const uint64_t bytes = step.count * dtype_size(step.from);
  return touching(*call.plan, step, [&] {
    if (bytes <= kInlineBytes)
      copy_inline(dst, src, bytes);
    else
      copy(dst, src, bytes, call.plan->slot_bytes(step.dst),
           call.plan->buffers[step.src.buffer].slot, how);
    return true;
  });
}

bool Runner::move(Operation& op, const Step& step) {
  const OperationSettings& how = op.how();
  if (how.dry_run) return true;
  const Slice part = slice(op, step);
  if (part.count == 0) return true;
  const Remote src = remote_of(op, step.src, step.src.rank, part.begin, step.from),
               dst = remote_of(op, step.dst, step.dst.rank, part.begin, step.to);
  const uint64_t bytes = part.count * dtype_size(step.from);
  const uint64_t into = op.plan->slot_bytes(step.dst), out_of = op.plan->slot_bytes(step.src);
  if (!src.mapped) return read(op, src, step.src.rank, dst.mapped, bytes);
  if (!dst.mapped) return write(op, dst, step.dst.rank, src.mapped, bytes);
  if (src.mapped == dst.mapped) return true;  // in place
  if (bytes > SmallCall::kBytes && was_placed(op, step, bytes)) return true;
  const uint64_t ahead = step.src.offset + kAheadBytes;
  if (bytes < kPieceBytes && ahead < out_of)
    fetch_to_read(src.mapped + kAheadBytes, std::min(bytes, out_of - ahead));
  const bool moved = touching(*op.plan, step, [&] {
    if (step.kind == StepKind::cast) {
      const SlotStores::Write write =
          into ? write_slot(bytes, into) : SlotStores::Write{how.stores};
      cast(dst.mapped, step.to, src.mapped, step.from, part.count, write.stores);
      if (write.watched) slot_stores_.wrote(write);
    } else {
      copy(dst.mapped, src.mapped, bytes, into, out_of != 0, how);
    }
    return true;
  });
  if (checksums_) [[unlikely]]
    return moved && checksum_moved(op, step, src.mapped, dst.mapped, part.count);
  return moved;
}

template <class C>
bool Runner::put(C& cursor, const Step& step) {
  if (cursor.how().dry_run) return true;
  Slice part = slice(cursor, step);
  if (part.count == 0) return true;
  if constexpr (!kSmall<C>) {
    if (step.coded) part.count = std::min(part.count, cursor.coded_bytes);
  }
  fence_slots();
  const std::byte* src;
  if constexpr (kSmall<C>)
    src = address(cursor, step.src, step.src.rank);
  else
    src = remote_of(cursor, step.src, step.src.rank, part.begin, step.from).mapped;
  const size_t at =
      ticks_.slot(cursor.plan->buffers[step.dst.buffer].slot_tick).at + step.dst.offset;
  channel_.put(step.peer, at, src, part.count * dtype_size(step.from));
  return true;
}

bool Runner::reduce(SmallCursor& call, const Step& step) {
  for (int q = 0; q < ranks_; q++) {
    const std::byte* const source =
        q == rank_ ? address(call, step.own, step.own.rank) : address(call, step.src, q);
    if (!source) return step.count == 0;
    sources_[static_cast<size_t>(q)] = source;
  }
  return touching(*call.plan, step, [&] {
    return fsccl::reduce(call.how().reduction(step, sources_.data(), ranks_,
                                              address(call, step.dst, step.dst.rank), step.count));
  });
}

bool Runner::reduce_local(SmallCursor& call, const Step& step) {
  return fsccl::reduce(call.how().reduction(step, blocks(local(call, step.src), step.stride),
                                            ranks_, local(call, step.dst), step.count));
}

}  // namespace fsccl
