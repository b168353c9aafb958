#include "select/calibration.h"

#include <fmt/ranges.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <vector>

#include "base/log.h"
#include "kernels/kernels.h"
#include "select/in_step.h"

namespace fsccl {
namespace {

constexpr size_t kLarge = Cost::kSizes.back();
// So many bytes are copied to find out whether to copy pages side by side. They fit a core's own
// cache, as the bytes of a call usually do.
constexpr size_t kInCache = 32u << 10;
// Each part takes kSamples samples of kGroup exchanges. Before slots are measured, the ring is used
// twice, because the first use of a page takes longer.
constexpr uint32_t kGroup = 6, kSamples = 7, kWarm = 128;
// Buffers of the largest size are used in turn, so that the first-level cache does not hold the
// bytes that are moved. It does not hold them in use either.
constexpr size_t kBuffers = 4;
// So many buffers are read or moved through slots to find out what both cost past the caches. A
// rank then reads and writes kPastCachesBytes. The faster of kPastSamples samples counts.
constexpr size_t kPastBuffers = kPastCachesBytes / 2 / kLarge;
constexpr uint32_t kPastSamples = 2;
constexpr uint32_t kTicks = kSamples * kGroup * (6 + 3 * Cost::kSizes.size()) + kGroup + kWarm + 6 +
                            kPastSamples * (kPastBuffers + 1) + 2;
constexpr uint64_t kKnown = 1;  // the signal of a rank that knows the costs already
constexpr uint64_t kCould = 1;  // the signal of a rank that could read
// If an exchange takes longer than this, one of the two ranks shares its core with another process
// at present, and the defaults are used.
constexpr double kSlowExchange = 3000;
constexpr double kSlowNetwork = 2'000'000;
// The unit of times between hosts and within a host, in ns.
constexpr uint8_t unit_of(bool mirrored) { return mirrored ? 64 : 1; }
constexpr double kBetter = 0.95;  // a better choice takes at most this fraction of the time

// The results, in the form that travels in the payload of a signal line.
struct Findings {
  // All times are in units of unit_of(mirrored) ns. If slots are mirrored, read[0] is the time of a
  // message.
  uint16_t exchange = 0;
  std::array<uint16_t, Cost::kSizes.size()> cached{}, streaming{}, read{};
  uint16_t copy = 0;
  uint8_t measured : 1 = 0, read_to_slots : 7 = 0;  // measured = 0: there are no results
  uint8_t can_read : 1 = 0, side_by_side : 2 = 0, mirrored : 1 = 0, kept : 1 = 0;
  uint8_t read_written : 3 = 0;
};
// A ratio that travels as a number of steps from the least on, which is 1. 0: it was not measured.
struct Ratio {
  double least, most;
  int steps;

  uint8_t pack(double ratio) const {
    if (ratio <= 0) return 0;
    return static_cast<uint8_t>(1 + std::lround((std::clamp(ratio, least, most) - least) / step()));
  }
  void unpack(uint8_t packed, double* ratio) const {
    if (packed) *ratio = least + step() * (packed - 1);
  }

 private:
  double step() const { return (most - least) / steps; }
};
constexpr Ratio kToSlots{Costs::kLeastToSlots, Costs::kMostToSlots, 126},
    kWritten{Costs::kLeastWritten, Costs::kMostWritten, 6};
static_assert(sizeof(Findings) <= sizeof(fsccl_transport_line_t::payload));

Costs unpack(const Findings& found, const Costs& fallback) {
  Costs costs = fallback;
  costs.can_read = found.can_read != 0;
  if (!found.measured) return costs;
  costs.origin = CostsOrigin::calibration;
  const auto ns = [&](uint16_t value) {
    return static_cast<double>(value) * unit_of(found.mirrored);
  };
  const auto unpack = [&](Cost* cost, const std::array<uint16_t, Cost::kSizes.size()>& values) {
    std::transform(values.begin(), values.end(), cost->ns.begin(), ns);
  };
  costs.exchange = ns(found.exchange);
  unpack(&costs.slot_cached, found.cached);
  unpack(&costs.slot_streaming, found.streaming);
  if (costs.can_read) unpack(&costs.read, found.read);
  kToSlots.unpack(found.read_to_slots, &costs.read_to_slots);
  kWritten.unpack(found.read_written, &costs.read_written);
  if (found.mirrored) costs.message = std::min(ns(found.read[0]), costs.exchange / 2);
  costs.copy_per_byte = ns(found.copy) / static_cast<double>(kLarge);
  if (found.side_by_side < kSideBySide.size()) costs.side_by_side = SideBySide{found.side_by_side};
  return costs;
}

struct alignas(64) Line {
  std::byte bytes[64];
};

class Probe {
 public:
  explicit Probe(InStep& both)
      : both_(both), startup_(both.startup()), channel_(*startup_.channel), peer_(both.peer()) {
    own_ring_ = channel_.slots(startup_.rank, &ring_bytes_, &slot_bytes_);
    peer_ring_ = channel_.slots(peer_, &ring_bytes_, &slot_bytes_);
  }

  Findings run() {
    make_buffers(kBuffers * kLarge);
    Findings found = nothing_yet();
    found.can_read = may_read();
    const double exchange = sample([this] { both_.exchange(); });
    if (share_a_core() || exchange > (mirrored_ ? kSlowNetwork : kSlowExchange))
      both_.stop();  // together with the next exchange
    if (mirrored_) found.read[0] = pack(message());
    const size_t twice = 2 * ring_bytes_ / std::min(kLarge, slot_bytes_);
    for (size_t i = 0; i < std::min<size_t>(mirrored_ ? 2 : kWarm, twice); i++)
      through_slot(kLarge, Stores::cached);
    for (size_t i = 0; i < Cost::kSizes.size(); i++) {
      found.cached[i] = pack(slots(Cost::kSizes[i], Stores::cached, exchange));
      found.streaming[i] =
          mirrored_ ? found.cached[i] : pack(slots(Cost::kSizes[i], Stores::streaming, exchange));
    }
    if (!mirrored_) side_by_side(&found, exchange);
    if (found.can_read) reads([&](uint64_t address) { return measure_reads(&found, address); });
    found.exchange = pack(exchange);
    found.copy = pack(copy_ns());
    if (share_a_core()) both_.stop();
    if (!both_.exchange())
      found.measured = 0;
    else if (!mirrored_)
      measure_past_caches(&found, exchange);
    return found;
  }

  // Measures what a rank can measure alone, and takes the other values from `costs`.
  Findings alone(const Costs& costs) {
    make_buffers(kBuffers * kLarge);
    Findings found = told(costs);
    found.copy = pack(copy_ns());
    return found;
  }

  // Returns findings that are those of `costs`, except that the two ranks find out whether the
  // system lets them read each other's memory.
  Findings kept(const Costs& costs) {
    make_buffers(Cost::kSizes[0]);
    Findings found = told(costs);
    found.kept = 1;
    found.can_read = may_read();
    return found;
  }

 private:
  uint16_t pack(double ns) const {
    return static_cast<uint16_t>(std::clamp(ns / unit_of(mirrored_), 1.0, 65535.0));
  }
  Findings nothing_yet() const {
    Findings found;
    found.measured = 1;
    found.mirrored = mirrored_;
    return found;
  }
  Findings told(const Costs& costs) const {
    Findings found = nothing_yet();
    const auto take = [&](const Cost& cost, std::array<uint16_t, Cost::kSizes.size()>* values) {
      std::transform(cost.ns.begin(), cost.ns.end(), values->begin(),
                     [this](double ns) { return pack(ns); });
    };
    found.can_read = channel_.can_read();
    found.exchange = pack(costs.exchange);
    take(costs.slot_cached, &found.cached);
    take(costs.slot_streaming, &found.streaming);
    take(costs.read, &found.read);
    found.read_to_slots = kToSlots.pack(costs.read_to_slots) & 127;
    found.read_written = kWritten.pack(costs.read_written) & 7;
    found.side_by_side = static_cast<uint8_t>(costs.side_by_side) & 3;
    if (mirrored_) found.read[0] = pack(costs.message);
    found.copy = pack(costs.copy_per_byte * static_cast<double>(kLarge));
    return found;
  }
  // Returns true if the peer signalled last on the core that this rank runs on, so that each
  // exchange is a change of context. The times of such an exchange and of copies that take turns
  // must not be kept.
  bool share_a_core() {
    fsccl_transport_word_t word{};
    channel_.word(peer_, both_.tick(), &word);
    return word.processor >= 0 && word.processor == sched_getcpu();
  }
  double copy_ns() {
    return sample([this] { copy_bytes(out_.data(), in_.data(), kLarge, Stores::cached); });
  }
  // Returns the time of a call in ns. The fastest group gives it, because caches and pages keep
  // settling during the measurement.
  template <class Action>
  double sample(const Action& action) const {
    return mirrored_ ? sample(action, 2, 4) : sample(action, kSamples, kGroup);
  }
  template <class Action>
  double sample(const Action& action, uint32_t samples, uint32_t group) const {
    int64_t least = std::numeric_limits<int64_t>::max();
    for (uint32_t i = 0; i < samples; i++) {
      const int64_t begin = startup_.clock();
      for (uint32_t k = 0; k < group; k++) action();
      least = std::min(least, startup_.clock() - begin);
    }
    return static_cast<double>(least) / group;
  }
  // Returns the time of giving a signal in an exchange, in ns. The fastest exchange gives it.
  double message() {
    int64_t least = std::numeric_limits<int64_t>::max();
    for (uint32_t i = 0; i < kGroup; i++) {
      const int64_t before = both_.signalling_ns();
      both_.exchange();
      least = std::min(least, both_.signalling_ns() - before);
    }
    return static_cast<double>(least);
  }
  // Returns in how many pieces the bytes go through slots, at least 1.
  double pieces_of(size_t bytes) const {
    return std::max(1.0, static_cast<double>(bytes) / static_cast<double>(slot_bytes_));
  }
  // Returns the time in ns of moving the bytes through slots, without the exchanges of `exchange`
  // ns that are measured with it.
  double slots(size_t bytes, Stores stores, double exchange, SideBySide way = SideBySide::none) {
    return pieces_of(bytes) * (sample([&] { through_slot(bytes, stores, way); }) - exchange);
  }
  void side_by_side(Findings* found, double exchange) {
    double best = slots(kInCache, Stores::cached, exchange);
    for (const SideBySide way : {SideBySide::from_slots, SideBySide::both}) {
      const double ns = slots(kInCache, Stores::cached, exchange, way);
      if (ns > kBetter * best) continue;
      best = ns;
      found->side_by_side = static_cast<uint8_t>(way) & 3;
    }
    // This is measured even if no way was better on this rank, because the other rank may have
    // found a better one, and both must exchange equally often.
    const double large = slots(kLarge, Stores::cached, exchange, SideBySide{found->side_by_side});
    found->cached.back() =
        static_cast<uint16_t>(std::clamp(large, 1.0, static_cast<double>(found->cached.back())));
  }
  size_t next_buffer() { return turn_++ % buffers_ * (kLarge / sizeof(Line)); }
  void through_slot(size_t bytes, Stores stores, SideBySide way = SideBySide::none) {
    if (both_.stopped()) return;  // no signal would follow the bytes
    bytes = std::min(bytes, slot_bytes_);
    if (ring_at_ + bytes > ring_bytes_) {
      ring_at_ = 0;
      if (exchanges_) std::swap(own_ring_, peer_ring_);
    }
    const size_t buffer = next_buffer();
    // Stores past the caches are chosen only between cores that are far apart.
    const Cores cores = stores == Stores::cached ? Cores::near : Cores::far;
    if (mirrored_)
      channel_.put(peer_, ring_at_, &in_[buffer], bytes);
    else if (way == SideBySide::both)
      copy_between_cores(own_ring_ + ring_at_, &in_[buffer], bytes, cores);
    else
      copy_bytes(own_ring_ + ring_at_, &in_[buffer], bytes,
                 stores == Stores::streaming ? Stores::unfenced : stores);
    if (stores == Stores::streaming) fence_stores();
    const bool come = both_.exchange().has_value();
    if (come && way == SideBySide::none && cores == Cores::near)
      copy_bytes(&out_[buffer], peer_ring_ + ring_at_, bytes, Stores::cached);
    else if (come)
      copy_between_cores(&out_[buffer], peer_ring_ + ring_at_, bytes, cores);
    ring_at_ += bytes;
  }
  // Reads the other rank's memory. Both ranks read at once, and the second exchange keeps their
  // memory until both have read. Returns whether both could. Ranks that go on measuring got the
  // same answer, so they exchange equally often.
  template <class Read>
  bool reads(const Read& read) {
    const std::optional<uint64_t> address = both_.exchange(reinterpret_cast<uint64_t>(in_.data()));
    const bool could = address && read(*address);
    const std::optional<uint64_t> theirs = both_.exchange(could ? kCould : 0);
    return could && theirs.value_or(kCould) == kCould;
  }
  // Returns whether the system lets both ranks read each other's memory. This is found out before
  // anything is measured, so it is known even if the measurement is cut short.
  bool may_read() {
    return channel_.can_read() && reads([&](uint64_t address) {
             return channel_.read(peer_, address, out_.data(), Cost::kSizes[0]).ok();
           });
  }
  bool measure_reads(Findings* found, uint64_t address) {
    bool could = true;
    for (size_t i = 0; i < Cost::kSizes.size(); i++)
      found->read[i] = pack(read_ns(address, Cost::kSizes[i], false, &could));
    found->read_written =
        kWritten.pack(read_ns(address, kLarge, true, &could) / found->read.back()) & 7;
    found->can_read = could;
    return could;
  }
  // Returns the time of a read in ns, or 0 if the measurement was cut short. The ranks exchange
  // signals before each read, as in a plan: a system call takes longer after a wait than after
  // another call. If `writes`, each rank first writes the buffer that the other one reads. Both use
  // the buffers in the same order, and a rank is at most one buffer ahead, so none is written while
  // it is read.
  double read_ns(uint64_t address, size_t bytes, bool writes, bool* could) {
    int64_t least = std::numeric_limits<int64_t>::max();
    for (uint32_t i = 0; i < kSamples; i++) {
      int64_t ns = 0;
      for (uint32_t k = 0; k < kGroup; k++) {
        const size_t buffer = next_buffer();
        if (writes) std::memset(&in_[buffer], static_cast<int>(turn_ & 0xff), bytes);
        // The peer's memory is there until both ranks have stopped.
        if (!both_.exchange()) return 0;
        const int64_t begin = startup_.clock();
        *could = *could &&
                 channel_.read(peer_, address + buffer * sizeof(Line), &out_[buffer], bytes).ok();
        ns += startup_.clock() - begin;
      }
      least = std::min(least, ns);
    }
    return static_cast<double>(least) / kGroup;
  }
  // Measures how many times as long as copies through slots a read takes if the bytes are not in
  // the caches. If this is cut short, the findings do not change.
  void measure_past_caches(Findings* found, double exchange) {
    buffers_ = kPastBuffers;
    make_buffers(buffers_ * kLarge);
    const bool streams = found->streaming.back() < found->cached.back();
    const double pass_ns = sample(
        [&] {
          for (size_t i = 0; i < kPastBuffers; i++)
            through_slot(kLarge, streams ? Stores::streaming : Stores::cached);
        },
        kPastSamples, 1);
    const double slots = pieces_of(kLarge) * (pass_ns / kPastBuffers - exchange);
    double read = 0;
    reads([&](uint64_t address) {
      const double pass = sample(
          [&] {
            if (both_.exchange() && found->can_read)
              found->can_read =
                  channel_.read(peer_, address, out_.data(), kPastBuffers * kLarge).ok();
          },
          kPastSamples, 1);
      read = pass / kPastBuffers;
      return true;
    });
    if (!both_.stopped() && !share_a_core() && found->can_read && slots > 0)
      found->read_to_slots = kToSlots.pack(read / slots) & 127;
  }
  void make_buffers(size_t bytes) {
    in_.resize(bytes / sizeof(Line));
    out_.resize(bytes / sizeof(Line));
    std::memset(in_.data(), 1, bytes);
  }

  InStep& both_;
  const Startup& startup_;
  Channel& channel_;
  const int peer_;
  const bool mirrored_ = channel_.traits().mirrors;
  const bool exchanges_ = channel_.traits().exchanges_rings(startup_.ranks);
  std::byte *own_ring_ = nullptr, *peer_ring_ = nullptr;
  size_t ring_bytes_ = 0, slot_bytes_ = 0, ring_at_ = 0;
  size_t turn_ = 0, buffers_ = kBuffers;
  std::vector<Line> in_, out_;  // aligned as most buffers of callers are
};

}  // namespace

Costs calibrate(const Startup& startup, int other, const Costs& fallback, bool share_cores,
                uint32_t* tick, KeptCosts* kept) {
  const auto found = found_in_step<Findings>(startup, other, kTicks, tick, [&](InStep& both) {
    if (share_cores)  // only the findings of `other` are used
      return startup.rank == 0 ? Findings{} : Probe(both).alone(fallback);
    const Costs* known = startup.rank == other && kept ? kept->enough() : nullptr;
    // If reading is allowed now, the known costs lack its time and are measured again.
    if (known && startup.channel->can_read() && !known->can_read) known = nullptr;
    const bool peer_knows = both.exchange(known ? kKnown : 0) == kKnown;
    return known || peer_knows ? Probe(both).kept(known ? *known : fallback) : Probe(both).run();
  });
  const Costs costs = unpack(found, fallback);
  // Costs of which a part was cut short are not kept: a later start would take it for measured.
  const bool whole = found.measured && (found.mirrored || !found.can_read || found.read_to_slots);
  if (startup.rank == other && kept && !share_cores && whole && !found.kept) kept->add(costs);
  const auto text = [](const Cost& cost) { return fmt::format("{}", fmt::join(cost.ns, "/")); };
  FSCCL_LOG(kInfo,
            "{}: exchange {} ns, of it {} ns a message; {} bytes through slots {} ns, "
            "pages side by side {}, past the "
            "caches {}, read by the system {}, of what was just written {:.2f} times as long, past "
            "the caches {:.2f} times the slots; copy {:.0f} ns/KiB",
            found.kept       ? "measured at earlier starts"
            : found.measured ? "measured"
                             : "measured nothing (the ranks do not run at once), taken",
            costs.exchange, costs.message, fmt::join(Cost::kSizes, "/"), text(costs.slot_cached),
            kSideBySide[static_cast<size_t>(costs.side_by_side)], text(costs.slot_streaming),
            text(costs.read), costs.read_written, costs.read_to_slots, costs.copy_per_byte * 1024);
  return costs;
}

}  // namespace fsccl
