#include "transports/ucx/channel.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "base/futex.h"
#include "base/hash.h"

namespace fsccl::ucx {
namespace {

constexpr size_t kSlotBytes = 128u << 10, kPairSlotBytes = 64u << 10, kPage = 4096;
constexpr int kTellAll = 64;                   // ranks; in larger channels the news of a failure is passed on
constexpr int64_t kVerdictNs = 300'000'000;    // for the job to say that a rank died whose connection broke
constexpr int64_t kFailedMs = 100, kCloseMs = 1000;

size_t round_up(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

fsccl_transport_failure_t failure_of(fsccl_status_t code, int rank, int peer, const std::string& text) {
  fsccl_transport_failure_t made{};
  made.code = code;
  made.rank = rank;
  made.peer = peer;
  text.copy(made.text, sizeof made.text - 1);
  return made;
}

}  // namespace

Result<std::shared_ptr<Mirrors>> Mirrors::make(size_t bytes) {
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return fail_errno(errno, fmt::format("cannot map {} bytes for the slots of a UCX channel", bytes));
  madvise(base, bytes, MADV_DONTFORK);
  return std::make_shared<Mirrors>(static_cast<std::byte*>(base), bytes);
}
Mirrors::~Mirrors() { munmap(base_, bytes_); }

Channel::Channel(Place place) : place_(std::move(place)), peers_(place_.members.size()) {
  slot_bytes_ = round_up(std::max(place_.slot_bytes ? place_.slot_bytes : kSlotBytes,
                                  place_.members.size() * sizeof(fsccl_transport_line_t)));
  ring_bytes_ = FSCCL_TRANSPORT_SLOTS * slot_bytes_;
  for (size_t rank = 0; rank < place_.members.size(); rank++) ranks_.emplace_back(place_.members[rank], static_cast<int>(rank));
  std::sort(ranks_.begin(), ranks_.end());
}

Result<std::unique_ptr<Channel>> Channel::open(Place place) {
  std::unique_ptr<Channel> channel(new Channel(std::move(place)));
  FSCCL_ASSIGN(channel->mirrors_, Mirrors::make(channel->ring_bytes_ * channel->peers_.size()));
  const std::lock_guard lock(channel->place_.node->mutex());
  channel->place_.node->add(channel.get());
  return channel;
}

Channel::~Channel() {
  if (!mirrors_) return;
  const std::lock_guard lock(place_.node->mutex());
  for (size_t peer = 0; peer < peers_.size(); peer++)
    if (peers_[peer].known && static_cast<int>(peer) != place_.rank) send(static_cast<int>(peer), MessageKind::left, nullptr, nullptr);
  empty_outbox(kCloseMs);
  place_.node->remove(this);
}

Result<std::unique_ptr<Channel>> Channel::pair(int from, int to) {
  Place place = place_;
  place.around = this;
  place.meeting = place.tag = mix_hash(tag(), static_cast<uint64_t>(from) << 32 | static_cast<uint32_t>(to));
  place.rank = place_.rank == from ? 0 : 1;
  place.members = {place_.members[static_cast<size_t>(from)], place_.members[static_cast<size_t>(to)]};
  place.slot_bytes = std::min(slot_bytes_, kPairSlotBytes);
  return open(std::move(place));
}

int Channel::member(int job_rank) const {
  const auto found = std::lower_bound(ranks_.begin(), ranks_.end(), std::pair<int32_t, int>(job_rank, 0));
  return found != ranks_.end() && found->first == job_rank ? found->second : -1;
}

// ---- what goes out

void Channel::send(int to, MessageKind kind, const fsccl_transport_line_t* line, const Put* put) {
  Peer& peer = peers_[static_cast<size_t>(to)];
  Header header{};
  header.channel = place_.meeting;
  header.tag = place_.tag;
  header.kind = kind;
  if (put) {
    header.at = put->at;
    peer.sent += put->bytes;
    peer.leaving.fetch_add(1, std::memory_order_relaxed);
  }
  header.sent = peer.sent;
  if (line) header.line = *line;
  peer.known = true;
  place_.node->send(place_.members[static_cast<size_t>(to)], header, put ? put->source : nullptr, put ? put->bytes : 0,
                    put ? this : nullptr, to);
}

void Channel::departed(int to) {
  if (peers_[static_cast<size_t>(to)].leaving.fetch_sub(1, std::memory_order_release) == 1) arrived();
}

void Channel::put(int peer, size_t at, const void* source, size_t bytes) { puts_.push_back({peer, at, bytes, source}); }

void Channel::signal(const fsccl_transport_line_t& line) {
  const std::lock_guard lock(place_.node->mutex());
  if (place_.board->written.load(std::memory_order_relaxed)) return puts_.clear();  // fail(): no source is read any more
  fsccl_transport_line_t mine = line;
  mine.processor = -1;
  // The last bytes for a peer ride with its line.
  const auto ranks = static_cast<int>(peers_.size());
  std::stable_sort(puts_.begin(), puts_.end(), [&](const Put& a, const Put& b) {
    return (a.peer - place_.rank + ranks) % ranks < (b.peer - place_.rank + ranks) % ranks;
  });
  size_t next = 0;
  for (int i = 1; i < ranks; i++) {
    const int peer = (place_.rank + i) % ranks;
    const Put* last = nullptr;
    for (; next < puts_.size() && puts_[next].peer == peer; next++) {
      if (last) send(peer, MessageKind::bytes, nullptr, last);
      last = &puts_[next];
    }
    send(peer, MessageKind::line, &mine, last);
  }
  puts_.clear();
}

int Channel::unsent() {
  const auto any = [&] {
    for (size_t peer = 0; peer < peers_.size(); peer++)
      if (peers_[peer].leaving.load(std::memory_order_acquire)) return static_cast<int>(peer);
    return -1;
  };
  if (const int peer = any(); peer < 0) return peer;
  place_.node->poll();
  return any();
}

void Channel::empty_outbox(int64_t patience_ms) {
  const Deadline deadline = Deadline::in_ms(patience_ms);
  for (size_t i = 0; i < peers_.size(); i++) {
    const std::atomic<uint32_t>& leaving = peers_[i].leaving;
    while (leaving.load(std::memory_order_acquire) && !deadline.passed()) place_.node->advance();
    if (leaving.load(std::memory_order_acquire))
      place_.node->cut(place_.members[i], "what was being sent to it was given up when a communicator failed or ended");
  }
}

// ---- what comes in

const fsccl_transport_line_t* Channel::poll(int from, uint32_t tick) {
  fsccl_transport_line_t& line = peers_[static_cast<size_t>(from)].lines[tick % FSCCL_TRANSPORT_TICKS];
  const auto here = [&] { return std::atomic_ref(line.tick).load(std::memory_order_acquire) == tick; };
  if (here()) return &line;
  place_.node->poll();
  return here() ? &line : nullptr;
}

void Channel::word(fsccl_transport_word_t* word) {
  word->word = &arrivals_;
  word->value = std::atomic_ref(arrivals_).load(std::memory_order_seq_cst);
  word->sleepers = &place_.node->sleepers;
  word->processor = -1;
  place_.node->need();
}

void Channel::arrived() {
  const uint32_t next = std::atomic_ref(arrivals_).load(std::memory_order_relaxed) + 1;
  futex_store(&arrivals_, next, &place_.node->sleepers);
}

std::byte* Channel::slots(int rank, size_t* ring_bytes, size_t* slot_bytes) const {
  *ring_bytes = ring_bytes_;
  *slot_bytes = slot_bytes_;
  return mirrors_->at(static_cast<size_t>(rank) * ring_bytes_);
}

std::byte* Channel::place(int peer, const Header& header, size_t bytes) {
  if (header.at <= ring_bytes_ && bytes <= ring_bytes_ - header.at)
    return mirrors_->at(static_cast<size_t>(peer) * ring_bytes_ + header.at);
  const std::string text = fmt::format("rank {} sent {} bytes for place {} of a ring of {}: set FSCCL_SLOT_BYTES alike on all ranks",
                                       peer, bytes, header.at, ring_bytes_);
  if (const auto failure = failure_of(FSCCL_ERR_PROTOCOL, place_.rank, peer, text); write_board(failure)) tell(failure);
  return nullptr;
}

void Channel::publish(Peer& peer, const fsccl_transport_line_t& line) {
  fsccl_transport_line_t& mirror = peer.lines[line.tick % FSCCL_TRANSPORT_TICKS];
  mirror.processor = -1;
  std::memcpy(mirror.fingerprint, line.fingerprint, sizeof line.fingerprint + sizeof line.payload);
  std::atomic_ref(mirror.tick).store(line.tick, std::memory_order_release);
  arrived();
}

void Channel::landed(int from, const Header& header, size_t bytes) {
  Peer& peer = peers_[static_cast<size_t>(from)];
  peer.known = true;
  peer.landed += bytes;
  if (header.kind == MessageKind::line) {
    if (peer.landed >= header.sent && peer.held.empty())
      publish(peer, header.line);
    else
      peer.held.push_back({header.line, header.sent});
  }
  while (!peer.held.empty()) {
    const auto ready = std::find_if(peer.held.begin(), peer.held.end(), [&](const Held& held) { return held.sent <= peer.landed; });
    if (ready == peer.held.end()) return;
    publish(peer, ready->line);
    peer.held.erase(ready);
  }
}

// ---- ends and failures

bool Channel::write_board(const fsccl_transport_failure_t& failure) {
  Board& board = *place_.board;
  if (board.written.load(std::memory_order_relaxed)) return false;
  board.failure = failure;
  board.failure.text[sizeof failure.text - 1] = '\0';
  board.written.store(true, std::memory_order_release);
  arrived();
  return true;
}

void Channel::tell(const fsccl_transport_failure_t& failure) {
  if (place_.around) return place_.around->tell(failure);
  const auto ranks = static_cast<int>(peers_.size());
  for (int i = 1; i < ranks; i++) {
    const int peer = (place_.rank + i) % ranks;
    if (ranks > kTellAll && i > 1 && !peers_[static_cast<size_t>(peer)].known) continue;
    Header header{};
    header.channel = place_.meeting;
    header.tag = place_.tag;
    header.kind = MessageKind::failure;
    place_.node->send(place_.members[static_cast<size_t>(peer)], header, &failure, sizeof failure, nullptr, peer);
  }
}

void Channel::fail(const fsccl_transport_failure_t& failure) {
  {
    const std::lock_guard lock(place_.node->mutex());
    if (write_board(failure)) tell(failure);
    empty_outbox(kFailedMs);
  }
  rest();
}

void Channel::hear(int from, MessageKind kind, const void* data, size_t bytes) {
  Peer& peer = peers_[static_cast<size_t>(from)];
  peer.known = true;
  if (kind == MessageKind::left) {
    peer.left.store(true, std::memory_order_release);
    return arrived();
  }
  fsccl_transport_failure_t failure;
  if (bytes != sizeof failure) return;
  std::memcpy(&failure, data, sizeof failure);
  if (write_board(failure)) tell(failure);
}

void Channel::lost(int job_rank) {
  const int peer = member(job_rank);
  if (peer < 0 || left(peer) || lost_ns_.load(std::memory_order_relaxed)) return;
  lost_peer_ = peer;
  lost_ns_.store(now_ns(), std::memory_order_release);
  arrived();
}

const fsccl_transport_failure_t* Channel::failure() {
  Board& board = *place_.board;
  if (!board.written.load(std::memory_order_acquire)) place_.node->poll();
  if (board.written.load(std::memory_order_acquire)) return &board.failure;
  const int64_t lost_ns = lost_ns_.load(std::memory_order_acquire);
  if (!lost_ns || now_ns() - lost_ns < kVerdictNs) return nullptr;
  const std::lock_guard lock(place_.node->mutex());
  if (!left(lost_peer_)) {
    const auto failure = failure_of(FSCCL_ERR_LINK, place_.rank, lost_peer_,
                                    place_.node->problem(place_.members[static_cast<size_t>(lost_peer_)]));
    if (write_board(failure)) tell(failure);
  } else {
    lost_ns_.store(0, std::memory_order_release);
  }
  return board.written.load(std::memory_order_acquire) ? &board.failure : nullptr;
}

}  // namespace fsccl::ucx
