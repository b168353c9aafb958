#include "transports/ucx/node.h"

#include <cstddef>
#include <cstring>

#include "base/hash.h"
#include "base/log.h"
#include "kernels/crc32c.h"
#include "transports/ucx/channel.h"
#include "transports/ucx/context.h"

namespace fsccl::ucx {
namespace {

constexpr unsigned kMessage = 1;                // id of the active message
constexpr size_t kMostEarlyBytes = 256u << 20;  // no peer can have more under way before this rank opens the channel

// What a rank tells the others of itself.
struct CardHead {
  uint32_t address_bytes = 0;
  uint16_t major = 0, minor = 0;
  uint64_t segments = 0;  // a hash of what is set
  Nonce nonce{};
};

// A rendezvous whose bytes are on their way to `place`; keeps the memory there, whatever becomes of the channel.
struct Fetching {
  Node* node;
  uint64_t channel;
  int peer;
  Header header;
  std::byte* place;
  std::shared_ptr<Mirrors> memory;
};

uint32_t sum_of(const Header& header) { return crc32c(&header, offsetof(Header, header_sum)); }

}  // namespace

Node::Node(const UcxLibrary& ucx, const fsccl_transport_job_t& job)
    : ucx_(ucx),
      rank_(job.rank),
      header_bytes_(sizeof(Header) - (job.checksum ? 0 : kSumsBytes)),
      key_(ByteView(job.key, kKeyBytes)),
      peers_(static_cast<size_t>(job.ranks)) {
  for (size_t rank = 0; rank < peers_.size(); rank++) {
    peers_[rank].node = this;
    peers_[rank].rank = static_cast<int>(rank);
  }
}

Result<std::unique_ptr<Node>> Node::join(const fsccl_transport_job_t& job, const UcxLibrary* ucx) {
  std::string why;
  if (!ucx) ucx = ucx_library(&why);
  if (!ucx) return fail(FSCCL_ERR_NOT_AVAILABLE, "{}", why);
  std::unique_ptr<Node> node(new Node(*ucx, job));
  FSCCL_TRY(node->start());
  return node;
}

Status Node::start() {
  FSCCL_ASSIGN(const ucp_context_h context, context_of(ucx_));
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE | UCP_WORKER_PARAM_FIELD_EVENTS;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  params.events = UCP_WAKEUP_RX | UCP_WAKEUP_TX;
  ucs_status_t status = ucx_.worker_create(context, &params, &worker_);
  if (status != UCS_OK) return problem_of(ucx_, "a worker cannot be made", status);
  status = ucx_.worker_get_efd(worker_, &events_);
  if (status != UCS_OK) return problem_of(ucx_, "its transports have no events to sleep on (UCX_TLS)", status);
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kMessage;
  handler.cb = on_message;
  handler.arg = this;
  status = ucx_.worker_set_am_recv_handler(worker_, &handler);
  if (status != UCS_OK) return problem_of(ucx_, "active messages cannot be received", status);

  ucp_address_t* address = nullptr;
  size_t bytes = 0;
  status = ucx_.worker_get_address(worker_, &address, &bytes);
  if (status != UCS_OK) return problem_of(ucx_, "a worker has no address", status);
  CardHead head;
  unsigned major = 0, minor = 0, release = 0;
  ucx_.get_version(&major, &minor, &release);
  head.address_bytes = static_cast<uint32_t>(bytes);
  head.major = static_cast<uint16_t>(major);
  head.minor = static_cast<uint16_t>(minor);
  head.segments = hash_of(segments_set());
  random_bytes(head.nonce.data(), head.nonce.size());
  card_.resize(sizeof head + bytes);
  std::memcpy(card_.data(), &head, sizeof head);
  std::memcpy(card_.data() + sizeof head, address, bytes);
  ucx_.worker_release_address(worker_, address);
  start_service();
  return success();
}

Status Node::connect(const uint8_t* cards, size_t bytes) {
  std::vector<Nonce> nonces(peers_.size());
  CardHead mine;
  std::memcpy(&mine, card_.data(), sizeof mine);
  for (size_t rank = 0; rank < peers_.size(); rank++) {
    const uint8_t* card = cards + rank * bytes;
    CardHead head;
    if (bytes < sizeof head) return fail(FSCCL_ERR_PROTOCOL, "rank {} sent a card of {} bytes", rank, bytes);
    std::memcpy(&head, card, sizeof head);
    if (head.address_bytes > bytes - sizeof head)
      return fail(FSCCL_ERR_PROTOCOL, "rank {} sent a card of {} bytes for an address of {}", rank, bytes, head.address_bytes);
    if (head.major != mine.major)
      return fail(FSCCL_ERR_VERSION, "rank {} runs UCX {}.{}, rank {} runs {}.{}: use one generation on all hosts", rank,
                  head.major, head.minor, rank_, mine.major, mine.minor);
    if (head.segments != mine.segments)
      return fail(
          FSCCL_ERR_MISMATCH,
          "ranks {} and {} have UCX_TCP_TX_SEG_SIZE or UCX_TCP_RX_SEG_SIZE set differently: set them alike on all ranks, or "
          "nowhere",
          rank_, rank);
    peers_[rank].address.assign(card + sizeof head, card + sizeof head + head.address_bytes);
    nonces[rank] = head.nonce;
  }
  const std::lock_guard lock(mutex_);
  nonces_ = std::move(nonces);
  return success();
}

Token Node::token(int from, int to) const {
  Bytes pair;
  for (const int rank : {from, to}) {
    const Nonce& nonce = nonces_[static_cast<size_t>(rank)];
    pair.insert(pair.end(), nonce.begin(), nonce.end());
    const auto* number = reinterpret_cast<const uint8_t*>(&rank);
    pair.insert(pair.end(), number, number + sizeof rank);
  }
  const Digest digest = authenticate(key_, "fsccl ucx message", pair);
  Token made;
  std::memcpy(&made, digest.data(), sizeof made);
  return made;
}

// ---- sending

bool Node::reach(Peer& peer) {
  if (peer.broken) return false;
  if (peer.endpoint) return true;
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(peer.address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = on_broken;
  params.err_handler.arg = &peer;
  const ucs_status_t status = ucx_.ep_create(worker_, &params, &peer.endpoint);
  if (status != UCS_OK) {
    peer.endpoint = nullptr;
    broke(peer, fmt::format("no connection to rank {}: {}", peer.rank, ucx_.status_string(status)));
    return false;
  }
  peer.to = token(rank_, peer.rank);
  return true;
}

void Node::post(Peer& peer, Sending* sending, const void* data, size_t bytes) {
  sending->header.token = peer.to;
  sending->header.from = static_cast<uint32_t>(rank_);
  if (checksum()) sending->header.header_sum = sum_of(sending->header);
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.cb.send = on_sent;
  param.user_data = sending;
  // What is taken in at once must come whole with its header, whatever thresholds the user has set.
  const bool small = bytes == 0 || sending->header.kind == MessageKind::failure;
  param.flags = small ? UCP_AM_SEND_FLAG_EAGER : 0;
  const ucs_status_ptr_t request = ucx_.am_send_nbx(peer.endpoint, kMessage, &sending->header, header_bytes_, data, bytes, &param);
  unflushed_.store(true, std::memory_order_relaxed);
  if (UCS_PTR_IS_PTR(request)) return;
  on_sent(nullptr, UCS_PTR_RAW_STATUS(request), sending);
}

void Node::send(int rank, const Header& header, const void* data, size_t bytes, std::shared_ptr<Mirrors> memory) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  if (!reach(peer)) return;
  if (idle_sendings_.empty()) {
    sendings_.emplace_back();
    sendings_.back().node = this;
    idle_sendings_.push_back(&sendings_.back());
  }
  Sending* sending = idle_sendings_.back();
  idle_sendings_.pop_back();
  sending->header = header;
  sending->memory = std::move(memory);
  sending->rank = rank;
  if (header.kind == MessageKind::failure) {
    std::memcpy(&sending->failure, data, sizeof sending->failure);
    data = &sending->failure;
    if (checksum()) sending->header.bytes_sum = crc32c(data, bytes);
  }
  post(peer, sending, data, bytes);
}

void Node::on_sent(void* request, ucs_status_t status, void* user) {
  auto* sending = static_cast<Sending*>(user);
  Node& node = *sending->node;
  sending->memory.reset();
  node.idle_sendings_.push_back(sending);
  if (request) node.ucx_.request_free(request);
  if (status != UCS_OK)
    node.broke(node.peers_[static_cast<size_t>(sending->rank)],
               fmt::format("what was sent to rank {} did not leave: {}", sending->rank, node.ucx_.status_string(status)));
}

void Node::on_broken(void* user, ucp_ep_h, ucs_status_t status) {
  auto& peer = *static_cast<Peer*>(user);
  peer.node->broke(peer, fmt::format("the connection to rank {} broke: {}", peer.rank, peer.node->ucx_.status_string(status)));
}

void Node::broke(Peer& peer, std::string why) {
  if (peer.broken) return;
  peer.broken = true;
  peer.problem = std::move(why);
  for (auto& [meeting, channel] : channels_) channel->lost(peer.rank);
}

// ---- receiving

ucs_status_t Node::on_message(void* self, const void* header_at, size_t header_bytes, void* data, size_t bytes,
                              const ucp_am_recv_param_t* param) {
  Node& node = *static_cast<Node*>(self);
  Header header{};
  if (header_bytes == node.header_bytes_) std::memcpy(&header, header_at, header_bytes);
  const bool known = header_bytes == node.header_bytes_ && header.from < node.peers_.size() && !node.nonces_.empty();
  if (known) {
    Peer& peer = node.peers_[header.from];
    if (peer.from == Token{}) peer.from = node.token(peer.rank, node.rank_);
    const uint64_t differs = (peer.from[0] ^ header.token[0]) | (peer.from[1] ^ header.token[1]);
    const bool rendezvous = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
    const uint32_t sum = node.checksum() ? sum_of(header) : header.header_sum;
    if (differs == 0 && sum != header.header_sum) return node.damaged(peer, sum, header.header_sum);
    if (differs == 0) return node.take(header, data, bytes, rendezvous) ? UCS_INPROGRESS : UCS_OK;
  }
  if (!std::exchange(node.complained_, true))
    FSCCL_LOG(kWarn, "a message that no rank of this job can have sent came to the UCX port; it and others like it are dropped");
  return UCS_OK;
}

bool Node::take(const Header& header, void* data, size_t bytes, bool rendezvous) {
  const auto found = channels_.find(header.channel);
  if (found == channels_.end()) return keep(header, data, bytes, rendezvous);
  Channel& channel = *found->second;
  if (channel.tag() != header.tag) {
    refuse(header);
    return false;
  }
  const int peer = channel.member(static_cast<int>(header.from));
  if (peer < 0) return false;
  if (header.kind == MessageKind::failure || header.kind == MessageKind::left) {
    channel.hear(peer, header, data, rendezvous ? 0 : bytes);
    return false;
  }
  std::byte* place = channel.place(peer, header, bytes, !rendezvous);
  if (!place) return false;
  if (rendezvous) {
    fetch(data, place, bytes, channel, peer, header);
    return true;
  }
  if (bytes) std::memcpy(place, data, bytes);  // of no bytes there may be no place to come from
  channel.landed(peer, header, place, bytes);
  return false;
}

// A message of this rank whose header is not what was sent: nobody knows for which channel it was, so it is the end of all.
ucs_status_t Node::damaged(Peer& peer, uint32_t sum, uint32_t meant) {
  bool told = false;
  for (auto& [meeting, channel] : channels_)
    if (const int from = channel->member(peer.rank); from >= 0) {
      channel->damaged(from, nullptr, sizeof(Header), sum, meant);
      told = true;
    }
  if (!told) broke(peer, fmt::format("a message of rank {} changed on its way: its CRC32C is {:#010x}", peer.rank, sum));
  return UCS_OK;
}

// The sender has another list of ranks for this channel: it learns so, unless it says so itself.
void Node::refuse(const Header& header) {
  if (header.kind == MessageKind::failure) return;
  fsccl_transport_failure_t failure{};
  failure.code = FSCCL_ERR_MISMATCH;
  failure.rank = failure.peer = -1;
  constexpr char kText[] = "the first of the ranks makes a communicator of other ranks";
  std::memcpy(failure.text, kText, sizeof kText);
  Header answer{};
  answer.channel = header.channel;
  answer.tag = header.tag;
  answer.kind = MessageKind::failure;
  send(static_cast<int>(header.from), answer, &failure, sizeof failure, nullptr);
}

// For a channel that this rank has yet to open.
bool Node::keep(const Header& header, void* data, size_t bytes, bool rendezvous) {
  if (closed_.count(header.channel)) return false;
  if (!rendezvous && early_bytes_ + bytes + sizeof(Early) > kMostEarlyBytes) {
    broke(peers_[header.from], fmt::format("rank {} sent over {} bytes for communicators that rank {} has not made", header.from,
                                           kMostEarlyBytes, rank_));
    return false;
  }
  if (!rendezvous) early_bytes_ += bytes + sizeof(Early);
  Early early;
  early.header = header;
  if (rendezvous) {
    early.descriptor = data;
    early.descriptor_bytes = bytes;
  } else {
    early.bytes.assign(static_cast<uint8_t*>(data), static_cast<uint8_t*>(data) + bytes);
  }
  early_[header.channel].push_back(std::move(early));
  return rendezvous;
}

void Node::fetch(void* descriptor, std::byte* place, size_t bytes, Channel& channel, int peer, const Header& header) {
  auto fetching = std::make_unique<Fetching>(Fetching{this, channel.meeting(), peer, header, place, channel.memory()});
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.recv_am = on_fetched;
  param.user_data = fetching.get();
  const ucs_status_ptr_t request = ucx_.am_recv_data_nbx(worker_, descriptor, place, bytes, &param);
  if (UCS_PTR_IS_PTR(request)) {
    (void)fetching.release();
  } else if (UCS_PTR_IS_ERR(request)) {
    broke(peers_[header.from], fmt::format("the bytes that rank {} offered cannot be fetched: {}", header.from,
                                           ucx_.status_string(UCS_PTR_RAW_STATUS(request))));
  } else {
    channel.landed(peer, header, place, bytes);
  }
}

void Node::on_fetched(void* request, ucs_status_t status, size_t bytes, void* user) {
  const std::unique_ptr<Fetching> fetching(static_cast<Fetching*>(user));
  Node& node = *fetching->node;
  const auto found = node.channels_.find(fetching->channel);
  if (status == UCS_OK && found != node.channels_.end())
    found->second->landed(fetching->peer, fetching->header, fetching->place, bytes);
  if (request) node.ucx_.request_free(request);
  if (status != UCS_OK)
    node.broke(node.peers_[fetching->header.from], fmt::format("the bytes that rank {} offered cannot be fetched: {}",
                                                               fetching->header.from, node.ucx_.status_string(status)));
}

void Node::add(Channel* channel) {
  channels_[channel->meeting()] = channel;
  const auto found = early_.find(channel->meeting());
  if (found == early_.end()) return;
  std::vector<Early> early = std::move(found->second);
  early_.erase(found);
  for (Early& message : early) {
    if (!message.descriptor) early_bytes_ -= message.bytes.size() + sizeof(Early);
    if (message.descriptor) {
      if (!take(message.header, message.descriptor, message.descriptor_bytes, true))
        ucx_.am_data_release(worker_, message.descriptor);
    } else {
      take(message.header, message.bytes.data(), message.bytes.size(), false);
    }
  }
}

void Node::remove(Channel* channel) {
  channels_.erase(channel->meeting());
  closed_.insert(channel->meeting());
}

}  // namespace fsccl::ucx
