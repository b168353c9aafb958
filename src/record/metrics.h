// The numbers of this process as OpenMetrics 1.0 text: what each family is called and means stands
// in one table (metrics.cpp), what the samples are is told by sources, which objects have while
// they live. Labels hold names, ranks and links, never contents.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "fsccl/fsccl.h"

namespace fsccl {

// In the order of the text, and of the table.
enum class Metric : uint8_t {
  build,
  failures,
  operations,
  in_flight,
  read_bytes,
  written_bytes,
  kernel_copies,
  sleeps,
  sleep_seconds,
  failed,
  peers,
  pool_limit_bytes,
  pool_reserved_bytes,
  pool_live_bytes,
  pool_peak_bytes,
  pool_plan_bytes,
  pool_plan_hits,
  pool_plan_misses,
  pool_allocations,
  pool_frees,
  pool_growths,
  pool_steps,
  pool_given_back_bytes,
  codec_parts,
  codec_plain_bytes,
  codec_sent_bytes,
  codec_blocks,
  codec_error,
  codec_reduce_plain_bytes,
  codec_reduce_sent_bytes,
  count_,
};

class MetricSamples {
 public:
  using Labels = std::initializer_list<std::pair<std::string_view, std::string_view>>;
  // name="value",...; any text can be a value.
  static std::string labels(Labels labels);

  void add(Metric metric, std::string_view labels, uint64_t value);
  void add_ns(Metric metric, std::string_view labels, uint64_t ns);  // told in seconds
  void add_ratio(Metric metric, std::string_view labels, double ratio);
  std::string text() const;

 private:
  void add(Metric metric, std::string_view labels, std::string_view value);
  std::array<std::string, static_cast<size_t>(Metric::count_)> families_;
};

// While it lives, its object's samples are part of the text. `tell` is called by any thread, under
// a lock that is taken for nothing else but to make and end sources; `id` is of this source alone.
class MetricsSource {
 public:
  using Tell = std::function<void(MetricSamples& samples, std::string_view id)>;
  explicit MetricsSource(Tell tell);
  ~MetricsSource();
  MetricsSource(const MetricsSource&) = delete;

 private:
  friend std::string metrics_text(bool* objects);
  const Tell tell_;
  const std::string id_;
};

// A communicator of this process has failed.
void count_failure(fsccl_status_t code);

// Returns the text of all sources. *objects says whether there were any. Any thread.
std::string metrics_text(bool* objects = nullptr);

}  // namespace fsccl
