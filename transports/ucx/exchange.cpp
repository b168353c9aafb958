#include "transports/ucx/exchange.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <utility>

#include "base/reactor.h"
#include "base/undo.h"
#include "base/wait.h"
#include "base/write_file.h"
#include "transports/transports.h"
#include "transports/ucx/context.h"
#include "transports/ucx/ucx.h"

namespace fsccl::ucx {
namespace {

constexpr int64_t kLookNs = 1'000'000;     // how often a wait looks for a loss and at its deadline
constexpr int kTurns = 64;                 // turns without news before the thread yields its core
constexpr int64_t kPatientNs = 2'000'000;  // time without news before it sleeps between turns
constexpr int64_t kNapNs = 50'000;
constexpr int64_t kCloseMs = 2000;
// how long parts may still arrive after the news that the connection broke, since they may have
// come by another way
constexpr int64_t kStragglersNs = 100'000'000;
// The service thread visits every kSoonNs; once kAfterNs have passed without news, every kRestNs.
constexpr int64_t kSoonNs = 1'000'000, kAfterNs = 100'000'000, kRestNs = 20'000'000;

// The oldest version of UCX that notices when virtual memory of a GPU is unmapped. In older ones
// the cache of registrations outlives the memory.
constexpr unsigned kOldestMajor = 1, kOldestMinor = 18;

struct ExchangeHead {
  uint32_t address_bytes = 0;
  Nonce nonce{};
};

}  // namespace

std::string why_not_device_memory(const UcxLibrary& ucx) {
  unsigned major = 0, minor = 0, release = 0;
  ucx.get_version(&major, &minor, &release);
  if (major != kOldestMajor || minor < kOldestMinor)
    return fmt::format("UCX is {}.{}.{}, and memory of GPUs needs {}.{} or a later {}.x", major,
                       minor, release, kOldestMajor, kOldestMinor, kOldestMajor);
  const Result<ucp_context_h> context = context_of(ucx, Use::tagged);
  if (!context.ok()) return context.status().text();
  ucp_context_attr_t attributes{};
  attributes.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
  if (const ucs_status_t status = ucx.context_query(context.value(), &attributes); status != UCS_OK)
    return fmt::format("UCX does not say what memory it takes: {}", ucx.status_string(status));
  if (attributes.memory_types & UCS_BIT(UCS_MEMORY_TYPE_CUDA)) return "";
  return "this UCX has no CUDA (`ucx_info -d` shows no cuda_copy): it was built without, or "
         "UCX_TLS or UCX_MODULES leave it out";
}

TaggedExchange::TaggedExchange(const UcxLibrary& ucx, int rank, int ranks, bool device_memory)
    : ucx_(ucx), rank_(rank), device_memory_(device_memory), peers_(static_cast<size_t>(ranks)) {
  for (size_t peer = 0; peer < peers_.size(); peer++) {
    peers_[peer].all = this;
    peers_[peer].rank = static_cast<int>(peer);
  }
}

Result<std::unique_ptr<Exchange>> TaggedExchange::create(const UcxLibrary& ucx, int rank, int ranks,
                                                         bool device_memory) {
  std::unique_ptr<TaggedExchange> made(new TaggedExchange(ucx, rank, ranks, device_memory));
  FSCCL_TRY(made->start());
  return std::unique_ptr<Exchange>(std::move(made));
}

TaggedExchange::~TaggedExchange() {
  if (hook_ >= 0) Reactor::instance().remove_hook(hook_);
  close(!trouble_.ok());
}

Status TaggedExchange::start() {
  FSCCL_ASSIGN(const ucp_context_h context, context_of(ucx_, Use::tagged));
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  FSCCL_TRY(make_worker(ucx_, context, params, &worker_));
  ucp_address_t* address = nullptr;
  size_t bytes = 0;
  const ucs_status_t status = ucx_.worker_get_address(worker_, &address, &bytes);
  if (status != UCS_OK) return problem_of(ucx_, "a worker has no address", status);
  random_bytes(nonce_.data(), nonce_.size());
  ExchangeHead head;
  head.address_bytes = static_cast<uint32_t>(bytes);
  head.nonce = nonce_;
  endpoint_.resize(sizeof head + bytes);
  std::memcpy(endpoint_.data(), &head, sizeof head);
  std::memcpy(endpoint_.data() + sizeof head, address, bytes);
  ucx_.worker_release_address(worker_, address);
  hook_ = Reactor::instance().add_hook([this] { return visit(); });
  return success();
}

ucp_tag_t TaggedExchange::tag(const Nonce& sender, const Nonce& receiver, int from, int to) const {
  const int pair[] = {from, to};
  const Digest digest = authenticate(SecretKey(ByteView(sender.data(), sender.size())),
                                     "fsccl ucx part", ByteView(receiver.data(), receiver.size()),
                                     ByteView(reinterpret_cast<const uint8_t*>(pair), sizeof pair));
  ucp_tag_t made;
  std::memcpy(&made, digest.data(), sizeof made);
  return made;
}

Status TaggedExchange::connect(const std::vector<std::vector<uint8_t>>& endpoints) {
  closing_.reserve(peers_.size());  // so that close() needs no memory
  for (Peer& peer : peers_) {
    const std::vector<uint8_t>& endpoint = endpoints[static_cast<size_t>(peer.rank)];
    ExchangeHead head;
    if (endpoint.size() >= sizeof head) std::memcpy(&head, endpoint.data(), sizeof head);
    if (endpoint.size() < sizeof head || head.address_bytes != endpoint.size() - sizeof head)
      return fail(FSCCL_ERR_PROTOCOL,
                  "rank {} sent an endpoint address of {} bytes for an exchange by UCX", peer.rank,
                  endpoint.size());
    peer.address.assign(endpoint.begin() + sizeof head, endpoint.end());
    peer.to = tag(nonce_, head.nonce, rank_, peer.rank);
    peer.from = tag(head.nonce, nonce_, peer.rank, rank_);
  }
  return success();
}

Status TaggedExchange::reach(Peer& peer) {
  if (peer.endpoint) return success();
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(peer.address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = on_broken;
  params.err_handler.arg = &peer;
  const FileSignalsHeld held;
  const ucs_status_t status = ucx_.ep_create(worker_, &params, &peer.endpoint);
  if (status == UCS_OK) return success();
  peer.endpoint = nullptr;
  return problem_of(
      ucx_,
      fmt::format("no connection to rank {}; UCX_TLS and UCX_NET_DEVICES must leave a way to it",
                  peer.rank)
          .c_str(),
      status);
}

Status TaggedExchange::post(const Part& part, bool receives) {
  Peer& peer = peers_[static_cast<size_t>(part.peer)];
  if (!receives) FSCCL_TRY(reach(peer));
  Pending& pending = pending_.emplace_back(Pending{this, &peer, part.bytes, receives});
  ucp_request_param_t param{};
  // The callback is called even for a receive that is over at once, because the callback alone
  // learns how many bytes came.
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
  param.user_data = &pending;
  if (device_memory_) {  // UCX's own table may not know memory that is older than the table
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMORY_TYPE;
    param.memory_type = UCS_MEMORY_TYPE_CUDA;
  }
  left_++;
  ucs_status_ptr_t request;
  if (receives) {
    param.cb.recv = on_received;
    request = ucx_.tag_recv_nbx(worker_, part.memory, part.bytes, peer.from, ~ucp_tag_t{0}, &param);
  } else {
    param.cb.send = on_sent;
    request = ucx_.tag_send_nbx(peer.endpoint, part.memory, part.bytes, peer.to, &param);
  }
  if (!UCS_PTR_IS_PTR(request))
    over(pending, nullptr, UCS_PTR_RAW_STATUS(request), part.bytes);
  else if (!pending.over)
    pending.request = request;
  return trouble_.ok() ? success() : trouble_.clone();
}

void TaggedExchange::over(Pending& pending, void* request, ucs_status_t status, uint64_t bytes) {
  pending.over = true;
  left_--;
  if (request) ucx_.request_free(request);
  if (!trouble_.ok()) return;
  try {
    trouble_ = trouble_of(pending, status, bytes);
  } catch (const std::bad_alloc&) {  // no exception may pass through UCX
    trouble_ = std::move(no_memory_);
  }
}

Status TaggedExchange::trouble_of(const Pending& pending, ucs_status_t status, uint64_t bytes) {
  if (status == UCS_ERR_MESSAGE_TRUNCATED || (status == UCS_OK && bytes != pending.bytes))
    return fail(FSCCL_ERR_MISMATCH,
                "rank {} sent another number of bytes than the {} of this call: ranks call "
                "different collectives",
                pending.peer->rank, pending.bytes);
  if (status == UCS_OK) return success();
  return fail(FSCCL_ERR_LINK, "UCX: a part of {} bytes {} rank {}: {}", pending.bytes,
              pending.receives ? "from" : "to", pending.peer->rank, ucx_.status_string(status));
}

void TaggedExchange::on_sent(void* request, ucs_status_t status, void* user) {
  auto& pending = *static_cast<Pending*>(user);
  pending.all->over(pending, request, status, pending.bytes);
}
void TaggedExchange::on_received(void* request, ucs_status_t status,
                                 const ucp_tag_recv_info_t* info, void* user) {
  auto& pending = *static_cast<Pending*>(user);
  pending.all->over(pending, request, status, info->length);
}
// A rank leaves when it is done, and all that it sent may be here already. Therefore the end of a
// connection is an error only for parts that are still to come.
void TaggedExchange::on_broken(void* user, ucp_ep_h, ucs_status_t status) {
  auto& peer = *static_cast<Peer*>(user);
  peer.broken = status;
  peer.broken_ns = now_ns();
}

Status TaggedExchange::cut_off(int64_t now) const {
  for (const Pending& pending : pending_) {
    const Peer& peer = *pending.peer;
    if (!pending.over && peer.broken != UCS_OK && now - peer.broken_ns > kStragglersNs)
      return fail(FSCCL_ERR_LINK, "UCX: the connection to rank {} broke: {}", peer.rank,
                  ucx_.status_string(peer.broken));
  }
  return success();
}

std::string TaggedExchange::missing() const {
  std::vector<int> ranks;
  for (const Pending& pending : pending_)
    if (!pending.over) ranks.push_back(pending.peer->rank);
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return fmt::format("{}", fmt::join(ranks, ", "));
}

Status TaggedExchange::wait(const Patience& patience, const std::function<bool()>& done) {
  int64_t news = now_ns(), looked = news;
  bool moved = false;
  const auto over = [&] {
    moved = false;
    for (int turn = 0; turn < kTurns && trouble_.ok() && !done(); turn++)
      moved |= ucx_.worker_progress(worker_) != 0;
    return !trouble_.ok() || done();
  };
  const BreakCheck broken = [&]() -> Status {
    const int64_t now = now_ns();
    if (moved) news = now;
    if (now - looked < kLookNs) return success();
    looked = now;
    FSCCL_TRY(patience.broken());
    return cut_off(now);
  };
  const auto pause = [&](int64_t left_ns) {
    if (moved) return;
    now_ns() - news > kPatientNs ? sleep_ns(std::min(left_ns, kNapNs)) : yield_core();
  };
  FSCCL_ASSIGN(const bool in_time,
               wait_unless(broken, over, Deadline::in_ms(patience.timeout_ms), pause));
  if (!in_time)
    return fail(FSCCL_ERR_TIMEOUT, "an exchange by UCX was not over in {} ms: ranks {} are missing",
                patience.timeout_ms, missing());
  return trouble_.ok() ? success() : trouble_.clone();
}

Status TaggedExchange::run(const std::vector<Part>& sends, const std::vector<Part>& receives,
                           const Patience& patience) {
  const std::unique_lock lock(mutex_);
  if (!trouble_.ok()) return trouble_.clone();
  if (!worker_)
    return fail(FSCCL_ERR_OUT_OF_MEMORY, "an exchange by UCX has ended early, for lack of memory");
  // Without memory in the middle of a call, nothing may go on writing to the caller's memory.
  Undo ended_early([this] { close(true); });
  pending_.clear();
  pending_.reserve(sends.size() + receives.size());
  Status done;
  for (size_t i = 0; i < receives.size() && done.ok(); i++) done = post(receives[i], true);
  for (size_t i = 0; i < sends.size() && done.ok(); i++) done = post(sends[i], false);
  if (done.ok()) done = wait(patience, [this] { return left_ == 0; });
  news_ns_ = now_ns();
  if (!done.ok()) {
    trouble_ = done.clone();
    close(true);
  } else if (std::exchange(resting_, false)) {
    Reactor::instance().kick();
  }
  ended_early.keep();
  return done;
}

// Runs in the service thread. At the end of a call UCX may still owe the other ranks answers and
// small parts that it has kept. They leave here, because the other ranks wait for them.
int64_t TaggedExchange::visit() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || !worker_) return kRestNs;
  for (int turn = 0; turn < kTurns; turn++)
    if (ucx_.worker_progress(worker_)) news_ns_ = now_ns();
  resting_ = now_ns() - news_ns_ > kAfterNs;
  return resting_ ? kRestNs : kSoonNs;
}

// Closes the endpoints and ends the worker. With `force` requests under way are then over, whatever
// the other ranks do.
void TaggedExchange::close(bool force) {
  if (!worker_) return;
  const Deadline deadline = Deadline::in_ms(kCloseMs);
  const auto advance = [&](const auto& done) {
    wait_until(done, deadline, kNothingBreaks,
               [this](int64_t) { (void)ucx_.worker_progress(worker_); });
  };
  for (Pending& pending : pending_)
    if (pending.receives && !pending.over) ucx_.request_cancel(worker_, pending.request);
  for (Peer& peer : peers_) {
    if (!peer.endpoint) continue;
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = force ? UCP_EP_CLOSE_FLAG_FORCE : 0;
    const ucs_status_ptr_t request = ucx_.ep_close_nbx(peer.endpoint, &param);
    peer.endpoint = nullptr;
    if (UCS_PTR_IS_PTR(request)) closing_.push_back(request);
  }
  for (void* const request : closing_) {
    advance([&] { return ucx_.request_check_status(request) != UCS_INPROGRESS; });
    ucx_.request_free(request);
  }
  advance([&] { return left_ == 0; });
  ucx_.worker_destroy(worker_);
  worker_ = nullptr;
}

ExchangeTerms exchange_terms() {
  ExchangeTerms terms;
  terms.rdma = has_rdma();
  std::string why;
  const UcxLibrary* const ucx = ucx_library(&why);
  if (ucx) why = why_not_device_memory(*ucx);
  why.copy(terms.why, sizeof terms.why - 1);
  if (!why.empty()) return terms;
  unsigned major = 0, minor = 0, release = 0;
  ucx->get_version(&major, &minor, &release);
  terms.version = major << 16 | minor;
  return terms;
}

Result<std::unique_ptr<Exchange>> make_exchange(int rank, int ranks) {
  std::string why;
  const UcxLibrary* const ucx = ucx_library(&why);
  if (!ucx) return fail(FSCCL_ERR_NOT_AVAILABLE, "{}", why);
  return TaggedExchange::create(*ucx, rank, ranks, true);
}

}  // namespace fsccl::ucx
