#include "pool/device/device_blocks.h"

#include <algorithm>

#include "base/round_up.h"
#include "base/undo.h"
#include "pool/largest_blocks.h"

namespace fsccl {
namespace {

std::string stream_name(cuda::CUstream stream) {
  return stream ? fmt::format("stream {}", static_cast<void*>(stream)) : "the default stream";
}

}  // namespace

FreeRanges& DeviceBlocks::ranges_of(uint32_t stream) {
  while (streams_.size() <= stream) streams_.emplace_back();
  return streams_[stream];
}

// Bytes that streams have finished with become free for all streams.
void DeviceBlocks::share_finished() {
  for (uint32_t s = 0; s < streams_.size(); s++) {
    FreeRanges& own = streams_[s];
    if (own.ranges().empty()) continue;
    marks_.look(s);
    for (auto range = own.ranges().begin(); range != own.ranges().end();) {
      const auto [begin, was] = *range++;
      if (!marks_.known_over({s, was.sequence})) continue;
      own.remove(begin, was.end);
      shared_.add(begin, was.end, 0);
    }
  }
}

// Finds room in adjacent free ranges that the stream may use. kNobody means all free ranges.
std::optional<uint64_t> DeviceBlocks::find_together(uint64_t room, uint64_t alignment,
                                                    uint32_t stream) const {
  std::map<uint64_t, uint64_t> free;
  for (const auto& [begin, range] : shared_.ranges()) free.emplace(begin, range.end);
  for (uint32_t s = 0; s < streams_.size(); s++)
    if (stream == kNobody || s == stream)
      for (const auto& [begin, range] : streams_[s].ranges()) free.emplace(begin, range.end);
  std::optional<uint64_t> best;
  uint64_t smallest = ~uint64_t{0};
  for (auto range = free.begin(); range != free.end();) {
    const uint64_t begin = range->first;
    uint64_t end = range->second;
    for (++range; range != free.end() && range->first == end; ++range) end = range->second;
    const uint64_t at = round_up(begin, alignment);
    if (at + room > end || end - begin >= smallest) continue;
    smallest = end - begin;
    best = at;
  }
  return best;
}

Result<bool> DeviceBlocks::capturing(cuda::CUstream stream) const {
  const cuda::Device& device = memory_.arena(DevicePart::blocks).device();
  const cuda::Current current(device);
  return device.capturing(stream);
}

std::optional<uint64_t> DeviceBlocks::find(uint64_t room, uint64_t alignment, uint32_t stream,
                                           bool captured) {
  uint64_t own_bytes = 0, shared_bytes = 0;
  if (captured) {
    share_finished();
    return shared_.find(room, alignment, &shared_bytes);
  }
  const std::optional<uint64_t> own = ranges_of(stream).find(room, alignment, &own_bytes);
  const std::optional<uint64_t> shared = shared_.find(room, alignment, &shared_bytes);
  if (own && shared) return own_bytes <= shared_bytes ? own : shared;
  if (own || shared) return own ? own : shared;
  share_finished();
  if (const std::optional<uint64_t> found = find_together(room, alignment, stream)) return found;
  return find_together(room, alignment, kNobody);
}

// Takes free bytes from the streams that have them, and makes `stream` wait for these streams.
Status DeviceBlocks::claim(uint64_t begin, uint64_t end, uint32_t stream) {
  shared_.remove(begin, end);
  Status status;
  for (uint32_t s = 0; s < streams_.size(); s++) {
    const uint64_t sequence = streams_[s].remove(begin, end);
    if (!sequence || s == stream || !status.ok()) continue;
    status = marks_.make_wait(stream, {s, sequence});
    waits_++;
  }
  return status;
}

uint64_t DeviceBlocks::free_tail() const {
  uint64_t begin = bytes_;
  for (bool found = true; found;) {
    found = false;
    const auto look = [&](const FreeRanges& ranges) {
      const auto last = ranges.ranges().lower_bound(begin);
      if (last == ranges.ranges().begin() || std::prev(last)->second.end != begin) return;
      begin = std::prev(last)->first;
      found = true;
    };
    look(shared_);
    for (const FreeRanges& ranges : streams_) look(ranges);
  }
  return begin;
}

// Adds a segment behind the free bytes at the end. The lock is released meanwhile, so other threads
// may grow the arena as well.
Status DeviceBlocks::grow(uint64_t room, uint64_t alignment, bool captured, bool* asked,
                          std::unique_lock<std::mutex>& lock) {
  const uint64_t granularity = memory_.arena(DevicePart::blocks).granularity();
  const uint64_t begin = round_up(captured ? bytes_ : free_tail(), alignment);
  const uint64_t needed = round_up(begin + room - std::min(bytes_, begin + room), granularity);
  const uint64_t left = memory_.left() / granularity * granularity;
  const uint64_t more = std::max(needed, std::min(round_up(kSegment, granularity), left));
  lock.unlock();
  Status status = memory_.grow(DevicePart::blocks, more, asked);
  lock.lock();
  const uint64_t exist = memory_.bytes(DevicePart::blocks);
  if (exist > bytes_) shared_.add(bytes_, exist, 0);
  bytes_ = std::max(bytes_, exist);
  return status;
}

Result<uint64_t> DeviceBlocks::place(uint64_t room, uint64_t alignment, uint32_t stream,
                                     bool captured, std::unique_lock<std::mutex>& lock) {
  std::optional<uint64_t> found = find(room, alignment, stream, captured);
  for (bool asked = false; !found; found = find(room, alignment, stream, captured)) {
    Status grown = grow(room, alignment, captured, &asked, lock);
    if (grown.ok()) continue;
    // The program may have freed memory when it was asked.
    found = find(room, alignment, stream, captured);
    if (!found) return grown;
    break;
  }
  const Status status = claim(*found, *found + room, stream);
  if (status.ok()) return *found;
  return status.clone();  // the driver has failed, and the bytes are lost with it
}

Status DeviceBlocks::fill(uint64_t begin, uint64_t end, cuda::CUstream stream) const {
  if (!poison_) return success();
  const cuda::Device& device = memory_.arena(DevicePart::blocks).device();
  const cuda::Current current(device);
  return device.check("cuMemsetD8Async",
                      device.driver().cuMemsetD8Async(memory_.base(DevicePart::blocks) + begin,
                                                      kPoison, end - begin, stream));
}

Result<void*> DeviceBlocks::alloc(uint64_t bytes, cuda::CUstream stream, uint64_t alignment) {
  const uint64_t granularity = memory_.arena(DevicePart::blocks).granularity();
  if (alignment > granularity)
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "the alignment is {}: blocks of pool '{}' are aligned to {} at most", alignment,
                pool_, granularity);
  alignment = std::max(alignment, kAlignment);
  const uint64_t room = round_up(std::max<uint64_t>(bytes, 1), kAlignment);
  const Journal::Owner owner{.stream = reinterpret_cast<uint64_t>(stream)};
  std::unique_lock lock(mutex_);
  FSCCL_ASSIGN(const uint32_t number, marks_.number(stream));
  FSCCL_ASSIGN(const bool captured, capturing(stream));
  const Result<uint64_t> placed = place(room, alignment, number, captured, lock);
  if (!placed.ok()) {
    journal_.block_refused(owner, bytes, memory_.left());
    return placed.status().clone();
  }
  const uint64_t begin = placed.value(), address = memory_.base(DevicePart::blocks) + begin;
  Undo undo([&] {
    blocks_.erase(begin);
    const Result<StreamMark> mark = marks_.set(number);
    if (mark.ok()) ranges_of(number).add(begin, begin + room, mark.value().sequence);
  });
  FSCCL_TRY(fill(begin, begin + room, stream));
  blocks_.emplace(begin, Block{begin, begin + room, bytes, calls_ + 1, stream});
  journal_.block_taken(owner, address, room, bytes);
  undo.keep();
  calls_++;
  const std::lock_guard counting(figures_mutex_);
  figures_.blocks++;
  figures_.allocations++;
  figures_.live_bytes += room;
  figures_.peak_bytes = std::max(figures_.peak_bytes, figures_.live_bytes);
  return reinterpret_cast<void*>(address);
}

Status DeviceBlocks::free(void* pointer, cuda::CUstream stream) {
  const std::lock_guard lock(mutex_);
  const auto found =
      blocks_.find(reinterpret_cast<uint64_t>(pointer) - memory_.base(DevicePart::blocks));
  if (found == blocks_.end())
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "{} is not a block of pool '{}', or was freed before",
                pointer, pool_);
  FSCCL_ASSIGN(const uint32_t number, marks_.number(stream));
  FSCCL_ASSIGN(const bool captured, capturing(stream));
  if (captured)
    return fail(FSCCL_ERR_NOT_AVAILABLE,
                "{} is being captured, and its graph may use the block at {} again whenever it "
                "runs: free it behind the capture, or "
                "when the graph is gone",
                stream_name(stream), pointer);
  const Block block = found->second;
  FSCCL_TRY(fill(block.begin, block.end, stream));
  FSCCL_ASSIGN(const StreamMark mark, marks_.set(number));
  calls_++;
  blocks_.erase(found);
  journal_.block_given_back(reinterpret_cast<uint64_t>(pointer),
                            reinterpret_cast<uint64_t>(stream));
  ranges_of(number).add(block.begin, block.end, mark.sequence);
  const std::lock_guard counting(figures_mutex_);
  figures_.blocks--;
  figures_.frees++;
  figures_.live_bytes -= block.end - block.begin;
  return success();
}

DeviceBlocks::Figures DeviceBlocks::figures() const {
  const std::lock_guard lock(figures_mutex_);
  return figures_;
}

uint64_t DeviceBlocks::waits() const {
  const std::lock_guard lock(mutex_);
  return waits_;
}

std::string DeviceBlocks::list() const {
  const std::lock_guard lock(mutex_);
  std::vector<const Block*> blocks;
  for (const auto& [begin, block] : blocks_) blocks.push_back(&block);
  return text_of_largest(std::move(blocks), [this](const Block& block) {
    return fmt::format("block of {} bytes at {:#x} (made by call {} on {})", block.bytes,
                       memory_.base(DevicePart::blocks) + block.begin, block.call,
                       stream_name(block.stream));
  });
}

uint64_t DeviceBlocks::trim(Deadline deadline) {
  const std::lock_guard lock(mutex_);
  (void)(deadline.passed() ? marks_.record_all().ok() : marks_.wait_for_all(deadline).ok());
  share_finished();
  // A range that only one stream may take may still be in use, so only shared ranges count.
  uint64_t begin = bytes_;
  for (const auto& [from, range] : shared_.ranges())
    if (range.end == bytes_) begin = from;
  const uint64_t released = memory_.shrink(DevicePart::blocks, begin);
  const uint64_t exist = std::min(bytes_, memory_.bytes(DevicePart::blocks));
  shared_.remove(exist, bytes_);
  bytes_ = exist;
  return released;
}

}  // namespace fsccl
