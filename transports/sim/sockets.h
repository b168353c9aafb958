// The sockets of a simulated world. Unix sockets connect processes of one host, and deliver at once
// and without loss. TCP connects hosts, and delivers in order, but cuts the bytes into pieces
// anywhere, delivers late (lost packets are sent again), and has room for a limited number of
// bytes. Datagrams between hosts overtake each other, are lost, or come twice. When a process is
// killed, its sockets are closed, as a system does. A host that is lost, and a network that is cut,
// answer nothing.
//
// Datagrams may also be kept out by a firewall, and connections are refused or reset. If a host is
// gone or cut off, a connection is silent for good and is given up after 20 s. Closing a socket
// with unread bytes resets it, and bytes that were lost on the way then stay lost, as with TCP.
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
  int64_t least_ns = 20 * kMicrosecond, most_ns = 200 * kMicrosecond;  // how long a packet takes
  // The probability that a packet is lost. It is sent again 200, 600 and 1400 ms later.
  double loss = 0;
  // The most bytes of one direction that are in flight or unread.
  size_t room = 64 << 10;
  double garbled = 0;  // share of packets with a wrong bit
  // The share of sends and receives that move only a part of their bytes.
  double pieces = 0.2;
  // True if datagrams pass, and false if a firewall drops them all.
  bool datagrams = true;
  double twice = 0;  // share of datagrams that come twice
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
  Fd passed;  // a descriptor, which comes with the first byte
  bool end = false, reset = false;
};

struct Socket {
  Process* owner = nullptr;
  SocketAddress local, remote;
  bool listens = false, by_unix = false, datagrams = false;
  std::deque<std::shared_ptr<Socket>> waiting;  // connections to be accepted

  std::deque<std::vector<uint8_t>> mail;  // datagrams that have come

  std::weak_ptr<Socket> other;
  int other_host = 0;
  std::deque<uint8_t> in;
  std::deque<Fd> passed;
  bool ended = false, reset = false;  // as far as this end knows
  // This end has ended sending, both directions, or the descriptor itself.
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
  // Is called for each frame (wire/frame.h) that a process sends over a stream.
  std::function<void(Process& sender, FrameType type)> on_frame;

  Wires(World& world, StreamWeather weather);
  ~Wires();
  Wires(const Wires&) = delete;
  static Wires& current();

  // Lets nothing pass between the two hosts until `until_ns`.
  void cut(int host, int other, int64_t until_ns);
  void lose_host(int host, int hosts);
  // Returns the time from which on packets pass between the two hosts; INT64_MAX means never again.
  int64_t open_at(int host, int other) const;

  void see(Socket& sender, const std::vector<uint8_t>& sent);
  void add(const SocketPtr& listener) { listeners_.push_back(listener); }
  void add_stream(const SocketPtr& stream) { streams_.push_back(stream); }
  SocketPtr listener(const SocketAddress& address, int host) const;
  // Sends a datagram to the socket that receives at this host and port, if there is one.
  void post(int host, int to_host, uint16_t port, std::vector<uint8_t> bytes);
  uint16_t next_port() { return next_port_++; }

  int64_t way();
  // Sends a segment from this socket to the other end.
  void carry(const SocketPtr& from, Segment segment);
  // The owner of `by` has taken so many bytes, so the other end may send as many more.
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

// Returns the address of a host: 10.0.0.1 is that of host 0.
IpAddress ip_of_host(int host);

}  // namespace fsccl::sim
