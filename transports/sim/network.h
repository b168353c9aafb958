// The network between the hosts of a simulated world. It carries messages as UCX does, whole and
// once, and otherwise as badly as a network may: messages take long, overtake each other, are lost
// and sent again; the bytes of large ones are read from the sender's memory while they are fetched;
// headers arrive garbled, connections break, and ranks die with messages in flight.
#pragma once
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "transports/sim/world.h"

namespace fsccl::sim {

struct Weather {
  int64_t least_ns = kMicrosecond, most_ns = 100 * kMicrosecond;  // times of a message's way
  double loss = 0;  // probability of the loss of an attempt
  // until the second attempt; it doubles
  int64_t resend_ns = 200 * kMillisecond;
  // in a row; more are a broken connection
  int most_losses = 3;
  // messages of so many bytes are fetched by the receiver
  size_t fetched_from = 4096;
  double garbled = 0;  // messages with a wrong bit in the header: the checksums below leave few
  double damaged = 0;  // messages with a wrong bit in what they carry
};

struct Message {
  enum class Kind : uint8_t { offered, fetched, sent, broken };
  Kind kind = Kind::offered;
  int peer = 0;  // the sender; for sent and broken messages, the receiver
  std::vector<std::byte> header, bytes;
  const std::byte* source = nullptr;  // source of bytes that are fetched
  size_t size = 0;
  bool eager = false;  // whole, whatever its size
  bool failed = false;
  std::function<void()> done;  // fetched, sent: what the rank wants called
};
using MessagePtr = std::shared_ptr<Message>;

class Network {
 public:
  // `wake`: something came for the rank. `speaks`: asked before each message whether the rank lives
  // to send it.
  Network(World& world, int ranks, Weather weather, std::function<void(int rank)> wake,
          std::function<bool(int rank)> speaks);
  ~Network();
  Network(const Network&) = delete;
  static Network& current();

  // Returns the rank of the worker that is made next: they are made in order.
  int next_rank() { return next_rank_++; }
  // Returns true if the message has left already; else `done` is called once it has.
  bool send(int from, int to, MessagePtr message);
  // Brings the bytes that were offered to `place`; `done` is called by `to` then.
  void fetch(int to, const MessagePtr& offered, std::byte* place, std::function<void()> done);
  // The next message that came for a rank, or null.
  MessagePtr next(int rank);
  bool waiting(int rank) const { return !inboxes_[static_cast<size_t>(rank)].empty(); }

  // Nothing leaves it any more; of what is under way half is lost. Some of its peers notice that a
  // connection broke.
  void kill(int rank);
  bool dead(int rank) const { return dead_[static_cast<size_t>(rank)]; }
  // Nothing passes between the two any more, which both notice, and whoever sends there later.
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
