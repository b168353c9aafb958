#include "unit/host/delta_gather.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/clock.h"
#include "fsccl/codec.h"

namespace fsccl {
namespace {

// The link counts as busy all the time if the pieces took so many times as long as coding.
constexpr double kBusyLink = 1.25;

uint64_t since_ns(int64_t begin_ns) { return static_cast<uint64_t>(now_ns() - begin_ns); }

// Returns the words of a block. Four blocks fit a slot if a word takes one byte, half of its plain
// size. If such blocks were so short that their tables took much of the space, one block fits the
// slot.
size_t block_words_for(size_t slot_bytes) {
  constexpr size_t kShort = kDeltaBlockWords / 4;
  const auto of_slot = [&](size_t blocks) {
    return (slot_bytes - kDeltaHeaderBytes) / blocks - kDeltaHeaderBytes;
  };
  const size_t words = std::max(of_slot(4), std::min(of_slot(1), kShort));
  return std::min(words / 64 * 64, kDeltaBlockWords);
}

bool any(const std::vector<bool>& hosts) {
  return std::any_of(hosts.begin(), hosts.end(), [](bool is) { return is; });
}

}  // namespace

DeltaGather::DeltaGather(HostPool& pool, Communicator& lane, const LaneExchange& exchange,
                         const CodecSpec& spec)
    : CodedGather(pool, lane, exchange, spec, "gather with the delta codec"),
      copies_(hosts(), ranges_, block_words_for(lane.engine().turn_bytes())),
      told_(table_of(kToldWords + hosts())) {}

Status DeltaGather::place(const std::string& unit) {
  FSCCL_TRY(allocate(copies_.bytes(), unit));
  copies_.place(memory_);
  return success();
}

bool DeltaGather::stays_out() {
  if (!choice_.stays_out()) return false;
  copies_.forget();
  agreed_ = false;
  staging_->totals.declined++;
  const std::lock_guard lock(mutex_);
  figures_.gathers++;
  figures_.declined++;
  return true;
}

DeltaGather::Told DeltaGather::told(size_t host) const {
  Told made;
  std::memcpy(static_cast<void*>(&made), &told_.all[host * told_.mine.size()], sizeof made);
  return made;
}

double DeltaGather::byte_ns() const {
  uint64_t most_ps = 0;
  for (size_t host = 0; host < hosts(); host++) most_ps = std::max(most_ps, told(host).byte_ps);
  return static_cast<double>(most_ps) / 1000;
}

Completion DeltaGather::tell_states(Operation& op, Then then) {
  mine_.byte_ps = static_cast<uint64_t>(1000 * staging_->link.byte_ns);
  mine_.exchange_ns = static_cast<uint64_t>(staging_->link.exchange_ns);
  std::memcpy(told_.mine.data(), &mine_, sizeof mine_);
  for (size_t host = 0; host < hosts(); host++) told_.mine[kToldWords + host] = copies_.state(host);
  return tell(op, told_, then);
}

Completion DeltaGather::start(Operation& op, bool) {
  mends_.assign(hosts(), false);
  broken_.assign(hosts(), false);
  mine_ = {};
  plain_sent_ = arrived_ = 0;
  first_ns_ = last_ns_ = 0;
  if (agreed_) return choose(op);
  return tell_states(op, [](Operation& running) { return of(running).choose(running); });
}

// Returns true if some host's copy of this host's words has another state than this host's own, or
// if this host has none.
bool DeltaGather::differs(size_t host) const {
  for (size_t teller = 0; teller < hosts(); teller++)
    if (told_state(teller, host) != told_state(host, host)) return true;
  return told_state(host, host) == 0;
}

Completion DeltaGather::choose(Operation& op) {
  coded_.assign(hosts(), false);
  for (size_t host = 0; host < hosts(); host++)
    coded_[host] = copies_.words(host) && !differs(host);
  form_ = spec_.flags & FSCCL_CODEC_NIBBLES_ONLY   ? DeltaForm::nibbles
          : spec_.flags & FSCCL_CODEC_FEWEST_BYTES ? DeltaForm::coded
                                                   : choice_.form(byte_ns(), hosts() - 1);
  return move_plain(op, std::vector<bool>(hosts(), true));
}

// Moves the words of these hosts that are not coded.
Completion DeltaGather::move_plain(Operation& op, const std::vector<bool>& of_hosts) {
  agreed_ = false;
  ListShape shape = list_shape(ListKind::all_gather);
  std::vector<uint64_t> coded(hosts());
  plain_.assign(hosts(), false);
  for (size_t host = 0; host < hosts(); host++) {
    coded[host] = coded_[host] && !mends_[host];
    plain_[host] = of_hosts[host] && !coded[host];
  }
  const std::vector<uint64_t> bytes = list(of_hosts, coded, !mending(), nullptr, &shape);
  if (shape.tensors.empty()) return take_plain(op);
  moved_ = busiest(bytes);
  plain_sent_ += bytes[self_];
  moves_since_ns_ = now_ns();
  return LaneOperation::move(op, shape, [](Operation& moved) {
    DeltaGather& gather = of(moved);
    gather.staging_->link.measured(static_cast<double>(since_ns(gather.moves_since_ns_)),
                                   gather.moved_);
    return gather.take_plain(moved);
  });
}

// `bytes` are, for each host, the bytes that it sends to each other host. Returns the most bytes
// that one host sends to all others or receives from all others.
uint64_t DeltaGather::busiest(const std::vector<uint64_t>& bytes) const {
  const uint64_t all = std::accumulate(bytes.begin(), bytes.end(), uint64_t{0});
  uint64_t most = 0;
  for (const uint64_t own : bytes) most = std::max({most, own * (bytes.size() - 1), all - own});
  return most;
}

Completion DeltaGather::take_plain(Operation& op) {
  for (size_t host = 0; host < hosts(); host++)
    if (plain_[host]) copies_.take(host, slots_, staging_->work);
  return !mending() && any(coded_) ? stream(op) : tell_and_compare(op);
}

Completion DeltaGather::stream(Operation& op) {
  if (pieces_of_ != coded_) {
    CodedShape shape;
    shape.rank = lane_.rank();
    shape.ranks = lane_.size();
    shape.mirrored = lane_.engine().mirrored();
    shape.block_words = copies_.block_words();
    shape.block_bytes = kDeltaHeaderBytes;
    shape.slot_bytes = lane_.engine().turn_bytes();
    for (size_t host = 0; host < hosts(); host++)
      shape.words.push_back(coded_[host] ? copies_.words(host) : 0);
    pieces_ = coded_pieces(shape);
    pieces_of_ = coded_;
  }
  for (size_t host = 0; host < hosts(); host++)
    if (coded_[host]) copies_.begin(host);
  op.code = [](Operation& running, const Step& step, std::byte* slot) -> uint64_t {
    DeltaGather& gather = of(running);
    auto* const bytes = reinterpret_cast<uint8_t*>(slot);
    const uint64_t words = step.count;
    if (running.plan->buffers[step.dst.buffer].slot) return gather.encode_piece(words, bytes);
    gather.decode_piece(static_cast<size_t>(step.src.rank), words, bytes,
                        running.plan->slot_bytes(step.src));
    return 0;
  };
  bindings_.assign(2, {});
  return run_plans(op, pieces_,
                   [](Operation& running) { return of(running).tell_and_compare(running); });
}

uint64_t DeltaGather::encode_piece(uint64_t words, uint8_t* out) {
  const int64_t begin_ns = now_ns();
  // The rest is left for write_no_delta().
  const uint64_t room =
      coded_piece_bytes(words, copies_.block_words(), kDeltaHeaderBytes) - kDeltaHeaderBytes;
  uint64_t bytes = 0;
  for (uint64_t done = 0; done < words && !mine_.stopped; done += copies_.block_words()) {
    const size_t made =
        copies_.encode_next(self_, slots_, form_, out + bytes, room - bytes, staging_->work);
    mine_.stopped = made == 0;
    bytes += made;
  }
  if (mine_.stopped) {
    write_no_delta(out + bytes);
    bytes += kDeltaHeaderBytes;
  }
  mine_.sent += bytes;
  mine_.encode_ns += since_ns(begin_ns);
  return bytes;
}

void DeltaGather::decode_piece(size_t host, uint64_t words, const uint8_t* in, uint64_t size) {
  const int64_t begin_ns = now_ns();
  const bool first = first_ns_ == 0;
  if (first) first_ns_ = begin_ns;
  last_ns_ = begin_ns;
  uint64_t bytes = 0;
  for (uint64_t done = 0; done < words && !broken_[host]; done += copies_.block_words()) {
    const size_t read = copies_.decode_next(host, slots_, in + bytes, size - bytes, staging_->work);
    broken_[host] = read == 0;
    bytes += read;
  }
  if (!first) arrived_ += bytes;
  mine_.decode_ns += since_ns(begin_ns);
}

Completion DeltaGather::tell_and_compare(Operation& op) {
  return tell_states(op, [](Operation& running) { return of(running).compare(running); });
}

Completion DeltaGather::compare(Operation& op) {
  std::vector<bool> wrong(hosts());
  for (size_t host = 0; host < hosts(); host++) {
    wrong[host] = differs(host);
    if (wrong[host] && (!coded_[host] || mends_[host]))
      return fail(op, host, "brought parameters whose sum is not the one that it told");
  }
  if (!any(wrong)) return end();
  mends_ = wrong;
  return move_plain(op, mends_);
}

bool DeltaGather::mending() const { return any(mends_); }

// Ends the gather. All ranks judge it by the same numbers.
Completion DeltaGather::end() {
  agreed_ = true;
  const uint64_t words = copies_.words(self_);
  const bool all_coded = coded_[self_] && !mends_[self_];
  choice_.took(form_, static_cast<double>(mine_.encode_ns), words, all_coded ? mine_.sent : 0);
  if (any(coded_)) {
    measure();
    judge(plain_bytes());
  }
  count({all_coded, mends_[self_] && !mine_.stopped, plain_sent_ + mine_.sent});
  const std::lock_guard lock(mutex_);
  figures_.plain_us = choice_.recent().plain_ns / 1000;
  figures_.coded_us = choice_.recent().coded_ns / 1000;
  figures_.declines = choice_.out();
  return Completion::over;
}

// Measures the link. If the time between the first and the last piece is longer than coding took on
// any host, it is the link's time. Otherwise the link took at most this time.
void DeltaGather::measure() {
  uint64_t coding_ns = 0;
  for (size_t host = 0; host < hosts(); host++)
    coding_ns = std::max(coding_ns, told(host).encode_ns + told(host).decode_ns);
  const auto ns = static_cast<double>(last_ns_ - first_ns_);
  staging_->link.overlapped(ns, arrived_, ns > kBusyLink * static_cast<double>(coding_ns));
}

void DeltaGather::judge(const std::vector<uint64_t>& plain) {
  double coding_ns = 0, exchange_ns = 0;
  std::vector<uint64_t> bytes = plain;
  for (size_t host = 0; host < hosts(); host++) {
    const Told its = told(host);
    coding_ns = std::max(coding_ns, static_cast<double>(its.encode_ns + its.decode_ns));
    exchange_ns = std::max(exchange_ns, static_cast<double>(its.exchange_ns));
    if (coded_[host]) bytes[host] += its.sent;
    if (coded_[host] && !mends_[host]) bytes[host] -= 2 * copies_.words(host);
  }
  GatherTimes times;
  times.plain_ns = byte_ns() * static_cast<double>(busiest(plain));
  times.coded_ns =
      exchange_ns + overlapped_ns(coding_ns, byte_ns() * static_cast<double>(busiest(bytes)));
  choice_.judge(times, !(spec_.flags & FSCCL_CODEC_NEVER_DECLINES));
}

}  // namespace fsccl
