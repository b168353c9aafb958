// The steps of an operation that reduce: their sources, their destinations, and the scratch memory
// between them.
#include "base/round_up.h"
#include "engine/engine.h"
#include "engine/runner.h"

namespace fsccl {
namespace {

// If only the system can read peers' memory, so many bytes of each source go through the cache at a
// time.
constexpr uint64_t kScratchBytes = 128u << 10, kPageBytes = 4096;
// So many bytes of each source are reduced before another engine's operations may continue. This
// takes less than a tenth of a millisecond.
constexpr uint64_t kSummedBytes = 256u << 10;
// So many bytes of a result for all ranks are reduced at a time.
constexpr uint64_t kDeliveredBytes = 8u << 10;

}  // namespace

bool Runner::reduce_range(Operation& op, const Step& step, const void* const* sources,
                          std::byte* dst, uint64_t count, Stores stores) {
  Reduce args = op.reduction(step, sources, op.plan->ranks, dst, count);
  args.norm = op.want_norm ? &op.norm : nullptr;
  args.stores = op.accumulate ? Stores::cached : stores;
  if (fsccl::reduce(args)) return true;
  give_up(op, FSCCL_ERR_INTERNAL, -1,
          fmt::format("no kernel reduces {} to {}", dtype_name(step.from), dtype_name(step.to)));
  return false;
}

// Reduces `count` elements from the sources to the step's destinations, of which `begin` elements
// are done. A result for all ranks is made in blocks that stay in the first cache, and each block
// is copied out from there.
bool Runner::deliver(Operation& op, const Step& step, const void** sources, uint64_t begin,
                     uint64_t count) {
  if (!step.to_all)
    return reduce_range(op, step, sources,
                        remote_of(op, step.dst, step.dst.rank, begin, step.to).mapped, count,
                        op.stores);
  alignas(64) std::byte block[kDeliveredBytes];
  const uint64_t size = dtype_size(step.to), each = kDeliveredBytes / size;
  for (uint64_t done = 0; done < count; done += each) {
    const uint64_t now = std::min(each, count - done);
    std::byte* own = remote_of(op, step.dst, rank_, begin + done, step.to).mapped;
    const bool streams = op.stores == Stores::streaming;
    std::byte* reduced = streams ? block : own;
    if (!reduce_range(op, step, sources, reduced, now, Stores::cached)) return false;
    for (int q = 0; q < ranks_; q++) {
      std::byte* dst = remote_of(op, step.dst, q, begin + done, step.to).mapped;
      if (dst != reduced) copy_bytes(dst, reduced, now * size, op.stores);
    }
    for (int q = 0; q < ranks_; q++)
      sources[q] = static_cast<const std::byte*>(sources[q]) + now * dtype_size(step.from);
  }
  return true;
}

Remote Runner::source_of(const Operation& op, const Step& step, int rank, uint64_t begin) const {
  if (rank != op.plan->rank) return remote_of(op, step.src, rank, begin, step.from);
  if (op.own_sources)
    return {static_cast<std::byte*>(const_cast<void*>(op.own_sources[step.dst.buffer - 1])), 0};
  return remote_of(op, step.own, rank, begin, step.from);
}

// Reduces if the system must read some of the sources. Their bytes go through scratch memory that
// stays in the cache. A source keeps its offset within a page there, because processors move bytes
// slowly if the offsets of source and destination differ by a little (slow_to_move() in
// kernels/kernels.h).
bool Runner::reduce_by_reads(Operation& op, const Step& step, const Slice& part) {
  const auto ranks = static_cast<size_t>(ranks_);
  const uint64_t size = dtype_size(step.from);
  constexpr uint64_t kEach = kScratchBytes + kPageBytes;
  if (!scratch_) scratch_ = std::make_unique_for_overwrite<std::byte[]>(ranks * kEach + kPageBytes);
  auto* const page = reinterpret_cast<std::byte*>(
      round_up(reinterpret_cast<uintptr_t>(scratch_.get()), kPageBytes));
  const uint64_t chunk = kScratchBytes / size / kNormBlock * kNormBlock;
  for (uint64_t done = 0; done < part.count; done += chunk) {
    const uint64_t count = std::min(chunk, part.count - done);
    for (size_t q = 0; q < ranks; q++) {
      const Remote source = source_of(op, step, static_cast<int>(q), part.begin).plus(done * size);
      sources_[q] = source.mapped;
      if (source.mapped) continue;
      std::byte* scratch = page + q * kEach + source.address % kPageBytes;
      if (!read(op, source, static_cast<int>(q), scratch, count * size)) return false;
      sources_[q] = scratch;
    }
    if (!deliver(op, step, sources_.data(), part.begin + done, count)) return false;
  }
  return true;
}

// Makes sums apart, piece by piece. Their sources are slots that this rank maps.
bool Runner::reduce_in_pieces(Operation& op, const Step& step, const Slice& part) {
  const uint64_t size = dtype_size(step.from), each = kSummedBytes / size / kNormBlock * kNormBlock;
  for (uint64_t done = 0; done < part.count; done += each) {
    op.lets_pass->let_pass();
    if (failure_.failed()) return false;
    for (int q = 0; q < op.plan->ranks; q++)
      sources_[static_cast<size_t>(q)] =
          source_of(op, step, q, part.begin).plus(done * size).mapped;
    const uint64_t count = std::min(each, part.count - done);
    if (!deliver(op, step, sources_.data(), part.begin + done, count)) return false;
  }
  return true;
}

bool Runner::reduce(Operation& op, const Step& step) {
  if (op.dry_run) return true;
  const Slice part = slice(op, step);
  if (part.count == 0) return true;
  if (op.lets_pass) {
    if (!reduce_in_pieces(op, step, part)) return false;
    if (op.step_done) op.step_done(op, step);
    return true;
  }
  bool mapped = true;
  for (int q = 0; q < ranks_; q++) {
    const Remote source = source_of(op, step, q, part.begin);
    sources_[static_cast<size_t>(q)] = source.mapped;
    mapped &= source.mapped != nullptr;
  }
  bool reduced = touching(*op.plan, step, [&] {
    return mapped ? deliver(op, step, sources_.data(), part.begin, part.count)
                  : reduce_by_reads(op, step, part);
  });
  if (checksums_) [[unlikely]]
    reduced = reduced && checksum_reduced(op, step, part);
  if (reduced && op.step_done) op.step_done(op, step);
  return reduced;
}

bool Runner::checksum_reduced(Operation& op, const Step& step, const Slice& part) {
  for (int q = 0; q < ranks_ && op.plan->buffers[step.src.buffer].slot; q++)
    if (q != rank_ && !verify_checksum(op, step.src, q, source_of(op, step, q, part.begin).mapped,
                                       part.count * dtype_size(step.from)))
      return false;
  if (op.plan->buffers[step.dst.buffer].slot)
    put_checksum(op, step.dst, remote_of(op, step.dst, rank_, part.begin, step.to).mapped,
                 part.count * dtype_size(step.to));
  return true;
}

bool Runner::reduce_local(Operation& op, const Step& step) {
  if (op.dry_run) return true;
  return reduce_range(op, step, blocks(local(op, step.src), step.stride), local(op, step.dst),
                      step.count, op.stores);
}

}  // namespace fsccl
