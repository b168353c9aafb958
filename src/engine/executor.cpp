#include "engine/executor.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/fetch.h"
#include "base/wait.h"
#include "record/message_names.h"

namespace fsccl {
namespace {

// A list's pieces lie one behind the other in a slot. What is fetched by itself ends with a piece:
// these are fetched so far ahead.
constexpr uint64_t kPieceBytes = 8u << 10, kAheadBytes = 2048;
constexpr int64_t kReasonNapNs = 1'000'000;
constexpr int64_t kReasonMs = 300;  // for news of why a rank's memory cannot be read

}  // namespace

void Executor::give_up(fsccl_status_t code, int peer, std::string text) {
  Error error;
  error.code = code;
  error.rank = engine_.known_as(engine_.rank_);
  error.peer = peer < 0 ? peer : engine_.known_as(peer);
  error.operation = name_for(engine_.rank_, op_.fingerprint);
  error.sequence = op_.fingerprint.sequence;
  error.text = std::move(text);
  engine_.fail_all(error);
}

void Executor::signal(const Step& step) {
  engine_.fence_slots();
  fsccl_transport_line_t line;
  line.tick = op_.tick + step.tick;
  const bool sealed = engine_.options_.checksum;
  if (sealed) [[unlikely]]
    std::memset(line.payload, 0, sizeof line.payload);
  std::memcpy(line.fingerprint, &op_.fingerprint, sizeof line.fingerprint);
  if (step.count) {
    copy_inline(line.payload, here(step.src), step.count);
  } else if (step.tick == 0 && op_.publishes) {
    Published published{};
    for (uint32_t i = 0; i < op_.publishes; i++) {
      const Location& location = op_.bindings[op_.published[i]].location;
      published.set(i, location);
      // others judge it, so do we
      if (location.arena == kPrivate) learn_location(engine_.rank_, i, location);
    }
    std::memcpy(line.payload, &published, sizeof published);
  }
  if (sealed) [[unlikely]]
    seal(line);
  if (step.peer == kAllPeers && engine_.transport_.hold && &step == &plan_->steps[op_.step] &&
      signals_again(*plan_, op_.step))
    engine_.transport_.hold(engine_.channel_);
  if (step.peer != kAllPeers)
    engine_.transport_.signal_to(engine_.channel_, step.peer, &line);
  else
    engine_.transport_.signal(engine_.channel_, &line);
}

bool Executor::learn_location(int peer, uint32_t index, const Location& location) {
  const Plan& asks = *(op_.foreseen ? op_.otherwise : plan_);
  if (engine_.learn(peer, index, location, asks, op_, &op_.unreachable)) return true;
  give_up(FSCCL_ERR_PROTOCOL, peer,
          fmt::format("rank {} named a buffer for {} that rank {} cannot reach (arena {}, at {}): "
                      "use pools made on a communicator "
                      "of both",
                      engine_.known_as(peer), describe_for(engine_.rank_, op_.fingerprint),
                      engine_.known_as(engine_.rank_), location.arena, location.address));
  return false;
}

bool Executor::enter(int peer, const fsccl_transport_line_t& line) {
  if (!engine_.check_enter(op_.fingerprint, peer, line)) return false;
  if (op_.publishes == 0) return true;
  Published published;
  std::memcpy(&published, line.payload, sizeof published);
  for (uint32_t i = 0; i < op_.publishes; i++)
    if (!learn_location(peer, i, published.at(i))) return false;
  return true;
}

// Who calls something else may have told all of it, and be at the next call by the tick that we
// wait for.
bool Executor::enter_relayed(int peer, const fsccl_transport_line_t& line) {
  if (line.tick != op_.tick && !equal(op_.fingerprint, line.fingerprint))
    if (const fsccl_transport_line_t* first =
            engine_.transport_.poll(engine_.channel_, peer, op_.tick))
      if (!enter(peer, *first)) return false;
  return enter(peer, line);
}

bool Executor::wait(const Step& step) {
  const int last = step.peer == kAllPeers ? engine_.ranks_ - 1 : step.peer;
  int peer = step.peer == kAllPeers ? op_.peer : step.peer;
  const uint32_t tick = op_.tick + step.tick;
  for (; peer <= last; peer++) {
    if (peer == engine_.rank_) continue;
    const fsccl_transport_line_t* line = engine_.transport_.poll(engine_.channel_, peer, tick);
    if (!line) {
      op_.peer = peer;
      engine_.blocked_ = {nullptr, 0, peer, tick};
      fetch_ahead(peer);
      return false;
    }
    if (plan_->relayed ? !enter_relayed(peer, *line) : step.tick == 0 && !enter(peer, *line))
      return false;
    if (step.tick && step.count && engine_.options_.checksum &&
        !engine_.check_enter(op_.fingerprint, peer, *line))
      return false;
    if (step.count) copy_inline(here(step.dst), line->payload, step.count);
  }
  op_.peer = 0;
  return true;
}

const Step* Executor::reads_slot_behind(const Plan& plan, uint32_t wait) {
  if (wait + 1 >= plan.steps.size()) return nullptr;
  const Step& next = plan.steps[wait + 1];
  if (next.kind != StepKind::copy && next.kind != StepKind::reduce) return nullptr;
  const Buffer& buffer = plan.buffers[next.src.buffer];
  return buffer.slot && buffer.slot_tick == plan.steps[wait].tick ? &next : nullptr;
}

bool Executor::signals_again(const Plan& plan, uint32_t step) {
  const auto for_all = [](const Step& any) {
    return any.kind == StepKind::signal && any.peer == kAllPeers && !any.optional;
  };
  if (!for_all(plan.steps[step])) return false;
  do step++;
  while (step < plan.steps.size() && plan.steps[step].kind == StepKind::put);
  return step < plan.steps.size() && for_all(plan.steps[step]);
}

void Executor::fetch_ahead(int peer) {
  const Step* const next = reads_slot_behind(*plan_, op_.step);
  if (!next) return;
  const uint64_t bytes = slice(*next).count * dtype_size(next->from);
  if (bytes > Engine::kFetchAheadBytes) return;
  engine_.blocked_.data = slot_of(plan_->buffers[next->src.buffer], peer) + next->src.offset;
  engine_.blocked_.data_bytes = static_cast<uint32_t>(bytes);
}

bool Executor::wait_released() {
  for (; op_.peer < engine_.ranks_; op_.peer++) {
    const ReleaseLine* line = op_.releases[op_.peer];
    if ((op_.peer == engine_.rank_ && !op_.releases_elsewhere) || line->reached() >= op_.released)
      continue;
    engine_.blocked_ = {line, op_.released, op_.peer, 0};
    return false;
  }
  op_.peer = 0;
  return true;
}

std::byte* Executor::slot_of(const Buffer& buffer, int rank) const {
  return engine_.slots_[static_cast<size_t>(rank)] + engine_.slot_at_[buffer.slot_tick];
}

// `begin`: elements of `dtype` that earlier rounds did.
Remote Executor::there(const Place& place, int rank, uint64_t begin, fsccl_dtype_t dtype) const {
  const Buffer& buffer = plan_->buffers[place.buffer];
  if (buffer.slot) return {slot_of(buffer, rank) + place.offset, 0};
  const Binding& binding = op_.bindings[place.buffer];
  const uint64_t offset = place.offset + begin * dtype_size(dtype);
  if (rank == engine_.rank_ || buffer.shared) return {binding.base + offset, 0};
  if (binding.table) return binding.table[rank].plus(binding.table_offset + offset);
  return engine_.remote(op_, place.buffer, rank).plus(offset);
}

Executor::Slice Executor::slice(const Step& step, uint32_t round) const {
  if (plan_->chunk == 0) return {0, step.count};
  const uint64_t each = plan_->chunk / dtype_size(step.from), begin = each * round;
  return {begin, begin < step.count ? std::min(each, step.count - begin) : 0};
}

bool Executor::read(const Remote& remote, int rank, void* dst, uint64_t bytes) {
  char error[256] = "";
  const fsccl_status_t code = engine_.transport_.read(engine_.channel_, rank, remote.address, dst,
                                                      bytes, error, sizeof error);
  engine_.tally_.kernel_copied();
  if (code == FSCCL_OK) return true;
  const Deadline patience = Deadline::in_ms(code == FSCCL_ERR_PEER_DEAD ? 0 : kReasonMs);
  // It may have ended because another died, of which it was the first to tell; or have heard of
  // that before this rank, and given its buffers back to their owner.
  const auto has_failed = [this] {
    engine_.look_for_failure();
    return engine_.failed();
  };
  if (wait_until(has_failed, patience, kNothingBreaks, Naps(kReasonNapNs)) == WaitEnd::held)
    return false;
  if (code == FSCCL_ERR_PEER_DEAD)
    give_up(code, rank,
            fmt::format("rank {} died while {} read its memory", engine_.known_as(rank),
                        describe_for(engine_.rank_, op_.fingerprint)));
  else
    give_up(code, rank, fmt::format("rank {}: {}", engine_.known_as(rank), error));
  return false;
}

bool Executor::move(const Step& step) {
  if (op_.dry_run) return true;
  const Slice part = slice(step);
  if (part.count == 0) return true;
  const Remote src = there(step.src, step.src.rank, part.begin, step.from),
               dst = there(step.dst, step.dst.rank, part.begin, step.to);
  const uint64_t bytes = part.count * dtype_size(step.from);
  if (!src.mapped) return read(src, step.src.rank, dst.mapped, bytes);
  if (src.mapped == dst.mapped) return true;  // in place
  if (bytes > Engine::kSmallBytes && was_placed(step, bytes)) return true;
  const uint64_t into = plan_->slot_bytes(step.dst), out_of = plan_->slot_bytes(step.src);
  const uint64_t ahead = step.src.offset + kAheadBytes;
  if (bytes < kPieceBytes && ahead < out_of)
    fetch_to_read(src.mapped + kAheadBytes, std::min(bytes, out_of - ahead));
  const auto convert = [&](Stores stores) {
    const Stores used = into && stores == Stores::streaming ? Stores::unfenced : stores;
    cast(dst.mapped, step.to, src.mapped, step.from, part.count, used);
  };
  if (step.kind != StepKind::cast)
    engine_.copy(dst.mapped, src.mapped, bytes, into, out_of != 0, op_);
  else if (into)
    engine_.slot_stores_.write(bytes, into, convert);
  else
    convert(op_.stores);
  if (engine_.sums_) [[unlikely]]
    return sum_moved(step, src.mapped, dst.mapped, part.count);
  return true;
}

// What is summed is what it comes from and what it went to, not what lies in the slot: a copy that
// went wrong is found, too.
bool Executor::sum_moved(const Step& step, const void* src, const void* dst, uint64_t count) {
  if (plan_->buffers[step.dst.buffer].slot) {
    const bool same = step.kind == StepKind::copy;
    put_sum(step.dst, same ? src : dst, count * dtype_size(same ? step.from : step.to));
  }
  const bool from_peer = plan_->buffers[step.src.buffer].slot && step.src.rank != engine_.rank_;
  return !from_peer || check_sum(step.src, step.src.rank, step.kind == StepKind::copy ? dst : src,
                                 count * dtype_size(step.from));
}

uint32_t& Executor::sum_of(const Place& place, int rank) const {
  const uint16_t tick = plan_->buffers[place.buffer].slot_tick;
  return engine_.sum_at(rank, tick, plan_->slots[tick], place.offset);
}

void Executor::put_sum(const Place& place, const void* data, uint64_t bytes) {
  sum_of(place, engine_.rank_) = crc32c(data, bytes);
}

bool Executor::check_sum(const Place& place, int rank, const void* data, uint64_t bytes) {
  const uint32_t meant = sum_of(place, rank), sum = crc32c(data, bytes);
  if (sum == meant) return true;
  engine_.damaged(op_.fingerprint, rank, fmt::format("{} bytes", bytes),
                  fmt::format("their CRC32C is {:#010x}, {:#010x} was meant", sum, meant));
  return false;
}

// What is copied from mirrors in this round and those that peers may begin meanwhile can go
// straight to where it is copied to.
void Executor::expect_ahead() {
  if (!engine_.transport_.expect || op_.dry_run) return;
  if (op_.round == 0) {
    engine_.expected_rounds_ = 1;
    engine_.expected_ring_ = engine_.slot_ring_;
    expect(0, op_.tick, engine_.slot_at_);
  }
  const auto ticks = static_cast<uint32_t>(plan_->ticks),
             end = std::min(plan_->rounds, op_.round + kWindow / ticks);
  std::array<size_t, kMaxTicks> slot_at{};
  for (uint32_t& round = engine_.expected_rounds_; round < end; round++) {
    engine_.next_slots(*plan_, &engine_.expected_ring_, &slot_at);
    expect(round, op_.tick + (round - op_.round) * ticks, slot_at);
  }
}

void Executor::expect(uint32_t round, uint32_t tick, const std::array<size_t, kMaxTicks>& slot_at) {
  for (const Step& step : plan_->steps) {
    if (step.kind != StepKind::copy || step.src.rank == engine_.rank_) continue;
    const Buffer& src = plan_->buffers[step.src.buffer];
    const Slice part = slice(step, round);
    const uint64_t bytes = part.count * dtype_size(step.from);
    if (!src.slot || plan_->buffers[step.dst.buffer].slot || bytes <= Engine::kSmallBytes) continue;
    engine_.transport_.expect(engine_.channel_, step.src.rank, tick + src.slot_tick,
                              slot_at[src.slot_tick] + step.src.offset,
                              there(step.dst, step.dst.rank, part.begin, step.to).mapped, bytes);
  }
}

bool Executor::was_placed(const Step& step, uint64_t bytes) const {
  const Buffer& src = plan_->buffers[step.src.buffer];
  return engine_.transport_.placed && src.slot && step.src.rank != engine_.rank_ &&
         engine_.transport_.placed(engine_.channel_, step.src.rank, op_.tick + src.slot_tick,
                                   engine_.slot_at_[src.slot_tick] + step.src.offset, bytes) != 0;
}

bool Executor::put(const Step& step) {
  if (op_.dry_run) return true;
  const Slice part = slice(step);
  if (part.count == 0) return true;
  engine_.fence_slots();
  const Remote src = there(step.src, step.src.rank, part.begin, step.from);
  const size_t at = engine_.slot_at_[plan_->buffers[step.dst.buffer].slot_tick] + step.dst.offset;
  engine_.transport_.put(engine_.channel_, step.peer, at, src.mapped,
                         part.count * dtype_size(step.from));
  return true;
}

// Some buffer cannot be touched by all: all ranks know, and go on with the plan that needs none.
bool Executor::go_otherwise() {
  if (!engine_.all_entered(op_.tick)) return false;
  engine_.heard(op_.tick++);
  op_.plan = plan_ = op_.otherwise;
  op_.publishes = 0;
  op_.step = op_.round = 0;
  return run_round();
}

bool Executor::perform(const Step& step) {
  switch (step.kind) {
    case StepKind::signal:
      if (!engine_.leaves_out(step, *plan_, op_.tick)) signal(step);
      return true;
    case StepKind::wait:
      return wait(step);
    case StepKind::wait_released:
      return wait_released();
    case StepKind::copy:
    case StepKind::cast:
      return move(step);
    case StepKind::put:
      return put(step);
    case StepKind::reduce:
      return fold(step);
    case StepKind::reduce_local:
      return fold_local(step);
    case StepKind::choose:
      break;  // run() knows
  }
  return true;
}

bool Executor::run_round() {
  if (plan_->ticks == 0) return true;  // no round: nobody hears of it
  if (op_.step == 0) {
    if (!engine_.may_begin(op_.tick + static_cast<uint32_t>(plan_->ticks))) return false;
    if (engine_.placed_ != op_.tick) {
      if (!engine_.place_slots(*plan_, op_.tick)) return false;
      expect_ahead();
    }
  }
  bool held = false;  // what was put is still read by the transport, until the next signal
  for (auto count = static_cast<uint32_t>(plan_->steps.size()); op_.step < count; op_.step++) {
    if (engine_.failed() && !held) [[unlikely]]
      return false;
    const Step& step = plan_->steps[op_.step];
    if (step.kind == StepKind::signal) held = signals_again(*plan_, op_.step);
    if (step.kind == StepKind::choose && op_.unreachable) [[unlikely]]
      return go_otherwise();
    if (!perform(step)) return false;
  }
  return engine_.end_round(*plan_, op_.tick, op_.fingerprint);
}

bool Executor::has_come() {
  if (!op_.begun || op_.complete || plan_->ticks == 0 || op_.round + 1 < plan_->rounds)
    return false;
  const auto in_signals = [](const Step& step) {
    return step.kind == StepKind::wait || step.kind == StepKind::reduce_local;
  };
  if (!std::all_of(plan_->steps.begin() + op_.step, plan_->steps.end(), in_signals)) return false;
  for (; op_.step < plan_->steps.size(); op_.step++)
    if (!perform(plan_->steps[op_.step])) return false;
  return engine_.end_round(*plan_, op_.tick, op_.fingerprint);
}

Engine::Outcome Executor::run() {
  while (true) {
    if (!run_round()) [[unlikely]]
      return engine_.failed() ? Engine::Outcome::failed : Engine::Outcome::blocked;
    if (++op_.round >= plan_->rounds) return Engine::Outcome::done;
    op_.tick += static_cast<uint32_t>(plan_->ticks);
    op_.step = 0;
  }
}

}  // namespace fsccl
