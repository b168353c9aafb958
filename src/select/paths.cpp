#include "select/paths.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/clock.h"
#include "base/log.h"
#include "select/in_step.h"

namespace fsccl {
namespace {

constexpr int kMostPaths = 4;
constexpr uint32_t kPrepare = 40, kWarmRounds = 2,
                   kRounds = 5;  // exchanges that open a path, warm it up, and are timed
constexpr uint32_t kPathTicks = kMostPaths * (kPrepare + kWarmRounds + kRounds);
constexpr int64_t kHopeless = 4;  // a path that takes so many times the best time is given up
// A path must take less than this fraction of path 0's time. A smaller gain may be noise.
constexpr double kGain = 0.9;
constexpr uint64_t kNotYet = 0, kReady = 1, kNever = 2, kEnough = 3;
constexpr uint32_t kUnknown = std::numeric_limits<uint32_t>::max();

// For each path, the time of sending a slot in both directions at once, in ns.
struct PathTimes {
  std::array<uint32_t, kMostPaths> ns;
};

class PathProbe {
 public:
  explicit PathProbe(InStep& both) : both_(both), channel_(*both.startup().channel) {
    size_t ring = 0;
    theirs_ = channel_.slots(both.peer(), &ring, &slot_bytes_);
    bytes_.assign(slot_bytes_, std::byte{1});
  }

  PathTimes run() {
    PathTimes times;
    times.ns.fill(kUnknown);
    for (int path = 0; path < kMostPaths && channel_.path(path); path++)
      if (open(path)) times.ns[static_cast<size_t>(path)] = measure();
    channel_.take_path(both_.peer(), 0);
    if (both_.stopped()) times.ns.fill(kUnknown);
    return times;
  }

 private:
  // Exchanges signals until both ranks can send by the path. Each rank asks the other what it needs
  // to know when it first sends.
  bool open(int path) {
    for (uint32_t i = 0; i < kPrepare; i++) {
      const int ready = channel_.take_path(both_.peer(), path);
      const uint64_t mine = ready < 0 ? kNever : ready == 0 ? kNotYet : kReady;
      const std::optional<uint64_t> other = round(mine);
      if (!other || mine == kNever || *other == kNever) return false;
      if (mine == kReady && *other == kReady) return true;
    }
    return false;
  }

  // Rank 0 decides when a path is given up.
  uint32_t measure() {
    int64_t least = kUnknown - 1;
    bool hopeless = false;
    for (uint32_t i = 0; i < kWarmRounds + kRounds; i++) {
      const int64_t begin = now_ns();
      const std::optional<uint64_t> other = round(hopeless ? kEnough : kReady);
      const int64_t ns = now_ns() - begin;
      if (!other) return kUnknown;
      if (i >= kWarmRounds) least = std::min(least, ns);
      if (hopeless || *other == kEnough) return static_cast<uint32_t>(std::min(least, ns));
      hopeless = both_.startup().rank == 0 && ns > kHopeless * best_;
    }
    best_ = std::min(best_, least);
    return static_cast<uint32_t>(least);
  }

  // Sends a slot in each direction. Two places of the ring are used in turn, so both are warm from
  // the third round on.
  std::optional<uint64_t> round(uint64_t word) {
    if (both_.stopped()) return std::nullopt;
    const size_t at = turn_++ % 2 * slot_bytes_;
    channel_.put(both_.peer(), at, bytes_.data(), slot_bytes_);
    const std::optional<uint64_t> other = both_.exchange(word);
    if (other) std::memcpy(bytes_.data(), theirs_ + at, slot_bytes_);
    return other;
  }

  InStep& both_;
  Channel& channel_;
  size_t slot_bytes_ = 0;
  const std::byte* theirs_ = nullptr;
  std::vector<std::byte> bytes_;
  size_t turn_ = 0;
  int64_t best_ = kUnknown;
};

uint8_t best_of(const PathTimes& times) {
  const auto* const least = std::min_element(times.ns.begin(), times.ns.end());
  const bool pays =
      *least < kUnknown && static_cast<double>(*least) < kGain * static_cast<double>(times.ns[0]);
  return pays ? static_cast<uint8_t>(least - times.ns.begin()) : 0;
}

void tell(const Startup& startup, topo::LinkClass link, const PathTimes& times, uint8_t taken) {
  std::string text;
  for (int path = 0; const char* name = startup.channel->path(path); path++) {
    const uint32_t ns = times.ns[static_cast<size_t>(path)];
    text +=
        fmt::format("{}{} {}", path ? ", " : "", name,
                    ns == 0 || ns == kUnknown ? "unknown" : fmt::format("{:.0f} us", ns / 1000.0));
  }
  FSCCL_LOG(kInfo, "bytes over {} on links of class {} go by {}: a slot each way took {}",
            startup.channel->traits().transport, topo::traits(link).name,
            startup.channel->path(taken), text);
}

}  // namespace

Paths find_paths(const Startup& startup, const std::vector<topo::LinkClass>& links,
                 uint32_t* tick) {
  Paths paths{};
  for (int link = 0; link < topo::kLinkClasses; link++) {
    const auto first =
        std::find(links.begin() + 1, links.end(), static_cast<topo::LinkClass>(link));
    if (first == links.end()) continue;
    const auto times =
        found_in_step<PathTimes>(startup, static_cast<int>(first - links.begin()), kPathTicks, tick,
                                 [](InStep& both) { return PathProbe(both).run(); });
    uint8_t& taken = paths[static_cast<size_t>(link)];
    taken = best_of(times);
    if (startup.rank == 0) tell(startup, static_cast<topo::LinkClass>(link), times, taken);
  }
  return paths;
}

const char* path_name(const Channel& channel, const Paths& paths, topo::LinkClass link) {
  return channel.path(paths[static_cast<size_t>(link)]);
}

}  // namespace fsccl
