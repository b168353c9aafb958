#include "unit/host/coded_sum.h"

#include <algorithm>
#include <cstring>

#include "fsccl/codec.h"
#include "fsccl/insight.h"
#include "kernels/kernels.h"
#include "plan/collectives.h"

namespace fsccl {
namespace {

constexpr uint8_t kCodedSumFlag = 8;  // flag of a fingerprint

}  // namespace

CodedSum::CodedSum(HostPool& pool, Communicator& among, const LaneExchange& exchange,
                   const CodecSpec& spec, fsccl_dtype_t grad_dtype)
    : LaneOperation(among, "sum with a codec"),
      pool_(pool),
      spec_(spec),
      form_(spec_.form()),
      partial_sums_(exchange.kind() == LaneExchange::Kind::partial_sums),
      feeds_back_(spec.flags & FSCCL_CODEC_ERROR_FEEDBACK),
      grad_dtype_(grad_dtype),
      ranges_(exchange.ranges()),
      staging_(CodecStaging::of(pool, among)) {
  staging_->sums.resize(kBlocksMost);
  staging_->mine.resize(kBlocksMost);
}

Result<std::unique_ptr<CodedSum>> CodedSum::create(HostPool& pool, Communicator& among,
                                                   const LaneExchange& exchange,
                                                   const CodecSpec& spec, fsccl_dtype_t grad_dtype,
                                                   const std::string& unit) {
  std::unique_ptr<CodedSum> made(new CodedSum(pool, among, exchange, spec, grad_dtype));
  CodedSum& sum = *made;
  uint64_t elements = 0;
  for (const LaneExchange::Range& range : sum.ranges_) {
    if (range.holder == sum.self_) continue;
    elements += range.bytes / dtype_size(range.dtype);
    sum.plain_bytes_ += range.bytes;
  }
  for (size_t holder = 0; holder < sum.ranks(); holder++)
    if (holder != sum.self_) sum.sent_bytes_ += sum.coded_bytes(holder);
  const uint64_t received = sum.coded_bytes(sum.self_) * sum.ranks();
  FSCCL_TRY(sum.staging_->reserve(sum.sent_bytes_, received));
  if (sum.feeds_back_ && elements) {
    sum.state_bytes_ = elements * sizeof(float);
    FSCCL_ASSIGN(void* const memory, pool.alloc(sum.state_bytes_, 1, {UseKind::kCodec, unit}));
    std::memset(memory, 0, sum.state_bytes_);
    sum.feedback_ = static_cast<float*>(memory);
  }
  sum.plan_exchange();
  return made;
}

CodedSum::~CodedSum() {
  if (feedback_) (void)pool_.free(feedback_).ok();
}

uint64_t CodedSum::coded_bytes(size_t holder) const {
  uint64_t bytes = 0;
  for (const LaneExchange::Range& range : ranges_)
    if (range.holder == holder) bytes += form_.bytes(range.bytes / dtype_size(range.dtype));
  return bytes;
}

// Each rank sends to each other rank the elements that the other rank sums up.
void CodedSum::plan_exchange() {
  DataMovement moves;
  moves.name = "coded_sum";
  moves.rank = lane_.rank();
  moves.ranks = lane_.size();
  moves.every_rank_sends = true;
  moves.mirrored = lane_.engine().mirrored();
  const uint64_t own = coded_bytes(self_);
  moves.sends.resize(ranks());
  moves.receives.resize(ranks());
  moves.input_bytes.resize(ranks());
  moves.output_bytes.resize(ranks());
  uint64_t at = 0, all = 0;
  for (size_t q = 0; q < ranks(); q++) all += coded_bytes(q);
  for (size_t q = 0; q < ranks(); q++) {
    const uint64_t bytes = coded_bytes(q);
    if (q != self_) {
      moves.sends[q] = {at, 0, bytes};
      moves.receives[q] = {0, q * own, own};
      at += bytes;
    }
    moves.longest = std::max(moves.longest, bytes);
    moves.input_bytes[q] = all - bytes;
    moves.output_bytes[q] = bytes * ranks();
  }
  const Engine& engine = lane_.engine();
  plan_ = move_slots(moves, engine.turn_bytes());
}

Status CodedSum::run(const SlotSet& slots, const std::vector<std::byte*>& sharded_grads,
                     const OperationSettings& finishes, const Fingerprint& called, Chain* chain) {
  elements_.resize(ranges_.size());
  sharded_grads_.resize(ranges_.size());
  for (size_t r = 0; r < ranges_.size(); r++) {
    elements_[r] = slots.base(ranges_[r].slot) + ranges_[r].offset;
    if (!partial_sums_) sharded_grads_[r] = sharded_grads[ranges_[r].parameter];
  }
  finishes_ = finishes;
  lane_.engine().tally().moved(plain_bytes_, sent_bytes_);
  Fingerprint fingerprint = called;
  fingerprint.flags |= kCodedSumFlag;
  return begin(fingerprint, chain, [](Operation& op) { return of(op).encode(op); });
}

Completion CodedSum::encode(Operation& op) {
  uint8_t* out = staging_->sent();
  float* feedback = feedback_;
  uint64_t blocks = 0;
  for (size_t holder = 0; holder < ranks(); holder++)
    for (size_t r = 0; r < ranges_.size(); r++) {
      const LaneExchange::Range& range = ranges_[r];
      if (range.holder != holder || holder == self_) continue;
      const uint64_t written = encode_range(r, out, feedback, &blocks);
      if (!broken_.empty()) return fail(op, self_, broken_);
      out += written;
      if (feedback) feedback += range.bytes / dtype_size(range.dtype);
    }
  op.inline_bindings[0] = {reinterpret_cast<std::byte*>(staging_->sent()), nullptr, 0, {}};
  op.inline_bindings[1] = {reinterpret_cast<std::byte*>(staging_->received()), nullptr, 0, {}};
  op.bindings = op.inline_bindings.data();
  op.plan = &plan_;
  op.complete = [](Operation& moved) { return of(moved).sum(moved); };
  return Completion::again;
}

uint64_t CodedSum::encode_range(size_t number, uint8_t* out, float* feedback, uint64_t* blocks) {
  const LaneExchange::Range& range = ranges_[number];
  const size_t size = dtype_size(range.dtype);
  const std::byte* from = elements_[number];
  uint64_t written = 0;
  for (uint64_t left = range.bytes / size; left;) {
    const size_t count = std::min<uint64_t>(left, kBlocksMost);
    const BlockAudit audit{.every = spec_.audit_every,
                           .phase = audit_phase(runs_, *blocks, spec_.audit_every)};
    const SumsWritten made =
        encode_sums(from, range.dtype, count, form_, feedback, out + written, audit);
    if (made.overrun)
      broken_ = form_.custom->text_of(made.overrun);
    else if (made.worst > 0)
      broken_ = form_.custom->text_of(made.worst, block_bound(form_, FSCCL_FLOAT32), FSCCL_FLOAT32);
    if (!broken_.empty()) return 0;
    written += form_.chunk_bytes(count);
    *blocks += form_.blocks(count);
    from += count * size;
    if (feedback) feedback += count;
    left -= count;
  }
  return written;
}

Completion CodedSum::sum(Operation& op) {
  const uint64_t own = coded_bytes(self_);
  received_.resize(ranks());
  for (size_t q = 0; q < ranks(); q++) received_[q] = staging_->received() + q * own;
  for (size_t r = 0; r < ranges_.size(); r++) {
    if (ranges_[r].holder != self_) continue;
    const uint64_t elements = ranges_[r].bytes / dtype_size(ranges_[r].dtype);
    for (uint64_t at = 0; at < elements; at += kBlocksMost) {
      const size_t count = std::min<uint64_t>(kBlocksMost, elements - at);
      if (!sum_chunk(op, r, at, count)) return Completion::again;
      finish(r, at, count);
    }
  }
  runs_++;
  staging_->totals.reduce_plain_bytes += plain_bytes_;
  staging_->totals.reduce_sent_bytes += sent_bytes_;
  return Completion::over;
}

// Sums up a chunk of all ranks.
bool CodedSum::sum_chunk(Operation& op, size_t number, uint64_t at, size_t count) {
  const LaneExchange::Range& range = ranges_[number];
  const size_t size = dtype_size(range.dtype), bytes = form_.chunk_bytes(count);
  float *const sums = staging_->sums.data(), *const own = staging_->mine.data();
  for (size_t q = 0; q < ranks(); q++) {
    if (q != self_) {
      Overrun overrun;
      if (!add_sums(received_[q], bytes, sums, count, form_, q > 0, &overrun)) {
        if (overrun)
          fail(op, self_, form_.custom->text_of(overrun));
        else
          fail(op, q, "brought blocks that are damaged");
        return false;
      }
      received_[q] += bytes;
      continue;
    }
    const std::byte* const from = elements_[number] + at * size;
    cast(q > 0 ? own : sums, FSCCL_FLOAT32, from, range.dtype, count, Stores::cached);
    const void* const both[] = {sums, own};
    if (q > 0)
      reduce({.sources = both,
              .n = 2,
              .from = FSCCL_FLOAT32,
              .dst = sums,
              .to = FSCCL_FLOAT32,
              .count = count});
  }
  return true;
}

void CodedSum::finish(size_t number, uint64_t at, size_t count) {
  const float* const sums = staging_->sums.data();
  if (partial_sums_) {
    std::memcpy(elements_[number] + at * sizeof(float), sums, count * sizeof(float));
    return;
  }
  const void* source = sums;
  Reduce last{};
  last.sources = &source;
  last.n = 1;
  last.from = FSCCL_FLOAT32;
  last.to = grad_dtype_;
  last.dst = sharded_grads_[number] + at * dtype_size(grad_dtype_);
  last.count = count;
  last.scale = finishes_.scale;
  last.divisor = finishes_.divisor;
  last.accumulate = finishes_.accumulate;
  reduce(last);
}

void CodedSum::report(fsccl_codec_report_t* report) const {
  report->reductions += runs_;
  report->reduce_plain_bytes += runs_ * plain_bytes_;
  report->reduce_sent_bytes += runs_ * sent_bytes_;
  // All sums of a unit have the same staging, which counts once.
  report->reduce_state_bytes += state_bytes_ + (report->reduce_state_bytes ? 0 : staging_->bytes());
}

}  // namespace fsccl
