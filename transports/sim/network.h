// The network between the hosts of a simulated world. Like UCX, it delivers each message whole and
// once. Otherwise it is as bad as a network may be: messages take long, overtake each other, are
// lost and sent again; the bytes of large messages are read from the sender's memory while they are
// fetched; headers arrive garbled, connections break, and ranks die with messages in flight.
//
// A large message that is fetched is read from the sender's memory in two halves, so that a slot
// that is used again too early is found.
#pragma once
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "transports/sim/world.h"

namespace fsccl::sim {

struct Weather {
  int64_t least_ns = kMicrosecond, most_ns = 100 * kMicrosecond;  // how long a message takes
  double loss = 0;  // probability of the loss of an attempt
  // The time until a lost message is sent again, which doubles with each loss.
  int64_t resend_ns = 200 * kMillisecond;
  // The most losses in a row.
  int most_losses = 3;
  // The receiver fetches messages of at least so many bytes.
  size_t fetched_from = 4096;
  double garbled = 0;  // share of messages with a wrong bit in the header
  double damaged = 0;  // share of messages with a wrong bit in their bytes
};

struct Message {
  enum class Kind : uint8_t { offered, fetched, sent, broken };
  Kind kind = Kind::offered;
  int peer = 0;  // the sender; for sent and broken messages, the receiver
  std::vector<std::byte> header, bytes;
  const std::byte* source = nullptr;  // the memory from which bytes are fetched
  size_t size = 0;
  bool eager = false;  // sent whole, whatever its size
  bool failed = false;
  std::function<void()> done;  // fetched, sent: the rank's callback
};
using MessagePtr = std::shared_ptr<Message>;

class Network {
 public:
  // `wake` is called when something has come for a rank. `speaks` is asked before each message
  // whether its sender is still alive to send it.
  Network(World& world, int ranks, Weather weather, std::function<void(int rank)> wake,
          std::function<bool(int rank)> speaks);
  ~Network();
  Network(const Network&) = delete;
  static Network& current();

  // Returns the rank of the worker that is made now. Workers are made in the order of the ranks.
  int next_rank() { return next_rank_++; }
  // Returns true if the sender's memory is not needed any more. Otherwise `done` is called when it
  // is not.
  bool send(int from, int to, MessagePtr message);
  // Copies the bytes that were offered to `place`. Then the rank `to` calls `done`.
  void fetch(int to, const MessagePtr& offered, std::byte* place, std::function<void()> done);
  // Returns the next message that has come for a rank, or null.
  MessagePtr next(int rank);
  bool waiting(int rank) const { return !inboxes_[static_cast<size_t>(rank)].empty(); }

  // The rank is dead: it sends nothing more, and half of its messages in flight are lost. Some of
  // its peers notice that a connection broke.
  void kill(int rank);
  bool dead(int rank) const { return dead_[static_cast<size_t>(rank)]; }
  // Nothing passes between the two ranks any more. Both notice that, and notice it again when they
  // send later.
  void cut(int a, int b);
  // Returns the senders and receivers of messages that arrived with a wrong bit.
  const std::vector<std::pair<int, int>>& damaged() const { return damaged_; }

 private:
  bool passes(int from, int to);
  bool is_cut(int a, int b) const;
  int64_t way();
  void deliver(int to, MessagePtr message);
  void tell_broken(int at, int to);
  void turn_a_bit(int from, int to, std::byte* bytes, size_t count, const char* of);

  World& world_;
  const Weather weather_;
  const std::function<void(int)> wake_;
  const std::function<bool(int)> speaks_;
  std::vector<std::deque<MessagePtr>> inboxes_;
  std::vector<bool> dead_;
  std::vector<std::pair<int, int>> cuts_;
  std::vector<std::pair<int, int>> damaged_;
  int next_rank_ = 0;
};

}  // namespace fsccl::sim
