#include "allocators/placement/block_watch.h"

#include <algorithm>
#include <cstring>

#include "base/asan.h"
#include "base/round_up.h"

namespace fsccl {
namespace {

constexpr int kPoisonByte = 0xff, kZoneByte = 0xfd;

// Returns the index of the first byte that is not `value`, or `bytes` if there is none.
uint64_t first_other(const std::byte* memory, uint64_t bytes, int value) {
  if (bytes == 0) return 0;
  if (memory[0] == std::byte(value) && std::memcmp(memory, memory + 1, bytes - 1) == 0)
    return bytes;
  return static_cast<uint64_t>(
      std::find_if(memory, memory + bytes, [&](std::byte b) { return b != std::byte(value); }) -
      memory);
}

}  // namespace

std::string block_text(const Block& block) {
  return fmt::format("{} of {} bytes at {} (made by call {})", block.import ? "import" : "block",
                     block.bytes, static_cast<void*>(block.address), block.call);
}

std::string BlockWatch::freed_text(const Freed& freed) {
  return fmt::format("{}, which was freed by call {}", block_text(freed.block), freed.call);
}

uint64_t BlockWatch::room(uint64_t bytes, uint64_t alignment) {
  return round_up(kPlaces * alignment + bytes + kZone, alignment);
}

uint64_t BlockWatch::place(uint64_t begin, uint64_t alignment) const {
  uint64_t best = begin + alignment, oldest = ~uint64_t{0};
  for (uint64_t place = begin + alignment; place <= begin + kPlaces * alignment;
       place += alignment) {
    const auto last = last_at_.find(memory_ + place);
    if (last == last_at_.end()) return place;
    if (last->second.call < oldest) best = place, oldest = last->second.call;
  }
  return best;
}

void BlockWatch::given(const Block& block) {
  allow_memory(memory_ + block.begin, block.end - block.begin);
  if (block.import) return;
  std::memset(memory_ + block.begin, kZoneByte, block.data - block.begin);
  std::memset(memory_ + block.data, kPoisonByte, block.bytes);
  std::memset(memory_ + block.data + block.bytes, kZoneByte, block.end - block.data - block.bytes);
  forbid_memory(memory_ + block.begin, block.data - block.begin);
  forbid_memory(memory_ + block.data + block.bytes, block.end - block.data - block.bytes);
}

Status BlockWatch::intact(const Block& block) {
  if (block.import) return success();
  allow_memory(memory_ + block.begin, block.end - block.begin);
  const uint64_t front = block.data - block.begin, behind = block.data + block.bytes,
                 back = block.end - behind;
  const uint64_t after = first_other(memory_ + behind, back, kZoneByte);
  if (after < back)
    return fail(FSCCL_ERR_INVALID_STATE,
                "{} was written beyond its end: byte {} behind the end is {:#04x}",
                block_text(block), after, static_cast<int>(memory_[behind + after]));
  for (uint64_t before = 1; before <= front; ++before)
    if (memory_[block.data - before] != std::byte(kZoneByte))
      return fail(FSCCL_ERR_INVALID_STATE,
                  "{} was written before its begin: byte {} before the begin is {:#04x}",
                  block_text(block), before, static_cast<int>(memory_[block.data - before]));
  return success();
}

Status BlockWatch::unchanged(uint64_t begin, uint64_t end, const Freed& freed) const {
  allow_memory(memory_ + begin, end - begin);
  const uint64_t at = begin + first_other(memory_ + begin, end - begin, kPoisonByte);
  forbid_memory(memory_ + begin, end - begin);
  if (at == end) return success();
  return fail(FSCCL_ERR_INVALID_STATE,
              "use after free: {}, was written after that: its byte {} is {:#04x}",
              freed_text(freed), static_cast<int64_t>(at) - static_cast<int64_t>(freed.block.data),
              static_cast<int>(memory_[at]));
}

Status BlockWatch::reuse(uint64_t begin, uint64_t end) {
  auto at = free_.upper_bound(begin);
  if (at != free_.begin() && std::prev(at)->second.first > begin) --at;
  Status found;
  while (at != free_.end() && at->first < end) {
    const uint64_t from = at->first, to = at->second.first;
    Freed freed = std::move(at->second.second);
    at = free_.erase(at);
    Status changed = unchanged(std::max(from, begin), std::min(to, end), freed);
    if (found.ok()) found = std::move(changed);
    if (to > end) free_.emplace(end, std::pair(to, freed));
    if (from < begin) free_.emplace(from, std::pair(begin, freed));
  }
  return found;
}

void BlockWatch::freed(const Block& block, uint64_t call) {
  allow_memory(memory_ + block.begin, block.end - block.begin);
  std::memset(memory_ + block.begin, kPoisonByte, block.end - block.begin);
  forbid_memory(memory_ + block.begin, block.end - block.begin);
  const Freed freed{block, call};
  remember(freed);
  free_.insert_or_assign(block.begin, std::pair(block.end, freed));
}

void BlockWatch::remember(const Freed& freed) {
  last_at_.insert_or_assign(freed.block.address, freed);
  order_of_last_.emplace_back(freed.block.address, freed.call);
  if (order_of_last_.size() <= kRemembered) return;
  const auto [address, call] = order_of_last_.front();
  order_of_last_.pop_front();
  const auto old = last_at_.find(address);
  if (old != last_at_.end() && old->second.call == call) last_at_.erase(old);
}

Status BlockWatch::look(uint64_t from) { return reuse(from, ~uint64_t{0}); }

std::string BlockWatch::past_of(const void* pointer) const {
  const auto* address = static_cast<const std::byte*>(pointer);
  if (const auto found = last_at_.find(address); found != last_at_.end())
    return freed_text(found->second);
  for (auto last = order_of_last_.rbegin(); last != order_of_last_.rend(); ++last) {
    const auto found = last_at_.find(last->first);
    if (found == last_at_.end() || found->second.call != last->second) continue;
    const Block& block = found->second.block;
    if (address >= block.address && address < block.address + std::max<uint64_t>(block.bytes, 1))
      return freed_text(found->second);
  }
  return {};
}

}  // namespace fsccl
