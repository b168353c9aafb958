#include "xla/results.h"

#include <sys/mman.h>

#include <array>
#include <cstdint>
#include <string_view>

#include "fsccl/insight.h"

namespace fsccl_xla {
namespace {

constexpr uintptr_t kHugePage = 2u << 20;
// The call to the kernel pays for itself from some pages on, and splits the mapping where the range
// begins and ends.
constexpr size_t kLeastBytes = 2 * kHugePage;

bool is_on() {
  std::array<char, 16> value{};
  return fsccl_config_get("FSCCL_HUGE_PAGES", value.data(), value.size()) != FSCCL_OK ||
         std::string_view(value.data()) != "off";
}

// Returns true if the page that begins at `address` exists.
bool is_there(uintptr_t address) {
  unsigned char there = 0;
  return ::mincore(reinterpret_cast<void*>(address), 1, &there) == 0 && (there & 1) != 0;
}

}  // namespace

void prepare_result(void* address, size_t bytes) {
  static const bool on = is_on();
  if (!on || bytes < kLeastBytes) return;
  const uintptr_t begin = reinterpret_cast<uintptr_t>(address),
                  first = (begin + kHugePage - 1) / kHugePage * kHugePage,
                  last = (begin + bytes) / kHugePage * kHugePage,
                  middle = (first + (last - first) / 2) / kHugePage * kHugePage;
  // A program writes several results into the same memory in turn. Asking again would wait until no
  // other rank reads this process's memory.
  if (is_there(first) && is_there(middle) && is_there(last - kHugePage)) return;
  // A kernel without huge pages refuses, and the collective goes on without.
  ::madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
}

}  // namespace fsccl_xla
