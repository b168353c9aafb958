#include "transports/sim/network.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace fsccl::sim {
namespace {

constexpr int64_t kLongestNoticeNs = 100 * kMillisecond;  // until a broken connection is noticed
// The share of calls of next() that do not see the next message yet.
constexpr double kHurry = 0.2;

Network* living_network = nullptr;

}  // namespace

Network::Network(World& world, int ranks, Weather weather, std::function<void(int)> wake,
                 std::function<bool(int)> speaks)
    : world_(world),
      weather_(weather),
      wake_(std::move(wake)),
      speaks_(std::move(speaks)),
      inboxes_(static_cast<size_t>(ranks)),
      dead_(static_cast<size_t>(ranks)) {
  if (living_network) std::abort();
  living_network = this;
}
Network::~Network() { living_network = nullptr; }
Network& Network::current() { return *living_network; }

bool Network::passes(int from, int to) {
  return !dead(to) && !(dead(from) && world_.chance(0.5)) && !is_cut(from, to);
}

bool Network::is_cut(int a, int b) const {
  return std::find(cuts_.begin(), cuts_.end(), std::pair(std::min(a, b), std::max(a, b))) !=
         cuts_.end();
}

int64_t Network::way() {
  int64_t ns = world_.between(weather_.least_ns, weather_.most_ns);
  int64_t pause = weather_.resend_ns;
  for (int i = 0; i < weather_.most_losses && world_.chance(weather_.loss); i++, pause *= 2)
    ns += pause;
  return ns;
}

void Network::deliver(int to, MessagePtr message) {
  inboxes_[static_cast<size_t>(to)].push_back(std::move(message));
  wake_(to);
}

bool Network::send(int from, int to, MessagePtr message) {
  if (!speaks_(from)) return true;
  message->peer = from;
  const bool fetched = !message->eager && message->size >= weather_.fetched_from;
  if (!fetched) message->bytes.assign(message->source, message->source + message->size);
  if (!fetched) message->source = nullptr;
  if (world_.chance(weather_.garbled))
    turn_a_bit(from, to, message->header.data(), message->header.size(), "a header");
  if (!fetched && weather_.damaged > 0 && world_.chance(weather_.damaged))
    turn_a_bit(from, to, message->bytes.data(), message->bytes.size(), "what is carried");
  world_.after(way(), [this, from, to, message] {
    if (passes(from, to))
      deliver(to, message);
    else if (is_cut(from, to))
      tell_broken(from, to);  // told again: there may have been no endpoint when the link was cut
  });
  return !fetched;
}

void Network::turn_a_bit(int from, int to, std::byte* bytes, size_t count, const char* of) {
  if (count == 0) return;
  const size_t bit = world_.below(count * 8);
  bytes[bit / 8] ^= std::byte{1} << bit % 8;
  damaged_.emplace_back(from, to);
  world_.note("bit {} of {} from {} to {} is wrong", bit, of, from, to);
}

// Fetches the bytes in two halves at different times. Each half is what the sender's memory holds
// at its time.
void Network::fetch(int to, const MessagePtr& offered, std::byte* place,
                    std::function<void()> done) {
  const int from = offered->peer;
  const size_t half = offered->size / 2;
  const int64_t ns = way();
  const auto part = std::make_shared<Message>();
  part->kind = Message::Kind::fetched;
  part->peer = from;
  part->done = std::move(done);
  world_.after(ns / 2, [=, this] {
    part->failed = !passes(from, to);
    if (!part->failed) std::memcpy(place, offered->source, half);
  });
  world_.after(ns, [=, this] {
    if (part->failed || !passes(from, to)) return;
    std::memcpy(place + half, offered->source + half, offered->size - half);
    if (weather_.damaged > 0 && world_.chance(weather_.damaged))
      turn_a_bit(from, to, place, offered->size, "what was fetched");
    deliver(to, part);
    const auto sent = std::make_shared<Message>();
    sent->kind = Message::Kind::sent;
    sent->peer = to;
    sent->done = offered->done;
    world_.after(way(), [=, this] {
      if (!dead(from)) deliver(from, sent);
    });
  });
}

MessagePtr Network::next(int rank) {
  std::deque<MessagePtr>& inbox = inboxes_[static_cast<size_t>(rank)];
  if (inbox.empty() || dead(rank) || world_.chance(kHurry)) return nullptr;
  MessagePtr message = std::move(inbox.front());
  inbox.pop_front();
  return message;
}

void Network::tell_broken(int at, int to) {
  world_.after(world_.between(0, kLongestNoticeNs), [this, at, to] {
    if (dead(at)) return;
    const auto message = std::make_shared<Message>();
    message->kind = Message::Kind::broken;
    message->peer = to;
    deliver(at, message);
  });
}

void Network::kill(int rank) {
  dead_[static_cast<size_t>(rank)] = true;
  for (int other = 0; other < static_cast<int>(dead_.size()); other++)
    if (!dead(other) && world_.chance(0.5)) tell_broken(other, rank);
}

void Network::cut(int a, int b) {
  cuts_.emplace_back(std::min(a, b), std::max(a, b));
  tell_broken(a, b);
  tell_broken(b, a);
}

}  // namespace fsccl::sim
