// The steps of an operation that reduce: from which sources, to where, and through which windows.
#include "engine/executor.h"

namespace fsccl {
namespace {

// Bytes of each source that go through the cache at once when peers' memory can only be read by the
// system.
constexpr uint64_t kWindowBytes = 128u << 10;
// Of a result for all ranks: folded at once.
constexpr uint64_t kSpreadBytes = 8u << 10;

}  // namespace

bool Executor::fold_range(const Step& step, const void* const* sources, std::byte* dst,
                          uint64_t count, Stores stores) {
  Reduce args = op_.reduction(step, sources, engine_.ranks_, dst, count);
  args.norm = op_.want_norm ? &op_.norm : nullptr;
  args.stores = op_.accumulate ? Stores::cached : stores;
  if (reduce(args)) return true;
  give_up(FSCCL_ERR_INTERNAL, -1,
          fmt::format("no kernel reduces {} to {}", dtype_name(step.from), dtype_name(step.to)));
  return false;
}

// Folds `count` elements from the sources to the step's destinations, of which `begin` elements are
// done. A result for all ranks is folded in blocks that stay in the first cache, from where each is
// copied out.
bool Executor::deliver(const Step& step, const void** sources, uint64_t begin, uint64_t count) {
  if (!step.spread)
    return fold_range(step, sources, there(step.dst, step.dst.rank, begin, step.to).mapped, count,
                      op_.stores);
  alignas(64) std::byte window[kSpreadBytes];
  const uint64_t size = dtype_size(step.to), each = kSpreadBytes / size;
  for (uint64_t done = 0; done < count; done += each) {
    const uint64_t now = std::min(each, count - done);
    std::byte* own = there(step.dst, engine_.rank_, begin + done, step.to).mapped;
    const bool streams = op_.stores == Stores::streaming;
    std::byte* folded = streams ? window : own;
    if (!fold_range(step, sources, folded, now, Stores::cached)) return false;
    for (int q = 0; q < engine_.ranks_; q++) {
      std::byte* dst = there(step.dst, q, begin + done, step.to).mapped;
      if (dst != folded) copy_bytes(dst, folded, now * size, op_.stores);
    }
    for (int q = 0; q < engine_.ranks_; q++)
      sources[q] = static_cast<const std::byte*>(sources[q]) + now * dtype_size(step.from);
  }
  return true;
}

Remote Executor::source_of(const Step& step, int rank, uint64_t begin) const {
  if (rank != engine_.rank_) return there(step.src, rank, begin, step.from);
  if (op_.own_sources)
    return {static_cast<std::byte*>(const_cast<void*>(op_.own_sources[step.dst.buffer - 1])), 0};
  return there(step.own, rank, begin, step.from);
}

// Sources of which some can only be read by the system: through a window that stays in the cache.
bool Executor::fold_windowed(const Step& step, const Slice& part) {
  const auto ranks = static_cast<size_t>(engine_.ranks_);
  const uint64_t size = dtype_size(step.from);
  if (!engine_.window_)
    engine_.window_ = std::make_unique_for_overwrite<std::byte[]>(ranks * kWindowBytes);
  const uint64_t chunk = kWindowBytes / size / kNormBlock * kNormBlock;
  for (uint64_t done = 0; done < part.count; done += chunk) {
    const uint64_t count = std::min(chunk, part.count - done);
    for (size_t q = 0; q < ranks; q++) {
      const Remote source = source_of(step, static_cast<int>(q), part.begin).plus(done * size);
      engine_.sources_[q] = source.mapped;
      if (source.mapped) continue;
      std::byte* window = engine_.window_.get() + q * kWindowBytes;
      if (!read(source, static_cast<int>(q), window, count * size)) return false;
      engine_.sources_[q] = window;
    }
    if (!deliver(step, engine_.sources_.data(), part.begin + done, count)) return false;
  }
  return true;
}

bool Executor::fold(const Step& step) {
  if (op_.dry_run) return true;
  const Slice part = slice(step);
  if (part.count == 0) return true;
  bool mapped = true;
  for (int q = 0; q < engine_.ranks_; q++) {
    const Remote source = source_of(step, q, part.begin);
    engine_.sources_[static_cast<size_t>(q)] = source.mapped;
    mapped &= source.mapped != nullptr;
  }
  bool folded = mapped ? deliver(step, engine_.sources_.data(), part.begin, part.count)
                       : fold_windowed(step, part);
  if (engine_.sums_) [[unlikely]]
    folded = folded && sum_folded(step, part);
  if (folded && op_.step_done) op_.step_done(op_, step);
  return folded;
}

bool Executor::sum_folded(const Step& step, const Slice& part) {
  for (int q = 0; q < engine_.ranks_ && plan_->buffers[step.src.buffer].slot; q++)
    if (q != engine_.rank_ && !check_sum(step.src, q, source_of(step, q, part.begin).mapped,
                                         part.count * dtype_size(step.from)))
      return false;
  if (plan_->buffers[step.dst.buffer].slot)
    put_sum(step.dst, there(step.dst, engine_.rank_, part.begin, step.to).mapped,
            part.count * dtype_size(step.to));
  return true;
}

bool Executor::fold_local(const Step& step) {
  if (op_.dry_run) return true;
  return fold_range(step, engine_.blocks(here(step.src), step.stride), here(step.dst), step.count,
                    op_.stores);
}

}  // namespace fsccl
