#include "tools/memory_snapshot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <functional>

#include "../base/temporary_directory.h"
#include "snapshot_text.h"
#include "tools/memory_page.h"

namespace fsccl::trace {
namespace {

using nlohmann::json;
using testing::HasSubstr;

TEST(MemorySnapshot, ReadsWhatAPoolWrites) {
  std::string error;
  const auto snapshot = parse_memory_snapshot(sample_snapshot().dump(), "a.json", &error);
  ASSERT_TRUE(snapshot) << error;
  EXPECT_EQ(snapshot->pool, "weights");
  EXPECT_EQ(snapshot->parts.size(), 3u);
  EXPECT_EQ(snapshot->parts[1].address, 0x20000u);
  EXPECT_EQ(snapshot->uses.size(), 4u);
  EXPECT_EQ(snapshot->uses[2].kind, "gradients");
  EXPECT_EQ(snapshot->events.size(), 10u);  // each pair of free events is one event here
  EXPECT_EQ(snapshot->live.size(), 3u);
  EXPECT_EQ(snapshot->owners[snapshot->live[1].owner], "unit b, parameters");
}

TEST(MemorySnapshot, NamesThePlaceOfWhatIsWrong) {
  const std::pair<std::function<void(json&)>, const char*> cases[] = {
      {[](json& s) { s = 7; }, "the document must be an object, not 7"},
      {[](json& s) { s.erase("fsccl"); }, "key \"fsccl\""},
      {[](json& s) { s["fsccl"] = nullptr; }, "fsccl must be an object, not null"},
      {[](json& s) { s["fsccl"]["version"] = 2; }, "fsccl.version must be 1"},
      {[](json& s) { s["fsccl"].erase("rank"); }, "fsccl.rank is missing"},
      {[](json& s) { s["fsccl"]["parts"][1]["bytes"] = -1; },
       "fsccl.parts[1].bytes must be a whole number from 0 to 17592186044416, not -1"},
      {[](json& s) { s["fsccl"]["parts"][0]["bytes"] = 1.5; }, "not 1.5"},
      {[](json& s) { s["fsccl"]["uses"][3]["kind"] = json::array(); },
       "fsccl.uses[3].kind must be a text, not another array"},
      {[](json& s) { s["fsccl"]["step_times_us"] = {5, 4}; },
       "fsccl.step_times_us[1] must be no earlier"},
      {[](json& s) { s["segments"][1]["blocks"] = "none"; },
       "segments[1].blocks must be a list, not \"none\""},
      {[](json& s) { s["segments"][0]["blocks"][1]["frames"] = {1}; },
       "segments[0].blocks[1].frames[0] must be an object, not 1"},
      {[](json& s) { s["device_traces"][0][3]["action"] = "explode"; },
       "device_traces[0][3].action must be an action of a pool"},
      {[](json& s) { s["device_traces"][0][4]["time_us"] = 1; },
       "device_traces[0][4].time_us must be no earlier"},
      {[](json& s) { s["device_traces"] = {1}; }, "device_traces[0] must be a list, not 1"},
  };
  for (const auto& [change, words] : cases) {
    json changed = sample_snapshot();
    change(changed);
    std::string error;
    EXPECT_FALSE(parse_memory_snapshot(changed.dump(), "a.json", &error)) << words;
    EXPECT_THAT(error, HasSubstr("a.json: "));
    EXPECT_THAT(error, HasSubstr(words));
  }
}

TEST(MemorySnapshot, SaysWhatAFileIsInstead) {
  const TemporaryDirectory directory;
  std::string error;
  EXPECT_FALSE(read_memory_snapshot(directory.path("none"), &error));
  EXPECT_THAT(error, HasSubstr("none: cannot be opened: No such file"));
  EXPECT_FALSE(read_memory_snapshot(directory.path(), &error));
  EXPECT_THAT(error, HasSubstr(directory.path()));
  EXPECT_FALSE(read_memory_snapshot(directory.write("cut", sample_snapshot().dump().substr(0, 500)),
                                    &error));
  EXPECT_THAT(error, HasSubstr("cut: not JSON"));
  EXPECT_FALSE(
      read_memory_snapshot(directory.write("a.pickle", std::string("\x80\x02}q\x00.", 6)), &error));
  EXPECT_THAT(error, HasSubstr("this is a pickle"));
  std::ofstream(directory.path("large")).close();
  std::filesystem::resize_file(directory.path("large"), kMostFileBytes + 1);
  EXPECT_FALSE(read_memory_snapshot(directory.path("large"), &error));
  EXPECT_THAT(error,
              HasSubstr("large: more than 268435456 bytes; take the snapshot with a smaller"));
}

// A generator with the same numbers on every machine (splitmix64).
class Numbers {
 public:
  uint64_t below(uint64_t bound) {
    uint64_t x = state_ += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return (x ^ (x >> 31)) % bound;
  }

 private:
  uint64_t state_ = 1;
};

void mutate_text(std::string& text, Numbers& random) {
  for (uint64_t i = 0, count = 1 + random.below(4); i < count; i++) {
    const size_t at = random.below(text.size());
    switch (random.below(4)) {
      case 0:
        text[at] = static_cast<char>(random.below(256));
        break;
      case 1:
        text.erase(at, 1 + random.below(20));
        break;
      case 2:
        text.insert(at, text.substr(random.below(text.size()), random.below(60)));
        break;
      default:
        text[at] = "0123456789{}[],:\"-.e"[random.below(20)];
    }
    if (text.empty()) text.push_back('{');
  }
}

// Changes values anywhere in the snapshot to others that still parse.
void mutate_values(json& value, uint64_t chance, Numbers& random) {
  if (random.below(chance) == 0) {
    const json others[] = {
        nullptr, true, 0,  1,       4096,       0x10800,   UINT64_MAX,    uint64_t{1} << 44,
        -1,      0.5,  "", "alloc", "<script>", "unit , ", json::array(), json::object()};
    value = others[random.below(std::size(others))];
    return;
  }
  if (value.is_structured())
    for (auto& child : value) mutate_values(child, chance, random);
  if (value.is_array() && value.size() > 1 && random.below(chance) == 0)
    std::swap(value[0], value[value.size() - 1]);
}

// A changed snapshot is refused with a message, or becomes a page without markup of its own.
TEST(MemorySnapshot, SurvivesMutations) {
  Numbers random;
  const json sample = sample_snapshot();
  int pages = 0;
  for (int i = 0; i < 5000; i++) {
    json changed = sample;
    std::string text;
    if (i % 2) {
      mutate_values(changed, 20 + random.below(400), random);
      text = changed.dump();
    } else {
      text = sample.dump();
      mutate_text(text, random);
    }
    std::string error;
    const auto snapshot = parse_memory_snapshot(text, "a.json", &error);
    if (!snapshot) {
      EXPECT_THAT(error, testing::StartsWith("a.json: "));
      EXPECT_TRUE(std::all_of(error.begin(), error.end(), [](char letter) {
        return letter >= ' ' && letter <= '~';
      })) << error;
      continue;
    }
    const std::string page = memory_page(*snapshot, {random.below(4), random.below(2) == 0});
    pages++;
    EXPECT_EQ(page.find("<script"), std::string::npos);
    EXPECT_EQ(page.find("nan\""), std::string::npos);
    EXPECT_THAT(page, testing::EndsWith("</html>\n"));
  }
  EXPECT_GT(pages, 500);
}

}  // namespace
}  // namespace fsccl::trace
