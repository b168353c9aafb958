#include "unit/codec_metrics.h"

#include <algorithm>

#include "comm/communicator.h"

namespace fsccl {

std::string codec_labels(const Communicator& comm, std::string_view pool, std::string_view id) {
  return MetricSamples::labels(
      {{"comm", comm.name()}, {"id", id}, {"pool", pool}, {"rank", std::to_string(comm.rank())}});
}

void tell_gathers(MetricSamples& samples, const std::string& labels,
                  const fsccl_codec_report_t& sum) {
  const auto add = [&](Metric metric, std::string_view how, uint64_t count) {
    samples.add(metric, labels + ',' + MetricSamples::labels({{"how", how}}), count);
  };
  add(Metric::codec_parts, "coded", sum.coded);
  add(Metric::codec_parts, "plain", sum.plain);
  add(Metric::codec_parts, "declined", sum.declined);
  add(Metric::codec_parts, "mended", sum.mended);
  samples.add(Metric::codec_plain_bytes, labels, sum.plain_bytes);
  samples.add(Metric::codec_sent_bytes, labels, sum.sent_bytes);
  add(Metric::codec_blocks, "coded", sum.blocks - std::min(sum.blocks, sum.exact_blocks));
  add(Metric::codec_blocks, "exact", sum.exact_blocks);
  add(Metric::codec_blocks, "audited", sum.audited_blocks);
  add(Metric::codec_blocks, "beyond", sum.beyond_bound);
  samples.add_ratio(Metric::codec_error, labels, sum.max_error);
}

void tell_reductions(MetricSamples& samples, const std::string& labels,
                     const fsccl_codec_report_t& sum) {
  samples.add(Metric::codec_reduce_plain_bytes, labels, sum.reduce_plain_bytes);
  samples.add(Metric::codec_reduce_sent_bytes, labels, sum.reduce_sent_bytes);
}

void add_counts(fsccl_codec_report_t* sum, const fsccl_codec_report_t& one) {
  for (const auto count :
       {&fsccl_codec_report_t::coded, &fsccl_codec_report_t::plain, &fsccl_codec_report_t::declined,
        &fsccl_codec_report_t::mended, &fsccl_codec_report_t::plain_bytes,
        &fsccl_codec_report_t::sent_bytes, &fsccl_codec_report_t::blocks,
        &fsccl_codec_report_t::exact_blocks, &fsccl_codec_report_t::audited_blocks,
        &fsccl_codec_report_t::beyond_bound, &fsccl_codec_report_t::reductions,
        &fsccl_codec_report_t::reduce_plain_bytes, &fsccl_codec_report_t::reduce_sent_bytes})
    sum->*count += one.*count;
  sum->max_error = std::max(sum->max_error, one.max_error);
}

}  // namespace fsccl
