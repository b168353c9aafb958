#include "unit/host/delta_gather.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/clock.h"
#include "fsccl/codec.h"
#include "fsccl/insight.h"
#include "plan/collectives.h"
#include "plan/list_plans.h"

namespace fsccl {
namespace {

constexpr uint8_t kCodedFlag = 8;  // flag of a fingerprint

Plan all_gather_words(const Engine& engine, size_t count) {
  Shape shape;
  shape.rank = engine.rank();
  shape.ranks = engine.ranks();
  shape.count = count;
  shape.dtype = FSCCL_UINT64;
  shape.mirrored = engine.mirrored();
  return move_slots(all_gather_movement(shape), engine.slot_bytes());
}

double since_ns(int64_t begin_ns) { return static_cast<double>(now_ns() - begin_ns); }

}  // namespace

DeltaGather::DeltaGather(HostPool& pool, Communicator& lane, const LaneExchange& exchange,
                         const CodecSpec& spec)
    : pool_(pool),
      lane_(lane),
      self_(static_cast<size_t>(lane.rank())),
      spec_(spec),
      ranges_(exchange.ranges()),
      copies_(static_cast<size_t>(lane.size()), ranges_),
      staging_(CodecStaging::of(pool, lane)),
      row_(kHeadWords + copies_.hosts()) {
  nothing_.name = "delta_gather";
  nothing_.rank = lane.rank();
  nothing_.ranks = lane.size();
  heads_plan_ = all_gather_words(lane.engine(), row_);
  mine_.resize(row_);
  all_.resize(row_ * copies_.hosts());
  verdict_.resize((copies_.hosts() + 63) / 64);
  verdicts_.resize(verdict_.size() * copies_.hosts());
  verdicts_plan_ = all_gather_words(lane.engine(), verdict_.size());
}

Result<std::unique_ptr<DeltaGather>> DeltaGather::create(HostPool& pool, Communicator& lane,
                                                         const LaneExchange& exchange,
                                                         const CodecSpec& spec,
                                                         const std::string& unit) {
  std::unique_ptr<DeltaGather> made(new DeltaGather(pool, lane, exchange, spec));
  const DeltaCopies& copies = made->copies_;
  FSCCL_TRY(made->staging_->reserve(copies.encode_room(made->self_, made->most_coded(made->self_)),
                                    copies.all_words()));
  FSCCL_ASSIGN(void* const memory, pool.alloc(copies.bytes(), 1, {UseKind::kCodec, unit}));
  made->memory_ = static_cast<std::byte*>(memory);
  made->copies_.place(made->memory_);
  made->figures_.state_bytes = copies.bytes() + made->staging_->bytes();
  return made;
}

DeltaGather::~DeltaGather() {
  if (memory_) (void)pool_.free(memory_).ok();
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

Status DeltaGather::run(const SlotSet& slots, const Fingerprint& called, Chain* chain) {
  slots_.resize(slots.size());
  for (size_t k = 0; k < slots.size(); k++) slots_[k] = slots.base(k);
  Fingerprint fingerprint = called;
  fingerprint.flags |= kCodedFlag;
  Engine& engine = lane_.engine();
  Operation* op = nullptr;
  FSCCL_TRY(engine.acquire(&op, OperationSettings{}, fingerprint));
  op->plan = &nothing_;
  op->owner = this;
  op->complete = begun;
  chain->follow(*op);
  for (const LaneExchange::Range& range : ranges_)
    engine.tally().moved(range.bytes, range.holder == self_ ? 0 : range.bytes);
  fsccl_status_t state;
  FSCCL_TRY(engine.submit(*op, false, &state));
  chain->passed(engine);
  return success();
}

Completion DeltaGather::begun(Operation& op) { return of(op).encode(op); }
Completion DeltaGather::heads_are_here(Operation& op) { return of(op).choose(op); }

Completion DeltaGather::window_is_over(Operation& op) {
  DeltaGather& gather = of(op);
  if (++gather.window_ == gather.windows_.size()) return gather.arrived(op);
  op.plan = &gather.windows_[gather.window_];
  return Completion::again;
}

// An all-gather of words, with what comes then.
Completion DeltaGather::exchange(Operation& op, const Plan& plan, Completion (*then)(Operation&)) {
  const bool heads = &plan == &heads_plan_;
  op.inline_bindings[0] = {
      reinterpret_cast<std::byte*>(heads ? mine_.data() : verdict_.data()), nullptr, 0, {}};
  op.inline_bindings[1] = {
      reinterpret_cast<std::byte*>(heads ? all_.data() : verdicts_.data()), nullptr, 0, {}};
  op.bindings = op.inline_bindings.data();
  op.plan = &plan;
  op.complete = then;
  return Completion::again;
}

DeltaGather::Head DeltaGather::head(size_t host) const {
  Head made;
  std::memcpy(static_cast<void*>(&made), &all_[host * row_], sizeof made);
  return made;
}

Completion DeltaGather::encode(Operation& op) {
  mends_.assign(copies_.hosts(), false);
  sent_ = 0;
  for (size_t host = 0; host < copies_.hosts(); host++)
    mine_[kHeadWords + host] = copies_.state(host);
  form_ = spec_.flags & FSCCL_CODEC_NIBBLES_ONLY ? DeltaForm::nibbles
          : spec_.flags & FSCCL_CODEC_FEWEST_BYTES
              ? DeltaForm::coded
              : choice_.form(staging_->link, copies_.hosts() - 1);
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
  std::memcpy(mine_.data(), &told, sizeof told);
  return exchange(op, heads_plan_, heads_are_here);
}

Completion DeltaGather::choose(Operation& op) {
  coded_.assign(copies_.hosts(), false);
  for (size_t host = 0; host < copies_.hosts(); host++) {
    const Head told = head(host);
    if (told.bytes > most_coded(host))
      return fail(op, host, "named more coded bytes than there can be");
    const uint64_t state = told_state(host, host);
    coded_[host] = told.bytes && state;
    for (size_t other = 0; other < copies_.hosts(); other++)
      if (told_state(other, host) != state) coded_[host] = false;
  }
  return move(op, std::vector<bool>(copies_.hosts(), true));
}

// The tensors of what `hosts` bring, coded where it is so, else from slot to slot. Returns the
// bytes of each host.
std::vector<uint64_t> DeltaGather::list(const std::vector<bool>& hosts, ListShape* shape) {
  const size_t count = copies_.hosts();
  const auto goes_coded = [&](size_t host) { return hosts[host] && coded_[host] && !mends_[host]; };
  bindings_.clear();
  const auto add = [&](std::vector<uint64_t> counts, fsccl_dtype_t dtype, std::byte* send,
                       std::byte* receive) {
    shape->tensors.push_back({dtype, std::move(counts), dtype});
    bindings_.push_back({send, nullptr, 0, {}});
    bindings_.push_back({receive, nullptr, 0, {}});
  };
  std::vector<uint64_t> bytes(count);
  for (size_t host = 0; host < count; host++) bytes[host] = goes_coded(host) ? head(host).bytes : 0;
  if (std::any_of(bytes.begin(), bytes.end(), [](uint64_t some) { return some > 0; }))
    add(bytes, FSCCL_UINT8, reinterpret_cast<std::byte*>(staging_->sent()),
        reinterpret_cast<std::byte*>(staging_->received()));
  for (const LaneExchange::Range& range : ranges_) {
    const bool goes =
        DeltaCopies::covers(range.dtype) ? !goes_coded(range.holder) : !mends_[range.holder];
    if (!hosts[range.holder] || !goes) continue;
    std::vector<uint64_t> counts(count);
    counts[range.holder] = range.bytes / dtype_size(range.dtype);
    bytes[range.holder] += range.bytes;
    std::byte* const place = slots_[range.slot] + range.offset;
    add(std::move(counts), range.dtype, place, place);
  }
  for (size_t slots = 0; slots < kMaxTicks; slots++) bindings_.emplace_back();
  return bytes;
}

Completion DeltaGather::move(Operation& op, const std::vector<bool>& hosts) {
  ListShape shape;
  shape.kind = ListKind::all_gather;
  shape.rank = lane_.rank();
  shape.ranks = lane_.size();
  shape.mirrored = lane_.engine().mirrored();
  const std::vector<uint64_t> bytes = list(hosts, &shape);
  windows_ = list_windows(shape, lane_.engine().slot_bytes());
  moved_ = busiest(bytes);
  sent_ += bytes[self_];
  moves_since_ns_ = now_ns();
  window_ = 0;
  if (windows_.empty()) return arrived(op);
  op.bindings = bindings_.data();
  op.plan = &windows_[0];
  op.complete = window_is_over;
  return Completion::again;
}

// Returns the largest number of bytes that cross: those that the busiest host sends to all others,
// or those that a host receives from them.
uint64_t DeltaGather::busiest(const std::vector<uint64_t>& bytes) const {
  const uint64_t all = std::accumulate(bytes.begin(), bytes.end(), uint64_t{0});
  uint64_t most = 0;
  for (const uint64_t own : bytes) most = std::max({most, own * (bytes.size() - 1), all - own});
  return most;
}

Completion DeltaGather::arrived(Operation& op) {
  if (mending()) return take_plain(op, mends_) ? end(op) : Completion::again;
  staging_->link.measured(since_ns(moves_since_ns_), moved_);
  std::vector<bool> plain = coded_;
  plain.flip();
  if (!take_plain(op, plain)) return Completion::again;
  if (std::none_of(coded_.begin(), coded_.end(), [](bool coded) { return coded; })) return end(op);
  std::fill(verdict_.begin(), verdict_.end(), 0);
  const uint8_t* in = staging_->received();
  const int64_t begin_ns = now_ns();
  uint64_t words = 0;
  for (size_t host = 0; host < copies_.hosts(); host++) {
    const uint64_t bytes = coded_[host] ? head(host).bytes : 0;
    if (bytes && host != self_) {
      words += copies_.words(host);
      if (!copies_.decode(host, slots_, in, bytes, staging_->work) ||
          copies_.state(host) != head(host).state)
        verdict_[host / 64] |= uint64_t{1} << host % 64;
    }
    in += bytes;
  }
  if (words) decode_word_ns_ = since_ns(begin_ns) / static_cast<double>(words);
  return exchange(op, verdicts_plan_, verdicts_are_here);
}

// Makes the plain words that came the copy of their host. Returns false if they differ from the
// words that the host has.
bool DeltaGather::take_plain(Operation& op, const std::vector<bool>& hosts) {
  for (size_t host = 0; host < copies_.hosts(); host++) {
    if (!hosts[host] || host == self_) continue;
    copies_.take(host, slots_, staging_->work);
    if (copies_.words(host) && copies_.state(host) != head(host).state) {
      fail(op, host, "brought parameters whose sum is not the one that it told");
      return false;
    }
  }
  return true;
}

Completion DeltaGather::verdicts_are_here(Operation& op) {
  DeltaGather& gather = of(op);
  const size_t words = gather.verdict_.size();
  for (size_t host = 0; host < gather.copies_.hosts(); host++)
    for (size_t other = 0; other < gather.copies_.hosts(); other++)
      if (gather.verdicts_[other * words + host / 64] >> host % 64 & 1) gather.mends_[host] = true;
  return gather.mending() ? gather.move(op, gather.mends_) : gather.end(op);
}

bool DeltaGather::mending() const {
  return std::any_of(mends_.begin(), mends_.end(), [](bool mends) { return mends; });
}

// The gather is over; all ranks judge it by the same numbers.
Completion DeltaGather::end(Operation&) {
  const bool all_coded = coded_[self_] && !mends_[self_];
  choice_.took(form_, encode_ns_, copies_.words(self_), all_coded ? head(self_).bytes : 0);
  std::vector<uint64_t> plain(copies_.hosts());
  for (const LaneExchange::Range& range : ranges_) plain[range.holder] += range.bytes;
  if (std::any_of(coded_.begin(), coded_.end(), [](bool coded) { return coded; })) judge(plain);
  CodecStaging::Sums& sums = staging_->sums;
  (mends_[self_] ? sums.mended : all_coded ? sums.coded : sums.plain)++;
  sums.plain_bytes += plain[self_];
  sums.sent_bytes += sent_;
  const std::lock_guard lock(mutex_);
  figures_.gathers++;
  figures_.coded += all_coded;
  figures_.plain += !all_coded;
  figures_.mended += mends_[self_];
  figures_.plain_bytes += plain[self_];
  figures_.sent_bytes += sent_;
  figures_.plain_us = choice_.recent().plain_ns / 1000;
  figures_.coded_us = choice_.recent().coded_ns / 1000;
  figures_.declines = choice_.out();
  figures_.state_bytes = copies_.bytes() + staging_->bytes();
  return Completion::over;
}

void DeltaGather::judge(const std::vector<uint64_t>& plain) {
  double encode_ns = 0, decode_ns = 0, byte_ns = 0, exchange_ns = 0;
  std::vector<uint64_t> bytes = plain;
  for (size_t host = 0; host < copies_.hosts(); host++) {
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

Completion DeltaGather::fail(Operation& op, size_t host, const char* what) const {
  Error error;
  error.code = FSCCL_ERR_PROTOCOL;
  error.rank = lane_.engine().known_as(static_cast<int>(self_));
  error.peer = lane_.engine().known_as(static_cast<int>(host));
  error.operation = op_name(op.fingerprint.op);
  error.sequence = op.fingerprint.sequence;
  error.text = fmt::format("the gather with the delta codec: rank {} {}", error.peer, what);
  lane_.engine().fail_all(error);
  return Completion::again;  // drive() sees that the engine has failed
}

void DeltaGather::report(fsccl_codec_report_t* report) const {
  const std::lock_guard lock(mutex_);
  *report = figures_;
}

}  // namespace fsccl
