// The parts of a UCX node that find out when all messages have left, that arm the descriptor on
// which the service thread sleeps, and that end the node.
#include "base/wait.h"
#include "transports/ucx/node.h"
#include "transports/ucx/registration.h"

namespace fsccl::ucx {
namespace {

constexpr int64_t kLeaveMs = 10'000;  // the longest wait until all messages have left

}  // namespace

bool Node::flushed() {
  for (Sending& sending : sendings_)  // an offer to a broken peer will never be fetched
    if (sending.offered && sending.left && broken(sending.rank)) {
      sending.offered = false;
      finish(&sending);
    }
  if (idle_sendings_.size() < sendings_.size()) return false;
  if (flush_) {
    if (ucx_.request_check_status(flush_) == UCS_INPROGRESS) return false;
    ucx_.request_free(flush_);
    flush_ = nullptr;
  }
  if (!unflushed_.exchange(false, std::memory_order_relaxed)) return true;
  const ucp_request_param_t param{};
  const ucs_status_ptr_t request = ucx_.worker_flush_nbx(worker_, &param);
  if (!UCS_PTR_IS_PTR(request)) return true;
  flush_ = request;
  return false;
}

bool Node::arm() { return ucx_.worker_arm(worker_) != UCS_ERR_BUSY; }
void Node::interrupt() { ucx_.worker_signal(worker_); }

// ---- the end

// Moves the worker on until the request is over, and then frees the request.
bool Node::finish_request(void* request, Deadline deadline) {
  if (!UCS_PTR_IS_PTR(request)) return true;
  const auto is_over = [&] { return ucx_.request_check_status(request) != UCS_INPROGRESS; };
  const bool over = wait_until(is_over, deadline, kNothingBreaks,
                               [this](int64_t) { advance(-1); }) == WaitEnd::held;
  ucx_.request_free(request);
  return over;
}

Node::~Node() {
  stop_service();
  if (!worker_) return;
  const std::lock_guard lock(mutex_);
  const Deadline deadline = Deadline::in_ms(kLeaveMs);
  spare(rank_, [&] { drop_early(); });
  wait_until([this] { return flushed(); }, deadline, kNothingBreaks,
             [this](int64_t) { advance(-1); });
  if (flush_) ucx_.request_free(flush_);
  // Messages that come while the endpoints close would need answers, which would go to endpoints
  // that UCX has taken apart. With closing_ set, no such answer is sent.
  closing_ = true;
  for (Peer& peer : peers_) {
    if (!peer.endpoint) continue;
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = broken(peer.rank) || deadline.passed() ? UCP_EP_CLOSE_FLAG_FORCE : 0;
    peer.closing = ucx_.ep_close_nbx(peer.endpoint, &param);
  }
  for (Peer& peer : peers_) finish_request(peer.closing, deadline);
  for (auto& [channel, registration] : registrations_) {
    registration->close();
    registration->destroy_keys();
  }
  ucx_.worker_destroy(worker_);
}

}  // namespace fsccl::ucx
