#include "members_setting.h"

#include <algorithm>

#include "base/config.h"

namespace fsccl::sim {
namespace {

StreamWeather random_weather(World& world) {
  StreamWeather weather;
  const uint64_t kind = world.below(4);
  weather.most_ns = kind < 2 ? 200 * kMicrosecond : kind < 3 ? 2 * kMillisecond : 30 * kMillisecond;
  if (world.chance(0.2)) weather.loss = 0.01;
  weather.room = world.chance(0.2) ? 4096 : world.chance(0.5) ? 16 << 10 : 200 << 10;
  weather.pieces = world.chance(0.3) ? 0.5 : 0.05;
  weather.datagrams = world.chance(0.7);
  weather.twice = 0.05;
  return weather;
}

Mishap random_mishap(World& world) {
  struct Share {
    Mishap mishap;
    uint64_t of_100;
  };
  constexpr Share kShares[] = {{Mishap::none, 8},     {Mishap::pauses, 10}, {Mishap::strangers, 4},
                               {Mishap::missing, 3},  {Mishap::misfit, 3},  {Mishap::differing, 3},
                               {Mishap::early, 12},   {Mishap::deaths, 28}, {Mishap::hosts, 8},
                               {Mishap::cuts, 8},     {Mishap::garbled, 3}, {Mishap::silent, 5},
                               {Mishap::farewells, 5}};
  uint64_t left = world.below(100);
  for (const Share& share : kShares) {
    if (left < share.of_100) return share.mishap;
    left -= share.of_100;
  }
  return Mishap::none;
}

}  // namespace

MembersSetting random_members(World& world) {
  MembersSetting made;
  made.ranks = static_cast<int>(world.chance(0.15) ? world.between(15, 26) : world.between(2, 14));
  made.mishap = random_mishap(world);
  const bool between =
      made.mishap == Mishap::hosts || made.mishap == Mishap::cuts || made.mishap == Mishap::garbled;
  made.hosts = static_cast<int>(between             ? world.between(2, 4)
                                : world.chance(0.3) ? 1
                                                    : world.between(1, 4));
  for (int rank = 0; rank < made.ranks; rank++)
    made.host_of.push_back(static_cast<int>(world.below(static_cast<uint64_t>(made.hosts))));
  made.weather = random_weather(world);
  made.times = heartbeat_times(*config());
  if (world.chance(0.2)) made.times.dead_ns = 10 * kSecond;  // longer than any pause
  // Beats every 2 ms coincide often with other messages. Only jobs whose connections have room for
  // the beats to a stopped process get them.
  const bool brief = made.mishap == Mishap::none || made.mishap == Mishap::strangers ||
                     made.mishap == Mishap::deaths;
  if (brief && made.weather.room > (64 << 10) && world.chance(0.5))
    made.times.beat_ns = 2 * kMillisecond;
  made.join_ms = world.between(1500, 20'000);
  made.start_ns = world.chance(0.5) ? 10 * kMillisecond : world.between(0, kSecond);
  made.gathers = static_cast<int>(world.between(0, 5));
  made.phases = static_cast<int>(world.between(1, 3));
  made.bytes = world.chance(0.2) ? 6000 : 64;
  // Rank 0 makes the unique id, so it is not chosen.
  made.chosen = static_cast<int>(world.between(1, made.ranks - 1));
  if (made.mishap == Mishap::pauses) made.join_ms = 60'000;
  if (made.mishap == Mishap::silent) made.times.dead_ns = 2 * kSecond;
  if (made.mishap == Mishap::farewells) made.weather.loss = 0;
  if (made.mishap == Mishap::garbled) made.weather.garbled = world.chance(0.5) ? 0.005 : 0.1;
  if (made.mishap == Mishap::early || made.mishap == Mishap::deaths)
    made.deaths = static_cast<int>(world.between(1, std::max(1, made.ranks / 2)));
  return made;
}

std::string describe(const MembersSetting& setting) {
  std::string where;
  for (const int host : setting.host_of)
    where += fmt::format("{}{}", where.empty() ? "" : " ", host);
  return fmt::format(
      "{} ranks on hosts {}; packets take up to {} us, loss {}, room for {} bytes, {}; joining "
      "takes at most {} ms; {} gathers; "
      "mishap: {}",
      setting.ranks, where, setting.weather.most_ns / kMicrosecond, setting.weather.loss,
      setting.weather.room, setting.weather.datagrams ? "datagrams pass" : "no datagrams pass",
      setting.join_ms, setting.gathers, kMishaps[static_cast<size_t>(setting.mishap)]);
}

}  // namespace fsccl::sim
