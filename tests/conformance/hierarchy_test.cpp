// Sums between hosts: over the ranks of a host first (run), or in rank order whatever the hosts are (placement), bit for bit. Where
// there is one host, or hosts have one rank, both are rank order.
#include <vector>

#include "support.h"

namespace fsccl::testing {
namespace {

constexpr size_t kCount = 40'003;

std::vector<float> input_of(int rank, size_t count) {
  std::vector<float> values(count);
  Random random(static_cast<uint64_t>(rank) + 1);
  for (float& value : values) value = static_cast<float>(random.below(1u << 24)) / 777.0f - 9000.0f;
  return values;
}

// In rank order within groups of `together` ranks, then over the groups.
std::vector<float> sum_of(int ranks, int together, size_t count) {
  std::vector<float> total;
  for (int first = 0; first < ranks; first += together) {
    std::vector<float> part = input_of(first, count);
    for (int rank = first + 1; rank < first + together; ++rank) {
      const std::vector<float> other = input_of(rank, count);
      for (size_t i = 0; i < count; ++i) part[i] += other[i];
    }
    if (first == 0) total = part;
    if (first > 0)
      for (size_t i = 0; i < count; ++i) total[i] += part[i];
  }
  return total;
}

void expect_same(const float* have, const float* want, size_t count, const char* what) {
  size_t wrong = 0;
  for (size_t i = 0; i < count; ++i) wrong += memcmp(have + i, want + i, sizeof(float)) != 0;
  EXPECT_EQ(wrong, 0u) << what;
}

void sums(int ranks, int together) {
  run_ranks(ranks, [&](Rank& self) {
    const size_t each = kCount / static_cast<size_t>(self.ranks), whole = each * static_cast<size_t>(self.ranks);
    const std::vector<float> mine = input_of(self.rank, kCount), want = sum_of(self.ranks, together, kCount);
    for (int turn = 0; turn < 3; ++turn) {
      std::vector<float> all(kCount), part(each);
      ASSERT_OK(fsccl_all_reduce(mine.data(), all.data(), kCount, FSCCL_FLOAT32, FSCCL_SUM, self.comm, nullptr, nullptr));
      expect_same(all.data(), want.data(), kCount, "all_reduce");
      ASSERT_OK(fsccl_reduce_scatter(mine.data(), part.data(), each, FSCCL_FLOAT32, FSCCL_SUM, self.comm, nullptr, nullptr));
      expect_same(part.data(), want.data() + each * static_cast<size_t>(self.rank), each, "reduce_scatter");
      std::vector<float> gathered(whole);
      ASSERT_OK(fsccl_all_gather(part.data(), gathered.data(), each, FSCCL_FLOAT32, self.comm, nullptr, nullptr));
      expect_same(gathered.data(), want.data(), whole, "all_gather");
      const int root = turn % self.ranks;
      std::vector<float> sent = self.rank == root ? want : std::vector<float>(kCount);
      ASSERT_OK(fsccl_broadcast(sent.data(), kCount, FSCCL_FLOAT32, root, self.comm, nullptr, nullptr));
      expect_same(sent.data(), want.data(), kCount, "broadcast");
    }
  });
}

TEST(Sums, InRankOrderForPlacement) {
  const Settings settings{{"FSCCL_HIERARCHY", "on"}, {"FSCCL_REPRODUCIBLE", "placement"}};
  for (const int ranks : {2, 3, 4, 6}) sums(ranks, 1);
}
TEST(Sums, InRankOrderWithoutHierarchy) {
  const Settings settings{{"FSCCL_HIERARCHY", "off"}};
  for (const int ranks : {4, 5}) sums(ranks, 1);
}
TEST(Sums, HostByHost) {
  const Settings settings{{"FSCCL_HIERARCHY", "on"}};
  for (const int ranks : {4, 6}) sums(ranks, hosts_given() ? ranks / static_cast<int>(number_of_hosts()) : 1);
}

TEST(Sums, ExplainedAsTheyAre) {
  run_ranks(4, [](Rank& self) {
    const bool by_hosts = number_of_hosts() == 2;
    for (const char* operation : {"all_gather", "reduce_scatter", "all_reduce", "broadcast"}) {
      std::vector<char> text(8192);
      ASSERT_OK(fsccl_explain(self.comm, operation, 1 << 20, text.data(), text.size()));
      EXPECT_EQ(std::string(text.data()).find(R"("plan":"by_hosts")") != std::string::npos, by_hosts) << text.data();
      ASSERT_OK(fsccl_explain(self.comm, operation, 1024, text.data(), text.size()));
      EXPECT_EQ(std::string(text.data()).find("by_hosts"), std::string::npos) << text.data();
    }
  });
}

// Operations in flight one behind the other, some by hosts and some not, on the same memory.
TEST(Sums, InFlightTogether) {
  run_ranks(4, [](Rank& self) {
    std::vector<float> values(kCount, 1.0f);
    std::vector<fsccl_work_t> works;
    float expected = 1;
    for (int i = 0; i < 6; ++i) {
      const size_t count = i % 2 ? 1000 : kCount;  // below and above what goes by hosts
      works.emplace_back();
      const fsccl_status_t status =
          fsccl_all_reduce(values.data(), values.data(), count, FSCCL_FLOAT32, FSCCL_SUM, self.comm, nullptr, &works.back());
      ASSERT_TRUE(status == FSCCL_OK || status == FSCCL_IN_PROGRESS) << explain(status);
      expected *= 4;
    }
    for (const fsccl_work_t work : works) ASSERT_OK(fsccl_work_wait(work, -1));
    EXPECT_EQ(values[0], expected);
    EXPECT_EQ(values[kCount - 1], 64.0f);
  });
}

}  // namespace
}  // namespace fsccl::testing
