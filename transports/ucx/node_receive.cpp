// Receives messages over UCX, and the bytes that come after them. No field of a message is trusted
// before its token and, with FSCCL_CHECKSUM, its checksum have been checked.
#include <fmt/format.h>

#include <cstring>

#include "base/log.h"
#include "transports/mirror/channel.h"
#include "transports/ucx/fetching.h"

namespace fsccl::ucx {

ucs_status_t Node::on_message(void* self, const void* header, size_t header_bytes, void* data,
                              size_t bytes, const ucp_am_recv_param_t* param) {
  Node& node = *static_cast<Node*>(self);
  Envelope envelope{};
  if (header_bytes == sizeof envelope) std::memcpy(&envelope, header, sizeof envelope);
  const bool known = header_bytes == sizeof envelope && envelope.from < node.peers_.size() &&
                     !node.nonces_.empty();
  ucs_status_t status = UCS_OK;
  node.spare(known ? static_cast<int>(envelope.from) : node.rank_, [&] {
    if (known) {
      Peer& peer = node.peers_[envelope.from];
      if (peer.from == Token{}) peer.from = node.token(peer.rank, node.rank_);
      const uint64_t differs =
          (peer.from[0] ^ envelope.token[0]) | (peer.from[1] ^ envelope.token[1]);
      // With this flag, `data` is a descriptor with which the bytes can be fetched.
      const bool rndv = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
      const uint32_t sum = node.checksum() ? checksum_of(envelope) : envelope.sum;
      if (differs == 0 && sum != envelope.sum) return node.damaged(peer.rank, sum, envelope.sum);
      if (differs == 0) return (void)(status = node.receive(peer, envelope, data, bytes, rndv));
    }
    if (!std::exchange(node.complained_, true))
      FSCCL_LOG(kWarn,
                "a message that no rank of this job can have sent came to the UCX port; it and "
                "others like it are dropped");
  });
  return status;
}

ucs_status_t Node::receive(Peer& peer, const Envelope& envelope, void* data, size_t bytes,
                           bool rndv) {
  const mirror::Header& header = envelope.header;
  const Act act = envelope.act;
  if (act == Act::message && !rndv) {
    deliver(peer.rank, header, data, bytes, false);
  } else if (act == Act::message || (act <= Act::offer && !rndv)) {
    auto offer =
        std::make_unique<Offer>(Offer{act, peer.rank, header.channel, data, envelope.number});
    if (deliver(peer.rank, header, offer.get(), act == Act::message ? bytes : envelope.bytes,
                true)) {
      (void)offer.release();
      return act == Act::message ? UCS_INPROGRESS : UCS_OK;
    }
    if (act == Act::offer) say(peer.rank, Act::got, header.channel, header.tag, envelope.number);
  } else if (act == Act::got && envelope.number < sendings_.size()) {
    Sending& sending = sendings_[envelope.number];
    if (sending.rank == peer.rank && std::exchange(sending.offered, false) && sending.left)
      finish(&sending);
  } else if (act == Act::key && !rndv) {
    take_key(peer, envelope, data, bytes);
  } else if (act == Act::holds || act == Act::returned) {
    key_returned(peer, envelope);
  } else {
    broke(peer.rank, fmt::format("rank {} sent a message of no known kind: it runs another version",
                                 peer.rank));
  }
  return UCS_OK;
}

void Node::drop_offer(void* offer) {
  const std::unique_ptr<Offer> unwanted(static_cast<Offer*>(offer));
  if (unwanted->act == Act::message) ucx_.am_data_release(worker_, unwanted->descriptor);
  if (unwanted->act == Act::offer)
    say(unwanted->from, Act::got, unwanted->channel, 0, unwanted->number);
}

void Node::fetch(int from, const mirror::Header& header, void* offer, size_t bytes,
                 std::byte* place, mirror::Channel& channel, int peer) {
  const std::unique_ptr<Offer> taken(static_cast<Offer*>(offer));
  if (taken->act == Act::arrived) return channel.landed(peer, header, place, bytes);
  auto fetching =
      std::make_unique<Fetching>(Fetching{this, channel.meeting(), from, peer, header, place,
                                          channel.memory(), nullptr, taken->number, bytes});
  if (taken->act == Act::offer) {
    if (get(fetching.get(), place, bytes)) (void)fetching.release();
    return;
  }
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.recv_am = on_fetched;
  param.user_data = fetching.get();
  const ucs_status_ptr_t request =
      ucx_.am_recv_data_nbx(worker_, taken->descriptor, place, bytes, &param);
  if (UCS_PTR_IS_PTR(request))
    (void)fetching.release();
  else
    fetched(fetching.get(), nullptr, UCS_PTR_RAW_STATUS(request), bytes);
}

void Node::on_fetched(void* request, ucs_status_t status, size_t bytes, void* user) {
  const std::unique_ptr<Fetching> fetching(static_cast<Fetching*>(user));
  fetching->node->spare(fetching->from,
                        [&] { fetching->node->fetched(fetching.get(), request, status, bytes); });
}

void Node::fetched(Fetching* fetching, void* request, ucs_status_t status, size_t bytes) {
  if (request) ucx_.request_free(request);
  mirror::Channel* const channel = find(fetching->channel);
  if (status == UCS_OK && channel)
    channel->landed(fetching->peer, fetching->header, fetching->place, bytes);
  if (status != UCS_OK)
    broke(fetching->from, fmt::format("the bytes that rank {} offered cannot be fetched: {}",
                                      fetching->from, ucx_.status_string(status)));
}

}  // namespace fsccl::ucx
