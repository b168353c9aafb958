// The numbers of this process as OpenMetrics 1.0 text. One table (metrics.cpp) gives the name and
// meaning of each family. The samples come from sources, which objects have while they live. Labels
// hold names, ranks and links, never contents.
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

// The families, in the order of the text and of the table.
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
  // Returns name="value",... Any text can be a value.
  static std::string labels(Labels labels);

  void add(Metric metric, std::string_view labels, uint64_t value);
  void add_ns(Metric metric, std::string_view labels, uint64_t ns);  // told in seconds
  void add_ratio(Metric metric, std::string_view labels, double ratio);
  std::string text() const;

 private:
  void add(Metric metric, std::string_view labels, std::string_view value);
  std::array<std::string, static_cast<size_t>(Metric::count_)> families_;
};

// While a source lives, the samples of its object are part of the text. Any thread may call `tell`.
// It is called under the lock that is also taken to make and end sources, and for nothing else.
// No other source has the same `id`.
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

// Counts the failure of a communicator of this process.
void count_failure(fsccl_status_t code);

// Returns the text of all sources. *objects says whether there were any. Any thread may call this.
std::string metrics_text(bool* objects = nullptr);

}  // namespace fsccl
