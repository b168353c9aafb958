// The start of a job of simulated ranks. The code of src/bootstrap runs unchanged, from join_at()
// on, over simulated processes and sockets and a simulated clock (transports/sim). Every rank is
// simulated in full, with its own tree, so a caller that forecasts a large job simulates a few
// ranks that stand for many (startup.h).
//
// The library's own copy of src/base is bound to the system's clock and sockets when it is linked.
// The simulation needs the same sources above another base, so meson.build compiles them a second
// time, with the namespace fsccl_simulated in place of fsccl. A test links the library's own
// bootstrap and compares the start of real ranks with the simulation
// (tests/unit/forecast/start_test.cpp).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace fsccl_simulated {

struct StartSetting {
  int ranks = 1;
  int per_host = 1;
  int64_t way_ns = 5'000;   // time of a packet between two hosts
  int64_t wake_ns = 5'000;  // time from an event until the thread that waits for it runs
  int64_t call_ns = 0;      // processor time of a system call, with the work around it
  double byte_ns = 0;       // processor time of each byte that the call moves
};

struct StartedRank {
  int order = 0;            // its place in the tree, which is the order of arrival
  int64_t messages = 0;     // messages that its process sent, also for the rendezvous
  int64_t calls = 0;        // system calls of its process
  size_t sockets = 0;       // sockets of its process once all have joined
  size_t most_sockets = 0;  // the most sockets of its process at a time
};

struct SimulatedStart {
  std::string problem;  // reason of a failure; empty: none
  std::vector<StartedRank> ranks;
  int64_t messages = 0;
  int64_t registered_ns = 0;     // time at which the first rank had the list of members
  int64_t rendezvous_calls = 0;  // system calls of the rendezvous's process until then
  int64_t joined_ns = 0;         // time at which every rank had joined
};

// A process runs one simulation at a time: calls from other threads wait.
SimulatedStart simulate_start(const StartSetting& setting);

}  // namespace fsccl_simulated
