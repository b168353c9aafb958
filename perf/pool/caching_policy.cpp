#include "perf/pool/caching_policy.h"

#include <iterator>

#include "base/round_up.h"

namespace fsccl::perf {
namespace {

constexpr uint64_t kKiB = 1024, kMiB = kKiB * kKiB;
constexpr uint64_t kApart = uint64_t{1} << 44;  // distance of segments, whose blocks are not joined

}  // namespace

void CachingPolicy::apply(const StepEvent& event) {
  if (event.takes()) take(event);
  if (event.op == StepOp::kGiveBack) give_back(event.key);
}

void CachingPolicy::take(const StepEvent& event) {
  const uint64_t bytes = round_up(event.bytes, 512);
  const bool small = bytes <= kMiB;
  const uint32_t pool = event.stream * 2 + (small ? 1 : 0);
  auto& free = pools_[pool].free;
  uint64_t address = 0;
  const auto fit = free.lower_bound({bytes, 0});
  if (fit != free.end()) {
    address = fit->second;
    free.erase(fit);
  } else {
    address = expandable_ ? expand(pool, bytes, small) : grow(pool, bytes, small);
  }
  Block& block = blocks_.at(address);
  const uint64_t rest = block.bytes - bytes;
  if (small || expandable_ ? rest >= 512 : rest > kMiB) {
    blocks_[address + bytes] = {rest, block.segment, false, pool};
    free.emplace(rest, address + bytes);
    block.bytes = bytes;
  }
  block.used = true;
  held_[event.key] = address;
}

uint64_t CachingPolicy::grow(uint32_t pool, uint64_t bytes, bool small) {
  const uint64_t wanted = small               ? 2 * kMiB
                          : bytes < 10 * kMiB ? 20 * kMiB
                                              : round_up(bytes, 2 * kMiB);
  const uint64_t address = ++next_segment_ * kApart;
  blocks_[address] = {wanted, address, false, pool};
  reserved_ += wanted;
  ++calls_;
  return address;
}

uint64_t CachingPolicy::expand(uint32_t pool, uint64_t bytes, bool small) {
  const uint64_t page = (small ? 2 : 20) * kMiB;
  uint64_t& end = pools_[pool].end;
  uint64_t begin = end;
  if (end == 0) begin = end = ++next_segment_ * kApart;
  const uint64_t segment = begin / kApart * kApart;
  const auto above = blocks_.lower_bound(begin);
  if (above != blocks_.begin()) {
    const auto last = std::prev(above);
    if (!last->second.used && last->second.segment == segment &&
        last->first + last->second.bytes == begin) {
      pools_[pool].free.erase({last->second.bytes, last->first});
      begin = last->first;
    }
  }
  const uint64_t more = round_up(bytes - (end - begin), page);
  end += more;
  reserved_ += more;
  calls_ += more / page;
  blocks_[begin] = {end - begin, segment, false, pool};
  return begin;
}

void CachingPolicy::give_back(uint64_t key) {
  const auto held = held_.find(key);
  if (held == held_.end()) return;
  auto block = blocks_.find(held->second);
  held_.erase(held);
  block->second.used = false;
  auto& free = pools_[block->second.pool].free;
  const auto joins = [&](auto low, auto high) {
    return high != blocks_.end() && !low->second.used && !high->second.used &&
           low->second.segment == high->second.segment &&
           low->first + low->second.bytes == high->first;
  };
  if (joins(block, std::next(block))) {
    const auto next = std::next(block);
    free.erase({next->second.bytes, next->first});
    block->second.bytes += next->second.bytes;
    blocks_.erase(next);
  }
  if (block != blocks_.begin() && joins(std::prev(block), block)) {
    const auto before = std::prev(block);
    free.erase({before->second.bytes, before->first});
    before->second.bytes += block->second.bytes;
    blocks_.erase(block);
    block = before;
  }
  free.emplace(block->second.bytes, block->first);
}

}  // namespace fsccl::perf
