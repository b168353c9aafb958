#include "publish/subscriber.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/config.h"
#include "base/fork.h"
#include "base/left_to_parent.h"
#include "bootstrap/member_info.h"
#include "bootstrap/unique_id.h"
#include "publish/cpu_time.h"
#include "publish/key.h"

namespace fsccl::publish {

namespace {

constexpr int64_t kRetryNs = 100'000'000;
constexpr int64_t kLeastSilenceMs = 3000;
constexpr int kMostRefusals = 5;  // a rank that has published counts as dead after so many
constexpr int kMostFailures = 20;
constexpr int64_t kAheadPatienceNs = 2'000'000'000;
constexpr int64_t kLookNs = 200'000'000;

Result<std::pair<std::string, uint16_t>> parse_address(const std::string& address) {
  const size_t colon = address.rfind(':');
  int port = 0;
  for (size_t i = colon + 1; colon != std::string::npos && i < address.size(); i++) {
    if (address[i] < '0' || address[i] > '9' || port > 65535) port = 1 << 20;
    port = 10 * port + (address[i] - '0');
  }
  if (colon == std::string::npos || colon == 0 || port < 1 || port > 65535)
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "address is '{}': it is host:port", address);
  return std::pair(address.substr(0, colon), static_cast<uint16_t>(port));
}

}  // namespace

Result<std::unique_ptr<Subscriber>> Subscriber::create(SubscribeRequest request) {
  std::unique_ptr<Subscriber> made(new Subscriber);
  FSCCL_TRY(made->open(request));
  FSCCL_ASSIGN(made->fork_hook_, add_fork_hook(leave_to_parent, made.get()));
  const SignalsBlocked blocked;
  FSCCL_TRY(made->thread_.start([self = made.get()] { self->run(); }));
  return made;
}

Subscriber::~Subscriber() {
  stopping_ = true;
  if (wake_.valid()) (void)eventfd_write(wake_.get(), 1);
  if (thread_.joinable()) thread_.join();
  remove_fork_hook(fork_hook_);
}

// Runs in the child of a fork, so that a rank learns when this process leaves or dies.
void Subscriber::leave_to_parent(void* self) {
  const LeftToParent left;
  for (const auto& peer : static_cast<Subscriber*>(self)->peers_) left.replace(peer->link.fd());
}

BreakCheck Subscriber::until_it_ends() {
  return [this] { return stopping_ ? fail(FSCCL_ERR_ABORTED, "the subscriber ends") : success(); };
}

Result<Reach> Subscriber::reach(int rank) {
  const RankAddress& listens = catalog_.addresses[static_cast<size_t>(rank)];
  std::vector<SocketAddress> addresses;
  if (listens.host == host_) addresses.push_back(unix_address(listener_name(listens.listener)));
  if (listens.host != host_ && listens.port)
    for (const IpAddress& ip : listens.ips) addresses.push_back(tcp_address(ip, listens.port));
  if (addresses.empty())
    return fail(FSCCL_ERR_CONFIG,
                "rank {} is on another host (or in another container) and listens on no TCP port: "
                "remove FSCCL_BOOTSTRAP_TCP=0 there",
                rank);
  const auto is_the_rank = [this, rank](const Reached& reached) {
    if (reached.rank != rank)
      return fail(FSCCL_ERR_LINK, "rank {} answers at an address of rank {}", reached.rank, rank);
    if (reached.catalog != catalog_bytes_)
      return fail(FSCCL_ERR_MISMATCH, "rank {} belongs to another publication", rank);
    return success();
  };
  return Reach(credentials_, number_, std::move(addresses), is_the_rank, until_it_ends());
}

// Gets the catalog from a rank that the ticket or the address names. A ticket is of a publication
// that has begun. At an address, the publication may begin later.
Status Subscriber::find(const SubscribeRequest& request, Deadline deadline) {
  std::vector<SocketAddress> addresses;
  std::string where = request.address;
  if (request.ticket) {
    FSCCL_ASSIGN(const UniqueId id, decode_unique_id(*request.ticket));
    FSCCL_ASSIGN(RendezvousPoint place,
                 meeting_place(id, host_, config()->bootstrap_tcp, config()->host_id));
    credentials_ = place.credentials;
    number_ = id.job;
    addresses = std::move(place.addresses);
    where = fmt::format("process {}, which made the publication", id.pid);
  } else {
    FSCCL_ASSIGN(const auto named, parse_address(request.address));
    const std::string path = config()->job_secret_file;
    if (path.empty())
      return fail(FSCCL_ERR_CONFIG,
                  "FSCCL_JOB_SECRET_FILE is not set: set it to the job's, or give a ticket");
    FSCCL_ASSIGN(const PublicationKey key, key_of_file(path));
    credentials_ = key.credentials;
    number_ = key.number;
    FSCCL_ASSIGN(addresses, resolve(named.first, named.second));
    if (addresses.empty())
      return fail(FSCCL_ERR_CONFIG, "'{}' has no address of IPv4 or IPv6", request.address);
  }
  const auto any_rank = [](const Reached&) { return success(); };
  Reach search(credentials_, number_, std::move(addresses), any_rank, until_it_ends());
  Result<Reached> found =
      search.until(deadline, request.ticket ? kMostRefusals : std::numeric_limits<int>::max());
  if (found.ok()) {
    // The connection closes here: its rank may hold nothing that is wanted.
    catalog_bytes_ = std::move(found.value().catalog);
    return success();
  }
  if (found.status().code() == FSCCL_ERR_LINK)
    return fail(
        FSCCL_ERR_PEER_DEAD, "subscriber '{}': nobody publishes there{} ({}){}: {}", name_,
        request.ticket ? " any more" : "", where,
        request.ticket ? "" : ", or another secret than FSCCL_JOB_SECRET_FILE has is used there",
        found.status().text());
  return fail(found.status().code(), "subscriber '{}' got no catalog from {}: {}", name_, where,
              found.status().text());
}

Status Subscriber::open(const SubscribeRequest& request) {
  const Deadline deadline = Deadline::in_ms(request.timeout_ms);
  timeout_ms_ = request.timeout_ms;
  name_ = request.name;
  host_ = host_number(config()->host_id);
  FSCCL_TRY(find(request, deadline));
  FSCCL_ASSIGN(catalog_, decode_catalog(catalog_bytes_));
  FSCCL_ASSIGN(Wanted wanted, match(catalog_, request.params, request.sharding));
  for (size_t rank = 0; rank < wanted.ranks.size(); rank++) {
    if (wanted.ranks[rank].deliveries.empty()) continue;
    peers_.push_back(std::make_unique<Peer>(static_cast<int>(rank), std::move(wanted.ranks[rank])));
    Peer& peer = *peers_.back();
    FSCCL_ASSIGN(Reach search, reach(peer.rank));
    Result<Reached> found = search.until(deadline, kMostRefusals);
    if (!found.ok() && found.status().code() == FSCCL_ERR_LINK)
      return failed(peer, FSCCL_ERR_PEER_DEAD,
                    "does not publish any more: " + found.status().text());
    if (!found.ok())
      return failed(peer, found.status().code(), "gave no catalog: " + found.status().text());
    peer.link.connect(std::move(found.value().channel), now_ns());
  }
  if (peers_.empty())
    return fail(
        FSCCL_ERR_INVALID_ARGUMENT,
        "this process's pieces of what is wanted have no elements: nothing to subscribe to");
  wake_ = make_fd([] { return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); });
  return wake_.valid() ? success() : fail_errno(errno, "eventfd");
}

Status Subscriber::failed(const Peer& peer, fsccl_status_t code, const std::string& text) const {
  return fail(code, "subscriber '{}': rank {} of the publication {}", name_, peer.rank, text)
      .with_peer(-1, peer.rank);
}

void Subscriber::run() {
  Status ended;
  while (ended.ok() && !stopping_) {
    try {
      ended = round();
    } catch (const std::bad_alloc&) {
      ended = fail(FSCCL_ERR_OUT_OF_MEMORY, "subscriber '{}' has no memory for a version", name_);
    }
  }
  const std::lock_guard lock(mutex_);
  fatal_ = std::move(ended);
  changed_.notify_all();
}

Status Subscriber::round() {
  wait_for_bytes();
  for (const auto& peer : peers_) {
    FSCCL_TRY(peer->link.connected() ? read(*peer) : reconnect(*peer));
  }
  FSCCL_TRY(go_on());
  for (const auto& peer : peers_)
    if (peer->link.ended())
      return failed(*peer, FSCCL_ERR_PEER_DEAD, "has ended it: what is here is its last version");
  const std::lock_guard lock(mutex_);
  counts_.newest = UINT64_MAX;
  counts_.received_bytes = counts_.whole_bytes = counts_.whole_copies = counts_.damaged = 0;
  counts_.held_bytes = 0;
  for (const auto& peer : peers_) {
    const Link::Counts& link = peer->link.counts();
    counts_.newest = std::min(counts_.newest, peer->link.newest());
    counts_.received_bytes += link.received_bytes;
    counts_.whole_bytes += link.whole_bytes;
    counts_.whole_copies += link.whole_copies;
    counts_.damaged += link.damaged;
    counts_.held_bytes += peer->link.held_bytes();
  }
  return success();
}

void Subscriber::wait_for_bytes() {
  std::vector<int> fds{wake_.get()};
  for (const auto& peer : peers_) fds.push_back(peer->link.connected() ? peer->link.fd() : -1);
  const bool all = std::all_of(peers_.begin(), peers_.end(),
                               [](const auto& peer) { return peer->link.connected(); });
  (void)wait_readable(fds, Deadline::at(now_ns() + (all ? kLookNs : kRetryNs / 4))).ok();
}

// A publisher without news says so every second.
bool Subscriber::silent_for_long(const Peer& peer) const {
  return now_ns() - peer.link.heard_ns() >
         std::max<int64_t>(timeout_ms_, kLeastSilenceMs) * 1'000'000;
}

Status Subscriber::read(Peer& peer) {
  Status status = peer.link.read(now_ns());
  if (!status.ok()) return lost(peer, std::move(status));
  if (!silent_for_long(peer)) return success();
  return failed(
      peer, FSCCL_ERR_TIMEOUT,
      fmt::format("has been silent for {} ms", (now_ns() - peer.link.heard_ns()) / 1'000'000));
}

// Gives up a connection that has failed. The rank may have died, or have given up what it was
// sending; reconnect() finds out which.
Status Subscriber::lost(Peer& peer, Status why) {
  if (peer.link.ended()) return success();
  if (why.code() == FSCCL_ERR_PROTOCOL && ++failures_ > kMostFailures)
    return failed(peer, FSCCL_ERR_PROTOCOL, "sends wrong messages again and again: " + why.text());
  peer.link.disconnect();
  peer.retry_ns = now_ns();
  peer.refusals = 0;
  return success();
}

Status Subscriber::reconnect(Peer& peer) {
  if (now_ns() < peer.retry_ns) return success();
  if (!peer.search) {
    FSCCL_ASSIGN(Reach search, reach(peer.rank));
    peer.search.emplace(std::move(search));
  }
  Result<Reached> found = peer.search->once(Deadline::in_ms(timeout_ms_));
  if (found.ok()) {
    peer.search.reset();
    peer.link.connect(std::move(found.value().channel), now_ns());
    {
      const std::lock_guard lock(mutex_);
      counts_.reconnections++;
    }
    if (peer.link.version() == 0) return success();
    // The rank waits at its end for what each connection confirms, and this one is new.
    Status told = peer.link.confirm(peer.link.version());
    return told.ok() ? success() : lost(peer, std::move(told));
  }
  const fsccl_status_t code = found.status().code();
  const bool silent = silent_for_long(peer);
  // The publisher may not know yet that this subscriber's old connection is gone, which counts.
  const bool full = code == FSCCL_ERR_LIMIT && !silent;
  if (code != FSCCL_ERR_LINK && code != FSCCL_ERR_TIMEOUT && !full)
    return failed(peer, code, "cannot be reached again: " + found.status().text());
  if (code == FSCCL_ERR_TIMEOUT && silent)
    return failed(peer, FSCCL_ERR_TIMEOUT, "does not answer: " + found.status().text());
  if (code == FSCCL_ERR_LINK && ++peer.refusals >= kMostRefusals)
    return failed(peer, FSCCL_ERR_PEER_DEAD, "has ended without a word: " + found.status().text());
  peer.retry_ns = now_ns() + kRetryNs;
  return success();
}

// Commits the target if all of it has come, gives it up if it cannot come, and asks the ranks for
// the next one.
Status Subscriber::go_on() {
  const auto all = [&](auto holds) {
    return std::all_of(peers_.begin(), peers_.end(), [&](const auto& p) { return holds(p->link); });
  };
  if (target_ && all([&](const Link& link) { return link.ready(target_); })) FSCCL_TRY(commit());
  if (target_ && !all([](const Link& link) { return !link.gone(); })) {
    ahead_ = ahead_ ? 2 * ahead_ : 1;
    target_ = 0;
  }
  // The target lies ahead of the ranks, and nothing arrives: the job may have stopped publishing.
  // The next target is the newest version that all ranks have.
  if (target_ && ahead_ && now_ns() - target_since_ns_ > kAheadPatienceNs &&
      all([](const Link& link) { return !link.receiving(); })) {
    ahead_ = 0;
    target_ = 0;
  }
  if (!target_) choose_target();
  return target_ ? ask_all() : success();
}

void Subscriber::choose_target() {
  uint64_t least = UINT64_MAX, most = 0;
  bool one_version = true;
  for (const auto& peer : peers_) {
    if (!peer->link.connected()) return;
    least = std::min(least, peer->link.newest());
    most = std::max(most, peer->link.newest());
    one_version = one_version && peer->link.version() == peers_.front()->link.version();
  }
  const uint64_t next = ahead_ ? most + ahead_ : least;
  if (next == 0 || (one_version && next <= peers_.front()->link.version())) return;
  target_ = next;
  target_since_ns_ = now_ns();
}

Status Subscriber::ask_all() {
  for (const auto& peer : peers_) {
    if (!peer->link.connected() || peer->link.ready(target_) || peer->link.receiving()) continue;
    Status asked = peer->link.ask(target_);
    if (!asked.ok()) FSCCL_TRY(lost(*peer, std::move(asked)));
  }
  return success();
}

// Applies the target, of which all bytes have come. The target becomes complete_, unless bytes are
// damaged: then complete_.version is 0 and the damaged links must ask again.
Status Subscriber::commit() {
  const uint64_t version = std::exchange(target_, 0);
  {
    std::unique_lock lock(mutex_);
    const auto taken = [&] {
      return copying_ == 0 && (waiting_ == 0 || complete_.version <= delivered_);
    };
    wait_until(taken, Deadline::never(), kNothingBreaks, UntilNotified{lock, changed_});
    complete_.version = 0;  // no torn version is seen, even if memory is short in the middle
  }
  double cpu_s = 0;
  const Peer* const damaged = apply(version, &cpu_s);
  {
    const std::lock_guard lock(mutex_);
    counts_.apply_cpu_s += cpu_s;
    if (damaged)
      return ++failures_ <= kMostFailures
                 ? success()
                 : failed(*damaged, FSCCL_ERR_PROTOCOL, "sends wrong sums again and again");
    for (const auto& peer : peers_)
      if (peer->link.label() != peers_.front()->link.label())
        return failed(
            *peer, FSCCL_ERR_MISMATCH,
            fmt::format("published version {} with label {}, rank {} with label {}", version,
                        peer->link.label(), peers_.front()->rank, peers_.front()->link.label()));
    complete_.version = version;
    complete_.label = peers_.front()->link.label();
    counts_.version = version;
    counts_.versions++;
    changed_.notify_all();
  }
  failures_ = 0;
  ahead_ = 0;
  for (const auto& peer : peers_) {
    if (!peer->link.connected()) continue;
    Status told = peer->link.confirm(version);
    if (!told.ok()) FSCCL_TRY(lost(*peer, std::move(told)));
  }
  return success();
}

// Returns a rank whose bytes are damaged, or null if there is none.
const Subscriber::Peer* Subscriber::apply(uint64_t version, double* cpu_s) {
  const CpuTime time(cpu_s);
  const Peer* damaged = nullptr;
  for (const auto& peer : peers_)
    if (peer->link.version() != version && !peer->link.apply(scratch_)) damaged = peer.get();
  return damaged;
}

Result<fsccl_publication_t> Subscriber::update(Deadline deadline) {
  std::unique_lock lock(mutex_);
  waiting_++;
  const WaitEnd end = wait_until([&] { return complete_.version > delivered_; }, deadline,
                                 [&] { return !fatal_.ok(); }, UntilNotified{lock, changed_});
  waiting_--;
  if (end == WaitEnd::broken) return fatal_.clone();
  if (end == WaitEnd::late) return fsccl_publication_t FSCCL_PUBLICATION_INIT;
  const fsccl_publication_t copied = complete_;
  copying_++;
  lock.unlock();
  double cpu_s = 0;
  copy_words(&cpu_s);
  lock.lock();
  copying_--;
  delivered_ = copied.version;
  counts_.apply_cpu_s += cpu_s;
  changed_.notify_all();
  return copied;
}

void Subscriber::copy_words(double* cpu_s) const {
  const CpuTime time(cpu_s);
  for (const auto& peer : peers_)
    for (const Delivery& one : peer->wanted.deliveries)
      write_elements(peer->link.words() + one.piece.first_word, one.sent, one.piece.count,
                     one.begin, one.count, one.to, one.stored);
}

void Subscriber::report(fsccl_subscribe_report_t* report) {
  const std::lock_guard lock(mutex_);
  *report = counts_;
  for (const auto& peer : peers_)
    report->words_bytes += peer->wanted.range.words * sizeof(uint16_t);
}

}  // namespace fsccl::publish
