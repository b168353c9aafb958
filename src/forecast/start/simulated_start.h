// The start of a job of simulated ranks: src/bootstrap from join_at() on, as it is, over simulated
// processes, sockets and a simulated clock (transports/sim). Its ranks are all real: each holds its
// own tree, so a caller simulates a few that stand for many (startup.h).
//
// The library binds src/base to the system's clock and sockets when it is linked. The simulation
// needs the same sources above another base, so meson.build compiles them a second time with the
// namespace fsccl_simulated in place of fsccl, which this header names in full. A test links the
// library's own bootstrap and starts real ranks against it (tests/unit/forecast/start_test.cpp).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace fsccl_simulated {

struct StartSetting {
  int ranks = 1;
  int per_host = 1;
  int64_t way_ns = 5'000;   // time of a packet between two hosts
  int64_t wake_ns = 5'000;  // from an event to the thread that waits for it
  int64_t call_ns = 0;      // processor time of a call of the system, and of the work around it
  double byte_ns = 0;       // processor time of a byte that the call moves
};

struct StartedRank {
  int order = 0;            // its place in the tree: the order of arrival
  int64_t messages = 0;     // that its process sent, the rendezvous's included
  int64_t calls = 0;        // that its process made to the system
  size_t sockets = 0;       // that its process holds once all have joined
  size_t most_sockets = 0;  // that its process held at once
};

struct SimulatedStart {
  std::string problem;  // why it failed; else empty
  std::vector<StartedRank> ranks;
  int64_t messages = 0;
  int64_t registered_ns = 0;     // until the rendezvous gave the first rank the list of members
  int64_t rendezvous_calls = 0;  // that its process made until then
  int64_t joined_ns = 0;         // until every rank had joined
};

// One at a time in a process: others wait for each other here.
SimulatedStart simulate_start(const StartSetting& setting);

}  // namespace fsccl_simulated
