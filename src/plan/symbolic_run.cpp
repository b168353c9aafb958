#include "plan/symbolic_run.h"

#include <algorithm>

#include "plan/describe.h"

namespace fsccl {
namespace {

Result<uint64_t> bytes_of(uint64_t count, fsccl_dtype_t dtype) {
  uint64_t bytes = 0;
  if (!dtype_valid(dtype))
    return fail(FSCCL_ERR_INTERNAL, "dtype {} is unknown", static_cast<int>(dtype));
  if (__builtin_mul_overflow(count, dtype_size(dtype), &bytes))
    return fail(FSCCL_ERR_INTERNAL, "{} elements exceed any memory", count);
  return bytes;
}

}  // namespace

std::string at_step(const Plan& plan, uint32_t step, const std::string& why) {
  const std::string what = step < plan.steps.size() ? describe(plan, plan.steps[step]) : "end";
  return fmt::format("plan {}, rank {} of {}, step {} ({}): {}", plan.name, plan.rank, plan.ranks,
                     step, what, why);
}

SymbolicRun::SymbolicRun(const std::vector<Plan>& plans, const std::vector<Alias>& aliases)
    : plans_(plans),
      order_(static_cast<int>(plans.size()),
             plans[0].ticks + static_cast<int>(plans[0].natives.size())) {
  const size_t ranks = plans.size(), buffers = plans[0].buffers.size();
  memories_.resize(buffers * ranks);
  accesses_.resize(buffers * ranks);
  next_.assign(ranks, 0);
  waited_.assign(ranks * ranks, false);
  waited_enter_.assign(ranks * ranks, false);
  released_.assign(buffers * ranks, false);
  payloads_.resize(ranks * static_cast<size_t>(plans[0].ticks));
  puts_.resize(ranks * ranks);
  for (size_t m = 0; m < memories_.size(); ++m)
    locations_.push_back({plans[0].buffers[m / ranks].shared ? m / ranks * ranks : m, 0});
  for (const Alias& alias : aliases) {
    const auto rank = static_cast<size_t>(alias.rank);
    locations_[alias.buffer * ranks + rank] = {alias.inside * ranks + rank, alias.offset};
  }
  for (const Plan& plan : plans) {
    for (uint32_t i = 0; i < buffers; ++i) {
      const Buffer& buffer = plan.buffers[i];
      // A rank may put its own mirrored slot as a whole, with gaps between the pieces. The gaps
      // therefore have an initial value, which no result may have.
      const bool mine = buffer.slot && !buffer.address_exchanged;
      if (buffer.role != Role::input && buffer.role != Role::inout && !mine) continue;
      const SymbolicValue initial{buffer.shared ? 0 : plan.rank, i, 0};
      const Location location = locate({i, plan.rank, 0});
      memories_[location.memory].set_initial(location.offset, buffer.bytes, initial);
    }
  }
}

SymbolicRun::Location SymbolicRun::locate(const Operand& operand) const {
  const Location& start =
      locations_[operand.buffer * plans_.size() + static_cast<size_t>(operand.rank)];
  return {start.memory, start.offset + operand.offset};
}

Status SymbolicRun::run() {
  const int ranks = static_cast<int>(plans_.size());
  for (bool moved = true; moved;) {
    moved = false;
    for (int rank = 0; rank < ranks; ++rank) {
      FSCCL_ASSIGN(const bool did, advance(rank));
      moved |= did;
    }
  }
  return blocked();
}

Status SymbolicRun::blocked() const {
  std::string who;
  size_t others = 0;
  for (size_t r = 0; r < plans_.size(); ++r) {
    if (next_[r] == plans_[r].steps.size()) continue;
    if (who.empty()) {
      who = at_step(plans_[r], next_[r], "is never met: a deadlock");
    } else {
      ++others;
    }
  }
  if (who.empty()) return success();
  return fail(FSCCL_ERR_INTERNAL, "{} ({} more ranks are blocked too)", who, others);
}

Result<bool> SymbolicRun::advance(int rank) {
  const Plan& plan = plans_[static_cast<size_t>(rank)];
  uint32_t& next = next_[static_cast<size_t>(rank)];
  const uint32_t from = next;
  bool began = false;  // a native step has begun, which other ranks may wait for
  while (next < plan.steps.size()) {
    const Step& step = plan.steps[next];
    if (step.kind == StepKind::native) {
      began |= !order_.signalled(rank, plan.ticks + step.tick, rank);
      Result<bool> over = do_native(rank, next, step);
      if (!over.ok())
        return fail(FSCCL_ERR_INTERNAL, "{}", at_step(plan, next, over.status().text()));
      if (!over.value()) break;
      ++next;
      continue;
    }
    if (step.kind == StepKind::wait) {
      if (step.peer != kAllPeers && (step.peer < 0 || step.peer >= plan.ranks || step.peer == rank))
        return fail(FSCCL_ERR_INTERNAL, "{}",
                    at_step(plan, next, "waits for a rank that is not a peer"));
      if (step.tick >= plan.ticks)
        return fail(FSCCL_ERR_INTERNAL, "{}", at_step(plan, next, "the plan has no such tick"));
      if (!met(rank, step)) break;
    }
    if (Status status = execute(rank, next, step); !status.ok())
      return fail(FSCCL_ERR_INTERNAL, "{}", at_step(plan, next, status.text()));
    ++next;
  }
  return next != from || began;
}

bool SymbolicRun::met(int rank, const Step& step) const {
  if (step.peer != kAllPeers) return order_.signalled(step.peer, step.tick, rank);
  for (int q = 0; q < static_cast<int>(plans_.size()); ++q)
    if (q != rank && !order_.signalled(q, step.tick, rank)) return false;
  return true;
}

Status SymbolicRun::execute(int rank, uint32_t index, const Step& step) {
  switch (step.kind) {
    case StepKind::copy:
    case StepKind::cast:
    case StepKind::code:
      return do_move(rank, index, step);
    case StepKind::put:
      return do_put(rank, index, step);
    case StepKind::reduce:
    case StepKind::reduce_local:
      return do_reduce(rank, index, step);
    case StepKind::signal:
      return do_signal(rank, index, step);
    case StepKind::wait:
      return do_wait(rank, index, step);
    case StepKind::divide:
      return do_divide(rank, index, step);
    case StepKind::native:
      break;  // advance() carries it out
    case StepKind::choose:
      for (int q = 0; q < static_cast<int>(plans_.size()); ++q)
        if (q != rank && !waited_enter(rank, q))
          return fail(FSCCL_ERR_INTERNAL, "chooses before rank {} has entered", q);
      return success();
    case StepKind::wait_released: {
      const std::vector<Buffer>& buffers = plans_[static_cast<size_t>(rank)].buffers;
      if (step.dst.buffer >= buffers.size() || !buffers[step.dst.buffer].guarded)
        return fail(FSCCL_ERR_INTERNAL, "the buffer is not guarded, so no rank releases it");
      released_[static_cast<size_t>(rank) * buffers.size() + step.dst.buffer] = true;
      return success();
    }
  }
  return fail(FSCCL_ERR_INTERNAL, "unknown kind of step {}", static_cast<int>(step.kind));
}

// Checks that `rank` may access the operand.
Status SymbolicRun::check_operand(int rank, const Operand& operand, uint64_t bytes, bool write) {
  const Plan& plan = plans_[static_cast<size_t>(rank)];
  if (operand.rank < 0 || operand.rank >= plan.ranks)
    return fail(FSCCL_ERR_INTERNAL, "rank {} does not exist", operand.rank);
  const Plan& owner = plans_[static_cast<size_t>(operand.rank)];
  if (operand.buffer >= owner.buffers.size())
    return fail(FSCCL_ERR_INTERNAL, "buffer {} does not exist", operand.buffer);
  const Buffer& buffer = owner.buffers[operand.buffer];
  uint64_t end = 0;
  if (__builtin_add_overflow(operand.offset, bytes, &end) || end > buffer.bytes)
    return fail(FSCCL_ERR_INTERNAL, "{} bytes from {} on exceed the {} bytes of {} on rank {}",
                bytes, operand.offset, buffer.bytes, buffer.name, operand.rank);
  if (write && buffer.role == Role::input)
    return fail(FSCCL_ERR_INTERNAL, "{} is an input and must not be written", buffer.name);
  if (write && buffer.slot && operand.rank != rank)
    return fail(FSCCL_ERR_INTERNAL, "{} of rank {} is written by another", buffer.name,
                operand.rank);
  if (write && buffer.guarded && buffer.role != Role::inout &&
      !released_[static_cast<size_t>(rank) * plan.buffers.size() + operand.buffer])
    return fail(FSCCL_ERR_INTERNAL, "{} is guarded and written before a wait for its release",
                buffer.name);
  if (operand.rank == rank || buffer.shared) return success();
  if (!buffer.address_in_signal && !buffer.symmetric && !buffer.address_exchanged)
    return fail(FSCCL_ERR_INTERNAL,
                "peers do not know where {} of rank {} is: its address is neither in a signal nor "
                "exchanged, and it is neither symmetric nor shared",
                buffer.name, operand.rank);
  if (!waited(rank, operand.rank))
    return fail(FSCCL_ERR_INTERNAL, "{} of rank {} is touched before any wait for that rank",
                buffer.name, operand.rank);
  return success();
}

// Checks that source and destination of a step do not overlap. They may be the same bytes, if
// `same_allowed` says so.
Status SymbolicRun::check_alias(const Operand& dst, uint64_t dst_bytes, const Operand& src,
                                uint64_t src_bytes, bool same_allowed) const {
  const Location to = locate(dst), from = locate(src);
  if (to.memory != from.memory || to.offset + dst_bytes <= from.offset ||
      from.offset + src_bytes <= to.offset || dst_bytes == 0)
    return success();
  if (same_allowed && to.offset == from.offset && dst_bytes == src_bytes) return success();
  return fail(FSCCL_ERR_INTERNAL, "source and destination overlap");
}

Result<std::vector<SymbolicRange>> SymbolicRun::read(int rank, uint32_t index,
                                                     const Operand& operand, uint64_t bytes) {
  FSCCL_TRY(check_operand(rank, operand, bytes, false));
  const Location from = locate(operand);
  note(from.memory, from.offset, bytes, false, order_.now(rank, index));
  auto ranges = memories_[from.memory].read(from.offset, bytes);
  if (!ranges.ok())
    return fail(FSCCL_ERR_INTERNAL, "reads buffer {} of rank {}: {}", operand.buffer, operand.rank,
                ranges.status().text());
  for (SymbolicRange& range : ranges.value()) range.begin -= from.offset, range.end -= from.offset;
  return ranges;
}

Status SymbolicRun::write(int rank, uint32_t index, const Operand& operand, uint64_t bytes,
                          const SymbolicValue& value) {
  FSCCL_TRY(check_operand(rank, operand, bytes, true));
  const Location to = locate(operand);
  note(to.memory, to.offset, bytes, true, order_.now(rank, index));
  const bool once =
      plans_[static_cast<size_t>(operand.rank)].buffers[operand.buffer].role != Role::scratch;
  return memories_[to.memory].write(to.offset, bytes, value, once);
}

// Carries out a put. It counts as a copy that lasts until `peer` certainly has the bytes, because
// the peer has waited for the tick of the slot.
Status SymbolicRun::do_put(int rank, uint32_t index, const Step& step) {
  const Plan& plan = plans_[static_cast<size_t>(rank)];
  if (!plan.mirrored) return fail(FSCCL_ERR_INTERNAL, "puts into a slot that is not mirrored");
  if (step.peer < 0 || step.peer >= plan.ranks || step.peer == rank)
    return fail(FSCCL_ERR_INTERNAL, "puts for a rank that is not a peer");
  FSCCL_TRY(check_operand(rank, step.dst, 0, true));
  FSCCL_TRY(check_operand(rank, step.src, 0, false));
  if (!plan.buffers[step.dst.buffer].slot)
    return fail(FSCCL_ERR_INTERNAL, "puts into what is not a slot");
  if (step.src.rank != rank) return fail(FSCCL_ERR_INTERNAL, "puts what lies on another rank");
  if (step.tick >= plan.ticks) return fail(FSCCL_ERR_INTERNAL, "the plan has no such tick");
  if (order_.signalled(rank, step.tick, step.peer))
    return fail(FSCCL_ERR_INTERNAL, "puts into the slot of tick {} after its signal", step.tick);
  const size_t memories[] = {locate(step.src).memory, locate(step.dst).memory};
  const size_t before[] = {accesses_[memories[0]].size(), accesses_[memories[1]].size()};
  FSCCL_TRY(do_move(rank, index, step));
  for (const size_t i : {0, 1})
    for (size_t access = before[i]; access < accesses_[memories[i]].size(); ++access) {
      accesses_[memories[i]][access].over.reset();
      puts_[pair(rank, step.peer)].push_back({memories[i], access, step.tick});
    }
  return success();
}

Status SymbolicRun::do_move(int rank, uint32_t index, const Step& step) {
  const bool convert = step.kind == StepKind::cast;
  FSCCL_ASSIGN(const uint64_t src_bytes, bytes_of(step.count, step.from));
  FSCCL_ASSIGN(const uint64_t dst_bytes, bytes_of(step.count, convert ? step.to : step.from));
  FSCCL_TRY(check_operand(rank, step.dst, dst_bytes, true));
  FSCCL_TRY(check_operand(rank, step.src, src_bytes, false));
  const Location to = locate(step.dst), from = locate(step.src);
  const bool in_place =
      step.dst.buffer != step.src.buffer && to.memory == from.memory && to.offset == from.offset;
  if (in_place && !convert) return success();
  FSCCL_TRY(check_alias(step.dst, dst_bytes, step.src, src_bytes, false));
  FSCCL_ASSIGN(const auto ranges, read(rank, index, step.src, src_bytes));
  const std::vector<Buffer>& buffers = plans_[static_cast<size_t>(rank)].buffers;
  const bool dst_local = step.dst.rank == rank || buffers[step.dst.buffer].shared;
  const bool src_local = step.src.rank == rank || buffers[step.src.buffer].shared;
  if (convert ? !(dst_local && src_local) : !(dst_local || src_local))
    return fail(
        FSCCL_ERR_INTERNAL, "{}",
        convert ? "a cast is between operands of this rank" : "a copy is from or to this rank");
  for (const SymbolicRange& range : ranges) {
    Operand operand = step.dst;
    SymbolicValue value = range.value;
    uint64_t bytes = range.end - range.begin;
    operand.offset +=
        range.begin / dtype_size(step.from) * dtype_size(convert ? step.to : step.from);
    if (convert) {
      if (!value.raw())
        return fail(FSCCL_ERR_INTERNAL, "converts {}, which is not an input", value.text());
      if (bytes % dtype_size(step.from) != 0)
        return fail(FSCCL_ERR_INTERNAL, "an element is made of two sources");
      value.from = step.from;
      value.to = step.to;
      bytes = bytes / dtype_size(step.from) * dtype_size(step.to);
    } else {
      operand.offset = step.dst.offset + range.begin;
    }
    FSCCL_TRY(write(rank, index, operand, bytes, value));
  }
  return success();
}

// All sources must be the same bytes of the ranks' inputs: source k is read from rank k (reduce),
// or was gathered from it before (reduce_local).
Status SymbolicRun::do_reduce(int rank, uint32_t index, const Step& step) {
  const bool local = step.kind == StepKind::reduce_local;
  const std::vector<Buffer>& buffers = plans_[static_cast<size_t>(rank)].buffers;
  FSCCL_ASSIGN(const uint64_t src_bytes, bytes_of(step.count, step.from));
  FSCCL_ASSIGN(const uint64_t dst_bytes, bytes_of(step.count, step.to));
  const auto first_dst = step.to_all ? 0 : step.dst.rank,
             last_dst = step.to_all ? plans_[0].ranks - 1 : step.dst.rank;
  for (int q = first_dst; q <= last_dst; ++q)
    FSCCL_TRY(check_operand(rank, {step.dst.buffer, q, step.dst.offset}, dst_bytes, true));
  if (step.to_all && buffers[step.dst.buffer].shared)
    return fail(FSCCL_ERR_INTERNAL, "a shared result is written once");
  SymbolicValue result{0, 0, 0, step.from, step.to, true};
  bool first = true;
  for (int k = 0; k < static_cast<int>(plans_.size()); ++k) {
    Operand operand{step.src.buffer, k, step.src.offset};
    if (!local && k == rank) operand = step.own;
    if (local) {
      uint64_t skipped = 0;
      if (__builtin_mul_overflow(step.stride, static_cast<uint64_t>(k), &skipped) ||
          __builtin_add_overflow(step.src.offset, skipped, &operand.offset))
        return fail(FSCCL_ERR_INTERNAL, "block {} lies beyond any memory", k);
      operand.rank = rank;
    }
    FSCCL_ASSIGN(const auto ranges, read(rank, index, operand, src_bytes));
    for (int q = first_dst; q <= last_dst; ++q)
      FSCCL_TRY(
          check_alias({step.dst.buffer, q, step.dst.offset}, dst_bytes, operand, src_bytes, true));
    for (const SymbolicRange& range : ranges) {
      const SymbolicValue& value = range.value;
      const uint64_t base = value.offset - range.begin;
      if (first) result.buffer = value.buffer, result.offset = base, first = false;
      if (!value.raw() || value.rank != k || value.buffer != result.buffer || base != result.offset)
        return fail(FSCCL_ERR_INTERNAL,
                    "source {} holds {}, not what the other sources hold for rank {}", k,
                    value.text(), k);
    }
  }
  for (int q = first_dst; q <= last_dst; ++q)
    FSCCL_TRY(write(rank, index, {step.dst.buffer, q, step.dst.offset}, dst_bytes, result));
  return success();
}

Status SymbolicRun::do_signal(int rank, uint32_t index, const Step& step) {
  const int ticks = plans_[0].ticks;
  if (step.tick >= ticks) return fail(FSCCL_ERR_INTERNAL, "the plan has no such tick");
  const int ranks = plans_[0].ranks, first = step.peer == kAllPeers ? 0 : step.peer,
            last = step.peer == kAllPeers ? ranks : first + 1;
  if (plans_[0].relayed && (step.peer < 0 || step.peer >= ranks || step.peer == rank))
    return fail(FSCCL_ERR_INTERNAL, "a relayed signal is for one peer");
  if (!plans_[0].relayed && step.peer != kAllPeers)
    return fail(FSCCL_ERR_INTERNAL, "a signal is for all peers");
  // Peers do not wait for every tick: in mirrored plans a rank may skip all ticks but the first of
  // a round, and in quiet plans the first as well.
  const bool may_skip = plans_[0].mirrored || plans_[0].quiet;
  for (int peer = first; peer < last; ++peer) {
    if (order_.signalled(rank, step.tick, peer))
      return fail(FSCCL_ERR_INTERNAL, "tick {} is signalled twice", step.tick);
    for (int t = step.tick + 1; t < ticks && may_skip; ++t)
      if (order_.signalled(rank, t, peer))
        return fail(FSCCL_ERR_INTERNAL, "tick {} came before", t);
    if (step.tick > 0 && !may_skip && !order_.signalled(rank, step.tick - 1, peer))
      return fail(FSCCL_ERR_INTERNAL, "tick {} is skipped or comes later", step.tick - 1);
  }
  if (step.count > kInlineBytes)
    return fail(FSCCL_ERR_INTERNAL, "a signal carries at most {} bytes", kInlineBytes);
  if (step.count > 0) {
    if (step.src.rank != rank)
      return fail(FSCCL_ERR_INTERNAL, "a signal carries bytes of its own rank");
    Payload& payload =
        payloads_[static_cast<size_t>(rank) * static_cast<size_t>(ticks) + step.tick];
    // A later payload replaces an earlier one in the line, perhaps before peers have read it.
    for (int t = 0; t < step.tick; ++t)
      if (payloads_[static_cast<size_t>(rank) * static_cast<size_t>(ticks) + static_cast<size_t>(t)]
              .bytes > 0)
        return fail(FSCCL_ERR_INTERNAL, "only one signal of a plan carries bytes, and tick {} did",
                    t);
    FSCCL_ASSIGN(payload.ranges, read(rank, index, step.src, step.count));
    payload.bytes = step.count;
  }
  for (int peer = first; peer < last; ++peer) order_.signal(rank, index, step.tick, peer);
  return success();
}

Status SymbolicRun::do_wait(int rank, uint32_t index, const Step& step) {
  order_.begin_wait(rank);
  for (int q = 0; q < static_cast<int>(plans_.size()); ++q) {
    if (q == rank || (step.peer != kAllPeers && step.peer != q)) continue;
    order_.wait(rank, q, step.tick);
    waited_[pair(rank, q)] = true;
    if (step.tick == 0) waited_enter_[pair(rank, q)] = true;
    std::erase_if(puts_[pair(q, rank)], [&](const PutInFlight& put) {
      if (put.tick != step.tick) return false;
      accesses_[put.memory][put.access].over = order_.now(rank, index);
      return true;
    });
  }
  if (step.count == 0) return success();
  if (step.peer == kAllPeers)
    return fail(FSCCL_ERR_INTERNAL, "a wait for all peers stores no bytes");
  if (step.dst.rank != rank)
    return fail(FSCCL_ERR_INTERNAL, "carried bytes are stored on the rank that waits");
  const Payload& payload =
      payloads_[static_cast<size_t>(step.peer) * static_cast<size_t>(plans_[0].ticks) + step.tick];
  if (payload.bytes != step.count)
    return fail(FSCCL_ERR_INTERNAL, "the signal carries {} bytes, and {} are wanted", payload.bytes,
                step.count);
  FSCCL_TRY(check_operand(rank, step.dst, step.count, true));
  for (const SymbolicRange& range : payload.ranges) {
    Operand operand = step.dst;
    operand.offset += range.begin;
    FSCCL_TRY(write(rank, index, operand, range.end - range.begin, range.value));
  }
  return success();
}

}  // namespace fsccl
