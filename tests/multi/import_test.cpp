// Imports and notifications between processes, which thread ranks cannot show: peers in other
// processes reach imported memory through the arena, and a killed peer is reported.
#include <fsccl/fsccl.h>
#include <fsccl/insight.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <cstdlib>
#include <string>

#include "multi/processes.h"
#include "multi/tell.h"

namespace fsccl::testing::import_tests {
namespace {

constexpr int64_t kLimitMs = 60'000;
constexpr size_t kCount = 1 << 18, kBytes = kCount * sizeof(float);

uint64_t kernel_copies(fsccl_comm_t comm) {
  fsccl_counters_t counters = FSCCL_COUNTERS_INIT;
  tell("counters", fsccl_comm_counters(comm, &counters));
  return counters.kernel_copies;
}

// All-gathers kCount floats of each rank, and returns the number of wrong ones.
size_t gather(const Child& self, fsccl_comm_t comm, float* send, float* recv, float seed) {
  for (size_t i = 0; i < kCount; i++)
    send[i] = seed + static_cast<float>(self.rank) * 1e6f + static_cast<float>(i);
  if (tell("all_gather",
           fsccl_all_gather(send, recv, kCount, FSCCL_FLOAT32, comm, nullptr, nullptr)))
    return kCount;
  size_t wrong = 0;
  for (size_t at = 0; at < kCount * static_cast<size_t>(self.ranks); at++)
    wrong +=
        recv[at] != seed + static_cast<float>(at / kCount) * 1e6f + static_cast<float>(at % kCount);
  return wrong;
}

int importer(const Child& self) {
  const size_t all = kBytes * static_cast<size_t>(self.ranks);
  auto* send = static_cast<float*>(std::aligned_alloc(4096, kBytes));
  auto* recv = static_cast<float*>(std::aligned_alloc(4096, all));
  fsccl_comm_t comm = nullptr;
  fsccl_pool_t pool = nullptr;
  if (tell("join", fsccl_comm_create(nullptr, &comm)) ||
      tell("pool", fsccl_pool_create(comm, nullptr, &pool)))
    return 3;
  size_t wrong = gather(self, comm, send, recv, 1);
  const uint64_t before = kernel_copies(comm);
  if (tell("import", fsccl_pool_import(pool, send, kBytes)) ||
      tell("import", fsccl_pool_import(pool, recv, all)))
    return 4;
  wrong += gather(self, comm, send, recv, 2) + gather(self, comm, send, recv, 3);
  printf("kernel copies: %s, then %d more\n", before ? "some" : "none",
         static_cast<int>(kernel_copies(comm) - before));
  if (tell("barrier", fsccl_barrier(comm, nullptr, nullptr))) return 5;
  if (tell("end", fsccl_pool_free(pool, send, nullptr)) ||
      tell("end", fsccl_pool_free(pool, recv, nullptr)))
    return 6;
  wrong += gather(self, comm, send, recv, 4);
  printf("wrong: %zu\n", wrong);
  if (tell("barrier", fsccl_barrier(comm, nullptr, nullptr))) return 7;
  std::free(send);
  std::free(recv);
  return tell("pool", fsccl_pool_destroy(pool)) || tell("comm", fsccl_comm_destroy(comm)) || wrong
             ? 8
             : 0;
}

// Waits for notifications by descriptor and callback, and not in the library. The first ones say
// that an operation is complete, and the next ones that a peer died.
int listener(const Child&) {
  fsccl_comm_t comm = nullptr;
  if (tell("join", fsccl_comm_create(nullptr, &comm))) return 3;
  for (int i = 0; i < 2; i++) {
    std::atomic<int> status{1};
    fsccl_work_t work = nullptr;
    pollfd polled{-1, POLLIN, 0};
    if (tell("barrier", fsccl_barrier(comm, nullptr, &work)) ||
        tell("event", fsccl_work_event_fd(work, &polled.fd)))
      return 4;
    const auto done = [](void* context, fsccl_status_t given) {
      *static_cast<std::atomic<int>*>(context) = given;
    };
    if (tell("callback", fsccl_work_callback(work, done, &status))) return 5;
    if (i == 1) puts("ready");
    if (poll(&polled, 1, static_cast<int>(kLimitMs)) != 1) return 6;
    while (status == 1) sched_yield();
    printf("told %d, test %d\n", status.load(), fsccl_work_test(work));
  }
  return fsccl_comm_destroy(comm) == FSCCL_OK ? 0 : 7;
}

// Takes part in the first operation only.
int victim(const Child&) {
  fsccl_comm_t comm = nullptr;
  if (tell("join", fsccl_comm_create(nullptr, &comm)) ||
      tell("barrier", fsccl_barrier(comm, nullptr, nullptr)))
    return 3;
  puts("ready");
  while (true) pause();
}

TEST(Imports, PeersReachThemThroughTheArena) {
  int port = 20400;
  for (const char* single_copy : {"off", "auto", "on"}) {
    Processes processes;
    for (int rank = 0; rank < 3; rank++)
      processes.start("importer", rank, 3, job(rank, 3, port, single_copy));
    EXPECT_TRUE(processes.finish(kLimitMs)) << processes.report();
    for (int rank = 0; rank < 3; rank++) {
      EXPECT_THAT(processes.output(rank), ::testing::HasSubstr("then 0 more"))
          << processes.report();
      EXPECT_THAT(processes.output(rank), ::testing::HasSubstr("wrong: 0")) << processes.report();
    }
    port++;
  }
}

TEST(Notifications, AKilledPeerIsTold) {
  Processes processes;
  for (int rank = 0; rank < 3; rank++)
    processes.start(rank == 2 ? "victim" : "listener", rank, 3, job(rank, 3, 20410, "auto"));
  for (int rank = 0; rank < 3; rank++)
    ASSERT_TRUE(processes.wait_for_output(rank, "ready", kLimitMs)) << processes.report();
  processes.kill(2, SIGKILL);
  processes.finish(kLimitMs);
  for (int rank = 0; rank < 2; rank++) {
    EXPECT_EQ(processes.exit_code(rank), 0) << processes.report();
    EXPECT_THAT(processes.output(rank), ::testing::HasSubstr("told 0, test 0"))
        << processes.report();
    EXPECT_THAT(processes.output(rank), ::testing::HasSubstr("told -60, test -60"))
        << processes.report();
  }
}

const AddRoles roles{{"importer", importer}, {"listener", listener}, {"victim", victim}};

}  // namespace
}  // namespace fsccl::testing::import_tests
