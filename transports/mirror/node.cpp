#include "transports/mirror/node.h"

#include <cstring>

#include "kernels/crc32c.h"
#include "transports/mirror/channel.h"

namespace fsccl::mirror {
namespace {

// The most bytes of messages that a rank keeps for channels that it has not opened yet. A peer that
// sends more loses its connection.
constexpr size_t kMostEarlyBytes = 256u << 20;
// Two ranks of a pair have at most so many messages under way, for as many ticks.
constexpr size_t kMostEarlyMessages = size_t{4} * FSCCL_TRANSPORT_TICKS;

}  // namespace

Node::Node(const char* name, const fsccl_transport_job_t& job)
    : rank_(job.rank),
      ranks_(job.ranks),
      name_(name),
      checksum_(job.checksum != 0),
      links_(static_cast<size_t>(job.ranks)) {}

void Node::poll(int rank) {
  polls_.fetch_add(1, std::memory_order_relaxed);
  if (const std::unique_lock lock(mutex_, std::try_to_lock); lock) move(rank);
}

bool Node::move(int rank) noexcept {
  bool moved = false;
  spare(-1, [&] { moved = advance(rank); });
  return moved;
}

void Node::send(int rank, const Header& header, Payload&& payload, bool more) noexcept {
  spare(rank, [&] { post(rank, header, std::move(payload), more); });
}

void Node::send_failure(int rank, Header header,
                        const fsccl_transport_failure_t& failure) noexcept {
  header.kind = MessageKind::failure;
  if (checksum_) header.bytes_checksum = crc32c(&failure, sizeof failure);
  send(rank, header, {&failure, sizeof failure, nullptr, nullptr});
}

void Node::starve(int rank) noexcept {
  if (rank < 0) {
    for (int each = 0; each < ranks_; each++) starve(each);
    return;
  }
  Link& link = links_[static_cast<size_t>(rank)];
  if (rank == rank_ || link.broken) return;
  link.broken = link.starved = true;
  drop(rank);
  tell_lost(rank);
}

// Tells every channel that the connection to a rank has broken. A channel does not fail at once
// unless memory was short here, because the job may still report that the rank has died.
void Node::tell_lost(int rank) noexcept {
  for (const auto& [meeting, channel] : channels_)
    if (channel) channel->link_lost(rank, starved(rank));
}

Channel* Node::find(uint64_t meeting) const {
  const auto found = channels_.find(meeting);
  return found == channels_.end() ? nullptr : found->second;
}

bool Node::deliver(int from, const Header& header, void* data, size_t bytes, bool offered) {
  Channel* const channel = find(header.channel);
  if (!channel) return keep(from, header, data, bytes, offered);
  if (channel->tag() != header.tag) {
    refuse(from, header);
    return false;
  }
  const int peer = channel->member(from);
  if (peer < 0) return false;
  if (header.kind == MessageKind::failure || header.kind == MessageKind::left) {
    channel->hear(peer, header, data, offered ? 0 : bytes);
    return false;
  }
  std::byte* place = channel->place(peer, header, bytes, !offered);
  if (!place) return false;
  if (offered) {
    fetch(from, header, data, bytes, place, *channel, peer);
    return true;
  }
  if (bytes) std::memcpy(place, data, bytes);  // a message without bytes may have no source
  channel->landed(peer, header, place, bytes);
  return false;
}

// A damaged message does not tell reliably for which channel it was, so all channels fail.
void Node::damaged(int from, uint32_t sum, uint32_t meant) {
  bool told = false;
  for (const auto& [meeting, channel] : channels_)
    if (const int peer = channel ? channel->member(from) : -1; peer >= 0) {
      channel->damaged(peer, nullptr, sizeof(Header), sum, meant);
      told = true;
    }
  if (!told)
    broke(from, fmt::format("a message of rank {} changed on its way: its CRC32C is {:#010x}", from,
                            sum));
}

void Node::refuse(int from, const Header& header) {
  if (header.kind == MessageKind::failure) return;
  fsccl_transport_failure_t failure{};
  failure.code = FSCCL_ERR_MISMATCH;
  failure.rank = failure.peer = -1;
  constexpr char kText[] =
      "the first rank makes a communicator of other ranks than this one: give all ranks the same "
      "list";
  std::memcpy(failure.text, kText, sizeof kText);
  Header answer{};
  answer.channel = header.channel;
  answer.tag = header.tag;
  send_failure(from, answer, failure);
}

void Node::close_to(uint64_t meeting, std::vector<int32_t>&& unaware) {
  if (unaware.empty()) return;
  unaware_[meeting] = std::move(unaware);
  // This store pairs with the load in owes_answers().
  closed_some_.store(true, std::memory_order_release);
  wake();  // the service thread may have gone to sleep for as long as nobody needs it
}

// Returns true, once, if the sender may not know that this rank has closed the channel.
bool Node::unaware(int from, const Header& header) {
  // The tag of a pair is the number of the channel around it. No other tag is another channel's
  // number. A pair that this rank has never opened is closed by its first message.
  if (closed(header.tag) && channels_.try_emplace(header.channel, nullptr).second) return true;
  const auto found = unaware_.find(header.channel);
  if (found == unaware_.end() || std::erase(found->second, from) == 0) return false;
  if (found->second.empty()) unaware_.erase(found);
  return true;
}

bool Node::over(int from, const Header& header) {
  if (find(header.channel) || !(closed(header.channel) || closed(header.tag))) return false;
  const bool calls = header.kind == MessageKind::line || header.kind == MessageKind::bytes;
  if (calls && unaware(from, header)) {
    Header answer{};
    answer.channel = header.channel;
    answer.tag = header.tag;
    answer.kind = MessageKind::left;
    send(from, answer, {});
  }
  return true;
}

bool Node::can_keep(int from, const Header& header, size_t bytes) {
  if (const Channel* const around = find(header.tag)) {
    const auto found = early_.find(header.channel);
    if (bytes + (found == early_.end() ? 0 : found->second.bytes) <=
        around->pair_ring_bytes() + kMostEarlyMessages * sizeof(Early))
      return true;
    broke(from, fmt::format("rank {} sent more bytes to rank {} than the ring of two ranks holds",
                            from, rank_));
    return false;
  }
  if (bytes <= kMostEarlyBytes && early_bytes_ <= kMostEarlyBytes - bytes) return true;
  broke(from, fmt::format("rank {} sent over {} bytes for communicators that rank {} has not made",
                          from, kMostEarlyBytes, rank_));
  return false;
}

// Keeps a message for a channel that this rank has not opened yet. If its bytes are only offered,
// then `data` is their descriptor, the node keeps that, and the function returns true.
bool Node::keep(int from, const Header& header, void* data, size_t bytes, bool offered) {
  const size_t taken = sizeof(Early) + (offered ? 0 : bytes);
  if (over(from, header) || !can_keep(from, header, taken)) return false;
  Early early;
  early.from = from;
  early.header = header;
  if (offered) {
    early.offer = data;
    early.offer_bytes = bytes;
  } else {
    early.bytes.assign(static_cast<uint8_t*>(data), static_cast<uint8_t*>(data) + bytes);
  }
  Waiting& waiting = early_[header.channel];
  waiting.messages.push_back(std::move(early));
  waiting.bytes += taken;
  if (!counts_early(header)) return offered;
  waiting.counted += taken;
  early_bytes_ += taken;
  return offered;
}

void Node::add(Channel* channel) {
  channels_[channel->meeting()] = channel;
  const auto found = early_.find(channel->meeting());
  if (found == early_.end()) return;
  const Waiting early = std::move(found->second);
  early_.erase(found);
  early_bytes_ -= early.counted;
  for (const Early& message : early.messages) {
    if (message.offer) {
      if (!deliver(message.from, message.header, message.offer, message.offer_bytes, true))
        drop_offer(message.offer);
      continue;
    }
    deliver(message.from, message.header, const_cast<uint8_t*>(message.bytes.data()),
            message.bytes.size(), false);
  }
}

// Messages for pairs that this rank has never opened end with the channel that the pairs are in.
void Node::remove(Channel* channel) {
  if (const auto found = channels_.find(channel->meeting()); found != channels_.end())
    found->second = nullptr;
  std::erase_if(early_, [&](const auto& one) {
    const Waiting& waiting = one.second;
    // There is none if memory was short when it came.
    if (!waiting.messages.empty() && waiting.messages.front().header.tag != channel->meeting())
      return false;
    forget(waiting);
    return true;
  });
}

bool Node::closed(uint64_t meeting) const {
  const auto found = channels_.find(meeting);
  return found != channels_.end() && !found->second;
}

void Node::forget(const Waiting& waiting) {
  early_bytes_ -= waiting.counted;
  for (const Early& message : waiting.messages)
    if (message.offer) spare(message.from, [&] { drop_offer(message.offer); });
}

void Node::drop_early() {
  for (const auto& [meeting, waiting] : early_) forget(waiting);
  early_.clear();
}

void Node::broke(int rank, std::string why) {
  Link& link = links_[static_cast<size_t>(rank)];
  if (link.broken) return;
  link.broken = true;
  link.problem = std::move(why);
  tell_lost(rank);
}

}  // namespace fsccl::mirror
