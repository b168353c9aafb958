#include "topo/seat.h"

#include <fmt/format.h>
#include <unistd.h>

#include <bit>
#include <charconv>
#include <string>
#include <string_view>
#include <vector>

#include "base/small_file.h"

namespace fsccl::topo {
namespace {

// Returns true if all of the processors are in a list like 0-3,8,10-11.
bool all_in(std::string_view list, std::span<const uint64_t> processors) {
  std::vector<uint64_t> rest(processors.begin(), processors.end());
  const char* at = list.data();
  const char* const end = at + list.size();
  while (at < end) {
    unsigned first = 0, last = 0;
    auto read = std::from_chars(at, end, first);
    if (read.ec != std::errc()) break;
    last = first;
    if (read.ptr < end && *read.ptr == '-') read = std::from_chars(read.ptr + 1, end, last);
    for (unsigned cpu = first; cpu <= last && cpu / 64 < rest.size(); cpu++)
      rest[cpu / 64] &= ~(uint64_t{1} << cpu % 64);
    at = read.ptr + 1;
  }
  for (const uint64_t word : rest)
    if (word) return false;
  return true;
}

std::string first_line(const std::string& path) {
  const std::string text = read_start(path);
  return text.substr(0, text.find('\n'));
}

// Returns the number of a part of the machine, which is that of its first processor, if the list of
// its processors contains all of `processors`, and kSeveral otherwise.
int16_t part(const std::string& list_path, std::span<const uint64_t> processors) {
  const std::string list = first_line(list_path);
  int16_t number = Seat::kSeveral;
  const auto read = std::from_chars(list.data(), list.data() + list.size(), number);
  return read.ec == std::errc() && all_in(list, processors) ? number : Seat::kSeveral;
}

}  // namespace

Seat seat_of(std::span<const uint64_t> processors) {
  size_t word = 0;
  while (word < processors.size() && !processors[word]) word++;
  if (word == processors.size()) return {};
  const std::string cpu =
      fmt::format("/sys/devices/system/cpu/cpu{}",
                  64 * word + static_cast<size_t>(std::countr_zero(processors[word])));
  Seat seat;
  seat.package = part(cpu + "/topology/package_cpus_list", processors);
  if (seat.package == Seat::kSeveral) return seat;
  seat.cache = part(cpu + "/cache/index3/shared_cpu_list", processors);
  for (int node = 0; node < 64; node++)  // few, as a rule: the first that exists is the processor's
    if (::access(fmt::format("{}/node{}", cpu, node).c_str(), F_OK) == 0) {
      seat.numa = part(fmt::format("/sys/devices/system/node/node{}/cpulist", node), processors);
      break;
    }
  return seat;
}

LinkClass between(const Seat& a, const Seat& b) {
  const auto same = [&](int16_t Seat::* what) {
    return a.*what != Seat::kSeveral && a.*what == b.*what;
  };
  return same(&Seat::cache)     ? LinkClass::cache
         : same(&Seat::numa)    ? LinkClass::numa
         : same(&Seat::package) ? LinkClass::package
                                : LinkClass::host;
}

}  // namespace fsccl::topo
