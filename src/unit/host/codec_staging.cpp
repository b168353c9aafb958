#include "unit/host/codec_staging.h"

#include "comm/communicator.h"
#include "unit/shared_by_units.h"

namespace fsccl {

using Shared = SharedByUnits<CodecStaging, HostPool>;

std::shared_ptr<CodecStaging> CodecStaging::of(HostPool& pool, Communicator& lane) {
  return Shared::of(pool, lane,
                    [&] { return std::shared_ptr<CodecStaging>(new CodecStaging(pool, lane)); });
}

CodecStaging::CodecStaging(HostPool& pool, Communicator& lane) : pool_(pool) {
  const Costs& costs = lane.collectives().options().select.costs;
  constexpr auto kBytes = static_cast<double>(Cost::kSizes.back());
  link.byte_ns = costs.slot_cached.ns.back() / kBytes;
  link.exchange_ns = costs.exchange;
  metrics_ = std::make_unique<MetricsSource>(
      [this, &lane](MetricSamples& samples, std::string_view id) { tell(samples, id, lane); });
}

void CodecStaging::tell(MetricSamples& samples, std::string_view id,
                        const Communicator& lane) const {
  const std::string own = MetricSamples::labels({{"comm", lane.name()},
                                                 {"id", id},
                                                 {"pool", pool_.name()},
                                                 {"rank", std::to_string(lane.rank())}});
  const auto add = [&](std::string_view how, const std::atomic<uint64_t>& parts) {
    samples.add(Metric::codec_parts, own + ',' + MetricSamples::labels({{"how", how}}),
                parts.load());
  };
  add("coded", totals.coded);
  add("plain", totals.plain);
  add("declined", totals.declined);
  add("mended", totals.mended);
  samples.add(Metric::codec_plain_bytes, own, totals.plain_bytes.load());
  samples.add(Metric::codec_sent_bytes, own, totals.sent_bytes.load());
  const auto add_blocks = [&](std::string_view how, uint64_t blocks) {
    samples.add(Metric::codec_blocks, own + ',' + MetricSamples::labels({{"how", how}}), blocks);
  };
  add_blocks("coded", totals.blocks - totals.exact_blocks);
  add_blocks("exact", totals.exact_blocks);
  add_blocks("audited", totals.audited_blocks);
  add_blocks("beyond", totals.beyond_bound);
  samples.add(Metric::codec_reduce_plain_bytes, own, totals.reduce_plain_bytes.load());
  samples.add(Metric::codec_reduce_sent_bytes, own, totals.reduce_sent_bytes.load());
  samples.add_ratio(Metric::codec_error, own, static_cast<double>(totals.largest_error));
}

void CodecStaging::count_blocks(const BlocksWritten& written) {
  totals.blocks += written.blocks;
  totals.exact_blocks += written.exact;
  totals.audited_blocks += written.audited;
  totals.beyond_bound += written.beyond;
  if (written.largest > totals.largest_error) totals.largest_error = written.largest;
}

CodecStaging::~CodecStaging() {
  metrics_.reset();
  for (const Area& area : {sent_, received_})
    if (area.at) (void)pool_.free(area.at).ok();
  Shared::forget_ended();
}

Status CodecStaging::reserve(uint64_t send_bytes, uint64_t receive_bytes) {
  FSCCL_TRY(enlarge(&sent_, send_bytes));
  return enlarge(&received_, receive_bytes);
}

Status CodecStaging::enlarge(Area* area, uint64_t bytes) {
  if (bytes <= area->bytes) return success();
  FSCCL_ASSIGN(void* const memory, pool_.alloc(bytes, 1, {UseKind::kCodec, ""}));
  if (area->at) (void)pool_.free(area->at).ok();
  *area = {static_cast<uint8_t*>(memory), bytes};
  return success();
}

}  // namespace fsccl
