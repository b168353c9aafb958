// Tests calls that submit several operations, and calls in which ranks agree in several steps, when
// one rank finds no memory in the middle of them. One allocation of the calling thread fails, a
// different one in each run. If the call had submitted nothing by then, it can be made again. If it
// had submitted something, the other ranks would wait for the rest. They get the error of that rank
// at once instead, and none waits for its deadline.
#include <fsccl/fsccl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <climits>
#include <cstddef>
#include <string>

#include "multi/half_calls.h"

extern "C" {
void* __libc_malloc(size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);
}

namespace {
thread_local int to_fail = 0;  // the number of the allocation that fails; 0: none
bool fails() { return to_fail && --to_fail == 0; }
}  // namespace

// The library's allocations call these functions as well, because the program's definitions come
// first.
extern "C" {
void* malloc(size_t bytes) {
  if (fails()) return errno = ENOMEM, nullptr;
  return __libc_malloc(bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) {
  if (fails()) return errno = ENOMEM, nullptr;
  return __libc_memalign(alignment, bytes);
}
}

namespace fsccl::testing {
namespace {

constexpr int kFaulty = 0;
constexpr const char* kTimeoutMs = "20000";
constexpr int64_t kSoonMs = 15'000, kLimitMs = 200'000;  // kSoonMs lies below the timeout
// If a call makes at most kFew allocations, each of them fails in a run. A first call makes
// hundreds, so not each of them does: the distance between tested allocations grows by one for
// every kSparse allocations from the last.
constexpr int kFew = 80, kSparse = 4;

struct Told {
  fsccl_status_t status;
  std::string text;
  bool has(const char* words) const { return text.find(words) != std::string::npos; }
  bool names_rank() const { return status < 0 && has("rank 0"); }
  bool no_memory() const { return status == FSCCL_ERR_OUT_OF_MEMORY; }
};
Told told(fsccl_status_t status) {
  fsccl_error_info_t error = FSCCL_ERROR_INFO_INIT;
  fsccl_last_error(&error);
  return {status, error.text};
}

// The effect of a call in which an allocation fails. kNoFault: the call succeeded nevertheless.
// kAgain: nothing was submitted, and the call was made again. kRefused: all ranks agreed on an
// error. kFailed: the communicator has failed.
enum Outcome : int { kNoFault, kAgain, kRefused, kFailed };

struct Faulty {
  int allocations = 0;  // the number that a call without a fault makes
  int number = 0;       // the number of the allocation that fails next; 0: none
  int times[4] = {};    // by Outcome

  Outcome run(const Call& call, Told* first) {
    to_fail = number ? number : INT_MAX;
    const fsccl_status_t status = call.run();
    const int left = std::exchange(to_fail, 0);
    *first = told(status);
    if (number == 0) allocations = INT_MAX - left;
    fsccl_status_t state = FSCCL_OK;
    must_do(fsccl_comm_async_error(call.comm, &state), "async_error");
    const Outcome outcome = state < 0                                       ? kFailed
                            : status >= 0                                   ? kNoFault
                            : first->has("no memory for the library's own") ? kAgain
                                                                            : kRefused;
    if (outcome == kAgain) *first = told(call.run());
    times[outcome]++;
    return outcome;
  }
  // Advances from the last allocation towards the first, because the first ones are those of plans.
  bool next() {
    const int skipped = allocations > kFew ? (allocations - number) / kSparse : 0;
    number = number ? number - 1 - skipped : allocations;
    return number > 0;
  }
};

// Makes the call once, with a fault on the faulty rank, and checks the status of all ranks.
void call_once(const Child& self, fsccl_comm_t world, const std::string& name, const Maker& make,
               Faulty* faulty) {
  const std::string what = name + ", allocation " + std::to_string(faulty->number) + ": ";
  const Call call = make(self, world);
  call.before();
  must_do(fsccl_barrier(world, nullptr, nullptr), "barrier");
  Told mine{};
  int outcome = kNoFault;
  const auto begin = std::chrono::steady_clock::now();
  if (self.rank == kFaulty)
    outcome = faulty->run(call, &mine);
  else
    mine = told(call.run());
  const int64_t took = (std::chrono::steady_clock::now() - begin) / std::chrono::milliseconds(1);
  must(took < kSoonMs, what + "it ended after " + std::to_string(took) + " ms");
  must_do(fsccl_broadcast(&outcome, 1, FSCCL_INT32, kFaulty, world, nullptr, nullptr), "tell");
  // A rank that needed nothing more from the faulty one learns of the failure in the next call.
  // Replicas of other shards learn of it only where they wait for one that has failed.
  const std::string then = what + "outcome " + std::to_string(outcome) + ", " + mine.text + ": ";
  must(mine.status >= 0     ? outcome != kRefused
       : outcome == kFailed ? mine.no_memory() && (self.rank == kFaulty || mine.names_rank())
                            : outcome == kRefused && (self.rank == kFaulty || mine.names_rank()),
       then + "another error");
  const bool concerned = name.find("replicas") == std::string::npos || self.rank % 2 == 0;
  const Told next = told(fsccl_barrier(call.comm, nullptr, nullptr));
  const bool failed = next.no_memory() && next.names_rank();
  must(outcome != kFailed ? next.status >= 0 : failed || (!concerned && next.status >= 0),
       then + "the call behind it");
  call.give_back();
  must_do(fsccl_comm_destroy(call.comm), "destroy");
}

int fail_each(const Child& self, const NamedCalls& calls) {
  fsccl_comm_t world = nullptr;
  must_do(fsccl_comm_create(nullptr, &world), "comm_create");
  for (const auto& [name, make] : calls) {
    Faulty faulty;
    for (int more = 1; more;) {
      call_once(self, world, name, make, &faulty);
      if (self.rank == kFaulty) more = faulty.next();
      must_do(fsccl_broadcast(&more, 1, FSCCL_INT32, kFaulty, world, nullptr, nullptr), "tell");
    }
    if (self.rank != kFaulty) continue;
    std::printf("%s: %d allocations; %d failed it, %d were refused, %d let it be made again\n",
                name.c_str(), faulty.allocations, faulty.times[kFailed], faulty.times[kRefused],
                faulty.times[kAgain]);
    must(faulty.times[kFailed] > 0, name + " has no allocation behind its first operation");
  }
  must_do(fsccl_comm_destroy(world), "destroy");
  return 0;
}

int operations_member(const Child& self) { return fail_each(self, operations()); }
int agreements_member(const Child& self) { return fail_each(self, agreements()); }

// The survivors of an aborted communicator make the next one, and allocations of one of them fail.
// Either all get the communicator or none does, at once, and then the next call gives it to all.
void shrink_once(const Child& self, fsccl_comm_t world, Faulty* faulty) {
  fsccl_comm_t old = part_of(world, 0), next = nullptr;
  must_do(fsccl_barrier(world, nullptr, nullptr), "barrier");
  if (self.rank == kRanks - 1) must_do(fsccl_comm_abort(old), "abort");
  while (fsccl_barrier(old, nullptr, nullptr) >= 0) {
  }
  const auto begin = std::chrono::steady_clock::now();
  const auto shrink = [&] { return fsccl_comm_shrink(old, nullptr, &next); };
  if (self.rank == kFaulty) to_fail = faulty->number ? faulty->number : INT_MAX;
  const fsccl_status_t first = shrink();
  const int left = self.rank == kFaulty ? std::exchange(to_fail, 0) : 0;
  Told mine = told(first);
  if (self.rank == kFaulty && faulty->number == 0) faulty->allocations = INT_MAX - left;
  const std::string what = "shrink, allocation " + std::to_string(faulty->number) + ": ";
  // If the faulty rank has told nobody yet, the others wait for its next call.
  if (mine.status < 0) {
    must(mine.no_memory() && (self.rank == kFaulty || mine.names_rank()), what + mine.text);
    faulty->times[kRefused]++;
    mine = told(shrink());
  }
  const int64_t took = (std::chrono::steady_clock::now() - begin) / std::chrono::milliseconds(1);
  must(mine.status >= 0, what + mine.text);
  must(took < kSoonMs, what + "it ended after " + std::to_string(took) + " ms");
  must_do(fsccl_barrier(next, nullptr, nullptr), "barrier of the survivors");
  must_do(fsccl_comm_destroy(next), "destroy");
  must_do(fsccl_comm_destroy(old), "destroy");
}

int shrink_member(const Child& self) {
  fsccl_comm_t world = nullptr;
  must_do(fsccl_comm_create(nullptr, &world), "comm_create");
  Faulty faulty;
  for (int more = 1; more;) {
    shrink_once(self, world, &faulty);
    if (self.rank == kFaulty) {  // each allocation fails once
      faulty.number = faulty.number ? faulty.number - 1 : faulty.allocations;
      more = faulty.number > 0;
    }
    must_do(fsccl_broadcast(&more, 1, FSCCL_INT32, kFaulty, world, nullptr, nullptr), "tell");
  }
  std::printf("%d allocations; %d calls were refused\n", faulty.allocations,
              faulty.times[kRefused]);
  must_do(fsccl_comm_destroy(world), "destroy");
  return 0;
}

// Returns false if a link was broken, which all ranks must have learnt. A rank ends when it learns
// of it, so others may have learnt of that end instead.
bool run_once(const char* role, int port, int hosts) {
  Processes processes;
  for (int rank = 0; rank < kRanks; rank++)
    processes.start(
        role, rank, kRanks,
        with(job(rank, kRanks, port), {{"FSCCL_HOST_ID", rank * hosts / kRanks ? "b" : "a"},
                                       {"FSCCL_NETWORK", "tcp"},
                                       {"FSCCL_HIERARCHY", "on"},
                                       {"FSCCL_TIMEOUT_MS", kTimeoutMs},
                                       {"CUDA_VISIBLE_DEVICES", ""}}));
  const bool good = processes.finish(limit_ms(kLimitMs));
  int broken = 0, learnt = 0;
  for (int rank = 0; rank < kRanks; rank++) {
    const bool by_link = processes.exit_code(rank) == kLinkBroken;
    broken += by_link;
    learnt += by_link || processes.output(rank).find(" died)") != std::string::npos;
  }
  EXPECT_TRUE(good || (broken && learnt == kRanks)) << processes.report();
  std::printf("%s", processes.output(kFaulty).c_str());
  return broken == 0;
}

// In the next run other allocations fail, because their number varies.
void run_members(const char* role, int port, int hosts) {
  constexpr int kRuns = 6;
  for (int run = 0; run < kRuns && !::testing::Test::HasFailure(); run++)
    if (run_once(role, port + run, hosts)) return;
  FAIL() << "a link was broken in each of " << kRuns << " runs";
}

TEST(HalfCall, FailsOnAllRanksAtOnce) { run_members("operations", 20450, 2); }
TEST(HalfAgreement, FailsOnAllRanksAtOnce) { run_members("agreements", 20460, 2); }
// On one host: between hosts a link that finds no memory is broken for good, and its two ranks
// cannot go on together.
TEST(HalfShrink, IsRefusedByAllRanksAtOnce) { run_members("shrink", 20480, 1); }

}  // namespace
}  // namespace fsccl::testing

int main(int argc, char** argv) {
  using namespace fsccl::testing;
  if (const auto code = run_role(argc, argv,
                                 {{"operations", operations_member},
                                  {"agreements", agreements_member},
                                  {"shrink", shrink_member}}))
    return *code;
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
