#include "pool/device/released_bytes.h"

#include <algorithm>

namespace fsccl {
namespace {

// Returns true if `a` waits for a later value than `b`. The words are counters that wrap around,
// and the driver compares them in the same way.
bool is_later(const cuda::CUstreamBatchMemOpParams& a, const cuda::CUstreamBatchMemOpParams& b) {
  if (a.operation == cuda::CU_STREAM_MEM_OP_WAIT_VALUE_64)
    return static_cast<int64_t>(a.value64 - b.value64) > 0;
  return static_cast<int32_t>(static_cast<uint32_t>(a.value64) - static_cast<uint32_t>(b.value64)) >
         0;
}

void add_wait(const cuda::CUstreamBatchMemOpParams& wait, ReleasedBytes::Waits* waits) {
  const auto same =
      std::find_if(waits->begin(), waits->end(), [&](const cuda::CUstreamBatchMemOpParams& known) {
        return known.address == wait.address && known.operation == wait.operation &&
               known.flags == wait.flags;
      });
  if (same == waits->end())
    waits->push_back(wait);
  else if (is_later(wait, *same))
    *same = wait;
}

void add_mark(const StreamMark& mark, std::vector<StreamMark>* marks) {
  const auto same = std::find_if(marks->begin(), marks->end(), [&](const StreamMark& known) {
    return known.stream == mark.stream;
  });
  if (same == marks->end())
    marks->push_back(mark);
  else
    same->sequence = std::max(same->sequence, mark.sequence);
}

}  // namespace

// Makes `at` a border between ranges.
void ReleasedBytes::split(uint64_t at) {
  auto range = ranges_.lower_bound(at);
  if (range == ranges_.begin()) return;
  --range;
  if (range->second.end <= at) return;
  ranges_.emplace(at, range->second);
  range->second.end = at;
}

// Returns the range from `begin` to `end` if there is exactly this one. In a step that repeats, a
// slot takes the bytes of exactly one earlier slot.
ReleasedBytes::Ranges::const_iterator ReleasedBytes::find_same(uint64_t begin, uint64_t end) const {
  const auto range = ranges_.find(begin);
  return range != ranges_.end() && range->second.end == end ? range : ranges_.end();
}

void ReleasedBytes::add(uint64_t begin, uint64_t end, StreamMark mark, Waits waits) {
  if (begin < end) ranges_.emplace(begin, Range{end, mark, std::move(waits)});
}

void ReleasedBytes::needs(uint64_t begin, uint64_t end, std::vector<StreamMark>* marks,
                          Waits* waits) const {
  marks->clear();
  waits->clear();
  if (const auto same = find_same(begin, end); same != ranges_.end()) {
    marks->push_back(same->second.mark);
    waits->assign(same->second.waits.begin(), same->second.waits.end());
    return;
  }
  auto range = ranges_.upper_bound(begin);
  if (range != ranges_.begin() && std::prev(range)->second.end > begin) --range;
  for (; range != ranges_.end() && range->first < end; ++range) {
    add_mark(range->second.mark, marks);
    for (const cuda::CUstreamBatchMemOpParams& wait : range->second.waits) add_wait(wait, waits);
  }
}

void ReleasedBytes::forget(uint64_t begin, uint64_t end) {
  if (const auto same = find_same(begin, end); same != ranges_.end()) {
    ranges_.erase(same);
    return;
  }
  split(begin);
  split(end);
  ranges_.erase(ranges_.lower_bound(begin), ranges_.lower_bound(end));
}

}  // namespace fsccl
