#include "unit/host/codec_staging.h"

#include "comm/communicator.h"
#include "unit/codec_metrics.h"
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
  fsccl_codec_report_t sum = FSCCL_CODEC_REPORT_INIT;
  sum.coded = totals.coded;
  sum.plain = totals.plain;
  sum.declined = totals.declined;
  sum.mended = totals.mended;
  sum.plain_bytes = totals.plain_bytes;
  sum.sent_bytes = totals.sent_bytes;
  sum.blocks = totals.blocks;
  sum.exact_blocks = totals.exact_blocks;
  sum.audited_blocks = totals.audited_blocks;
  sum.beyond_bound = totals.beyond_bound;
  sum.max_error = totals.largest_error;
  sum.reduce_plain_bytes = totals.reduce_plain_bytes;
  sum.reduce_sent_bytes = totals.reduce_sent_bytes;
  const std::string labels = codec_labels(lane, pool_.name(), id);
  tell_gathers(samples, labels, sum);
  tell_reductions(samples, labels, sum);
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
  bytes_ += bytes - area->bytes;
  *area = {static_cast<uint8_t*>(memory), bytes};
  return success();
}

}  // namespace fsccl
