#include "tools/memory_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "snapshot_text.h"

namespace fsccl::trace {
namespace {

using testing::HasSubstr;
using testing::Not;

MemorySnapshot parsed(const nlohmann::json& json) {
  std::string error;
  auto snapshot = parse_memory_snapshot(json.dump(), "a.json", &error);
  EXPECT_TRUE(snapshot) << error;
  return snapshot.value_or(MemorySnapshot{});
}

size_t count(const std::string& text, const std::string& word) {
  size_t found = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) found++;
  return found;
}

TEST(MemoryPage, ShowsWhoHasWhat) {
  const std::string page = memory_page(parsed(sample_snapshot()), {0, false});
  EXPECT_THAT(page, HasSubstr("Memory of pool &quot;weights&quot;, rank 0 of 2"));
  EXPECT_THAT(page,
              HasSubstr("The pool has 24.00 KiB of memory, 1.200 x the 20.00 KiB that were live"));
  EXPECT_THAT(page, HasSubstr("3 of 4 slots came from the plan"));
  EXPECT_THAT(page, HasSubstr("<title>unit a, parameters: 8.00 KiB (8192 bytes) at offset 0 of "
                              "shared slots; from 0.000 ms to 0.400 ms</title>"));
  EXPECT_THAT(page, HasSubstr("<title>block: 4.00 KiB (4096 bytes) at offset 4096 of blocks; from "
                              "before the first event to 0.100 ms</title>"));
  EXPECT_EQ(count(page, "<rect class=\"area"), 6u);
  EXPECT_EQ(count(page, "<rect class=\"area pale\""), 1u);  // gradients
  EXPECT_EQ(count(page, "<rect class=\"band\""), 3u);
  EXPECT_EQ(count(page, "class=\"mark\""), 6u);  // two step boundaries through three bands
  for (const char* words : {"live bound 16.00 KiB", "clique bound 16.00 KiB", "at the peak",
                            "refused: who", "5 before them are not"})
    EXPECT_THAT(page, HasSubstr(words));
}

TEST(MemoryPage, ShowsTheLastSteps) {
  const std::string page = memory_page(parsed(sample_snapshot()), {1, true});
  EXPECT_THAT(page, HasSubstr("the last 1 of 2 known steps"));
  EXPECT_EQ(count(page, "<rect class=\"area"), 3u);  // b and a block are older; a is taken anew
}

// The view is from 2.0 ms to 3.0 ms, and begins between two events.
TEST(MemoryPage, ChartsOfAViewBeginWithIt) {
  const std::string page = memory_page(parsed(sample_snapshot()), {1, false});
  const std::string chart = page.substr(page.find("All memory ("));
  EXPECT_THAT(chart, HasSubstr(">1</text>"));
  EXPECT_THAT(chart, Not(HasSubstr(">1.5</text>")));
}

TEST(MemoryPage, SaysThatThereIsNoHistory) {
  nlohmann::json json = sample_snapshot();
  json["device_traces"] = {nlohmann::json::array()};
  json["fsccl"]["step_times_us"] = nlohmann::json::array();
  const std::string page = memory_page(parsed(json), {});
  EXPECT_THAT(page, HasSubstr("set FSCCL_POOL_HISTORY"));
  EXPECT_EQ(count(page, "<rect class=\"area"), 3u);  // the live blocks
  EXPECT_EQ(count(page, "<figure"), 1u);             // there are no empty charts over time
}

TEST(MemoryPage, HasNoEmptyChartWhereNothingIsLive) {
  nlohmann::json json = sample_snapshot();
  json["device_traces"] = {nlohmann::json::array()};
  json["fsccl"]["step_times_us"] = nlohmann::json::array();
  MemorySnapshot snapshot = parsed(json);
  snapshot.live.clear();
  const std::string page = memory_page(snapshot, {});
  EXPECT_THAT(page, HasSubstr("Nothing is in the pool now."));
  EXPECT_EQ(count(page, "<figure"), 0u);
}

TEST(MemoryPage, EscapesWhatTheFileSays) {
  std::string text = sample_snapshot().dump();
  for (size_t at = text.find("unit a"); at != std::string::npos; at = text.find("unit a", at))
    text.replace(at, 6, "unit <b onload=x>");
  std::string error;
  const auto snapshot = parse_memory_snapshot(text, "a.json", &error);
  ASSERT_TRUE(snapshot) << error;
  const std::string page = memory_page(*snapshot, {});
  EXPECT_THAT(page, HasSubstr("&lt;b onload=x&gt;"));
  EXPECT_THAT(page, Not(HasSubstr("<b onload")));
}

// A long history makes a page that a browser can still show: it has the largest slots, and lines
// with a bounded number of points.
TEST(MemoryPage, StaysSmallForALongHistory) {
  nlohmann::json json = sample_snapshot();
  nlohmann::json& events = json["device_traces"][0];
  MemorySnapshot snapshot = parsed(json);
  for (uint64_t i = 0; i < 100'000; i++) {
    const uint64_t address = 0x30000 + i % 2 * 0x800;
    snapshot.events.push_back(
        {i % 4 < 2 ? MemoryEvent::Action::kTaken : MemoryEvent::Action::kGivenBack, 3000 + i,
         address, 0x800, 0});
  }
  snapshot.time_us = 200'000;
  ASSERT_GT(events.size(), 0u);
  const std::string page = memory_page(snapshot, {0, false});
  EXPECT_LT(page.size(), 2u << 20);
  EXPECT_THAT(page, HasSubstr("the 4000 with the most bytes x time"));
}

}  // namespace
}  // namespace fsccl::trace
