// Tests when FSCCL_METRICS_FILE is written, and when its contents stay.
#include "record/metrics_file.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>

#include "base/clock.h"
#include "base/reactor.h"
#include "record/metrics.h"

namespace fsccl {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kPeriodMs = 100, kLongMs = 60'000;

std::string content_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

template <class Condition>
bool becomes(const Condition& condition) {
  const Deadline deadline = Deadline::in_ms(kLongMs);
  while (!condition() && !deadline.passed()) std::this_thread::yield();
  return condition();
}

TEST(MetricsFile, KeepsTheLastNumbersOfWhatHasGone) {
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("fsccl-metrics-" + std::to_string(getpid()));
  Config settings;
  settings.metrics_file = path;
  settings.metrics_ms = kPeriodMs;
  const std::unique_ptr<MetricsFile> file = MetricsFile::create(settings, 0);
  EXPECT_TRUE(becomes([&] { return content_of(path).find("# EOF") != std::string::npos; }))
      << "before there is anything to tell of";
  std::atomic<uint64_t> sleeps{1};
  auto source = std::make_unique<MetricsSource>([&](MetricSamples& samples, std::string_view) {
    samples.add(Metric::sleeps, "comm=\"some\"", sleeps);
  });
  sleeps = 2;
  EXPECT_TRUE(becomes([&] { return content_of(path).find("} 2") != std::string::npos; }))
      << content_of(path);
  sleeps = 3;
  file->write();
  source.reset();
  // This hook makes the service thread run with the period of the file.
  std::atomic<int> turns{0};
  const int hook = Reactor::instance().add_hook([&] {
    turns++;
    return kPeriodMs * 1'000'000;
  });
  EXPECT_TRUE(becomes([&] { return turns > 3; }));
  Reactor::instance().remove_hook(hook);
  EXPECT_THAT(content_of(path), HasSubstr("{comm=\"some\"} 3\n"));
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace fsccl
