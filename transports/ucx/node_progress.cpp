// Who moves a node's worker on, and when: whoever polls, else its thread (node.h); and how it ends.
#include <poll.h>

#include "transports/ucx/node.h"

namespace fsccl::ucx {
namespace {

constexpr int64_t kNeededNs = 2'000'000;                          // between need() and the sleep that it announces
constexpr int64_t kFirstNapNs = 20'000, kLongestNapNs = 500'000;  // of the thread while somebody else polls
constexpr int kSleepMs = 100;                                     // of the thread, when nothing comes
constexpr int64_t kLeaveMs = 10'000;                              // until all has left

}  // namespace

void Node::poll() {
  polls_.fetch_add(1, std::memory_order_relaxed);
  if (!mutex_.try_lock()) return;
  advance();
  mutex_.unlock();
}

// Whether all that was sent has left this rank.
bool Node::flushed() {
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

void Node::start_service() {
  thread_ = std::thread([this] { serve(); });
}

void Node::wake() {
  if (!dozing_.load(std::memory_order_seq_cst)) return;
  const std::lock_guard lock(sleep_mutex_);
  wake_.notify_all();
}

void Node::need() {
  needed_until_ns_.store(now_ns() + kNeededNs, std::memory_order_seq_cst);
  wake();
}

void Node::rest() {
  if (!unflushed_.load(std::memory_order_relaxed)) return;
  {
    const std::lock_guard lock(mutex_);
    if (flushed()) return;
  }
  leaving_.store(true, std::memory_order_seq_cst);
  wake();
}

void Node::serve() {
  const auto wanted = [&] {
    return leaving_.load(std::memory_order_seq_cst) || std::atomic_ref(sleepers).load(std::memory_order_seq_cst) > 0 ||
           now_ns() < needed_until_ns_.load(std::memory_order_seq_cst);
  };
  uint32_t polls = 0;
  int64_t nap_ns = kFirstNapNs;
  while (!stop_) {
    if (!wanted()) {
      nap_ns = kFirstNapNs;
      std::unique_lock lock(sleep_mutex_);
      dozing_.store(true, std::memory_order_seq_cst);
      wake_.wait(lock, [&] { return stop_ || wanted(); });
      dozing_.store(false, std::memory_order_seq_cst);
      continue;
    }
    // Somebody polls, or is about to sleep: then there is nothing to do here but to be in the way.
    const bool polled = std::exchange(polls, polls_.load(std::memory_order_relaxed)) != polls;
    if (std::atomic_ref(sleepers).load(std::memory_order_seq_cst) == 0 && (polled || !leaving_)) {
      std::this_thread::sleep_for(std::chrono::nanoseconds(nap_ns));
      nap_ns = std::min(2 * nap_ns, kLongestNapNs);
      continue;
    }
    nap_ns = kFirstNapNs;
    ucs_status_t armed;
    {
      const std::lock_guard lock(mutex_);
      while (advance()) {
      }
      if (leaving_) leaving_ = !flushed();
      armed = ucx_.worker_arm(worker_);
    }
    if (armed == UCS_ERR_BUSY) continue;
    pollfd events{events_, POLLIN, 0};
    ::poll(&events, 1, kSleepMs);
  }
}

// ---- the end

// Moves the worker on until the request is over; frees it.
bool Node::settle(void* request, Deadline deadline) {
  if (!UCS_PTR_IS_PTR(request)) return true;
  while (ucx_.request_check_status(request) == UCS_INPROGRESS && !deadline.passed()) advance();
  const bool over = ucx_.request_check_status(request) != UCS_INPROGRESS;
  ucx_.request_free(request);
  return over;
}

Node::~Node() {
  if (thread_.joinable()) {
    {
      const std::lock_guard lock(sleep_mutex_);
      stop_ = true;
      wake_.notify_all();
    }
    ucx_.worker_signal(worker_);
    thread_.join();
  }
  if (!worker_) return;
  const std::lock_guard lock(mutex_);
  const Deadline deadline = Deadline::in_ms(kLeaveMs);
  for (auto& [meeting, messages] : early_)
    for (Early& message : messages)
      if (message.descriptor) ucx_.am_data_release(worker_, message.descriptor);
  while (!flushed() && !deadline.passed()) advance();
  if (flush_) ucx_.request_free(flush_);
  std::vector<void*> closing;
  for (Peer& peer : peers_) {
    if (!peer.endpoint) continue;
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = peer.broken || deadline.passed() ? UCP_EP_CLOSE_FLAG_FORCE : 0;
    closing.push_back(ucx_.ep_close_nbx(peer.endpoint, &param));
  }
  for (void* request : closing) settle(request, deadline);
  ucx_.worker_destroy(worker_);
}

}  // namespace fsccl::ucx
