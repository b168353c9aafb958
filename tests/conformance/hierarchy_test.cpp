// Tests collectives by hosts, on hosts of every shape: their results, the bytes that cross between
// hosts, and the order of sums, bit for bit. With FSCCL_REPRODUCIBLE=run sums are made over the
// ranks of a host first, and with "placement" in rank order whatever the hosts are. With one host,
// or one rank a host, both are rank order.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <new>
#include <numeric>
#include <string>
#include <vector>

#include "fsccl/insight.h"
#include "reference.h"
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

// The host of each rank. If the test was given no hosts, all ranks are on this one, and the shape
// counts only by its number of ranks.
using Shape = std::vector<int>;
const std::vector<Shape>& shapes() {
  static const std::vector<Shape> all = {{0, 1},
                                         {0, 1, 2},
                                         {0, 0, 1, 1},
                                         {0, 1, 0, 1},
                                         {1, 0, 0, 1},
                                         {0, 0, 0, 1},
                                         {0, 1, 1, 1},
                                         {0, 0, 0, 0, 1, 1},
                                         {0, 1, 0, 0, 1},
                                         {0, 0, 1, 1, 2, 2},
                                         {0, 1, 2, 0, 1, 2},
                                         {0, 0, 1, 2, 2, 2},
                                         {2, 1, 0, 2, 2, 1},
                                         {0, 1, 2, 3},
                                         {0, 0, 1, 1, 2, 2, 3, 3},
                                         {3, 0, 1, 2, 0, 1, 3}};
  return all;
}
void run_shape(const Shape& hosts, const std::function<void(Rank&)>& body) {
  run_ranks(static_cast<int>(hosts.size()), body, {.hosts = hosts});
}

// Returns the groups of ranks whose sums are summed. A group is the ranks of a host, with hosts in
// the order of their first ranks, or each rank alone.
std::vector<std::vector<int>> groups_of(const Shape& hosts, bool by_hosts) {
  std::vector<std::vector<int>> groups;
  std::vector<int> seen;
  for (int rank = 0; rank < static_cast<int>(hosts.size()); ++rank) {
    const int host = by_hosts ? hosts[static_cast<size_t>(rank)] : rank;
    const auto at = static_cast<size_t>(std::find(seen.begin(), seen.end(), host) - seen.begin());
    if (at == seen.size()) seen.push_back(host), groups.emplace_back();
    groups[at].push_back(rank);
  }
  return groups;
}

// Returns whether the shape can be tested. On one host only the number of ranks makes a difference.
bool given(const Shape& hosts) {
  if (!hosts_given()) return groups_of(hosts, true).size() == hosts.size();
  return static_cast<size_t>(*std::max_element(hosts.begin(), hosts.end())) < number_of_hosts();
}

std::vector<float> sum_of(const std::vector<std::vector<int>>& groups, size_t count) {
  std::vector<float> total;
  for (const std::vector<int>& ranks : groups) {
    std::vector<float> part = input_of(ranks[0], count);
    for (size_t k = 1; k < ranks.size(); ++k) {
      const std::vector<float> other = input_of(ranks[k], count);
      for (size_t i = 0; i < count; ++i) part[i] += other[i];
    }
    const bool first = total.empty();
    if (first) total = part;
    for (size_t i = 0; i < count && !first; ++i) total[i] += part[i];
  }
  return total;
}

void expect_same(const float* have, const float* want, size_t count, const char* what) {
  size_t wrong = 0;
  for (size_t i = 0; i < count; ++i) wrong += memcmp(have + i, want + i, sizeof(float)) != 0;
  EXPECT_EQ(wrong, 0u) << what;
}

void sums(const Shape& hosts, bool by_hosts) {
  run_shape(hosts, [&](Rank& self) {
    const size_t each = kCount / static_cast<size_t>(self.ranks),
                 whole = each * static_cast<size_t>(self.ranks);
    const std::vector<float> mine = input_of(self.rank, kCount),
                             want = sum_of(groups_of(hosts, by_hosts), kCount);
    for (int turn = 0; turn < 3; ++turn) {
      std::vector<float> all(kCount), part(each);
      ASSERT_OK(fsccl_all_reduce(mine.data(), all.data(), kCount, FSCCL_FLOAT32, FSCCL_SUM,
                                 self.comm, nullptr, nullptr));
      expect_same(all.data(), want.data(), kCount, "all_reduce");
      ASSERT_OK(fsccl_reduce_scatter(mine.data(), part.data(), each, FSCCL_FLOAT32, FSCCL_SUM,
                                     self.comm, nullptr, nullptr));
      expect_same(part.data(), want.data() + each * static_cast<size_t>(self.rank), each,
                  "reduce_scatter");
      const std::vector<size_t> counts(static_cast<size_t>(self.ranks), each);
      std::vector<float> send = mine;
      const fsccl_tensor_t tensor = {send.data(),
                                     send.data() + each * static_cast<size_t>(self.rank),
                                     counts.data(), FSCCL_FLOAT32};
      ASSERT_OK(fsccl_reduce_scatter_list(&tensor, 1, FSCCL_SUM, self.comm, nullptr, nullptr));
      expect_same(static_cast<const float*>(tensor.recv), part.data(), each, "reduce_scatter_list");
      std::vector<float> gathered(whole);
      ASSERT_OK(fsccl_all_gather(part.data(), gathered.data(), each, FSCCL_FLOAT32, self.comm,
                                 nullptr, nullptr));
      expect_same(gathered.data(), want.data(), whole, "all_gather");
      const int root = turn % self.ranks;
      std::vector<float> sent = self.rank == root ? want : std::vector<float>(kCount);
      ASSERT_OK(
          fsccl_broadcast(sent.data(), kCount, FSCCL_FLOAT32, root, self.comm, nullptr, nullptr));
      expect_same(sent.data(), want.data(), kCount, "broadcast");
    }
  });
}

class Hosts : public ::testing::TestWithParam<Shape> {
 protected:
  void SetUp() override {
    if (!given(GetParam())) GTEST_SKIP() << "needs other hosts";
  }
};
INSTANTIATE_TEST_SUITE_P(Shapes, Hosts, ::testing::ValuesIn(shapes()), [](const auto& one) {
  std::string name;
  for (const int host : one.param) name += std::to_string(host);
  return name;
});

TEST_P(Hosts, SumInRankOrderForPlacement) {
  const Settings settings{{"FSCCL_HIERARCHY", "on"}, {"FSCCL_REPRODUCIBLE", "placement"}};
  sums(GetParam(), false);
}
TEST_P(Hosts, SumHostByHost) {
  const Settings settings{{"FSCCL_HIERARCHY", "on"}};
  sums(GetParam(), hosts_given());
}
TEST(Sums, InRankOrderWithoutHierarchy) {
  const Settings settings{{"FSCCL_HIERARCHY", "off"}};
  for (const Shape& hosts : {Shape{0, 0, 1, 1}, Shape{0, 0, 0, 1, 1}})
    if (!hosts_given() || given(hosts)) sums(hosts, false);
}

// Integers, whose sums are the same in any order.
uint32_t value(int rank, size_t index) {
  return static_cast<uint32_t>(rank) * 1'000'003u + static_cast<uint32_t>(index) * 7u;
}
std::vector<uint32_t> values(int rank, size_t first, size_t count) {
  std::vector<uint32_t> made(count);
  for (size_t i = 0; i < count; ++i) made[i] = value(rank, first + i);
  return made;
}
std::vector<uint32_t> totals(int ranks, size_t first, size_t count) {
  std::vector<uint32_t> made(count);
  for (int q = 0; q < ranks; ++q)
    for (size_t i = 0; i < count; ++i) made[i] += value(q, first + i);
  return made;
}
using Counts = std::vector<size_t>;
size_t whole(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), size_t{0});
}
size_t before(const Counts& counts, int rank) {
  return std::accumulate(counts.begin(), counts.begin() + rank, size_t{0});
}
bool even(const Counts& counts) {
  return std::all_of(counts.begin(), counts.end(),
                     [&](size_t count) { return count == counts[0]; });
}

// Gathers parts that lie end to end. If `displaced`, there are gaps between them, and on odd ranks
// they are in reverse order.
void gather(Rank& self, const Counts& counts, bool in_place, bool displaced) {
  const auto rank = static_cast<size_t>(self.rank);
  Counts places(counts.size());
  size_t end = 0;
  for (size_t k = 0; k < counts.size(); ++k) {
    const size_t q = displaced && rank % 2 ? counts.size() - 1 - k : k;
    places[q] = end;
    end += counts[q] + (displaced ? 3 : 0);
  }
  std::vector<uint32_t> recv(end + 1, 77), want = recv, send = values(self.rank, 0, counts[rank]);
  for (size_t q = 0; q < counts.size(); ++q)
    std::ranges::copy(values(static_cast<int>(q), 0, counts[q]),
                      want.begin() + static_cast<ptrdiff_t>(places[q]));
  if (in_place) std::ranges::copy(send, recv.begin() + static_cast<ptrdiff_t>(places[rank]));
  const uint32_t* from = in_place ? recv.data() + places[rank] : send.data();
  if (even(counts) && !displaced)
    ASSERT_OK(
        fsccl_all_gather(from, recv.data(), counts[0], FSCCL_UINT32, self.comm, nullptr, nullptr));
  else
    ASSERT_OK(fsccl_all_gather_v(from, recv.data(), counts.data(),
                                 displaced || rank % 2 ? places.data() : nullptr, FSCCL_UINT32,
                                 self.comm, nullptr, nullptr));
  EXPECT_TRUE(recv == want) << "all_gather" << (in_place ? " in place" : "")
                            << (displaced ? ", displaced" : "");
}

void scatter(Rank& self, const Counts& counts, bool in_place) {
  const size_t own = counts[static_cast<size_t>(self.rank)], begin = before(counts, self.rank);
  std::vector<uint32_t> send = values(self.rank, 0, whole(counts)), recv(own);
  uint32_t* const to = in_place ? send.data() + begin : recv.data();
  if (even(counts))
    ASSERT_OK(fsccl_reduce_scatter(send.data(), to, own, FSCCL_UINT32, FSCCL_SUM, self.comm,
                                   nullptr, nullptr));
  else
    ASSERT_OK(fsccl_reduce_scatter_v(send.data(), to, counts.data(), FSCCL_UINT32, FSCCL_SUM,
                                     self.comm, nullptr, nullptr));
  EXPECT_TRUE(std::equal(to, to + own, totals(self.ranks, begin, own).begin()))
      << "reduce_scatter" << (in_place ? " in place" : "");
}

void reduce(Rank& self, size_t count, bool in_place) {
  std::vector<uint32_t> send = values(self.rank, 0, count), recv(count);
  uint32_t* const to = in_place ? send.data() : recv.data();
  ASSERT_OK(fsccl_all_reduce(send.data(), to, count, FSCCL_UINT32, FSCCL_SUM, self.comm, nullptr,
                             nullptr));
  EXPECT_TRUE(std::equal(to, to + count, totals(self.ranks, 0, count).begin()))
      << "all_reduce" << (in_place ? " in place" : "");
}

void broadcast(Rank& self, size_t count, int root) {
  std::vector<uint32_t> buffer =
      self.rank == root ? values(root, 0, count) : std::vector<uint32_t>(count);
  ASSERT_OK(fsccl_broadcast(buffer.data(), count, FSCCL_UINT32, root, self.comm, nullptr, nullptr));
  EXPECT_TRUE(buffer == values(root, 0, count)) << "broadcast of rank " << root;
}

// Calls the list forms on tensors of different sizes and types, one of them empty. Except in sums
// the elements are bytes.
void lists(Rank& self, size_t count, bool in_place, int root) {
  std::vector<Counts> counts;
  std::vector<std::vector<uint32_t>> sends, recvs;
  for (size_t t = 0; t < 5; ++t) {
    counts.emplace_back();
    for (size_t q = 0; q < static_cast<size_t>(self.ranks); ++q)
      counts[t].push_back(t == 3 ? 0 : (q + t) % 4 * count / (t + 1));
  }
  const auto rank = static_cast<size_t>(self.rank);
  const auto list_of = [&](auto send_of, auto recv_of, size_t size) {
    sends.clear(), recvs.clear();
    std::vector<fsccl_tensor_t> list;
    for (size_t t = 0; t < counts.size(); ++t) {
      sends.push_back(send_of(counts[t]));
      recvs.push_back(recv_of(counts[t]));
      list.push_back({sends[t].data(), recvs[t].data(), counts[t].data(),
                      size == 4 ? FSCCL_UINT32 : FSCCL_UINT8});
    }
    return list;
  };
  const auto nothing = [](const Counts& each) { return std::vector<uint32_t>(whole(each) + 1); };

  auto list =
      list_of([&](const Counts& each) { return values(self.rank, 0, each[rank] + 1); }, nothing, 4);
  for (size_t t = 0; t < list.size() && in_place; ++t) {
    auto* const place = recvs[t].data() + before(counts[t], self.rank);
    std::copy_n(sends[t].begin(), counts[t][rank], place);
    list[t].send = place;
  }
  ASSERT_OK(fsccl_all_gather_list(list.data(), list.size(), self.comm, nullptr, nullptr));
  for (size_t t = 0; t < list.size(); ++t)
    for (int q = 0; q < self.ranks; ++q) {
      const auto from = recvs[t].begin() + static_cast<ptrdiff_t>(before(counts[t], q));
      const std::vector<uint32_t> want = values(q, 0, counts[t][static_cast<size_t>(q)]);
      EXPECT_TRUE(std::equal(want.begin(), want.end(), from))
          << "all_gather_list, tensor " << t << " of rank " << q;
    }

  list = list_of([&](const Counts& each) { return values(self.rank, 0, whole(each) + 1); }, nothing,
                 4);
  for (size_t t = 0; t < list.size() && in_place; ++t)
    list[t].recv = sends[t].data() + before(counts[t], self.rank);
  ASSERT_OK(
      fsccl_reduce_scatter_list(list.data(), list.size(), FSCCL_SUM, self.comm, nullptr, nullptr));
  for (size_t t = 0; t < list.size(); ++t) {
    const std::vector<uint32_t> want =
        totals(self.ranks, before(counts[t], self.rank), counts[t][rank]);
    EXPECT_TRUE(std::equal(want.begin(), want.end(), static_cast<uint32_t*>(list[t].recv)))
        << "reduce_scatter_list, tensor " << t;
  }

  list = list_of([](const Counts&) { return std::vector<uint32_t>(); },
                 [&](const Counts& each) {
                   return self.rank == root ? values(root, 0, each[0] + 1) : nothing(each);
                 },
                 1);
  for (size_t t = 0; t < list.size(); ++t) list[t].send = nullptr;
  ASSERT_OK(fsccl_broadcast_list(list.data(), list.size(), root, self.comm, nullptr, nullptr));
  for (size_t t = 0; t < list.size(); ++t)
    EXPECT_EQ(memcmp(recvs[t].data(), values(root, 0, counts[t][0] + 1).data(), counts[t][0]), 0)
        << "broadcast_list, tensor " << t;
}

TEST_P(Hosts, EveryForm) {
  const Settings settings{{"FSCCL_HIERARCHY", "on"}};
  run_shape(GetParam(), [](Rank& self) {
    for (const size_t count : {1, 37, 5'000, 300'000}) {
      const auto ranks = static_cast<size_t>(self.ranks);
      Counts same(ranks, count / ranks + 1), uneven, one(ranks);
      for (size_t q = 0; q < ranks; ++q) uneven.push_back((q * 5 + 3) % 7 * count / (3 * ranks));
      one.back() = count;
      for (const Counts& counts : {same, uneven, one})
        for (const bool in_place : {false, true}) {
          for (const bool displaced : {false, true}) gather(self, counts, in_place, displaced);
          scatter(self, counts, in_place);
        }
      for (const bool in_place : {false, true}) reduce(self, count, in_place);
      for (int root = 0; root < self.ranks; ++root) {
        broadcast(self, count, root);
        lists(self, count / ranks, root % 2, root);
      }
    }
  });
}

// Sums of 16-bit floats are made over each host and then over hosts in fp32, and rounded to the
// type at the end. A host's sum may exceed fp16's largest value although the sum of all does not.
TEST_P(Hosts, RoundOnce) {
  const Settings settings{{"FSCCL_HIERARCHY", "on"}};
  const auto groups = groups_of(GetParam(), hosts_given());
  run_shape(GetParam(), [&](Rank& self) {
    for (const fsccl_dtype_t dtype : {FSCCL_BFLOAT16, FSCCL_FLOAT16})
      for (const fsccl_op_t op : {FSCCL_SUM, FSCCL_AVG, fsccl_premul_sum(0.3)})
        for (const size_t each : {size_t{5}, size_t{3'001}}) {
          const size_t count = each * static_cast<size_t>(self.ranks),
                       begin = each * static_cast<size_t>(self.rank);
          std::vector<std::vector<uint16_t>> inputs;
          for (int q = 0; q < self.ranks; ++q) {
            inputs.emplace_back(count);
            fill_values(dtype, inputs.back().data(), count, static_cast<uint64_t>(q) + 7, false);
            for (size_t i = 0; i < count && dtype == FSCCL_FLOAT16; i += 7)
              store_float(dtype, inputs.back().data(), i,
                          (q % 3 == 1 ? -1 : 1) * (60'000.0 - static_cast<double>(i % 100)));
          }
          std::vector<uint16_t> want(count), reduced(count), scattered(each), listed(each);
          for (size_t i = 0; i < count; ++i) {
            std::vector<std::vector<double>> values;
            for (const std::vector<int>& ranks : groups) {
              values.emplace_back();
              for (const int q : ranks) {
                const auto value =
                    static_cast<float>(load_float(dtype, inputs[static_cast<size_t>(q)].data(), i));
                const bool scaled = op.kind == FSCCL_OP_PREMUL_SUM;
                values.back().push_back(
                    static_cast<double>(scaled ? value * static_cast<float>(op.scale) : value));
              }
            }
            const Finish finish{1, op.kind == FSCCL_OP_AVG ? static_cast<double>(self.ranks) : 1};
            store_float(dtype, want.data(), i,
                        reference_gradient(dtype, dtype, values, finish, nullptr));
          }
          auto& mine = inputs[static_cast<size_t>(self.rank)];
          const std::vector<size_t> counts(static_cast<size_t>(self.ranks), each);
          const fsccl_tensor_t tensor = {mine.data(), listed.data(), counts.data(), dtype};
          ASSERT_OK(fsccl_all_reduce(mine.data(), reduced.data(), count, dtype, op, self.comm,
                                     nullptr, nullptr));
          ASSERT_OK(fsccl_reduce_scatter(mine.data(), scattered.data(), each, dtype, op, self.comm,
                                         nullptr, nullptr));
          ASSERT_OK(fsccl_reduce_scatter_list(&tensor, 1, op, self.comm, nullptr, nullptr));
          ASSERT_OK(fsccl_all_reduce(mine.data(), mine.data(), count, dtype, op, self.comm, nullptr,
                                     nullptr));
          size_t wrong = 0;
          for (size_t i = 0; i < count; ++i)
            wrong += !agree(dtype, reduced.data(), want.data(), i) +
                     !agree(dtype, mine.data(), want.data(), i);
          for (size_t i = 0; i < each; ++i)
            wrong += !agree(dtype, scattered.data(), want.data() + begin, i) +
                     !agree(dtype, listed.data(), want.data() + begin, i);
          ASSERT_EQ(wrong, 0u) << name_of(dtype) << ' '
                               << name_of(static_cast<fsccl_op_kind_t>(op.kind)) << ' ' << each;
        }
  });
}

// Tests means and scaled sums of integers that floats hold exactly.
TEST_P(Hosts, Scale) {
  const Settings settings{{"FSCCL_HIERARCHY", "on"}};
  run_shape(GetParam(), [](Rank& self) {
    const auto ranks = static_cast<size_t>(self.ranks);
    const Counts counts(ranks, 1000);
    fsccl_op_t multiple = FSCCL_SUM;
    multiple.kind = FSCCL_OP_PREMUL_SUM;
    multiple.scale = 0.5;
    fsccl_op_t mean = FSCCL_SUM;
    mean.kind = FSCCL_OP_AVG;
    for (const fsccl_op_t& op : {mean, multiple}) {
      std::vector<float> send(1000 * ranks), scattered(1000), listed(1000), reduced(send.size());
      for (size_t i = 0; i < send.size(); ++i)
        send[i] = static_cast<float>(static_cast<size_t>(self.rank) + i % 100);
      ASSERT_OK(fsccl_reduce_scatter(send.data(), scattered.data(), 1000, FSCCL_FLOAT32, op,
                                     self.comm, nullptr, nullptr));
      const fsccl_tensor_t tensor = {send.data(), listed.data(), counts.data(), FSCCL_FLOAT32};
      ASSERT_OK(fsccl_reduce_scatter_list(&tensor, 1, op, self.comm, nullptr, nullptr));
      ASSERT_OK(fsccl_all_reduce(send.data(), reduced.data(), reduced.size(), FSCCL_FLOAT32, op,
                                 self.comm, nullptr, nullptr));
      for (size_t i = 0; i < 1000; ++i) {
        const auto sum = static_cast<float>(ranks * (ranks - 1) / 2 + ranks * (i % 100));
        const float want = op.kind == FSCCL_OP_AVG ? sum / static_cast<float>(ranks) : sum / 2;
        for (const float have : {scattered[i], listed[i], reduced[i]}) ASSERT_EQ(have, want) << i;
      }
    }
  });
}

// A byte crosses between two hosts once. Each host sends every other host its parts, or its sums
// for the ranks of that host.
TEST_P(Hosts, SendOnce) {
  const Shape& hosts = GetParam();
  run_shape(hosts, [&](Rank& self) {
    if (bytes_sent() < 0) return;
    const auto ranks = static_cast<size_t>(self.ranks);
    const size_t each = size_t{1} << 20;
    const auto here = static_cast<size_t>(
        std::count(hosts.begin(), hosts.end(), hosts[static_cast<size_t>(self.rank)]));
    const auto others = groups_of(hosts, true).size() - 1;
    std::vector<char> part(each), all(each * ranks);
    const auto sent = [&](const char* what, size_t bytes, auto run) {
      run();  // connections are made
      double crossed = INFINITY;
      for (int i = 0; i < 3; i++) {  // the least: what a busy system sends again is counted, too
        ASSERT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
        const int64_t begin = bytes_sent();
        ASSERT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
        run();
        ASSERT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
        crossed = std::min(crossed,
                           static_cast<double>(bytes_sent() - begin) / static_cast<double>(bytes));
      }
      EXPECT_GT(crossed, 0.95) << what;
      EXPECT_LT(crossed, 1.15) << what;
    };
    sent("all_gather", here * others * each, [&] {
      ASSERT_OK(fsccl_all_gather(part.data(), all.data(), each, FSCCL_UINT8, self.comm, nullptr,
                                 nullptr));
    });
    sent("reduce_scatter", (ranks - here) * each, [&] {
      ASSERT_OK(fsccl_reduce_scatter(all.data(), part.data(), each, FSCCL_UINT8, FSCCL_SUM,
                                     self.comm, nullptr, nullptr));
    });
  });
}

std::string choice(fsccl_comm_t comm, const char* operation, size_t bytes) {
  std::vector<char> text(8192);
  EXPECT_OK(fsccl_explain(comm, operation, bytes, text.data(), text.size()));
  return text.data();
}
bool by_hosts(const std::string& explanation) {
  const size_t at = explanation.find(R"("plan":"by_hosts")");
  return at != std::string::npos &&
         explanation.find(R"("chosen":true,"stages":[)", at) != std::string::npos;
}

TEST(Sums, ExplainedAsTheyAre) {
  run_ranks(4, [](Rank& self) {
    const bool possible = number_of_hosts() > 1 && number_of_hosts() < 4;
    for (const char* operation : {"all_gather", "reduce_scatter", "all_reduce", "broadcast"}) {
      const std::string text = choice(self.comm, operation, 1 << 20);
      EXPECT_EQ(text.find(R"("stages":[{"between_hosts":)") != std::string::npos, possible) << text;
      EXPECT_FALSE(by_hosts(choice(self.comm, operation, 4)));
    }
    EXPECT_EQ(choice(self.comm, "gather", 1 << 20).find("by_hosts"), std::string::npos);
  });
}

TEST(Sums, RulesDecide) {
  const Settings settings{{"FSCCL_PLAN", "all_gather:64K-=by_hosts, all_reduce=flat"},
                          {"FSCCL_HIERARCHY", "on"}};
  run_ranks(4, [](Rank& self) {
    const bool possible = number_of_hosts() > 1 && number_of_hosts() < 4;
    EXPECT_EQ(by_hosts(choice(self.comm, "all_gather", 1 << 20)), possible);
    EXPECT_FALSE(by_hosts(choice(self.comm, "all_reduce", 1 << 20)));
    EXPECT_EQ(by_hosts(choice(self.comm, "broadcast", 1 << 20)), possible);
  });
}

// Operations are in flight one behind the other on the same memory, some by hosts and some not.
TEST(Sums, InFlightTogether) {
  run_ranks(4, [](Rank& self) {
    std::vector<float> values(kCount, 1.0f);
    std::vector<fsccl_work_t> works;
    float expected = 1;
    for (int i = 0; i < 6; ++i) {
      const size_t count = i % 2 ? 1000 : kCount;  // only the large one goes by hosts
      works.emplace_back();
      const fsccl_status_t status =
          fsccl_all_reduce(values.data(), values.data(), count, FSCCL_FLOAT32, FSCCL_SUM, self.comm,
                           nullptr, &works.back());
      ASSERT_TRUE(status == FSCCL_OK || status == FSCCL_IN_PROGRESS) << explain(status);
      expected *= 4;
    }
    for (const fsccl_work_t work : works) ASSERT_OK(fsccl_work_wait(work, -1));
    EXPECT_EQ(values[0], expected);
    EXPECT_EQ(values[kCount - 1], 64.0f);
  });
}

// A call by hosts is carried out on communicators of parts, which have its call site.
TEST(Hierarchy, CallSitesAreCompared) {
  if (hosts_given() && !given({0, 0, 1, 1})) return;
  const Settings settings{{"FSCCL_HIERARCHY", "on"}};
  for (const size_t count : {size_t{3}, kCount})
    run_shape({0, 0, 1, 1}, [&](Rank& self) {
      const std::vector<float> in = input_of(self.rank, count);
      std::vector<float> out(4 * count);
      // A rank may hear of the second call in the first one, because others are ahead.
      fsccl_status_t status = FSCCL_OK;
      for (const uint64_t site : {1, self.rank == 3 ? 2 : 1})
        if (status == FSCCL_OK) {
          EXPECT_OK(fsccl_comm_set_site(self.comm, site));
          status = fsccl_all_gather(in.data(), out.data(), count, FSCCL_FLOAT32, self.comm, nullptr,
                                    nullptr);
        }
      EXPECT_ERROR(status, FSCCL_ERR_MISMATCH, "site 0x0000000000000001",
                   "site 0x0000000000000002");
    });
}

// The first stage of both calls is a reduce-scatter inside each host. The error names the calls.
TEST(Hierarchy, AnErrorOfAStageNamesTheCall) {
  if (hosts_given() && !given({0, 0, 1, 1})) return;
  const Settings settings{{"FSCCL_HIERARCHY", "on"}};
  run_ranks(4,
            [](Rank& self) {
              const std::vector<float> in = input_of(self.rank, 4 * kCount);
              std::vector<float> out(in.size());
              const fsccl_status_t status =
                  self.rank != 3
                      ? fsccl_all_reduce(in.data(), out.data(), in.size(), FSCCL_FLOAT32, FSCCL_SUM,
                                         self.comm, nullptr, nullptr)
                      : fsccl_reduce_scatter(in.data(), out.data(), kCount, FSCCL_FLOAT32,
                                             FSCCL_SUM, self.comm, nullptr, nullptr);
              EXPECT_ERROR(status, FSCCL_ERR_MISMATCH, "calls all_reduce", "calls reduce_scatter",
                           hosts_given() ? ", in its stage" : "they differ in operation");
            },
            {.timeout_ms = 10000, .abort_at_end = true, .hosts = {0, 0, 1, 1}});
}

// A reduce is never carried out by hosts, so on several hosts no rank compares it with a gather
// that is. A barrier is, so it is compared.
TEST(Hierarchy, ACallByHostsAndOneThatIsNotEndAtTheDeadline) {
  if (hosts_given() && !given({0, 0, 1, 1})) return;
  const Settings settings{{"FSCCL_HIERARCHY", "on"}};
  for (const bool reduces : {true, false})
    run_ranks(4,
              [reduces](Rank& self) {
                const std::vector<float> in = input_of(self.rank, kCount);
                std::vector<float> out(4 * kCount);
                const fsccl_status_t status =
                    self.rank != 3 ? fsccl_all_gather(in.data(), out.data(), kCount, FSCCL_FLOAT32,
                                                      self.comm, nullptr, nullptr)
                    : reduces      ? fsccl_reduce(in.data(), out.data(), kCount, FSCCL_FLOAT32,
                                                  FSCCL_SUM, 3, self.comm, nullptr, nullptr)
                                   : fsccl_barrier(self.comm, nullptr, nullptr);
                if (reduces && hosts_given()) {
                  EXPECT_ERROR(status, FSCCL_ERR_TIMEOUT, "have called something else");
                } else {
                  EXPECT_ERROR(status, FSCCL_ERR_MISMATCH, reduces ? "reduce" : "barrier",
                               "all_gather");
                }
              },
              {.timeout_ms = 1000, .abort_at_end = true, .hosts = {0, 0, 1, 1}});
}

// In each round another rank is late. No rank leaves the barrier before it.
TEST_P(Hosts, BarriersHoldAllRanks) {
  const Settings settings{{"FSCCL_HIERARCHY", "on"}};
  void* const memory = mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto& entered = *new (memory) std::atomic<int>(0);
  run_shape(GetParam(), [&](Rank& self) {
    for (int round = 0; round < 2 * self.ranks; ++round) {
      if (round % self.ranks == self.rank) usleep(5000);
      ++entered;
      ASSERT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
      EXPECT_GE(entered.load(), self.ranks * (round + 1)) << "round " << round;
    }
  });
  munmap(memory, sizeof(std::atomic<int>));
}

}  // namespace
}  // namespace fsccl::testing
