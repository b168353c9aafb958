#include "transports/mirror/channel.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "base/futex.h"
#include "base/hash.h"
#include "base/round_up.h"
#include "kernels/crc32c.h"
#include "kernels/kernels.h"

namespace fsccl::mirror {
namespace {

constexpr int32_t kLate = 1 << 20;  // no message comes so many ticks late
constexpr int kTellAll = 64;  // number of ranks up to which a failing rank tells all others itself
// When a connection has broken, the channel waits so long for the job to say that the rank died.
constexpr int64_t kVerdictNs = 300'000'000;

fsccl_transport_failure_t failure_of(fsccl_status_t code, int rank, int peer,
                                     std::string_view text) {
  fsccl_transport_failure_t made{};
  made.code = code;
  made.rank = rank;
  made.peer = peer;
  text.copy(made.text, sizeof made.text - 1);
  return made;
}

}  // namespace

Channel::Channel(Setup setup)
    : fsccl::Channel(
          {.transport = setup.node->name(), .mirrors = true, .signals_one = true, .places = true}),
      setup_(std::move(setup)),
      peers_(setup_.members.size()) {
  const size_t ranks = setup_.members.size(),
               chosen = chosen_slot_bytes(ranks, setup_.node->most_slot_bytes());
  slot_bytes_ = round_up(std::max(setup_.slot_bytes ? setup_.slot_bytes : chosen,
                                  ranks * sizeof(fsccl_transport_line_t)),
                         Mirrors::kPage);
  ring_bytes_ = ring_bytes_of(slot_bytes_, ranks);
  for (size_t rank = 0; rank < setup_.members.size(); rank++)
    ranks_.emplace_back(setup_.members[rank], static_cast<int>(rank));
  std::sort(ranks_.begin(), ranks_.end());
}

Result<std::unique_ptr<Channel>> Channel::open(Setup setup) {
  std::unique_ptr<Channel> channel(new Channel(std::move(setup)));
  FSCCL_ASSIGN(channel->mirrors_, Mirrors::make(channel->ring_bytes_ * channel->peers_.size()));
  Node& node = *channel->setup_.node;
  const std::lock_guard lock(node.mutex());
  channel->setup_.board->channels.push_back(channel.get());
  node.add(channel.get());
  for (const int32_t rank : channel->setup_.members)
    if (node.broken(rank)) channel->link_lost(rank, node.starved(rank));
  return channel;
}

// A peer that has left is told nothing: it needs no news, and a message could no longer reach it.
// Every other peer hears of a failure of the channel before it hears that this rank leaves.
Channel::~Channel() {
  if (!mirrors_) return;
  setup_.node->hear_out();
  {
    const std::lock_guard lock(setup_.node->mutex());
    std::vector<int32_t> unaware;
    for (int peer = 0; peer < static_cast<int>(peers_.size()); peer++) {
      const Peer& other = peers_[static_cast<size_t>(peer)];
      if (peer == setup_.rank || said_goodbye(peer)) continue;
      if (!other.known) {
        unaware.push_back(setup_.members[static_cast<size_t>(peer)]);
        continue;
      }
      if (failed()) tell(peer, setup_.board->failure);
      send(peer, MessageKind::left, nullptr, nullptr, other.messages_sent);
    }
    setup_.node->remove(this);
    if (!setup_.around) setup_.node->close_to(meeting(), std::move(unaware));
    std::erase(setup_.board->channels, this);
  }
  rest();
}

size_t Channel::pair_ring_bytes() const {
  return ring_bytes_of(std::min(slot_bytes_, kPairSlotBytes), 2);
}

Result<OpenedChannel> Channel::pair(int from, int to) {
  Setup inside = setup_;
  inside.around = this;
  inside.meeting = mix_hash(tag(), static_cast<uint64_t>(from) << 32 | static_cast<uint32_t>(to));
  inside.tag = meeting();
  inside.rank = setup_.rank == from ? 0 : 1;
  inside.members = {setup_.members[static_cast<size_t>(from)],
                    setup_.members[static_cast<size_t>(to)]};
  inside.known_as = {known_as(from), known_as(to)};
  inside.slot_bytes = std::min(slot_bytes_, kPairSlotBytes);
  FSCCL_ASSIGN(std::unique_ptr<Channel> pair, open(std::move(inside)));
  return OpenedChannel{std::move(pair)};
}

int Channel::take_path(int peer, int number) {
  const std::lock_guard lock(setup_.node->mutex());
  return setup_.node->take_path(*this, setup_.members[static_cast<size_t>(peer)], number);
}

int Channel::member(int job_rank) const {
  const auto found =
      std::lower_bound(ranks_.begin(), ranks_.end(), std::pair<int32_t, int>(job_rank, 0));
  return found != ranks_.end() && found->first == job_rank ? found->second : -1;
}

// ---- what goes out

Header Channel::header(MessageKind kind) const {
  Header made{};
  made.channel = setup_.meeting;
  made.tag = setup_.tag;
  made.kind = kind;
  return made;
}

void Channel::send(int to, MessageKind kind, const fsccl_transport_line_t* line, const Put* put,
                   uint64_t sent, bool more) {
  Peer& peer = peers_[static_cast<size_t>(to)];
  Header header = this->header(kind);
  header.sent = sent;
  if (put) {
    header.at = put->at;
    header.bytes_checksum = put->sum;
  }
  if (line) header.line = *line;
  peer.known = true;
  peer.messages_sent++;
  Payload payload = put ? Payload{put->source, put->bytes, own(put->at), mirrors_} : Payload{};
  setup_.node->send(setup_.members[static_cast<size_t>(to)], header, std::move(payload), more);
}

// If several peers get the same bytes, one after the other, the bytes are copied and summed once.
void Channel::put(int peer, size_t at, const void* source, size_t bytes) {
  const bool again = !puts_.empty() && puts_.back().at == at && puts_.back().bytes == bytes;
  const uint32_t sum = !setup_.node->checksum() ? 0
                       : again                  ? puts_.back().sum
                                                : crc32c(source, bytes);
  if (!setup_.node->takes_at_once() && own(at) != source) {
    if (!again) copy_bytes(own(at), source, bytes, Stores::cached);
    source = own(at);
  }
  puts_.push_back({peer, at, bytes, source, sum});
}

void Channel::signal(const fsccl_transport_line_t& line) {
  const std::lock_guard lock(setup_.node->mutex());
  const auto ranks = static_cast<int>(peers_.size());
  const auto turn = [&](const Put& put) { return (put.peer - setup_.rank + ranks) % ranks; };
  if (puts_.size() > 1)
    std::stable_sort(puts_.begin(), puts_.end(),
                     [&](const Put& a, const Put& b) { return turn(a) < turn(b); });
  const Put* next = puts_.data();
  const Put* const end = next + puts_.size();
  const bool more = std::exchange(holds_, false);
  for (int i = 1; i < ranks; i++) {
    const int peer = (setup_.rank + i) % ranks;
    const Put* const first = next;
    while (next != end && next->peer == peer) next++;
    send_line(peer, line, first, next, more);
  }
  puts_.clear();
}

void Channel::signal_to(int peer, const fsccl_transport_line_t& line) {
  const std::lock_guard lock(setup_.node->mutex());
  const auto others = std::stable_partition(puts_.begin(), puts_.end(),
                                            [&](const Put& put) { return put.peer == peer; });
  send_line(peer, line, puts_.data(), puts_.data() + (others - puts_.begin()), false);
  puts_.erase(puts_.begin(), others);
}

// Sends a line to a peer, behind what was put for it. The last put travels in the line's message.
void Channel::send_line(int peer, const fsccl_transport_line_t& line, const Put* puts,
                        const Put* end, bool more) {
  uint64_t sent = 0;
  for (; puts != end; puts++) {
    sent += puts->bytes;
    if (puts + 1 == end) return send(peer, MessageKind::line, &line, puts, sent, more);
    send(peer, MessageKind::bytes, &line, puts, sent, true);
  }
  send(peer, MessageKind::line, &line, nullptr, 0, more);
}

// ---- what comes in

const fsccl_transport_line_t* Channel::poll(int from, uint32_t tick) {
  fsccl_transport_line_t& line =
      peers_[static_cast<size_t>(from)].lines[tick % FSCCL_TRANSPORT_TICKS];
  const auto has_come = [&] {
    // This load pairs with the store in publish(): a thread that sees the tick also sees the line,
    // and what was put before it.
    return std::atomic_ref(line.tick).load(std::memory_order_acquire) == tick;
  };
  if (has_come()) return &line;
  setup_.node->poll(setup_.members[static_cast<size_t>(from)]);
  return has_come() ? &line : nullptr;
}

void Channel::word(int, uint32_t, fsccl_transport_word_t* word) {
  word->word = &arrivals_;
  word->value = std::atomic_ref(arrivals_).load(std::memory_order_seq_cst);
  word->sleepers = &setup_.node->sleepers;
  word->processor = -1;
  setup_.node->need();
}

void Channel::arrived() {
  const uint32_t next = std::atomic_ref(arrivals_).load(std::memory_order_relaxed) + 1;
  if (futex_store(&arrivals_, next, &setup_.node->sleepers)) setup_.node->woke();
}

std::byte* Channel::slots(int rank, size_t* ring_bytes, size_t* slot_bytes) const {
  *ring_bytes = ring_bytes_;
  *slot_bytes = slot_bytes_;
  return mirrors_->at(static_cast<size_t>(rank) * ring_bytes_);
}

Channel::Arrival* Channel::arrival_of(Peer& peer, uint32_t tick) {
  Arrival& arrival = peer.arrivals[tick % FSCCL_TRANSPORT_TICKS];
  // A tick before the entry's belongs to a message that came late. If it seems to be before it by
  // more than kLate, then the entry is so old that the difference of the ticks has wrapped around.
  if (const auto ahead = static_cast<int32_t>(tick - arrival.tick); ahead < 0 && ahead >= -kLate)
    return nullptr;
  if (arrival.tick != tick) {
    arrival.tick = tick;
    arrival.has_line = false;
    arrival.bytes_landed = 0;
    arrival.expected.clear();
  }
  return &arrival;
}

void Channel::expect(int peer, uint32_t tick, size_t at, std::byte* destination, size_t bytes) {
  const std::lock_guard lock(setup_.node->mutex());
  Peer& from = peers_[static_cast<size_t>(peer)];
  if (from.lines[tick % FSCCL_TRANSPORT_TICKS].tick == tick) return;  // all bytes have come already
  if (Arrival* arrival = arrival_of(from, tick))
    arrival->expected.push_back({at, bytes, destination, false});
}

bool Channel::placed(int from, uint32_t tick, size_t at, size_t bytes) const {
  const Arrival& arrival = peers_[static_cast<size_t>(from)].arrivals[tick % FSCCL_TRANSPORT_TICKS];
  return std::any_of(arrival.expected.begin(), arrival.expected.end(),
                     [&](const Expected& expected) {
                       return expected.at == at && expected.bytes == bytes && expected.placed;
                     });
}

std::byte* Channel::place(int from, const Header& header, size_t bytes, bool at_once) {
  Arrival* arrival = arrival_of(peers_[static_cast<size_t>(from)], header.line.tick);
  if (at_once && bytes && arrival && !setup_.board->written.load(std::memory_order_relaxed))
    for (Expected& expected : arrival->expected)
      if (expected.at == header.at && expected.bytes == bytes && expected.destination &&
          !std::exchange(expected.placed, true))
        return expected.destination;
  if (header.at <= ring_bytes_ && bytes <= ring_bytes_ - header.at) return mirror_of(from, header);
  const std::string text =
      fmt::format("rank {} sent {} bytes for place {} of a ring of {}: it runs another version",
                  known_as(from), bytes, header.at, ring_bytes_);
  report(failure_of(FSCCL_ERR_PROTOCOL, known_as(setup_.rank), known_as(from), text), true);
  return nullptr;
}

std::byte* Channel::mirror_of(int from, const Header& header) const {
  return mirrors_->at(static_cast<size_t>(from) * ring_bytes_ + header.at);
}

void Channel::publish(Peer& peer, const fsccl_transport_line_t& line) {
  fsccl_transport_line_t& mirror = peer.lines[line.tick % FSCCL_TRANSPORT_TICKS];
  mirror.processor = -1;
  std::memcpy(mirror.fingerprint, line.fingerprint, sizeof line.fingerprint + sizeof line.payload);
  // This store pairs with the load in poll().
  std::atomic_ref(mirror.tick).store(line.tick, std::memory_order_release);
  arrived();
}

// Counts a message of a peer. The message that the peer has left may overtake others, so it names
// the number of messages that precede it. The peer counts as left once all of them are here.
void Channel::count(Peer& peer) {
  peer.known = true;
  if (++peer.messages_landed != peer.last) return;
  // This store pairs with the load in left().
  peer.left.store(true, std::memory_order_release);
  arrived();
}

void Channel::landed(int from, const Header& header, const std::byte* place, size_t bytes) {
  if (setup_.node->checksum())
    if (const uint32_t sum = crc32c(place, bytes); sum != header.bytes_checksum)
      return damaged(from, &header.line, bytes, sum, header.bytes_checksum);
  Peer& peer = peers_[static_cast<size_t>(from)];
  if (Arrival* arrival = arrival_of(peer, header.line.tick)) {
    arrival->bytes_landed += bytes;
    if (header.kind == MessageKind::line) {
      arrival->has_line = true;
      arrival->bytes_due = header.sent;
      arrival->line = header.line;
    }
    if (arrival->has_line && arrival->bytes_landed >= arrival->bytes_due) {
      arrival->has_line = false;
      for (Expected& expected : arrival->expected) expected.destination = nullptr;
      publish(peer, arrival->line);
    }
  }
  count(peer);
}

// ---- ends and failures

void Channel::damaged(int from, const fsccl_transport_line_t* line, size_t bytes, uint32_t sum,
                      uint32_t meant) {
  char operation[200] = "";
  if (line && setup_.describe) setup_.describe(line, operation, sizeof operation);
  const int sender = known_as(from), receiver = known_as(setup_.rank);
  const std::string text = fmt::format(
      "rank {} got {} bytes{}{} from rank {} over {} that changed on the way: their CRC32C is "
      "{:#010x}, {:#010x} was meant. Look "
      "at the network and the memory between these two",
      receiver, bytes, *operation ? " of " : "", operation, sender, setup_.node->name(), sum,
      meant);
  report(failure_of(FSCCL_ERR_PROTOCOL, receiver, sender, text), true);
}

bool Channel::said_goodbye(int peer) const {
  return left(peer) ||
         (setup_.around &&
          setup_.around->left(setup_.around->member(setup_.members[static_cast<size_t>(peer)])));
}

void Channel::report(const fsccl_transport_failure_t& failure, bool at_first_hand) {
  Board& board = *setup_.board;
  if (board.written.load(std::memory_order_relaxed)) return;
  board.failure = failure;
  board.failure.text[sizeof failure.text - 1] = '\0';
  // This store pairs with the loads in failure(): a thread that sees `written` sees the failure.
  board.written.store(true, std::memory_order_release);
  for (Channel* channel : board.channels) channel->arrived();
  tell(failure, at_first_hand);
}

// Passes a failure on. A rank that hears of a failure, or has it from the job, tells the ranks at
// distances that are powers of two. All ranks therefore hear of it, even if the rank that noticed
// it (`at_first_hand`) dies while it tells them, and no rank is flooded with news.
void Channel::tell(const fsccl_transport_failure_t& failure, bool at_first_hand) {
  if (setup_.around) return setup_.around->tell(failure, at_first_hand);
  const auto ranks = static_cast<int>(peers_.size());
  for (int i = 1; i < ranks; i++) {
    const int peer = (setup_.rank + i) % ranks;
    const bool far = (i & (i - 1)) != 0;
    if (far && !(at_first_hand && (ranks <= kTellAll || peers_[static_cast<size_t>(peer)].known)))
      continue;
    tell(peer, failure);
  }
}

void Channel::tell(int peer, const fsccl_transport_failure_t& failure) {
  peers_[static_cast<size_t>(peer)].messages_sent++;
  setup_.node->send_failure(setup_.members[static_cast<size_t>(peer)], header(MessageKind::failure),
                            failure);
}

void Channel::fail(const fsccl_transport_failure_t& failure) {
  {
    const std::lock_guard lock(setup_.node->mutex());
    report(failure, failure.code != FSCCL_ERR_PEER_DEAD);
  }
  rest();
}

void Channel::hear(int from, const Header& header, const void* data, size_t bytes) {
  Peer& peer = peers_[static_cast<size_t>(from)];
  if (header.kind == MessageKind::left) peer.last = header.sent + 1;
  count(peer);
  fsccl_transport_failure_t failure;
  if (header.kind != MessageKind::failure || bytes != sizeof failure) return;
  if (setup_.node->checksum())
    if (const uint32_t sum = crc32c(data, bytes); sum != header.bytes_checksum)
      return damaged(from, nullptr, bytes, sum, header.bytes_checksum);
  std::memcpy(&failure, data, sizeof failure);
  report(failure, false);
}

void Channel::link_lost(int job_rank, bool for_sure) noexcept {
  if (const int peer = member(job_rank); peer < 0 || said_goodbye(peer)) return;
  if (verdict_ns_.load(std::memory_order_relaxed) && !for_sure) return;
  // This store pairs with the load of the verdict in failure().
  verdict_ns_.store(now_ns() + (for_sure ? 0 : kVerdictNs), std::memory_order_release);
  arrived();
}

const fsccl_transport_failure_t* Channel::failure() {
  Board& board = *setup_.board;
  // The loads of `written` pair with the store in report(), those of the verdict with the
  // store in link_lost().
  if (!board.written.load(std::memory_order_acquire)) setup_.node->poll(-1);
  if (board.written.load(std::memory_order_acquire)) return &board.failure;
  const int64_t verdict_ns = verdict_ns_.load(std::memory_order_acquire);
  if (!verdict_ns || now_ns() < verdict_ns) return nullptr;
  const std::lock_guard lock(setup_.node->mutex());
  // This store pairs with the load of the verdict above, by another thread.
  verdict_ns_.store(0, std::memory_order_release);
  for (size_t peer = 0; peer < peers_.size(); peer++) {
    if (!setup_.node->broken(setup_.members[peer]) || said_goodbye(static_cast<int>(peer)))
      continue;
    const int mine = known_as(setup_.rank), theirs = known_as(static_cast<int>(peer));
    auto failure =
        failure_of(FSCCL_ERR_LINK, mine, theirs, setup_.node->problem(setup_.members[peer]));
    if (setup_.node->starved(setup_.members[peer])) {
      failure.code = FSCCL_ERR_OUT_OF_MEMORY;
      fmt::format_to_n(failure.text, sizeof failure.text - 1,
                       "rank {} got no memory from the system for what it exchanges with rank {}; "
                       "free some, or raise the limit of the container",
                       mine, theirs);
    }
    report(failure, true);
  }
  // This load pairs with the store in report().
  return board.written.load(std::memory_order_acquire) ? &board.failure : nullptr;
}

}  // namespace fsccl::mirror
