// Writes the figures of the codecs of a communicator's units for fsccl_metrics.
#pragma once
#include <string>
#include <string_view>

#include "fsccl/insight.h"
#include "record/metrics.h"

namespace fsccl {

class Communicator;

// Returns the labels of the samples of the units of `comm` in a pool. `id` is that of the source.
std::string codec_labels(const Communicator& comm, std::string_view pool, std::string_view id);
// Each adds the samples of one direction. `sum` has the counts of all units.
void tell_gathers(MetricSamples& samples, const std::string& labels,
                  const fsccl_codec_report_t& sum);
void tell_reductions(MetricSamples& samples, const std::string& labels,
                     const fsccl_codec_report_t& sum);

// Adds the counts of a unit's report to those of others, and takes the larger of the errors. The
// other fields of `sum` stay.
void add_counts(fsccl_codec_report_t* sum, const fsccl_codec_report_t& one);

}  // namespace fsccl
