// Moves what is sent from one simulated socket to another (sockets.h).
#include <algorithm>
#include <cstdlib>

#include "transports/sim/sockets.h"

namespace fsccl::sim {
namespace {

constexpr int64_t kResendNs = 200 * kMillisecond;
constexpr size_t kMailRoom = 40;  // unread datagrams that a socket holds
constexpr int kMostLosses = 3;    // losses of one segment in a row
// The time after which a connection ends on which no answer comes: TCP_USER_TIMEOUT, which is about
// the time that keep-alive takes (base/socket.cpp).
constexpr int64_t kGiveUpNs = 20 * kSecond;

Wires* living_wires = nullptr;

void tell(const Socket& socket) {
  if (socket.owner->over() || socket.closed) return;
  socket.owner->notify(&socket);
  socket.owner->serve_soon();
}

void set_reset(const SocketPtr& socket) {
  if (socket->closed || socket->reset) return;
  socket->reset = true;
  tell(*socket);
}

}  // namespace

Wires::Wires(World& world, StreamWeather weather) : world_(world), weather_(weather) {
  if (living_wires) std::abort();
  living_wires = this;
}
Wires::~Wires() { living_wires = nullptr; }
Wires& Wires::current() { return *living_wires; }

int64_t Wires::open_at(int host, int other) const {
  if (host == other) return 0;
  int64_t at = 0;
  for (const int lost : lost_hosts_)
    if (lost == host || lost == other) return INT64_MAX;
  for (const Cut& one : cuts_)
    if ((one.host == host && one.other == other) || (one.host == other && one.other == host))
      at = std::max(at, one.until_ns);
  return at;
}

void Wires::cut(int host, int other, int64_t until_ns) {
  world_.note("nothing passes between hosts {} and {} for {} ms", host, other,
              until_ns == INT64_MAX ? -1 : (until_ns - world_.now()) / kMillisecond);
  cuts_.push_back({host, other, until_ns});
  silence(host, other);
}

SocketPtr Wires::listener(const SocketAddress& address, int host) const {
  for (const auto& weak : listeners_) {
    const SocketPtr socket = weak.lock();
    if (!socket || socket->closed || socket->datagrams || socket->owner->host != host ||
        socket->by_unix != address.is_unix())
      continue;
    const bool same = address.is_unix() ? describe(socket->local) == describe(address)
                                        : port_of(socket->local) == port_of(address);
    if (same) return socket;
  }
  return nullptr;
}

int64_t Wires::way() {
  int64_t ns = world_.between(weather_.least_ns, weather_.most_ns), pause = kResendNs;
  for (int i = 0; i < kMostLosses && world_.chance(weather_.loss); i++, pause *= 2) ns += pause;
  return ns;
}

void Wires::spoil(std::vector<uint8_t>* bytes, int from, int to) {
  if (bytes->empty() || !world_.chance(weather_.garbled)) return;
  const size_t bit = world_.below(bytes->size() * 8);
  (*bytes)[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
  garbled_++;
  world_.note("bit {} of a packet from process {} to {} is wrong", bit, from, to);
}

void Wires::post(int host, int to_host, uint16_t port, std::vector<uint8_t> bytes) {
  if (!weather_.datagrams || world_.chance(weather_.loss)) return;
  if (world_.chance(weather_.twice))
    world_.after(world_.between(0, kSecond), [=, this] { hand_over(host, to_host, port, bytes); });
  spoil(&bytes, host, to_host);
  const int64_t ns = world_.between(weather_.least_ns, weather_.most_ns);
  world_.after(ns, [=, this] { hand_over(host, to_host, port, bytes); });
}

void Wires::hand_over(int host, int to_host, uint16_t port, const std::vector<uint8_t>& bytes) {
  if (open_at(host, to_host) > world_.now()) return;
  for (const auto& weak : listeners_) {
    const SocketPtr socket = weak.lock();
    if (!socket || socket->closed || !socket->datagrams || socket->owner->host != to_host ||
        port_of(socket->local) != port)
      continue;
    if (socket->mail.size() >= kMailRoom) return;
    socket->mail.push_back(bytes);
    return tell(*socket);
  }
}

void Wires::see(Socket& sender, const std::vector<uint8_t>& sent) {
  if (!on_frame) return;
  sender.frames.read(sent, [&](FrameType type) { on_frame(*sender.owner, type); });
}

void Wires::carry(const SocketPtr& from, Segment segment) {
  const SocketPtr to = from->other.lock();
  if (!to) return world_.after(from->by_unix ? 0 : way(), [from] { set_reset(from); });
  if (!from->by_unix) spoil(&segment.bytes, from->owner->number, to->owner->number);
  // A reset may overtake the segments in flight, which are then lost.
  const bool overtakes = segment.reset && !from->by_unix && world_.chance(0.3);
  if (overtakes) from->flight.clear();
  from->flight.push_back(std::move(segment));
  // A segment leaves once the calls before it are over.
  const int64_t leaves_ns = std::max(world_.now(), from->owner->busy_until_ns());
  if (from->by_unix && leaves_ns == world_.now()) return arrive(from, to);
  from->arrives_ns = std::max(from->arrives_ns, leaves_ns + (from->by_unix ? 0 : way()));
  world_.at(from->arrives_ns, [this, from, to] { arrive(from, to); });
}

void Wires::taken(const SocketPtr& by, size_t bytes) {
  const SocketPtr other = by->other.lock();
  if (!other) return;
  const auto make_room = [other, bytes] {
    other->unread -= std::min(other->unread, bytes);
    tell(*other);
  };
  if (by->by_unix) return make_room();
  const int64_t ns = std::max(world_.now(), open_at(by->owner->host, other->owner->host));
  if (ns != INT64_MAX) world_.at(ns + way(), make_room);
}

void Wires::acknowledge(const SocketPtr& from, size_t bytes) {
  from->owed -= std::min(from->owed, bytes);
  from->acknowledged_ns = world_.now();
}

// Ends the connections between two hosts if nothing passes between these for kGiveUpNs.
void Wires::silence(int host, int other) {
  world_.after(kGiveUpNs, [this, host, other] {
    if (open_at(host, other) <= world_.now()) return;
    for (const auto& weak : streams_) {
      const SocketPtr socket = weak.lock();
      if (!socket || socket->owner->host == socket->other_host) continue;
      const std::pair ends(socket->owner->host, socket->other_host);
      if (ends == std::pair(host, other) || ends == std::pair(other, host)) set_reset(socket);
    }
  });
}

void Wires::lose_host(int host, int hosts) {
  world_.note("host {} is lost", host);
  lost_hosts_.push_back(host);
  for (int other = 0; other < hosts; other++)
    if (other != host) silence(host, other);
}

void Wires::arrive(const SocketPtr& from, const SocketPtr& to) {
  if (from->flight.empty()) return;
  if (const int64_t open = open_at(from->owner->host, to->owner->host); open > world_.now()) {
    if (open == INT64_MAX) return;
    from->arrives_ns = std::max(from->arrives_ns, open + way());
    return world_.at(from->arrives_ns, [this, from, to] { arrive(from, to); });
  }
  Segment segment = std::move(from->flight.front());
  from->flight.pop_front();
  if (to->closed || to->reset) {
    if (segment.bytes.empty()) return;
    if (from->by_unix) return set_reset(from);
    return world_.after(way(), [from] { set_reset(from); });
  }
  if (segment.reset) return set_reset(to);
  to->ended |= segment.end;
  const size_t bytes = segment.bytes.size();
  to->in.insert(to->in.end(), segment.bytes.begin(), segment.bytes.end());
  if (segment.passed.valid()) to->passed.push_back(std::move(segment.passed));
  if (bytes != 0 && from->by_unix) acknowledge(from, bytes);
  if (bytes != 0 && !from->by_unix) {
    const int64_t ns = std::max(world_.now(), open_at(to->owner->host, from->owner->host));
    if (ns != INT64_MAX) world_.at(ns + way(), [this, from, bytes] { acknowledge(from, bytes); });
  }
  tell(*to);
}

}  // namespace fsccl::sim
