// Puts and gets between the mirrors of a channel, and the exchange of their keys (registration.h).
//
// The receiver hears of a put only after a flush of the endpoint has told this rank that the bytes
// are in the receiver's memory, because messages may overtake puts if an endpoint has several
// lanes. Puts and gets go to mirrors alone, never to the engine's destination, because no rank can
// call them back when the channel fails. Places that a peer names are checked against its mirrors
// (Channel::place) before any memory is touched.
#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/log.h"
#include "kernels/crc32c.h"
#include "transports/ucx/fetching.h"

namespace fsccl::ucx {
namespace {

constexpr std::array kPaths{"am", "put", "get"};
constexpr size_t kMostKeyBytes = 2048;  // a key has some hundred bytes for each device

ucp_request_param_t to_call(void (*done)(void*, ucs_status_t, void*), void* user) {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = done;
  param.user_data = user;
  return param;
}

}  // namespace

// ---- which way

// Over sockets UCX carries puts and gets in messages of its own, which it answers. If the peer has
// been killed, UCX cannot send the answer, and ends this process (ucp_put_handler of UCX 1.13 to
// 1.22: "Fatal: unexpected error: Endpoint timeout"). So messages are the only path unless every
// rank has RDMA, or the user asks for another.
const char* Node::path(int number) const {
  const bool any = asked_ == UcxPath::kAuto && rdma_everywhere_;
  const int known = any ? static_cast<int>(kPaths.size()) : 1;
  if (number < 0 || number >= known) return nullptr;
  return asked_ == UcxPath::kAuto ? kPaths[static_cast<size_t>(number)]
                                  : kPaths[static_cast<size_t>(asked_) - 1];
}

int Node::take_path(mirror::Channel& channel, int rank, int number) {
  if (!path(number) || asked_ != UcxPath::kAuto) return number == 0 ? 1 : -1;
  Peer& peer = peers_[static_cast<size_t>(rank)];
  peer.path = static_cast<Path>(number);
  if (peer.path == Path::am) return 1;
  const auto found = registrations_.find(channel.meeting());
  const int ready = broken(rank)                    ? -1
                    : found == registrations_.end() ? 0
                                                    : ready_for(peer, *found->second);
  if (ready < 0) peer.path = Path::am;
  return ready;
}

std::shared_ptr<Registration> Node::registration_of(const mirror::Channel& channel) {
  std::shared_ptr<Registration>& registration = registrations_[channel.meeting()];
  if (registration) return registration;
  registration = std::make_shared<Registration>(ucx_, context_, channel.memory(), channel.tag());
  if (!registration->usable())
    FSCCL_LOG_ONCE(kWarn,
                   "UCX cannot register the slots of a channel ({}): its bytes go as active "
                   "messages, not by {}",
                   ucx_.status_string(registration->problem()),
                   asked_ == UcxPath::kAuto ? "put or get" : path(0));
  return registration;
}

// Returns 1 if bytes for this peer can be put or got now, 0 if not yet, and -1 if never.
int Node::ready_for(const Peer& peer, Registration& registration) const {
  const Registration::Peer& with = registration.peer(peer.rank);
  if (!registration.usable() || with.refused || !peer.alike) return -1;
  return (peer.path == Path::put ? with.key != nullptr : with.holds) ? 1 : 0;
}

Act Node::act_for(Peer& peer, const mirror::Header& header, const mirror::Payload& payload) {
  if (payload.bytes < least_bytes_ || !payload.memory) return Act::message;
  if (!std::exchange(told_lanes_, true)) tell_lanes(peer);
  mirror::Channel* const channel = peer.path == Path::am ? nullptr : find(header.channel);
  if (!channel) return Act::message;
  Registration& registration = *registration_of(*channel);
  const int ready = ready_for(peer, registration);
  if (ready == 0 && registration.peer(peer.rank).lent == 0) tell_key(peer, header, registration);
  if (ready != 1) return Act::message;
  return peer.path == Path::put ? Act::arrived : Act::offer;
}

void Node::tell_lanes(Peer& peer) {
  if (!log_enabled(LogLevel::kInfo)) return;
  char* text = nullptr;
  size_t bytes = 0;
  FILE* const stream = open_memstream(&text, &bytes);
  if (!stream) return;
  ucx_.ep_print_info(peer.endpoint, stream);
  fclose(stream);
  std::string lanes;
  for (const char* line = text; (line = std::strstr(line, "lane["));) {
    const size_t length = std::strcspn(line, "\n");
    lanes += fmt::format("{}{}", lanes.empty() ? "" : "; ", std::string_view(line, length));
    line += length;
  }
  free(text);
  FSCCL_LOG(kInfo, "UCX reaches rank {} by {}", peer.rank, lanes);
}

// ---- put

void Node::put(Peer& peer, Sending* sending, const mirror::Payload& payload) {
  sending->registration = registrations_.at(sending->envelope.header.channel);
  sending->envelope.bytes = payload.bytes;
  Registration& registration = *sending->registration;
  Registration::Peer& with = registration.peer(peer.rank);
  with.under_way++;
  ucp_request_param_t param = to_call(on_put, sending);
  param.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
  param.memh = registration.handle();
  const ucs_status_ptr_t request =
      ucx_.put_nbx(peer.endpoint, payload.ring, payload.bytes,
                   registration.there(with, payload.ring), with.key, &param);
  unflushed_.store(true, std::memory_order_relaxed);
  if (!UCS_PTR_IS_PTR(request)) on_put(nullptr, UCS_PTR_RAW_STATUS(request), sending);
}

// Called when the bytes of a put have left this rank. A flush tells when they have arrived.
void Node::on_put(void* request, ucs_status_t status, void* user) {
  auto* sending = static_cast<Sending*>(user);
  Node& node = *sending->node;
  if (request) node.ucx_.request_free(request);
  if (status != UCS_OK) return node.spare(sending->rank, [&] { node.not_put(sending, status); });
  const ucp_request_param_t param = to_call(on_there, sending);
  const ucs_status_ptr_t flush =
      node.ucx_.ep_flush_nbx(node.peers_[static_cast<size_t>(sending->rank)].endpoint, &param);
  if (!UCS_PTR_IS_PTR(flush)) on_there(nullptr, UCS_PTR_RAW_STATUS(flush), sending);
}

// Called when the bytes of a put have reached the receiver's memory. The message that announces
// them follows.
void Node::on_there(void* request, ucs_status_t status, void* user) {
  auto* sending = static_cast<Sending*>(user);
  Node& node = *sending->node;
  if (request) node.ucx_.request_free(request);
  if (status != UCS_OK) return node.spare(sending->rank, [&] { node.not_put(sending, status); });
  const std::shared_ptr<Registration> registration = sending->registration;
  const int rank = sending->rank;
  const uint64_t channel = sending->envelope.header.channel;
  node.submit(node.peers_[static_cast<size_t>(rank)], sending, nullptr, 0);
  node.spare(rank, [&] { node.done_with(*registration, rank, channel); });
}

void Node::not_put(Sending* sending, ucs_status_t status) {
  const std::shared_ptr<Registration> registration = sending->registration;
  const int rank = sending->rank;
  const uint64_t channel = sending->envelope.header.channel;
  finish(sending);
  broke(rank, fmt::format("what was put to rank {} did not arrive: {}", rank,
                          ucx_.status_string(status)));
  done_with(*registration, rank, channel);
}

// ---- get

// Returns true if the get is in flight.
bool Node::get(Fetching* fetching, std::byte* place, size_t bytes) {
  Peer& peer = peers_[static_cast<size_t>(fetching->from)];
  const auto found = registrations_.find(fetching->channel);
  if (found == registrations_.end() || !found->second->peer(peer.rank).key || !reach(peer)) {
    broke(peer.rank,
          fmt::format("rank {} offered bytes to which it has given no key: it runs another version",
                      peer.rank));
    return false;
  }
  fetching->registration = found->second;
  Registration::Peer& with = found->second->peer(peer.rank);
  with.under_way++;
  ucp_request_param_t param = to_call(on_got, fetching);
  param.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
  param.memh = found->second->handle();
  const ucs_status_ptr_t request = ucx_.get_nbx(
      peer.endpoint, place, bytes, found->second->there(with, place), with.key, &param);
  if (!UCS_PTR_IS_PTR(request)) on_got(nullptr, UCS_PTR_RAW_STATUS(request), fetching);
  return true;
}

void Node::on_got(void* request, ucs_status_t status, void* user) {
  const std::unique_ptr<Fetching> fetching(static_cast<Fetching*>(user));
  Node& node = *fetching->node;
  node.spare(fetching->from,
             [&] { node.fetched(fetching.get(), request, status, fetching->bytes); });
  node.spare(fetching->from, [&] {
    node.say(fetching->from, Act::got, fetching->channel, fetching->registration->tag(),
             fetching->number);
  });
  node.spare(fetching->from,
             [&] { node.done_with(*fetching->registration, fetching->from, fetching->channel); });
}

// ---- keys

void Node::say(int rank, Act act, uint64_t channel, uint64_t tag, uint32_t number) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  if (!reach(peer)) return;
  mirror::Header header{};
  header.channel = channel;
  header.tag = tag;
  Sending* sending = take(peer, act, header);
  sending->envelope.number = number;
  submit(peer, sending, nullptr, 0);
}

void Node::tell_key(Peer& peer, const mirror::Header& header, Registration& registration) {
  mirror::Header mine{};
  mine.channel = header.channel;
  mine.tag = header.tag;
  mine.at = registration.base();
  mine.bytes_checksum =
      checksum() ? crc32c(registration.key().data(), registration.key().size()) : 0;
  Sending* sending = take(peer, Act::key, mine);
  sending->envelope.bytes = registration.bytes();
  sending->registration = registrations_.at(header.channel);
  registration.peer(peer.rank).lent++;
  submit(peer, sending, registration.key().data(), registration.key().size());
}

// Takes the key of a peer's mirrors. Each key is given back once. A key for a channel that is not
// open here, or no longer open, is given back at once; the peer sends it again with its next bytes.
void Node::take_key(Peer& peer, const Envelope& envelope, const void* key, size_t bytes) {
  const mirror::Header& header = envelope.header;
  mirror::Channel* const channel = find(header.channel);
  if (checksum() && crc32c(key, bytes) != header.bytes_checksum)
    return damaged(peer.rank, crc32c(key, bytes), header.bytes_checksum);
  const bool known = channel && channel->tag() == header.tag && channel->member(peer.rank) >= 0;
  if (!known) return say(peer.rank, Act::returned, header.channel, header.tag, 0);
  Registration& registration = *registration_of(*channel);
  Registration::Peer& with = registration.peer(peer.rank);
  if (with.key) return say(peer.rank, Act::returned, header.channel, header.tag, 0);
  std::array<uint8_t, 2 * kMostKeyBytes> room{};  // UCX trusts the length that the key states
  const bool usable = registration.usable() && peer.alike && bytes <= kMostKeyBytes &&
                      envelope.bytes == registration.bytes() && reach(peer);
  if (usable) std::memcpy(room.data(), key, bytes);
  if (!usable || ucx_.rkey_unpack(peer.endpoint, room.data(), &with.key) != UCS_OK) {
    with.key = nullptr;
    return say(peer.rank, Act::returned, header.channel, header.tag, 1);
  }
  with.base = header.at;
  say(peer.rank, Act::holds, header.channel, header.tag, 0);
  if (with.lent == 0 && !with.refused) tell_key(peer, header, registration);
}

void Node::key_returned(Peer& peer, const Envelope& envelope) {
  const auto found = registrations_.find(envelope.header.channel);
  if (found == registrations_.end()) return;
  Registration& registration = *found->second;
  Registration::Peer& with = registration.peer(peer.rank);
  if (with.lent == 0) return;
  if (envelope.act == Act::holds) {
    with.holds = true;
    return;
  }
  if (--with.lent == 0) with.holds = false;
  if (envelope.number == 1 && !std::exchange(with.refused, true))
    FSCCL_LOG_ONCE(
        kInfo, "rank {} cannot use keys to this rank's memory: bytes for it go as active messages",
        peer.rank);
  tidy(envelope.header.channel);
}

void Node::done_with(Registration& registration, int rank, uint64_t channel) {
  registration.peer(rank).under_way--;
  if (registration.closed()) tidy(channel);
}

void Node::tidy(uint64_t channel) {
  const auto found = registrations_.find(channel);
  if (found == registrations_.end()) return;
  const std::shared_ptr<Registration> registration = found->second;
  for (const int rank : registration->give_back())
    say(rank, Act::returned, channel, registration->tag(), 0);
  if (registration->over()) registrations_.erase(channel);
}

void Node::remove(mirror::Channel* channel) {
  mirror::Node::remove(channel);
  const auto found = registrations_.find(channel->meeting());
  if (found == registrations_.end()) return;
  found->second->close();
  // Without memory for this, the peers keep their keys until they leave.
  spare(rank_, [&] { tidy(channel->meeting()); });
}

}  // namespace fsccl::ucx
