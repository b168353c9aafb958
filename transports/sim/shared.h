// A channel between ranks that share memory, in a simulated world. Bytes can be read as soon as
// they are written. Signals and the board are seen later, by each peer at a time of its own and in
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
  int64_t latest_ns = 10 * kMicrosecond;  // the longest time until a peer sees a signal
  bool can_read = false;                  // ranks can read the memory of peers
  std::function<void(int rank)> wake;     // is called when a rank can see something new
  std::function<bool(int rank)> dead;
  // Is asked, for each peer of a signal, whether the signalling rank is still alive to signal it.
  std::function<bool(int rank)> speaks;
  // The share of signals at which a bit turns, in the signal's payload or in a slot.
  double damage = 0;
  // For each such bit, the rank that wrote it, and the rank that sees it, or -1 for any reader of a
  // slot.
  std::vector<std::pair<int, int>> damaged{};
  std::weak_ptr<SharedSegment> segment{};  // the segment of the channel
};

// The node that a request must have (ChannelRequest::node).
struct SharedNode final : TransportNode {
  explicit SharedNode(SharedMachine& machine_) : machine(machine_) {}
  Status connect(const uint8_t*, size_t) override { return success(); }
  SharedMachine& machine;
};

// Returns the transport. The ranks of a machine must open their channels one after the other.
const Transport* shared_transport();

}  // namespace fsccl::sim
