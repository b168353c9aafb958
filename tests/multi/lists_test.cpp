// Lists of tensors between processes, which ranks that are threads cannot show: the tensors are
// private memory, which the system reads, and memory of a pool, which peers map.
#include <fsccl/fsccl.h>
#include <fsccl/insight.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <cstdio>
#include <string>
#include <vector>

#include "multi/processes.h"
#include "multi/tell.h"

namespace fsccl::testing::lists_tests {
namespace {

constexpr int64_t kLimitMs = 60'000;
constexpr int kRounds = 3;
constexpr size_t kPrivate = 4, kTensors = 5;  // the last tensor is in the pool

int root_of(int ranks) { return ranks - 1; }

// A list of tensors of uneven parts, some of which are empty.
struct List {
  std::vector<size_t> parts[kTensors], wholes;
  std::vector<float> send[kTensors], recv[kTensors];
  float *pool_send = nullptr, *pool_recv = nullptr;

  List(const Child& self, fsccl_pool_t pool) {
    for (size_t t = 0; t < kTensors; t++) {
      size_t whole = 0;
      for (int q = 0; q < self.ranks; q++) {
        parts[t].push_back(t == 1 && q == 1 ? 0 : 3'000 * t + static_cast<size_t>(q) + 1);
        whole += parts[t].back();
      }
      wholes.push_back(whole);
      send[t].resize(whole), recv[t].resize(whole);
    }
    const size_t bytes = wholes[kPrivate] * sizeof(float);
    void *first = nullptr, *second = nullptr;
    if (tell("alloc", fsccl_pool_alloc(pool, bytes, nullptr, &first)) ||
        tell("alloc", fsccl_pool_alloc(pool, bytes, nullptr, &second)))
      exit(4);
    pool_send = static_cast<float*>(first), pool_recv = static_cast<float*>(second);
  }
  float* from(size_t t) { return t == kPrivate ? pool_send : send[t].data(); }
  float* to(size_t t) { return t == kPrivate ? pool_recv : recv[t].data(); }
  std::vector<fsccl_tensor_t> tensors(bool broadcasts) {
    std::vector<fsccl_tensor_t> list;
    for (size_t t = 0; t < kTensors; t++)
      list.push_back({from(t), to(t), broadcasts ? &wholes[t] : parts[t].data(), FSCCL_FLOAT32});
    return list;
  }
  static float value(int rank, size_t t, size_t at) {
    return static_cast<float>((at * 7 + t * 3 + static_cast<size_t>(rank) * 11) % 1000);
  }
  size_t before(size_t t, int rank) const {
    size_t sum = 0;
    for (int q = 0; q < rank; q++) sum += parts[t][static_cast<size_t>(q)];
    return sum;
  }
};

// Each function makes one call and returns the number of wrong elements.
size_t gathers(const Child& self, fsccl_comm_t comm, List& list) {
  for (size_t t = 0; t < kTensors; t++)
    for (size_t at = 0; at < list.parts[t][static_cast<size_t>(self.rank)]; at++)
      list.from(t)[at] = List::value(self.rank, t, at);
  if (tell("gather",
           fsccl_all_gather_list(list.tensors(false).data(), kTensors, comm, nullptr, nullptr)))
    return 1;
  size_t wrong = 0;
  for (size_t t = 0; t < kTensors; t++)
    for (int q = 0; q < self.ranks; q++)
      for (size_t at = 0; at < list.parts[t][static_cast<size_t>(q)]; at++)
        wrong += list.to(t)[list.before(t, q) + at] != List::value(q, t, at);
  return wrong;
}

size_t reduces(const Child& self, fsccl_comm_t comm, List& list) {
  for (size_t t = 0; t < kTensors; t++)
    for (size_t at = 0; at < list.wholes[t]; at++) list.from(t)[at] = List::value(self.rank, t, at);
  if (tell("reduce", fsccl_reduce_scatter_list(list.tensors(false).data(), kTensors, FSCCL_SUM,
                                               comm, nullptr, nullptr)))
    return 1;
  size_t wrong = 0;
  for (size_t t = 0; t < kTensors; t++)
    for (size_t at = 0; at < list.parts[t][static_cast<size_t>(self.rank)]; at++) {
      float sum = 0;
      for (int q = 0; q < self.ranks; q++) sum += List::value(q, t, list.before(t, self.rank) + at);
      wrong += list.to(t)[at] != sum;
    }
  return wrong;
}

size_t broadcasts(const Child& self, fsccl_comm_t comm, List& list) {
  for (size_t t = 0; t < kTensors; t++)
    for (size_t at = 0; at < list.wholes[t]; at++) list.to(t)[at] = List::value(self.rank, t, at);
  if (tell("broadcast", fsccl_broadcast_list(list.tensors(true).data(), kTensors,
                                             root_of(self.ranks), comm, nullptr, nullptr)))
    return 1;
  size_t wrong = 0;
  for (size_t t = 0; t < kTensors; t++)
    for (size_t at = 0; at < list.wholes[t]; at++)
      wrong += list.to(t)[at] != List::value(root_of(self.ranks), t, at);
  return wrong;
}

int lists(const Child& self) {
  fsccl_comm_t comm = nullptr;
  fsccl_pool_t pool = nullptr;
  if (tell("join", fsccl_comm_create(nullptr, &comm)) ||
      tell("pool", fsccl_pool_create(comm, nullptr, &pool)))
    return 3;
  List list(self, pool);
  const auto copies = [&] {
    fsccl_counters_t counters = FSCCL_COUNTERS_INIT;
    tell("counters", fsccl_comm_counters(comm, &counters));
    return counters.kernel_copies;
  };
  size_t wrong = 0;
  using Call = size_t (*)(const Child&, fsccl_comm_t, List&);
  constexpr std::pair<const char*, Call> kCalls[] = {
      {"gather", gathers}, {"reduce", reduces}, {"broadcast", broadcasts}};
  for (const auto& [name, call] : kCalls) {
    const uint64_t before = copies();
    for (int round = 0; round < kRounds; round++) wrong += call(self, comm, list);
    std::printf("%s: %s\n", name, copies() > before ? "in one copy" : "through slots");
  }
  std::printf("wrong: %zu\n", wrong);
  return tell("free", fsccl_pool_free(pool, list.pool_send, nullptr)) ||
                 tell("free", fsccl_pool_free(pool, list.pool_recv, nullptr)) ||
                 tell("pool", fsccl_pool_destroy(pool)) || tell("comm", fsccl_comm_destroy(comm)) ||
                 wrong
             ? 8
             : 0;
}

// Returns true if each of so many ranks has a core of its own.
bool have_cores(int ranks) {
  cpu_set_t cores;
  return sched_getaffinity(0, sizeof cores, &cores) == 0 && CPU_COUNT(&cores) >= ranks;
}

// Runs the list calls with slots that are smaller than the lists. With `one_copy` the system must
// move the tensors of all ranks. Only the root of a broadcast moves nothing where ranks share
// cores: the others read from it. Elsewhere it writes a share.
void run(int ranks, int port, const char* single_copy, bool one_copy) {
  Processes processes;
  for (int rank = 0; rank < ranks; rank++)
    processes.start("lists", rank, ranks,
                    with(job(rank, ranks, port, single_copy), {{"FSCCL_SLOT_BYTES", "4K"}}));
  EXPECT_TRUE(processes.finish(kLimitMs)) << processes.report();
  for (int rank = 0; rank < ranks; rank++) {
    EXPECT_EQ(processes.exit_code(rank), 0) << processes.report();
    for (const std::string name : {"gather", "reduce", "broadcast"}) {
      const bool moves = name != "broadcast" || rank != root_of(ranks) || have_cores(ranks);
      EXPECT_THAT(
          processes.output(rank),
          ::testing::HasSubstr(name + (one_copy && moves ? ": in one copy" : ": through slots")))
          << processes.report();
    }
  }
}

TEST(Lists, AreReadWherePrivateMemoryCanBeRead) {
  run(2, 20462, "on", true);
  run(3, 20460, "on", true);
}
TEST(Lists, GoThroughSlotsWhereItCannot) { run(3, 20461, "off", false); }

const AddRoles roles{{"lists", lists}};

}  // namespace
}  // namespace fsccl::testing::lists_tests
