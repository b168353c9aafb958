// Stream sockets of a simulated world: Unix ones between the processes of a host, at once and
// without loss; TCP between hosts, in order, but cut into pieces anywhere, as late as the network
// likes (lost packets are sent again), with room for so much and no more. Datagrams between hosts
// overtake each other, and are lost or come twice. A process that is killed closes what it had, as
// its system does for it; a host that vanishes, and a network that is cut, answer nothing.
#pragma once
#include <algorithm>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "base/socket.h"
#include "transports/sim/process.h"
#include "wire/frame.h"

namespace fsccl::sim {

struct StreamWeather {
  int64_t least_ns = 20 * kMicrosecond, most_ns = 200 * kMicrosecond;  // times of a packet's way
  // probability of the loss of an attempt; attempts follow after 200, 600, 1400 ms more
  double loss = 0;
  // bytes under way and unread, of a direction
  size_t room = 64 << 10;
  double garbled = 0;  // packets with a wrong bit
  // sends and receives that move only a part
  double pieces = 0.2;
  // pass; else a firewall takes them all
  bool datagrams = true;
  double twice = 0;  // datagrams that come again
};

// Finds the frames in what a socket sends, which comes in pieces of any size.
class FrameReader {
 public:
  template <class Take>
  void read(const std::vector<uint8_t>& piece, Take take) {
    for (size_t at = 0; at < piece.size();) {
      if (payload_left_ > 0) {
        const size_t passed = std::min(payload_left_, piece.size() - at);
        payload_left_ -= passed;
        at += passed;
        continue;
      }
      header_.push_back(piece[at++]);
      if (header_.size() < kFrameHeaderBytes) continue;
      const Result<FrameHeader> header = decode_header(header_, UINT32_MAX);
      header_.clear();
      if (!header.ok()) continue;
      payload_left_ = header.value().payload_bytes;
      take(header.value().type);
    }
  }

 private:
  Bytes header_;
  size_t payload_left_ = 0;
};

struct Segment {
  std::vector<uint8_t> bytes;
  Fd passed;  // rides on the first byte
  bool end = false, reset = false;
};

struct Socket {
  Process* owner = nullptr;
  SocketAddress local, remote;
  bool listens = false, by_unix = false, datagrams = false;
  std::deque<std::shared_ptr<Socket>> waiting;  // to be accepted

  std::deque<std::vector<uint8_t>> mail;  // datagrams that came

  std::weak_ptr<Socket> other;
  int other_host = 0;
  std::deque<uint8_t> in;
  std::deque<Fd> passed;
  bool ended = false, reset = false;  // as this end knows
  // by this end: sending, both directions, the descriptor
  bool finished = false, shut = false, closed = false;

  FrameReader frames;  // finds the frames that this end sends

  std::deque<Segment> flight;  // segments that leave
  size_t unread = 0;  // bytes that left and are in flight, or not yet taken by the other side
  size_t owed = 0;    // bytes that left and are not acknowledged
  int64_t acknowledged_ns = 0, arrives_ns = 0;

  bool readable() const {
    return datagrams ? !mail.empty()
           : listens ? !waiting.empty()
                     : !in.empty() || ended || reset || shut;
  }
};
using SocketPtr = std::shared_ptr<Socket>;

// The wires between the hosts.
class Wires {
 public:
  // Called for each frame (wire/frame.h) that a process sends over a stream.
  std::function<void(Process& sender, FrameType type)> on_frame;

  Wires(World& world, StreamWeather weather);
  ~Wires();
  Wires(const Wires&) = delete;
  static Wires& current();

  // Nothing passes between the two until then.
  void cut(int host, int other, int64_t until_ns);
  void lose_host(int host, int hosts);
  // Returns when something passes between them; INT64_MAX: never again.
  int64_t open_at(int host, int other) const;

  void see(Socket& sender, const std::vector<uint8_t>& sent);
  void add(const SocketPtr& listener) { listeners_.push_back(listener); }
  void add_stream(const SocketPtr& stream) { streams_.push_back(stream); }
  SocketPtr listener(const SocketAddress& address, int host) const;
  // A datagram to whoever takes those there.
  void post(int host, int to_host, uint16_t port, std::vector<uint8_t> bytes);
  uint16_t next_port() { return next_port_++; }

  int64_t way();
  // The front of what leaves `from` goes to the other end.
  void carry(const SocketPtr& from, Segment segment);
  // The owner of `by` has taken so much: there is room for as much again.
  void taken(const SocketPtr& by, size_t bytes);
  bool piece() { return world_.chance(weather_.pieces); }
  size_t room() const { return weather_.room; }
  World& world() const { return world_; }
  uint64_t garbled() const { return garbled_; }

 private:
  void arrive(const SocketPtr& from, const SocketPtr& to);
  void hand_over(int host, int to_host, uint16_t port, const std::vector<uint8_t>& bytes);
  void spoil(std::vector<uint8_t>* bytes, int from, int to);
  void acknowledge(const SocketPtr& from, size_t bytes);
  void silence(int host, int other);

  World& world_;
  const StreamWeather weather_;
  struct Cut {
    int host, other;
    int64_t until_ns;
  };
  std::vector<Cut> cuts_;
  std::vector<int> lost_hosts_;
  std::vector<std::weak_ptr<Socket>> listeners_, streams_;
  uint16_t next_port_ = 30000;
  uint64_t garbled_ = 0;
};

inline constexpr int kFirstDescriptor = 1 << 20;
bool writable(const Socket& socket);
SocketPtr socket_of(int fd);  // the socket of the running process, or null
void close_socket(const SocketPtr& socket);
void close_all(Process& process);

// 10.0.0.1 is host 0.
IpAddress ip_of_host(int host);

}  // namespace fsccl::sim
