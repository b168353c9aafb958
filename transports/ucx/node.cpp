#include "transports/ucx/node.h"

#include <cstring>

#include "base/hash.h"
#include "base/log.h"
#include "base/write_file.h"
#include "transports/mirror/channel.h"
#include "transports/transports.h"
#include "transports/ucx/context.h"
#include "transports/ucx/registration.h"

namespace fsccl::ucx {
namespace {

constexpr unsigned kMessage = 1;  // the id of the active message
// With fewer bytes a message takes less time than a put with its flush, or a get with its offer.
constexpr size_t kLeastBytes = 32u << 10;

// The head of a rank's endpoint address; UCX's own address follows.
struct EndpointHead {
  uint32_t address_bytes = 0;
  uint16_t major = 0, minor = 0;
  uint64_t segments = 0;  // a hash of segments_set()
  uint64_t rdma = 0;      // 1: this rank has a device for RDMA
  Nonce nonce{};
};

}  // namespace

Node::Node(const UcxLibrary& ucx, const fsccl_transport_job_t& job)
    : mirror::Node("ucx", job),
      ucx_(ucx),
      key_(ByteView(job.key, kKeyBytes)),
      peers_(static_cast<size_t>(job.ranks)),
      asked_(config()->ucx_path),
      least_bytes_(asked_ == UcxPath::kAuto ? kLeastBytes : 1) {
  for (size_t rank = 0; rank < peers_.size(); rank++) {
    peers_[rank].node = this;
    peers_[rank].path = asked_ == UcxPath::kPut   ? Path::put
                        : asked_ == UcxPath::kGet ? Path::get
                                                  : Path::am;
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
  FSCCL_ASSIGN(const ucp_context_h context,
               context_of(ucx_, asked_ == UcxPath::kAm ? Use::messages : Use::remote));
  context_ = context;
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE | UCP_WORKER_PARAM_FIELD_EVENTS;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  params.events = UCP_WAKEUP_RX | UCP_WAKEUP_TX;
  FSCCL_TRY(make_worker(ucx_, context, params, &worker_));
  ucs_status_t status = ucx_.worker_get_efd(worker_, &events_);
  if (status != UCS_OK)
    return problem_of(ucx_, "its transports have no events to sleep on (UCX_TLS)", status);
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                       UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kMessage;
  handler.cb = on_message;
  handler.arg = this;
  status = ucx_.worker_set_am_recv_handler(worker_, &handler);
  if (status != UCS_OK) return problem_of(ucx_, "active messages cannot be received", status);

  ucp_address_t* address = nullptr;
  size_t bytes = 0;
  status = ucx_.worker_get_address(worker_, &address, &bytes);
  if (status != UCS_OK) return problem_of(ucx_, "a worker has no address", status);
  EndpointHead head;
  unsigned major = 0, minor = 0, release = 0;
  ucx_.get_version(&major, &minor, &release);
  head.address_bytes = static_cast<uint32_t>(bytes);
  head.major = static_cast<uint16_t>(major);
  head.minor = static_cast<uint16_t>(minor);
  head.segments = hash_of(segments_set());
  head.rdma = has_rdma() ? 1 : 0;
  random_bytes(head.nonce.data(), head.nonce.size());
  endpoint_.resize(sizeof head + bytes);
  std::memcpy(endpoint_.data(), &head, sizeof head);
  std::memcpy(endpoint_.data() + sizeof head, address, bytes);
  ucx_.worker_release_address(worker_, address);
  return success();
}

Status Node::connect(const uint8_t* endpoints, size_t bytes) {
  std::vector<Nonce> nonces(peers_.size());
  EndpointHead mine;
  std::memcpy(&mine, endpoint_.data(), sizeof mine);
  rdma_everywhere_ = true;
  for (size_t rank = 0; rank < peers_.size(); rank++) {
    const uint8_t* endpoint = endpoints + rank * bytes;
    EndpointHead head;
    if (bytes < sizeof head)
      return fail(FSCCL_ERR_PROTOCOL, "rank {} sent an endpoint address of {} bytes", rank, bytes);
    std::memcpy(&head, endpoint, sizeof head);
    if (head.address_bytes > bytes - sizeof head)
      return fail(FSCCL_ERR_PROTOCOL,
                  "rank {} sent an endpoint address of {} bytes for an address of {}", rank, bytes,
                  head.address_bytes);
    if (head.major != mine.major)
      return fail(FSCCL_ERR_VERSION,
                  "rank {} runs UCX {}.{}, rank {} runs {}.{}: use one generation on all hosts",
                  rank, head.major, head.minor, rank_, mine.major, mine.minor);
    if (head.segments != mine.segments)
      return fail(FSCCL_ERR_MISMATCH,
                  "ranks {} and {} have UCX_TCP_TX_SEG_SIZE or UCX_TCP_RX_SEG_SIZE set "
                  "differently: set them alike on all ranks, or "
                  "nowhere",
                  rank_, rank);
    peers_[rank].alike = head.minor == mine.minor;
    rdma_everywhere_ &= head.rdma == 1;
    peers_[rank].address.assign(endpoint + sizeof head,
                                endpoint + sizeof head + head.address_bytes);
    nonces[rank] = head.nonce;
  }
  if (!rdma_everywhere_ && (asked_ == UcxPath::kPut || asked_ == UcxPath::kGet))
    FSCCL_LOG_ONCE(kWarn,
                   "FSCCL_UCX_PATH={} without RDMA on all ranks: if a peer dies while it moves "
                   "bytes, UCX may end this process (docs/clusters.md)",
                   path(0));
  {
    const std::lock_guard lock(mutex_);
    nonces_ = std::move(nonces);
  }
  // The service does not start before the nonces are here: without them the first messages of
  // faster peers would prove nothing and be dropped.
  return start_service();
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
  if (closing_ || (broken(peer.rank) && !starved(peer.rank))) return false;
  if (peer.endpoint) return true;
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(peer.address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = on_broken;
  params.err_handler.arg = &peer;
  const FileSignalsHeld held;
  const ucs_status_t status = ucx_.ep_create(worker_, &params, &peer.endpoint);
  if (status != UCS_OK) {
    peer.endpoint = nullptr;
    broke(peer.rank,
          fmt::format(
              "no connection to rank {}: {}; UCX_TLS and UCX_NET_DEVICES must leave a way to it",
              peer.rank, ucx_.status_string(status)));
    return false;
  }
  peer.to = token(rank_, peer.rank);
  return true;
}

void Node::submit(Peer& peer, Sending* sending, const void* data, size_t bytes) {
  Envelope& envelope = sending->envelope;
  envelope.token = peer.to;
  envelope.from = static_cast<uint32_t>(rank_);
  envelope.sum = checksum() ? checksum_of(envelope) : 0;
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.cb.send = on_sent;
  param.user_data = sending;
  // A message that the receiver handles at once must come whole with its header, whatever
  // thresholds the user has set.
  const bool small = bytes == 0 || envelope.act != Act::message ||
                     envelope.header.kind == mirror::MessageKind::failure;
  param.flags = small ? UCP_AM_SEND_FLAG_EAGER : 0;
  const ucs_status_ptr_t request =
      ucx_.am_send_nbx(peer.endpoint, kMessage, &envelope, sizeof envelope, data, bytes, &param);
  unflushed_.store(true, std::memory_order_relaxed);
  if (UCS_PTR_IS_PTR(request)) return;
  on_sent(nullptr, UCS_PTR_RAW_STATUS(request), sending);
}

Sending* Node::take(Peer& peer, Act act, const mirror::Header& header) {
  if (idle_sendings_.empty()) {
    idle_sendings_.reserve(sendings_.size() + 1);  // so that finish() needs no memory
    sendings_.emplace_back();
    sendings_.back().node = this;
    sendings_.back().number = static_cast<uint32_t>(sendings_.size() - 1);
    idle_sendings_.push_back(&sendings_.back());
  }
  Sending* sending = idle_sendings_.back();
  idle_sendings_.pop_back();
  sending->envelope.header = header;
  sending->envelope.bytes = 0;
  sending->envelope.act = act;
  sending->envelope.number = 0;
  sending->rank = peer.rank;
  sending->offered = sending->left = false;
  return sending;
}

void Node::finish(Sending* sending) {
  sending->memory.reset();
  sending->registration.reset();
  idle_sendings_.push_back(sending);
}

void Node::post(int rank, const mirror::Header& header, mirror::Payload&& payload, bool) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  if (!reach(peer)) return;
  Sending* sending = take(peer, act_for(peer, header, payload), header);
  sending->memory = payload.memory;
  if (sending->envelope.act == Act::arrived) return put(peer, sending, payload);
  if (sending->envelope.act == Act::offer) {
    sending->envelope.bytes = payload.bytes;
    sending->envelope.number = sending->number;
    sending->offered = true;
    return submit(peer, sending, nullptr, 0);
  }
  if (header.kind == mirror::MessageKind::failure) {
    std::memcpy(&sending->failure, payload.source, sizeof sending->failure);
    payload.source = &sending->failure;
  }
  submit(peer, sending, payload.source, payload.bytes);
}

void Node::on_sent(void* request, ucs_status_t status, void* user) {
  auto* sending = static_cast<Sending*>(user);
  Node& node = *sending->node;
  const int rank = sending->rank;
  sending->left = true;
  if (status != UCS_OK) sending->offered = false;  // the offer has not reached the peer
  if (!sending->offered) node.finish(sending);
  if (request) node.ucx_.request_free(request);
  if (status == UCS_OK) return;
  node.spare(rank, [&] {
    node.broke(rank, fmt::format("what was sent to rank {} did not leave: {}", rank,
                                 node.ucx_.status_string(status)));
  });
}

void Node::on_broken(void* user, ucp_ep_h, ucs_status_t status) {
  auto& peer = *static_cast<Peer*>(user);
  peer.node->spare(peer.rank, [&] {
    peer.node->broke(peer.rank, fmt::format("the connection to rank {} broke: {}", peer.rank,
                                            peer.node->ucx_.status_string(status)));
  });
}

}  // namespace fsccl::ucx
