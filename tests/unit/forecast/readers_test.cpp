// Tests that readers and writers of files and configurations end with an error if there is no
// memory. From some allocation on, each allocation fails until the call has returned.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <new>

#include "base/json_value.h"
#include "forecast/report.h"
#include "kernels/race_file.h"
#include "select/kept_costs.h"
#include "topo/file.h"

namespace {

thread_local int64_t left = INT64_MAX;  // allocations that do not fail

}  // namespace

void* operator new(std::size_t bytes) {
  void* const block = left > 0 ? std::malloc(bytes) : nullptr;
  if (!block) throw std::bad_alloc();
  left--;
  return block;
}
// These are not inlined, because then the compiler would warn that free() gets memory of new.
[[gnu::noinline]] void operator delete(void* block) noexcept { std::free(block); }
[[gnu::noinline]] void operator delete(void* block, std::size_t) noexcept { std::free(block); }

namespace fsccl {
namespace {

// Makes the call again and again, each time with memory for one allocation more, until that is
// enough. The call must need at least `least` allocations.
template <class Call>
void expect_error_where_memory_is_short(int64_t least, Call call) {
  int64_t allowed = 0;
  for (bool short_of_memory = true; short_of_memory; allowed++) {
    left = allowed;
    try {
      (void)call();
      short_of_memory = left == 0;
    } catch (const std::bad_alloc&) {
    }
    left = INT64_MAX;
  }
  EXPECT_GE(allowed, least);
}

constexpr const char* kForecast = R"({
  "model": {"name": "small", "units": [{"name": "root", "params": [["weight", [64, 64]]]}]},
  "machine": {"name": "hosts", "ranks_per_host": 2, "tflops": {"bf16": 3},
              "between": {"gb_per_s": 12.5, "ns": 30000}},
  "ranks": 2, "batch": 2, "calibration": {"configuration": {"batch": 3}, "step_s": 0.5}})";

TEST(Readers, ParserOfJson) {
  for (const char* text :
       {R"({"a": [1, {"b": [2.5, "a text that is long enough for an allocation"]}], "c": {}})",
        R"([[{"a": [1, 2]}], {"b": {"c": [1e400]}}])", "[[1, 2], {\"a\": [3]}, ["})
    expect_error_where_memory_is_short(10, [text] { return parse_json_text(text, "a test"); });
}

TEST(Readers, Topologies) {
  const std::string text = R"({"fsccl_topology": 1, "switches": ["s"],
    "hosts": [{"name": "a{}", "repeat": 2, "children": [{"kind": "nic", "name": "nic0"},
      {"kind": "package", "name": "p0", "children": [{"kind": "core", "name": "core{}"}]}]}],
    "links": [{"a": "a{}/nic0", "b": "s", "gb_per_s": 50}]})";
  const topo::Topology topology = topo::parse_json(text, "a test").take();
  expect_error_where_memory_is_short(50, [&] { return topo::parse_json(text, "a test"); });
  expect_error_where_memory_is_short(10, [&] { return topo::to_json(topology); });
}

TEST(Readers, RacesOfKernels) {
  RaceRecord record{{"a processor", "0x1", "0.1.0"}, "race", {}};
  record.races.push_back({Pass::copy, {}, 0});
  for (const Chosen one : usable_variants(Pass::copy))
    record.races.back().heats.push_back({one, {10, 11, 12}});
  const std::string text = to_json(record);
  expect_error_where_memory_is_short(10, [&] { return parse_races(text, "a test"); });
}

TEST(Readers, TuningFilesAndKeptCosts) {
  std::string folder = ::testing::TempDir() + "fsccl_costs_XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const std::string path = folder + "/costs.json";
  expect_error_where_memory_is_short(100, [&] {
    ::unlink(path.c_str());
    for (int i = 0; i < 2; i++)
      KeptCosts(path, "a machine", "shm", topo::LinkClass::cache).add(Costs{});
    return parse_tuning(R"({"fsccl_tuning": 1, "rules": ["all_gather@1x2:64K-1M=slots/32K"],
      "native": [{"operation": "all_gather", "algorithm": "nccl", "sizes": [1], "ns": [2]}]})",
                        "a test");
  });
  EXPECT_EQ(::unlink(path.c_str()) + ::rmdir(folder.c_str()), 0);
}

TEST(Readers, Forecasts) {
  expect_error_where_memory_is_short(400, [] { return forecast::forecast_json(kForecast); });
}

}  // namespace
}  // namespace fsccl
