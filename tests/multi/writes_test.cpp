// The root of a broadcast writes to the receivers' private memory. A receiver whose call has failed
// has its memory back: nobody writes there any more. Ranks that are threads cannot show this,
// because they share their memory.
#include <fsccl/fsccl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <iterator>
#include <thread>
#include <vector>

#include "multi/processes.h"
#include "multi/tell.h"

namespace fsccl::testing::writes_tests {
namespace {

constexpr int64_t kLimitMs = 60'000;
constexpr int kRounds = 40;
constexpr size_t kBytes = 24u << 20;
constexpr unsigned char kSent = 0x5a, kOwn = 0xc3;

bool all_are(const std::vector<unsigned char>& bytes, unsigned char value) {
  return std::all_of(bytes.begin(), bytes.end(), [=](unsigned char b) { return b == value; });
}

// Lets some time pass, more with each round, so that the broadcast is aborted at another point each
// time.
void delay(int round) {
  for (int i = 0; i < round * 20; i++) std::this_thread::yield();
}

// Makes one broadcast on a communicator of its own, which the receiver aborts meanwhile. Returns
// the status of the broadcast. The receiver uses its memory again at once.
fsccl_status_t broadcast_and_abort(const Child& self, fsccl_comm_t part, int round,
                                   std::vector<unsigned char>& bytes) {
  if (self.rank == 0)
    return fsccl_broadcast(bytes.data(), kBytes, FSCCL_UINT8, 0, part, nullptr, nullptr);
  std::thread aborts([&] {
    delay(round);
    tell("abort", fsccl_comm_abort(part));
  });
  const fsccl_status_t status =
      fsccl_broadcast(bytes.data(), kBytes, FSCCL_UINT8, 0, part, nullptr, nullptr);
  if (status < 0) std::fill(bytes.begin(), bytes.end(), kOwn);
  aborts.join();
  return status;
}

int writes(const Child& self) {
  fsccl_comm_t world = nullptr;
  if (tell("join", fsccl_comm_create(nullptr, &world))) return 3;
  std::vector<unsigned char> bytes(kBytes);
  int wrong = 0, failed = 0;
  for (int round = 0; round < kRounds; round++) {
    fsccl_comm_t part = nullptr;
    std::fill(bytes.begin(), bytes.end(), self.rank == 0 ? kSent : 0);
    if (tell("split", fsccl_comm_split(world, 0, 0, nullptr, &part))) return 4;
    const fsccl_status_t status = broadcast_and_abort(self, part, round, bytes);
    failed += status < 0;
    // When all ranks are here, the call of the root is over.
    if (tell("barrier", fsccl_barrier(world, nullptr, nullptr))) return 5;
    wrong += self.rank > 0 && !all_are(bytes, status < 0 ? kOwn : kSent);
    if (tell("destroy", fsccl_comm_destroy(part))) return 6;
  }
  std::printf("wrong: %d, failed: %d\n", wrong, failed);
  return tell("comm", fsccl_comm_destroy(world)) || wrong ? 7 : 0;
}

// Forbids this process to write to the memory of others, as a container may do.
bool forbid_writes() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_writev, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{std::size(program), program};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

// Broadcasts on a communicator and on a part of it, where rank 1 may not write.
int reads_only(const Child& self) {
  if (self.rank == 1 && !forbid_writes()) return 3;
  fsccl_comm_t world = nullptr, part = nullptr;
  if (tell("join", fsccl_comm_create(nullptr, &world)) ||
      tell("split", fsccl_comm_split(world, 0, -self.rank, nullptr, &part)))
    return 4;
  std::vector<unsigned char> bytes(kBytes);
  for (const fsccl_comm_t comm : {world, part})
    for (int root = 0; root < 2; root++) {
      const bool own = root == (comm == world ? self.rank : 1 - self.rank);
      std::fill(bytes.begin(), bytes.end(), own ? kSent : 0);
      if (tell("broadcast",
               fsccl_broadcast(bytes.data(), kBytes, FSCCL_UINT8, root, comm, nullptr, nullptr)))
        return 5;
      if (!all_are(bytes, kSent)) return 6;
    }
  return tell("part", fsccl_comm_destroy(part)) || tell("comm", fsccl_comm_destroy(world)) ? 7 : 0;
}

TEST(Writes, AreNotMadeWhereOneRankMayOnlyRead) {
  Processes processes;
  for (int rank = 0; rank < 2; rank++)
    processes.start("reads_only", rank, 2, job(rank, 2, 20464, "on"));
  EXPECT_TRUE(processes.finish(kLimitMs)) << processes.report();
  for (int rank = 0; rank < 2; rank++)
    EXPECT_EQ(processes.exit_code(rank), 0) << processes.report();
}

TEST(Writes, EndWithTheCallOfTheReceiver) {
  Processes processes;
  for (int rank = 0; rank < 2; rank++)
    processes.start("writes", rank, 2, job(rank, 2, 20463, "on"));
  EXPECT_TRUE(processes.finish(kLimitMs)) << processes.report();
  for (int rank = 0; rank < 2; rank++)
    EXPECT_EQ(processes.exit_code(rank), 0) << processes.report();
  EXPECT_THAT(processes.output(1), ::testing::Not(::testing::HasSubstr("failed: 0")));
}

const AddRoles roles{{"writes", writes}, {"reads_only", reads_only}};

}  // namespace
}  // namespace fsccl::testing::writes_tests
