// A channel between ranks that share memory, in a simulated world: bytes are where they were
// written at once, signals and the board are seen later, by each peer at a time of its own and in
// any order. A rank that dies signals nothing more.
#pragma once
#include <memory>
#include <utility>
#include <vector>

#include "transports/sim/world.h"
#include "transports/transport.h"

namespace fsccl::sim {

struct SharedSegment;

struct SharedMachine {
  World& world;
  size_t slot_bytes = 0;
  int64_t latest_ns = 10 * kMicrosecond;  // until a peer sees a signal
  bool can_read = false;                  // the memory of peers
  std::function<void(int rank)> wake;     // something is to be seen
  std::function<bool(int rank)> dead;
  // asked for each peer that is to see a signal: whether the rank lives to give it
  std::function<bool(int rank)> speaks;
  // signals at which a bit turns: in what they carry, or in a slot
  double damage = 0;
  // the owner of the bit, and the rank that is to see it; -1: any reader of the slot
  std::vector<std::pair<int, int>> damaged{};
  std::weak_ptr<SharedSegment> segment{};  // segment of the channel
};

// The request's `node` in a simulation.
struct SharedNode final : TransportNode {
  explicit SharedNode(SharedMachine& machine_) : machine(machine_) {}
  Status connect(const uint8_t*, size_t) override { return success(); }
  SharedMachine& machine;
};

// The ranks open their channels one after the other.
const Transport* shared_transport();

}  // namespace fsccl::sim
