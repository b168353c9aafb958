// The steps of an operation that move bytes in another way than by a plain copy: a slot is copied
// with the stores that are best for it, the system reads a peer's memory, or the transport writes
// received bytes directly to their place.
#include <algorithm>

#include "base/wait.h"
#include "engine/runner.h"
#include "record/message_names.h"

namespace fsccl {
namespace {

constexpr int64_t kReasonNapNs = 1'000'000;
constexpr int64_t kReasonMs = 300;  // wait for news of why a rank's memory cannot be read

}  // namespace

void Runner::give_up(const Operation& op, fsccl_status_t code, int peer, std::string text) {
  end_touch();
  Error error;
  error.code = code;
  error.rank = known_as(rank_);
  error.peer = known_as(peer);
  error.operation = name_for(rank_, op.fingerprint);
  error.sequence = op.fingerprint.sequence;
  error.text = std::move(text);
  failure_.fail_all(error);
}

Runner::Slice Runner::slice(const Plan& plan, const Step& step, uint32_t round) {
  if (plan.chunk == 0) return {0, step.count};
  const uint64_t each = plan.chunk / dtype_size(step.from), begin = each * round;
  return {begin, begin < step.count ? std::min(each, step.count - begin) : 0};
}

void Runner::copy_by_slot(void* to, const void* from, uint64_t bytes, uint64_t into,
                          const OperationSettings& how) {
  const SlotStores::Write write = into ? write_slot(bytes, into) : SlotStores::Write{how.stores};
  const bool side_by_side =
      how.in_cache && write.stores == Stores::cached && slot_stores_.side_by_side(into != 0);
  const auto copy_now = [&] {
    if (side_by_side)
      copy_between_cores(to, from, bytes, slot_stores_.cores());
    else
      copy_bytes(to, from, bytes, write.stores);
  };
  if (!write.watched) [[likely]]
    return copy_now();  // The call comes last here, so this path saves no registers.
  copy_now();
  slot_stores_.wrote(write);
}

bool Runner::read(const Operation& op, const Remote& remote, int rank, void* dst, uint64_t bytes) {
  return by_system(op, rank, channel_.read(rank, remote.address, dst, bytes), "read");
}

bool Runner::write(const Operation& op, const Remote& remote, int rank, const void* src,
                   uint64_t bytes) {
  return by_system(op, rank, channel_.write(rank, remote.address, src, bytes), "wrote to");
}

bool Runner::by_system(const Operation& op, int rank, const Status& moved, const char* what) {
  tally_.kernel_copied();
  if (moved.ok()) return true;
  end_touch();
  const fsccl_status_t code = moved.code();
  const Deadline patience = Deadline::in_ms(code == FSCCL_ERR_PEER_DEAD ? 0 : kReasonMs);
  // Two other reasons are possible. The rank may have ended because another rank died, and have
  // been the first to report that death. Or it may have learned of a death before this rank did,
  // and have returned its buffers to their owner.
  const auto has_failed = [this] {
    failure_.look();
    return failure_.failed();
  };
  if (wait_until(has_failed, patience, kNothingBreaks, Naps(kReasonNapNs)) == WaitEnd::held)
    return false;
  if (code == FSCCL_ERR_PEER_DEAD)
    give_up(op, code, rank,
            fmt::format("rank {} died while {} {} its memory", known_as(rank),
                        describe_for(rank_, op.fingerprint), what));
  else
    give_up(op, code, rank, fmt::format("rank {}: {}", known_as(rank), moved.text()));
  return false;
}

bool Runner::code(Operation& op, const Step& step) {
  const Operand& slot = op.plan->buffers[step.dst.buffer].slot ? step.dst : step.src;
  op.coded_bytes = op.code(op, step, remote_of(op, slot, slot.rank, 0, FSCCL_UINT8).mapped);
  return true;
}

void Runner::expect_ahead(Operation& op) {
  if (!traits_.places || op.dry_run) return;
  if (op.round == 0) {
    expected_rounds_ = 1;
    expected_ring_ = ticks_.ring();
    expect(op, 0, op.tick, ticks_.slots());
  }
  const auto ticks = static_cast<uint32_t>(op.plan->ticks),
             end = std::min(op.plan->rounds, op.round + kTickWindow / ticks);
  SlotPlaces slots{};
  for (uint32_t& round = expected_rounds_; round < end; round++) {
    ticks_.next_slots(*op.plan, &expected_ring_, &slots);
    expect(op, round, op.tick + (round - op.round) * ticks, slots);
  }
}

// Tells the channel where the parts of a round are to be received. A part of less than
// SmallCall::kBytes is not announced, because a copy out of a mirror takes less time.
void Runner::expect(const Operation& op, uint32_t round, uint32_t tick, const SlotPlaces& slots) {
  for (const Step& step : op.plan->steps) {
    if (step.kind != StepKind::copy || step.src.rank == rank_) continue;
    const Buffer& src = op.plan->buffers[step.src.buffer];
    const Slice part = slice(*op.plan, step, round);
    const uint64_t bytes = part.count * dtype_size(step.from);
    if (!src.slot || op.plan->buffers[step.dst.buffer].slot || bytes <= SmallCall::kBytes) continue;
    channel_.expect(step.src.rank, tick + src.slot_tick, slots[src.slot_tick].at + step.src.offset,
                    remote_of(op, step.dst, step.dst.rank, part.begin, step.to).mapped, bytes);
  }
}

bool Runner::was_placed(const Operation& op, const Step& step, uint64_t bytes) const {
  const Buffer& src = op.plan->buffers[step.src.buffer];
  return traits_.places && src.slot && step.src.rank != rank_ &&
         channel_.placed(step.src.rank, op.tick + src.slot_tick,
                         ticks_.slot(src.slot_tick).at + step.src.offset, bytes);
}

// Adds a checksum of the bytes that a step copies from and to, instead of the bytes in the slot. It
// therefore also finds a copy that goes wrong.
bool Runner::checksum_moved(Operation& op, const Step& step, const void* src, const void* dst,
                            uint64_t count) {
  if (op.plan->buffers[step.dst.buffer].slot) {
    const bool same = step.kind == StepKind::copy;
    put_checksum(op, step.dst, same ? src : dst, count * dtype_size(same ? step.from : step.to));
  }
  const bool from_peer = op.plan->buffers[step.src.buffer].slot && step.src.rank != rank_;
  return !from_peer ||
         verify_checksum(op, step.src, step.src.rank, step.kind == StepKind::copy ? dst : src,
                         count * dtype_size(step.from));
}

// Returns the checksum of the piece that begins at the operand.
uint32_t& Runner::checksum_of(const Operation& op, const Operand& operand, int rank) const {
  const Buffer& buffer = op.plan->buffers[operand.buffer];
  std::byte* const table = slot_of(buffer, rank) + op.plan->slots[buffer.slot_tick];
  return *reinterpret_cast<uint32_t*>(table + operand.offset / kPerChecksum * sizeof(uint32_t));
}

void Runner::put_checksum(const Operation& op, const Operand& operand, const void* data,
                          uint64_t bytes) {
  checksum_of(op, operand, rank_) = crc32c(data, bytes);
}

bool Runner::verify_checksum(Operation& op, const Operand& operand, int rank, const void* data,
                             uint64_t bytes) {
  const uint32_t meant = checksum_of(op, operand, rank), sum = crc32c(data, bytes);
  if (sum == meant) return true;
  damaged(op.fingerprint, rank, fmt::format("{} bytes", bytes),
          fmt::format("their CRC32C is {:#010x}, {:#010x} was meant", sum, meant));
  return false;
}

}  // namespace fsccl
