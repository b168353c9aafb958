#include "codec/guarded_room.h"

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <new>

namespace fsccl {
namespace {

// The bytes of an output with the pattern around it: three pages of 4 KiB.
constexpr size_t kPatterned = 12288;
static_assert(GuardedRoom::kMost + GuardedRoom::kBehind < kPatterned);
constexpr size_t kUntouchable = 1u << 20;  // a multiple of any page

// No byte value recurs at a short distance, so a function that fills memory with one value is
// noticed.
constexpr std::array<uint8_t, kPatterned> kPattern = [] {
  std::array<uint8_t, kPatterned> made{};
  for (size_t i = 0; i < kPatterned; i++) made[i] = static_cast<uint8_t>(0xa5 ^ i * 29);
  return made;
}();

}  // namespace

GuardedRoom& GuardedRoom::of_thread() {
  thread_local GuardedRoom room;
  return room;
}

// The order is: untouchable pages, the output, untouchable pages, the input, untouchable pages.
// Where pages are larger than the output with its pattern, unused bytes lie before it.
GuardedRoom::GuardedRoom() {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t usable = (kPatterned + page - 1) / page * page;
  mapped_ = 2 * usable + 3 * kUntouchable;
  void* const memory =
      mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  memory_ = static_cast<uint8_t*>(memory);
  uint8_t* const output = memory_ + kUntouchable;
  input_ = output + usable + kUntouchable;
  if (mprotect(output, usable, PROT_READ | PROT_WRITE) != 0 ||
      mprotect(input_, usable, PROT_READ | PROT_WRITE) != 0) {
    munmap(memory_, mapped_);
    throw std::bad_alloc();
  }
  end_ = output + usable;
  std::memcpy(end_ - kPatterned, kPattern.data(), kPatterned);
}

GuardedRoom::~GuardedRoom() { munmap(memory_, mapped_); }

GuardedRoom::Overrun GuardedRoom::check(size_t bytes) {
  uint8_t* const all = end_ - kPatterned;
  const auto begin = static_cast<size_t>(output(bytes) - all), end = begin + bytes;
  Overrun found;
  if (std::memcmp(all, kPattern.data(), begin) != 0 ||
      std::memcmp(all + end, &kPattern[end], kPatterned - end) != 0) {
    size_t last = kPatterned, first = 0;
    while (last > end && all[last - 1] == kPattern[last - 1]) last--;
    while (first < begin && all[first] == kPattern[first]) first++;
    found.beyond = last - end;
    found.before = found.beyond ? 0 : begin - first;
    std::memcpy(all, kPattern.data(), kPatterned);
    return found;
  }
  std::memcpy(all + begin, &kPattern[begin], bytes);
  return found;
}

}  // namespace fsccl
