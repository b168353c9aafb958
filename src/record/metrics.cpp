#include "record/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <mutex>
#include <vector>

#include "base/immortal.h"
#include "base/value_writer.h"
#include "base/version.h"

namespace fsccl {
namespace {

struct Family {
  const char* name;  // ends in its unit, if it has one
  const char* type;
  const char* unit;
  const char* help;
};
constexpr Family kFamilies[] = {
    {"fsccl_build", "info", "", "The library."},
    {"fsccl_failures", "counter", "", "Communicators that ended with an error, by its code."},
    {"fsccl_operations", "counter", "", "Operations that have completed on this rank, by kind."},
    {"fsccl_operations_in_flight", "gauge", "", "Operations submitted and not complete."},
    {"fsccl_read_bytes", "counter", "bytes", "Bytes of operands read by this rank's cores."},
    {"fsccl_written_bytes", "counter", "bytes", "Bytes of operands written by this rank's cores."},
    {"fsccl_kernel_copies", "counter", "", "Copies by the system, from or to a peer's memory."},
    {"fsccl_sleeps", "counter", "", "Waits that gave up their core."},
    {"fsccl_sleep_seconds", "counter", "seconds", "Time that these waits slept."},
    {"fsccl_failed", "gauge", "", "1: the communicator has failed."},
    {"fsccl_peers", "gauge", "", "Other ranks of the communicator, by state."},
    {"fsccl_pool_limit_bytes", "gauge", "bytes", "The most memory that the pool may reserve."},
    {"fsccl_pool_reserved_bytes", "gauge", "bytes", "Memory that this rank holds for the pool."},
    {"fsccl_pool_live_bytes", "gauge", "bytes", "In slots and blocks now."},
    {"fsccl_pool_peak_bytes", "gauge", "bytes", "The most that was ever live at once."},
    {"fsccl_pool_plan_bytes", "gauge", "bytes", "Extent of the present plan, 0 without one."},
    {"fsccl_pool_plan_hits", "counter", "", "Slots served from the plan."},
    {"fsccl_pool_plan_misses", "counter", "", "Slots served beside it."},
    {"fsccl_pool_allocations", "counter", "", "Blocks taken."},
    {"fsccl_pool_frees", "counter", "", "Blocks given back."},
    {"fsccl_pool_growths", "counter", "", "Times that memory was asked of the system."},
    {"fsccl_pool_steps", "counter", "", "Steps that have ended."},
    {"fsccl_pool_given_back_bytes", "counter", "bytes", "Memory given back to the system."},
    {"fsccl_codec_parts", "counter", "",
     "Parts that units with a codec gathered between hosts, by how they went."},
    {"fsccl_codec_plain_bytes", "counter", "bytes",
     "Bytes of these parts without a codec, to each other host."},
    {"fsccl_codec_sent_bytes", "counter", "bytes", "Bytes that went, to each other host."},
    {"fsccl_codec_blocks", "counter", "", "Blocks that block codecs made, by how they went."},
    {"fsccl_codec_error_ratio", "gauge", "ratio",
     "The largest error of a block that was audited, over its largest element."},
    {"fsccl_codec_reduce_plain_bytes", "counter", "bytes",
     "Bytes of gradients that units with a reduce_codec had for other ranks, without it."},
    {"fsccl_codec_reduce_sent_bytes", "counter", "bytes", "Bytes of these that went."},
};
static_assert(std::size(kFamilies) == static_cast<size_t>(Metric::count_));
const Family& family_of(Metric metric) { return kFamilies[static_cast<size_t>(metric)]; }

struct Failure {
  fsccl_status_t code;
  const char* name;
};
constexpr Failure kFailures[] = {
    {FSCCL_ERR_OUT_OF_MEMORY, "out_of_memory"},
    {FSCCL_ERR_LIMIT, "limit"},
    {FSCCL_ERR_SYSTEM, "system"},
    {FSCCL_ERR_LINK, "link"},
    {FSCCL_ERR_PROTOCOL, "protocol"},
    {FSCCL_ERR_PEER_DEAD, "peer_dead"},
    {FSCCL_ERR_MISMATCH, "mismatch"},
    {FSCCL_ERR_AUTH, "auth"},
    {FSCCL_ERR_TIMEOUT, "timeout"},
    {FSCCL_ERR_ABORTED, "aborted"},
    {FSCCL_ERR_INTERNAL, "internal"},
    {FSCCL_ERR_COMM_FAILED, "other"},
};
std::atomic<uint64_t> failures[std::size(kFailures)];

// The sources outlive every thread that may ask for the text.
struct Sources {
  std::mutex mutex;
  std::vector<const MetricsSource*> living;
};
Sources& sources() {
  static Immortal<Sources> all;
  return all.get();
}
std::atomic<uint64_t> sources_made{0};

}  // namespace

std::string MetricSamples::labels(Labels labels) {
  std::string text;
  for (const auto& [name, value] : labels) {
    fmt::format_to(std::back_inserter(text), "{}{}=\"", text.empty() ? "" : ",", name);
    for (const char c : valid_utf8(value)) {
      if (c == '\\' || c == '"') text += '\\';
      text += c == '\n' ? std::string_view("\\n") : std::string_view(&c, 1);
    }
    text += '"';
  }
  return text;
}

void MetricSamples::add(Metric metric, std::string_view labels, std::string_view value) {
  const Family& family = family_of(metric);
  const std::string_view type = family.type;
  const char* suffix = type == "counter" ? "_total" : type == "info" ? "_info" : "";
  std::string& text = families_[static_cast<size_t>(metric)];
  if (labels.empty())
    fmt::format_to(std::back_inserter(text), "{}{} {}\n", family.name, suffix, value);
  else
    fmt::format_to(std::back_inserter(text), "{}{}{{{}}} {}\n", family.name, suffix, labels, value);
}

void MetricSamples::add(Metric metric, std::string_view labels, uint64_t value) {
  add(metric, labels, std::to_string(value));
}

void MetricSamples::add_ns(Metric metric, std::string_view labels, uint64_t ns) {
  add(metric, labels, fmt::format("{}.{:09}", ns / 1'000'000'000, ns % 1'000'000'000));
}

void MetricSamples::add_ratio(Metric metric, std::string_view labels, double ratio) {
  add(metric, labels, fmt::format("{:.9f}", ratio));
}

std::string MetricSamples::text() const {
  std::string text;
  for (size_t i = 0; i < families_.size(); i++) {
    const Family& family = kFamilies[i];
    fmt::format_to(std::back_inserter(text), "# TYPE {} {}\n", family.name, family.type);
    if (*family.unit)
      fmt::format_to(std::back_inserter(text), "# UNIT {} {}\n", family.name, family.unit);
    fmt::format_to(std::back_inserter(text), "# HELP {} {}\n", family.name, family.help);
    text += families_[i];
  }
  return text + "# EOF\n";
}

MetricsSource::MetricsSource(Tell tell)
    : tell_(std::move(tell)), id_(std::to_string(sources_made++)) {
  const std::lock_guard lock(sources().mutex);
  sources().living.push_back(this);
}

MetricsSource::~MetricsSource() {
  const std::lock_guard lock(sources().mutex);
  std::erase(sources().living, this);
}

void count_failure(fsccl_status_t code) {
  const auto found = std::find_if(std::begin(kFailures), std::prev(std::end(kFailures)),
                                  [&](const Failure& one) { return one.code == code; });
  failures[found - std::begin(kFailures)].fetch_add(1, std::memory_order_relaxed);
}

std::string metrics_text(bool* objects) {
  MetricSamples samples;
  const uint32_t number = library_version();
  const std::string version =
      fmt::format("{}.{}.{}", number / 10000, number / 100 % 100, number % 100);
  samples.add(Metric::build, MetricSamples::labels({{"version", version}}), 1);
  for (size_t i = 0; i < std::size(kFailures); i++)
    samples.add(Metric::failures, MetricSamples::labels({{"code", kFailures[i].name}}),
                failures[i].load(std::memory_order_relaxed));
  const std::lock_guard lock(sources().mutex);
  for (const MetricsSource* source : sources().living) source->tell_(samples, source->id_);
  if (objects) *objects = !sources().living.empty();
  return samples.text();
}

}  // namespace fsccl
