#include "unit/host/coded_gather.h"

#include <algorithm>

#include "fsccl/codec.h"
#include "fsccl/insight.h"
#include "unit/host/block_gather.h"
#include "unit/host/delta_gather.h"

namespace fsccl {
namespace {

constexpr uint8_t kCodedFlag = 8, kChangedFlag = 16;  // flags of a fingerprint

}  // namespace

CodedGather::CodedGather(HostPool& pool, Communicator& lane, const LaneExchange& exchange,
                         const CodecSpec& spec, std::string name)
    : LaneOperation(lane, std::move(name)),
      pool_(pool),
      spec_(spec),
      ranges_(exchange.ranges()),
      staging_(CodecStaging::of(pool, lane)) {}

Result<std::unique_ptr<CodedGather>> CodedGather::create(HostPool& pool, Communicator& lane,
                                                         const LaneExchange& exchange,
                                                         const CodecSpec& spec,
                                                         const std::string& unit) {
  std::unique_ptr<CodedGather> made;
  if (spec.kind == FSCCL_CODEC_DELTA)
    made = std::make_unique<DeltaGather>(pool, lane, exchange, spec);
  else
    made = std::make_unique<BlockGather>(pool, lane, exchange, spec);
  FSCCL_TRY(made->place(unit));
  return made;
}

CodedGather::~CodedGather() {
  if (memory_) (void)pool_.free(memory_).ok();
}

Status CodedGather::allocate(uint64_t bytes, const std::string& unit) {
  FSCCL_ASSIGN(void* const memory, pool_.alloc(bytes, 1, {UseKind::kCodec, unit}));
  memory_ = static_cast<std::byte*>(memory);
  figures_.state_bytes = bytes;
  return success();
}

Status CodedGather::run(const SlotSet& slots, const Fingerprint& called, bool changed,
                        Chain* chain) {
  slots_.resize(slots.size());
  for (size_t k = 0; k < slots.size(); k++) slots_[k] = slots.base(k);
  changed_ = changed;
  for (const LaneExchange::Range& range : ranges_)
    lane_.engine().tally().moved(range.bytes, range.holder == self_ ? 0 : range.bytes);
  Fingerprint fingerprint = called;
  fingerprint.flags |= kCodedFlag | (changed ? kChangedFlag : 0);
  return begin(fingerprint, chain, begun);
}

Completion CodedGather::begun(Operation& op) {
  CodedGather& gather = static_cast<CodedGather&>(owner_of(op));
  return gather.start(op, gather.changed_);
}

std::vector<uint64_t> CodedGather::list(const std::vector<bool>& of,
                                        const std::vector<uint64_t>& coded, bool others,
                                        uint8_t* sent, ListShape* shape) {
  bindings_.clear();
  const auto add = [&](std::vector<uint64_t> counts, fsccl_dtype_t dtype, std::byte* send,
                       std::byte* receive) {
    shape->tensors.push_back({dtype, std::move(counts), dtype});
    bindings_.push_back({send, nullptr, 0, {}});
    bindings_.push_back({receive, nullptr, 0, {}});
  };
  std::vector<uint64_t> bytes(hosts());
  for (size_t host = 0; host < hosts(); host++) bytes[host] = of[host] ? coded[host] : 0;
  const std::vector<uint64_t> codes = bytes;
  if (!sent)
    bytes.assign(hosts(), 0);
  else if (std::any_of(codes.begin(), codes.end(), [](uint64_t some) { return some > 0; }))
    add(codes, FSCCL_UINT8, reinterpret_cast<std::byte*>(sent),
        reinterpret_cast<std::byte*>(staging_->received()));
  for (const LaneExchange::Range& range : ranges_) {
    const bool goes = covers(range.dtype) ? !codes[range.holder] : others;
    if (!of[range.holder] || !goes) continue;
    std::vector<uint64_t> counts(hosts());
    counts[range.holder] = range.bytes / dtype_size(range.dtype);
    bytes[range.holder] += range.bytes;
    std::byte* const place = slots_[range.slot] + range.offset;
    add(std::move(counts), range.dtype, place, place);
  }
  return bytes;
}

std::vector<uint64_t> CodedGather::plain_bytes() const {
  std::vector<uint64_t> bytes(hosts());
  for (const LaneExchange::Range& range : ranges_) bytes[range.holder] += range.bytes;
  return bytes;
}

void CodedGather::count(const Gathered& what) {
  const uint64_t plain = plain_bytes()[self_];
  CodecStaging::Totals& totals = staging_->totals;
  (what.mended ? totals.mended : what.coded ? totals.coded : totals.plain)++;
  totals.plain_bytes += plain;
  totals.sent_bytes += what.sent;
  const std::lock_guard lock(mutex_);
  figures_.gathers++;
  figures_.coded += what.coded;
  figures_.plain += !what.coded;
  figures_.mended += what.mended;
  figures_.plain_bytes += plain;
  figures_.sent_bytes += what.sent;
}

void CodedGather::report(fsccl_codec_report_t* report) const {
  const std::lock_guard lock(mutex_);
  *report = figures_;
  report->state_bytes += staging_->bytes();  // other units may have enlarged it since
}

}  // namespace fsccl
