#include "setting.h"

#include <algorithm>

#include "engine/checksums.h"

namespace fsccl::sim {
namespace {

constexpr int kMostRanks = 9;

std::string random_rules(World& world, bool network, bool can_read) {
  static constexpr std::string_view kOps[] = {"all_gather", "reduce_scatter", "all_reduce",
                                              "broadcast",  "reduce",         "gather",
                                              "scatter",    "all_to_all",     "send"};
  std::string text;
  for (const std::string_view op : kOps) {
    if (world.chance(0.5)) continue;
    const bool slots = network || world.chance(0.4), one_buffer = op == "broadcast" || op == "send",
               whole = op == "reduce" || op == "all_reduce";
    const char* const straight = can_read && world.chance(0.5) ? "read" : "direct";
    const bool relayed = network &&
                         (op.starts_with("all_") || op == "reduce_scatter" || op == "broadcast") &&
                         op != "all_to_all";
    const std::string way = relayed && world.chance(0.4)
                                ? fmt::format("{}_steps", world.between(2, 4))
                            : slots      ? fmt::format("slots/{}K", 4 << world.below(3))
                            : one_buffer ? "balanced"
                            : whole && world.chance(0.5) ? "small_slots"
                            : whole                      ? "direct"
                                                         : straight;
    text += fmt::format("{}{}={}", text.empty() ? "" : ",", op, way);
  }
  return text;
}

}  // namespace

Setting random_setting(World& world) {
  Setting made;
  made.ranks = static_cast<int>(world.between(2, kMostRanks));
  made.ops = static_cast<int>(world.between(3, 14));
  made.depth = static_cast<int>(world.chance(0.3) ? 1 : world.between(2, 12));
  made.network = world.chance(0.6);
  made.pieces = world.chance(0.2);
  made.can_read = !made.network && world.chance(0.7);
  made.one_process = world.chance(0.5);
  made.arenas = !made.network && world.chance(0.7);
  made.slot_bytes = size_t{4096} << world.below(3);
  made.weather.most_ns =
      world.chance(0.5) ? 20 * kMicrosecond : world.between(kMicrosecond, 3 * kMillisecond);
  made.weather.loss = world.chance(0.3) ? 0.03 : 0;
  made.weather.fetched_from = world.chance(0.3) ? SIZE_MAX : world.below(6000) + 1;
  made.latest_ns = world.chance(0.5) ? kMicrosecond : kMillisecond;
  made.pauses = world.chance(0.3) ? 0.01 : 0;
  const uint64_t kind = world.below(24);
  made.trouble = kind < 9    ? Trouble::none
                 : kind < 14 ? Trouble::death
                 : kind < 16 ? Trouble::mismatch
                 : kind < 17 ? Trouble::stopped
                 : kind < 18 ? Trouble::cut
                 : kind < 20 ? Trouble::garbled
                 : kind < 23 ? Trouble::damaged
                             : Trouble::aborted;
  if (!made.network && (made.trouble == Trouble::cut || made.trouble == Trouble::garbled))
    made.trouble = Trouble::none;
  if (made.trouble == Trouble::garbled) made.weather.garbled = 0.01;
  made.checksum = made.trouble == Trouble::damaged || world.chance(0.2);
  if (made.trouble == Trouble::damaged) {
    made.weather.damaged = made.damage = 0.01;
    if (world.chance(0.3)) made.weather.garbled = 0.005;
  }
  // Besides the line of every rank, a slot has space for its checksums, as the communicator
  // ensures.
  if (made.checksum)
    made.slot_bytes =
        std::max(made.slot_bytes,
                 2 * slot_bytes_with_checksums(kMostRanks * sizeof(fsccl_transport_line_t)));
  made.select.only_slots = made.checksum;
  if (made.trouble == Trouble::death)
    made.deaths = static_cast<int>(world.between(1, std::max(1, made.ranks / 3)));
  if (world.chance(0.5)) made.rules = random_rules(world, made.network, made.can_read);
  made.select.costs.can_read = made.can_read;
  made.select.costs.exchange = static_cast<double>(world.between(50, 20'000));
  // Small calls then go in steps.
  if (made.network && world.chance(0.5)) made.select.costs.message = made.select.costs.exchange / 3;
  made.select.costs.sharers = world.chance(0.3) ? 2 : 1;
  if (world.chance(0.3)) made.select.eager_bytes = static_cast<int64_t>(world.below(20'000));
  made.select.always_read = made.can_read && world.chance(0.3);
  made.streaming_bytes = world.chance(0.3) ? 4096 : UINT64_MAX;
  made.cache_bytes = world.chance(0.5) ? 0 : 1u << 20;
  return made;
}

std::string describe(const Setting& setting) {
  const std::string where =
      setting.network ? fmt::format("a network (loss {})", setting.weather.loss)
                      : fmt::format("shared memory (arenas {}, read {}, one process {})",
                                    setting.arenas, setting.can_read, setting.one_process);
  return fmt::format("{} ranks, {} at once, {}, slots of {}{}, trouble: {}, rules \"{}\"",
                     setting.ranks, setting.depth, where, setting.slot_bytes,
                     setting.checksum ? " with checksums" : "",
                     kTroubles[static_cast<size_t>(setting.trouble)], setting.rules);
}

}  // namespace fsccl::sim
