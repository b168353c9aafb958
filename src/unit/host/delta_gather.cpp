#include "unit/host/delta_gather.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/clock.h"
#include "fsccl/codec.h"

namespace fsccl {
namespace {

double since_ns(int64_t begin_ns) { return static_cast<double>(now_ns() - begin_ns); }

}  // namespace

DeltaGather::DeltaGather(HostPool& pool, Communicator& lane, const LaneExchange& exchange,
                         const CodecSpec& spec)
    : CodedGather(pool, lane, exchange, spec, "gather with the delta codec"),
      copies_(hosts(), ranges_),
      heads_(table_of(kHeadWords + hosts())),
      verdicts_(table_of((hosts() + 63) / 64)) {}

Status DeltaGather::place(const std::string& unit) {
  FSCCL_TRY(staging_->reserve(copies_.encode_room(self_, most_coded(self_)), copies_.all_words()));
  FSCCL_TRY(allocate(copies_.bytes(), unit));
  copies_.place(memory_);
  return success();
}

bool DeltaGather::stays_out() {
  if (!choice_.stays_out()) return false;
  copies_.forget();
  staging_->sums.declined++;
  const std::lock_guard lock(mutex_);
  figures_.gathers++;
  figures_.declined++;
  return true;
}

DeltaGather::Head DeltaGather::head(size_t host) const {
  Head made;
  std::memcpy(static_cast<void*>(&made), &heads_.all[host * heads_.mine.size()], sizeof made);
  return made;
}

Completion DeltaGather::encode(Operation& op, bool) {
  mends_.assign(hosts(), false);
  sent_ = 0;
  for (size_t host = 0; host < hosts(); host++)
    heads_.mine[kHeadWords + host] = copies_.state(host);
  form_ = spec_.flags & FSCCL_CODEC_NIBBLES_ONLY   ? DeltaForm::nibbles
          : spec_.flags & FSCCL_CODEC_FEWEST_BYTES ? DeltaForm::coded
                                                   : choice_.form(staging_->link, hosts() - 1);
  const int64_t begin_ns = now_ns();
  Head told;
  told.bytes =
      copies_.encode(self_, slots_, form_, staging_->sent(), most_coded(self_), staging_->work);
  encode_ns_ = since_ns(begin_ns);
  told.state = copies_.state(self_);
  told.encode_ns = told.bytes ? static_cast<uint64_t>(encode_ns_) : 0;
  told.decode_ps = static_cast<uint64_t>(1000 * decode_word_ns_);
  told.byte_ps = static_cast<uint64_t>(1000 * staging_->link.byte_ns);
  told.exchange_ns = static_cast<uint64_t>(staging_->link.exchange_ns);
  std::memcpy(heads_.mine.data(), &told, sizeof told);
  return tell(op, heads_, [](Operation& here) { return of(here).choose(here); });
}

Completion DeltaGather::choose(Operation& op) {
  coded_.assign(hosts(), false);
  for (size_t host = 0; host < hosts(); host++) {
    const Head told = head(host);
    if (told.bytes > most_coded(host))
      return fail(op, host, "named more coded bytes than there can be");
    const uint64_t state = told_state(host, host);
    coded_[host] = told.bytes && state;
    for (size_t other = 0; other < hosts(); other++)
      if (told_state(other, host) != state) coded_[host] = false;
  }
  return move(op, std::vector<bool>(hosts(), true));
}

Completion DeltaGather::move(Operation& op, const std::vector<bool>& of_hosts) {
  ListShape shape = list_shape(ListKind::all_gather);
  std::vector<uint64_t> coded(hosts());
  for (size_t host = 0; host < hosts(); host++)
    coded[host] = coded_[host] && !mends_[host] ? head(host).bytes : 0;
  const std::vector<uint64_t> bytes = list(of_hosts, coded, !mending(), staging_->sent(), &shape);
  moved_ = busiest(bytes);
  sent_ += bytes[self_];
  moves_since_ns_ = now_ns();
  return LaneOperation::move(op, shape, [](Operation& moved) { return of(moved).arrived(moved); });
}

// `bytes`: by host, the bytes that it sends to each other host. Returns the most bytes that one
// host sends to all others or receives from all others.
uint64_t DeltaGather::busiest(const std::vector<uint64_t>& bytes) {
  const uint64_t all = std::accumulate(bytes.begin(), bytes.end(), uint64_t{0});
  uint64_t most = 0;
  for (const uint64_t own : bytes) most = std::max({most, own * (bytes.size() - 1), all - own});
  return most;
}

Completion DeltaGather::arrived(Operation& op) {
  if (mending()) return take_plain(op, mends_) ? end() : Completion::again;
  staging_->link.measured(since_ns(moves_since_ns_), moved_);
  std::vector<bool> plain = coded_;
  plain.flip();
  if (!take_plain(op, plain)) return Completion::again;
  if (std::none_of(coded_.begin(), coded_.end(), [](bool coded) { return coded; })) return end();
  std::fill(verdicts_.mine.begin(), verdicts_.mine.end(), 0);
  const uint8_t* in = staging_->received();
  const int64_t begin_ns = now_ns();
  uint64_t words = 0;
  for (size_t host = 0; host < hosts(); host++) {
    const uint64_t bytes = coded_[host] ? head(host).bytes : 0;
    if (bytes && host != self_) {
      words += copies_.words(host);
      if (!copies_.decode(host, slots_, in, bytes, staging_->work) ||
          copies_.state(host) != head(host).state)
        verdicts_.mine[host / 64] |= uint64_t{1} << host % 64;
    }
    in += bytes;
  }
  if (words) decode_word_ns_ = since_ns(begin_ns) / static_cast<double>(words);
  return tell(op, verdicts_, [](Operation& here) { return of(here).judge_words(here); });
}

// Takes words that came plain into the copies of their hosts. Returns false if the state of a copy
// is not the one that its host told.
bool DeltaGather::take_plain(Operation& op, const std::vector<bool>& plain) {
  for (size_t host = 0; host < hosts(); host++) {
    if (!plain[host] || host == self_) continue;
    copies_.take(host, slots_, staging_->work);
    if (copies_.words(host) && copies_.state(host) != head(host).state) {
      fail(op, host, "brought parameters whose sum is not the one that it told");
      return false;
    }
  }
  return true;
}

Completion DeltaGather::judge_words(Operation& op) {
  const size_t words = verdicts_.mine.size();
  for (size_t host = 0; host < hosts(); host++)
    for (size_t other = 0; other < hosts(); other++)
      if (verdicts_.all[other * words + host / 64] >> host % 64 & 1) mends_[host] = true;
  return mending() ? move(op, mends_) : end();
}

bool DeltaGather::mending() const {
  return std::any_of(mends_.begin(), mends_.end(), [](bool mends) { return mends; });
}

// The gather is over; all ranks judge it by the same numbers.
Completion DeltaGather::end() {
  const bool all_coded = coded_[self_] && !mends_[self_];
  choice_.took(form_, encode_ns_, copies_.words(self_), all_coded ? head(self_).bytes : 0);
  if (std::any_of(coded_.begin(), coded_.end(), [](bool coded) { return coded; }))
    judge(plain_bytes());
  count({all_coded, mends_[self_], sent_});
  const std::lock_guard lock(mutex_);
  figures_.plain_us = choice_.recent().plain_ns / 1000;
  figures_.coded_us = choice_.recent().coded_ns / 1000;
  figures_.declines = choice_.out();
  figures_.state_bytes = copies_.bytes() + staging_->bytes();
  return Completion::over;
}

void DeltaGather::judge(const std::vector<uint64_t>& plain) {
  double encode_ns = 0, decode_ns = 0, byte_ns = 0, exchange_ns = 0;
  std::vector<uint64_t> bytes = plain;
  for (size_t host = 0; host < hosts(); host++) {
    const Head told = head(host);
    encode_ns = std::max(encode_ns, static_cast<double>(told.encode_ns));
    const auto others = static_cast<double>(copies_.all_words() - copies_.words(host));
    decode_ns = std::max(decode_ns, static_cast<double>(told.decode_ps) / 1000 * others);
    byte_ns = std::max(byte_ns, static_cast<double>(told.byte_ps) / 1000);
    exchange_ns = std::max(exchange_ns, static_cast<double>(told.exchange_ns));
    if (coded_[host] && !mends_[host]) bytes[host] -= 2 * copies_.words(host) - told.bytes;
  }
  GatherTimes times;
  times.plain_ns = byte_ns * static_cast<double>(busiest(plain));
  times.coded_ns =
      encode_ns + decode_ns + 2 * exchange_ns + byte_ns * static_cast<double>(busiest(bytes));
  choice_.judge(times, !(spec_.flags & FSCCL_CODEC_NEVER_DECLINES));
}

}  // namespace fsccl
