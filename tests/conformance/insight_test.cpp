// Tests a communicator's reports about itself.
#include <array>
#include <mutex>
#include <regex>

#include "fsccl/insight.h"
#include "support.h"

namespace fsccl::testing {
namespace {

using ::testing::HasSubstr;

std::string explanation(fsccl_comm_t comm, const char* operation, size_t bytes) {
  std::array<char, 4096> json{};
  EXPECT_OK(fsccl_explain(comm, operation, bytes, json.data(), json.size()));
  return json.data();
}

size_t count(const std::string& text, const std::string& pattern) {
  // A std::regex fills a table that threads share when it is made.
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  const std::regex expression(pattern);
  return static_cast<size_t>(
      std::distance(std::sregex_iterator(text.begin(), text.end(), expression), {}));
}

TEST(Explain, NamesTheCandidatesAndWhatIsChosen) {
  run_ranks(2, [](Rank& self) {
    for (const char* operation : {"all_gather", "reduce_scatter", "all_reduce", "broadcast",
                                  "reduce", "gather", "scatter", "all_to_all", "send", "barrier"})
      for (const size_t bytes : {size_t{0}, size_t{8}, size_t{100'001}, size_t{1} << 34}) {
        const std::string text = explanation(self.comm, operation, bytes);
        EXPECT_THAT(text, HasSubstr("{\"operation\":\"" + std::string(operation) +
                                    "\",\"bytes\":" + std::to_string(bytes) +
                                    ",\"ranks\":2,\"measured\":{\"exchange_ns\":"));
        const size_t chosen = count(text, "\"chosen\":true");
        EXPECT_TRUE(chosen == 1 || chosen == 2) << text;
        EXPECT_EQ(count(text, "\"predicted_us\":[0-9]+\\.[0-9]{3},"), count(text, "\"plan\":"))
            << text;
      }
    const std::string large = explanation(self.comm, "all_gather", 1 << 20);
    // The candidates include direct plans, in which the system reads, with pieces of several sizes.
    EXPECT_GE(count(large, "\"plan\":"), 4u) << large;
    EXPECT_EQ(count(large, "\"memory\":\"pool\",\"predicted_us\":[0-9.]+,\"chosen\":true"), 1u)
        << large;
  });
}

TEST(Explain, SaysTheSameOnAllRanks) {
  std::array<std::string, 3> texts;
  run_ranks(3, [&](Rank& self) {
    texts[static_cast<size_t>(self.rank)] = explanation(self.comm, "all_reduce", 1 << 20);
  });
  EXPECT_EQ(texts[0], texts[1]);
  EXPECT_EQ(texts[0], texts[2]);
}

TEST(Explain, FollowsTheSettings) {
  const Settings settings{{"FSCCL_EAGER_BYTES", "1M"}, {"FSCCL_SINGLE_COPY", "off"}};
  run_ranks(2, [](Rank& self) {
    const std::string text = explanation(self.comm, "all_gather", 1 << 20);
    EXPECT_EQ(count(text, "\"memory\":\"any\",\"predicted_us\":[0-9.]+,\"chosen\":true"), 1u)
        << text;
    EXPECT_THAT(text, HasSubstr("\"read_ns\":null"));
  });
}

TEST(Explain, WrongArguments) {
  run_ranks(2, [](Rank& self) {
    char small[16] = "untouched";
    EXPECT_ERROR(fsccl_explain(self.comm, "all_gather", 8, small, sizeof small), FSCCL_ERR_LIMIT,
                 "room for 16 bytes");
    EXPECT_STREQ(small, "untouched");
    EXPECT_ERROR(fsccl_explain(self.comm, "allgather", 8, small, sizeof small),
                 FSCCL_ERR_INVALID_ARGUMENT, "allgather", "all_gather, reduce_scatter");
    EXPECT_ERROR(fsccl_explain(self.comm, nullptr, 8, small, sizeof small),
                 FSCCL_ERR_INVALID_ARGUMENT, "operation is NULL");
    EXPECT_ERROR(fsccl_explain(self.comm, "barrier", 8, nullptr, 0), FSCCL_ERR_INVALID_ARGUMENT,
                 "json is NULL");
    EXPECT_ERROR(fsccl_explain(self.comm, "broadcast", SIZE_MAX, small, sizeof small),
                 FSCCL_ERR_INVALID_ARGUMENT, "address space");
    EXPECT_ERROR(fsccl_explain(nullptr, "barrier", 8, small, sizeof small),
                 FSCCL_ERR_INVALID_HANDLE);
  });
}

}  // namespace
}  // namespace fsccl::testing
