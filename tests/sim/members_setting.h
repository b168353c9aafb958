// The decisions of the seed about a simulated job of members, before it runs.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "bootstrap/heartbeat.h"
#include "transports/sim/sockets.h"

namespace fsccl::sim {

// The mishap of a job, beside the weather of its network.
enum class Mishap : uint8_t {
  none,
  pauses,     // ranks are stopped, or get no processor, for up to 8 s
  strangers,  // strangers connect, with a wrong secret or with nonsense
  missing,    // a rank never comes
  misfit,     // a rank gives another number of ranks, or joins twice
  differing,  // a rank gathers something else
  early,      // ranks die while the job is joined
  deaths,     // ranks die later, between two pieces of what they send
  hosts,      // a host is gone
  cuts,       // nothing passes between two hosts, for a while or for good
  garbled,    // packets have wrong bits
  silent,     // a rank is stopped for so long that it counts as dead, and then goes on
  farewells,  // ranks leave one after the other, or two at once, while others stay
};
inline constexpr const char* kMishaps[] = {"none",      "pauses", "strangers", "missing", "misfit",
                                           "differing", "early",  "deaths",    "hosts",   "cuts",
                                           "garbled",   "silent", "farewells"};

struct MembersSetting {
  int ranks = 2, hosts = 1;
  std::vector<int> host_of;  // by rank
  StreamWeather weather;
  HeartbeatTimes times;
  int64_t join_ms = 0, start_ns = 0;  // deadline of joining; time within which ranks begin
  int gathers = 0;                    // number of exchanges
  int phases = 1;                     // how often the ranks agree who is left
  size_t bytes = 0;                   // bytes of an exchange, at most
  Mishap mishap = Mishap::none;
  int chosen = -1;  // the rank that a mishap of a single rank befalls
  int deaths = 0;
};

MembersSetting random_members(World& world);
std::string describe(const MembersSetting& setting);

}  // namespace fsccl::sim
