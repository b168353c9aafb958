#include "codec/guarded_room.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <utility>

namespace fsccl {
namespace {

// The bytes of an output with the pattern around it: three pages of 4 KiB, or one larger page.
constexpr size_t kLeast = 12288;
static_assert(GuardedRoom::kMost + GuardedRoom::kBehind < kLeast);
// The pattern has this period, which divides any page.
constexpr size_t kPeriod = 4096;

// No byte value recurs at a short distance, so a function that fills memory with one value is
// noticed.
constexpr std::array<uint8_t, kPeriod> kPattern = [] {
  std::array<uint8_t, kPeriod> made{};
  for (size_t i = 0; i < kPeriod; i++) made[i] = static_cast<uint8_t>(0xa5 ^ i * 29);
  return made;
}();

uint8_t pattern(size_t at) { return kPattern[at % kPeriod]; }

}  // namespace

// A thread that ends gives its room back. Destructors that run after that, as those of static
// objects on the main thread, may still gather: they get another room, which stays.
GuardedRoom& GuardedRoom::of_thread() {
  thread_local GuardedRoom* room = nullptr;
  struct Owner {
    ~Owner() { delete std::exchange(room, nullptr); }
  };
  if (!room) {
    room = new GuardedRoom;
    thread_local Owner owner;
    (void)owner;
  }
  return *room;
}

// The order is: untouchable pages, the output, untouchable pages, the input, untouchable pages.
GuardedRoom::GuardedRoom() {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  usable_ = (kLeast + page - 1) / page * page;
  mapped_ = 2 * usable_ + 3 * kUntouchable;
  void* const memory =
      mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  memory_ = static_cast<uint8_t*>(memory);
  begin_ = memory_ + kUntouchable;
  input_ = begin_ + usable_ + kUntouchable;
  if (mprotect(begin_, usable_, PROT_READ | PROT_WRITE) != 0 ||
      mprotect(input_, usable_, PROT_READ | PROT_WRITE) != 0) {
    munmap(memory_, mapped_);
    throw std::bad_alloc();
  }
  fill(0, usable_);
}

GuardedRoom::~GuardedRoom() { munmap(memory_, mapped_); }

// Compares the bytes from `from` to `to` with the pattern, one period at a time.
bool GuardedRoom::intact(size_t from, size_t to) const {
  for (size_t next; from < to; from = next) {
    next = std::min(to, (from / kPeriod + 1) * kPeriod);
    if (std::memcmp(begin_ + from, &kPattern[from % kPeriod], next - from) != 0) return false;
  }
  return true;
}

void GuardedRoom::fill(size_t from, size_t to) {
  for (size_t next; from < to; from = next) {
    next = std::min(to, (from / kPeriod + 1) * kPeriod);
    std::memcpy(begin_ + from, &kPattern[from % kPeriod], next - from);
  }
}

GuardedRoom::Stray GuardedRoom::check(size_t bytes) {
  const auto from = static_cast<size_t>(output(bytes) - begin_), to = from + bytes;
  Stray found;
  if (intact(0, from) && intact(to, usable_)) {
    fill(from, to);
    return found;
  }
  size_t last = usable_, first = 0;
  while (last > to && begin_[last - 1] == pattern(last - 1)) last--;
  while (first < from && begin_[first] == pattern(first)) first++;
  found.beyond = last - to;
  found.before = found.beyond ? 0 : from - first;
  fill(0, usable_);
  return found;
}

}  // namespace fsccl
