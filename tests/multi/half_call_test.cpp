// Calls that submit several operations, on a rank that finds no memory in the middle of them: an
// allocation of the calling thread fails, each time another one. If nothing was submitted before,
// the call can be made again. If something was, the other ranks would wait for the rest: then all
// ranks read the error of that rank at once, and none waits for its deadline.
#include <fsccl/codec.h>
#include <fsccl/fsccl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <climits>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "multi/processes.h"

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

constexpr int kRanks = 4, kFaulty = 0;
constexpr const char* kTimeoutMs = "20000";
constexpr int64_t kSoonMs = 15'000, kLimitMs = 200'000;  // kSoonMs lies below the timeout
constexpr size_t kCount = 100'000;
// A first call has hundreds of allocations. The last ones all fail, and fewer of those before.
constexpr int kSparse = 4;

struct Call {
  fsccl_comm_t comm = nullptr;   // that of the call, on which it may fail
  std::function<void()> before;  // done without a fault
  std::function<fsccl_status_t()> run;
  std::function<void()> give_back;
};
using Maker = std::function<Call(const Child&, fsccl_comm_t world)>;

// Ends the process with a message if something does not hold.
void must(bool good, const std::string& what) {
  if (good) return;
  fsccl_error_info_t error = FSCCL_ERROR_INFO_INIT;
  fsccl_last_error(&error);
  std::printf("%s (last error: %d, %s)\n", what.c_str(), error.code, error.text);
  std::fflush(nullptr);
  _exit(1);
}
void must_do(fsccl_status_t status, const char* what) { must(status >= 0, what); }

fsccl_comm_t part_of(fsccl_comm_t world, int color) {
  fsccl_comm_t part = nullptr;
  must_do(fsccl_comm_split(world, color, 0, nullptr, &part), "split");
  return part;
}

using Collective = fsccl_status_t (*)(std::vector<float>& all, std::vector<float>& own,
                                      fsccl_comm_t comm);
Maker collective(Collective call) {
  return [call](const Child&, fsccl_comm_t world) {
    Call made;
    made.comm = part_of(world, 0);
    const auto all = std::make_shared<std::vector<float>>(kRanks * kCount);
    const auto own = std::make_shared<std::vector<float>>(kRanks * kCount);
    made.before = [] {};
    made.run = [=] { return call(*all, *own, made.comm); };
    made.give_back = [] {};
    return made;
  };
}

struct UnitCase {
  bool reduces = false, replicas = false;
  fsccl_codec_kind_t gather = FSCCL_CODEC_NONE, sums = FSCCL_CODEC_NONE;
};
Maker unit_call(const UnitCase& c) {
  return [c](const Child& self, fsccl_comm_t world) {
    fsccl_comm_t shards = part_of(world, c.replicas ? self.rank / 2 : 0), replicas = nullptr;
    if (c.replicas) replicas = part_of(world, self.rank % 2);
    fsccl_pool_t pool = nullptr;
    must_do(fsccl_pool_create(shards, nullptr, &pool), "pool_create");
    fsccl_codec_t gather = FSCCL_CODEC_INIT, sums = FSCCL_CODEC_INIT;
    gather.kind = c.gather;
    gather.flags = c.gather == FSCCL_CODEC_DELTA ? FSCCL_CODEC_NEVER_DECLINES : 0;
    sums.kind = c.sums;
    std::vector<fsccl_param_t> params(3, fsccl_param_t FSCCL_PARAM_INIT);
    for (fsccl_param_t& param : params) param.dims = 2, param.shape[0] = 64, param.shape[1] = 257;
    fsccl_unit_config_t config = FSCCL_UNIT_CONFIG_INIT;
    config.shard_comm = shards;
    config.replicate_comm = replicas;
    config.pool = pool;
    if (c.gather != FSCCL_CODEC_NONE) config.gather_codec = &gather;
    if (c.sums != FSCCL_CODEC_NONE) config.reduce_codec = &sums;
    fsccl_unit_t unit = nullptr;
    must_do(fsccl_unit_create(&config, params.data(), params.size(), &unit), "unit_create");
    Call made;
    made.comm = replicas ? replicas : shards;
    made.before = [=, count = params.size()] {
      fsccl_view_t view{};
      for (size_t i = 0; c.reduces && i < count; i++)
        must_do(fsccl_unit_grad(unit, i, nullptr, &view), "grad");
    };
    made.run = [=] {
      return c.reduces ? fsccl_unit_reduce_grads(unit, nullptr, nullptr, nullptr)
                       : fsccl_unit_unshard(unit, FSCCL_UNSHARD_READ, nullptr, nullptr);
    };
    made.give_back = [=] {
      must_do(fsccl_unit_destroy(unit), "unit_destroy");
      must_do(fsccl_pool_destroy(pool), "pool_destroy");
      if (replicas) must_do(fsccl_comm_destroy(shards), "destroy");
    };
    return made;
  };
}

const std::vector<std::pair<std::string, Maker>>& calls() {
  using Floats = std::vector<float>;
  static const size_t counts[kRanks] = {kCount, 7, kCount, kCount};
  static const std::vector<std::pair<std::string, Maker>> made = {
      {"all_gather", collective([](Floats& all, Floats& own, fsccl_comm_t comm) {
         return fsccl_all_gather(own.data(), all.data(), kCount, FSCCL_FLOAT32, comm, nullptr,
                                 nullptr);
       })},
      {"reduce_scatter", collective([](Floats& all, Floats& own, fsccl_comm_t comm) {
         return fsccl_reduce_scatter(all.data(), own.data(), kCount, FSCCL_BFLOAT16, FSCCL_SUM,
                                     comm, nullptr, nullptr);
       })},
      {"all_reduce", collective([](Floats& all, Floats& own, fsccl_comm_t comm) {
         return fsccl_all_reduce(all.data(), own.data(), kCount, FSCCL_FLOAT32, FSCCL_AVG, comm,
                                 nullptr, nullptr);
       })},
      {"all_reduce of bf16", collective([](Floats& all, Floats& own, fsccl_comm_t comm) {
         return fsccl_all_reduce(all.data(), own.data(), kCount, FSCCL_BFLOAT16, FSCCL_SUM, comm,
                                 nullptr, nullptr);
       })},
      {"broadcast", collective([](Floats& all, Floats&, fsccl_comm_t comm) {
         return fsccl_broadcast(all.data(), kCount, FSCCL_FLOAT32, 1, comm, nullptr, nullptr);
       })},
      {"all_gather_list", collective([](Floats& all, Floats& own, fsccl_comm_t comm) {
         const fsccl_tensor_t tensor{own.data(), all.data(), counts, FSCCL_FLOAT32};
         return fsccl_all_gather_list(&tensor, 1, comm, nullptr, nullptr);
       })},
      {"reduce_scatter_list", collective([](Floats& all, Floats& own, fsccl_comm_t comm) {
         const fsccl_tensor_t tensor{all.data(), own.data(), counts, FSCCL_FLOAT32};
         return fsccl_reduce_scatter_list(&tensor, 1, FSCCL_SUM, comm, nullptr, nullptr);
       })},
      {"broadcast_list", collective([](Floats& all, Floats&, fsccl_comm_t comm) {
         const fsccl_tensor_t tensor{nullptr, all.data(), counts, FSCCL_FLOAT32};
         return fsccl_broadcast_list(&tensor, 1, 2, comm, nullptr, nullptr);
       })},
      {"unshard", unit_call({})},
      {"unshard with differences", unit_call({.gather = FSCCL_CODEC_DELTA})},
      {"unshard with blocks", unit_call({.gather = FSCCL_CODEC_MXFP8})},
      {"reduce_grads", unit_call({.reduces = true})},
      {"reduce_grads with blocks", unit_call({.reduces = true, .sums = FSCCL_CODEC_INT8})},
      {"reduce_grads of replicas", unit_call({.reduces = true, .replicas = true})},
  };
  return made;
}

bool says_no_memory(fsccl_status_t status) {
  fsccl_error_info_t error = FSCCL_ERROR_INFO_INIT;
  fsccl_last_error(&error);
  return status == FSCCL_ERR_OUT_OF_MEMORY && error.code == status &&
         std::string(error.text).find("rank 0 of ") != std::string::npos;
}

// kAgain: nothing was submitted, and the call was made again.
enum Outcome : int { kNoFault, kAgain, kFailed };

struct Faulty {
  int allocations = 0;  // how many a call without a fault makes
  int number = 0;       // the number of the allocation that fails next; 0: none
  int times[3] = {};    // by Outcome

  Outcome run(const Call& call, fsccl_status_t* status) {
    to_fail = number ? number : INT_MAX;
    *status = call.run();
    const int left = std::exchange(to_fail, 0);
    if (number == 0) allocations = INT_MAX - left;
    fsccl_status_t state = FSCCL_OK;
    must_do(fsccl_comm_async_error(call.comm, &state), "async_error");
    const Outcome outcome = state < 0 ? kFailed : *status < 0 ? kAgain : kNoFault;
    if (outcome == kAgain) *status = call.run();
    times[outcome]++;
    return outcome;
  }
  // Advances from the last allocation to the first, since the first are those of plans.
  bool next() {
    number = number ? number - 1 - (allocations - number) / kSparse : allocations;
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
  fsccl_status_t status = FSCCL_OK;
  int outcome = kNoFault;
  const auto begin = std::chrono::steady_clock::now();
  if (self.rank == kFaulty)
    outcome = faulty->run(call, &status);
  else
    status = call.run();
  const int64_t took = (std::chrono::steady_clock::now() - begin) / std::chrono::milliseconds(1);
  must(took < kSoonMs, what + "it ended after " + std::to_string(took) + " ms");
  must(status >= 0 || says_no_memory(status), what + "another error");
  must_do(fsccl_broadcast(&outcome, 1, FSCCL_INT32, kFaulty, world, nullptr, nullptr), "tell");
  must(outcome == kFailed || status >= 0, what + "no rank was to fail");
  // A rank that needed nothing more from the faulty one learns of the failure in the next call. The
  // failure does not concern replicas of other shards.
  const bool concerned = name.find("replicas") == std::string::npos || self.rank % 2 == 0;
  const fsccl_status_t next = fsccl_barrier(call.comm, nullptr, nullptr);
  must(outcome == kFailed && concerned ? says_no_memory(next) : next >= 0,
       what + "the call behind it");
  call.give_back();
  must_do(fsccl_comm_destroy(call.comm), "destroy");
}

int member(const Child& self) {
  fsccl_comm_t world = nullptr;
  must_do(fsccl_comm_create(nullptr, &world), "comm_create");
  for (const auto& [name, make] : calls()) {
    Faulty faulty;
    for (int more = 1; more;) {
      call_once(self, world, name, make, &faulty);
      if (self.rank == kFaulty) more = faulty.next();
      must_do(fsccl_broadcast(&more, 1, FSCCL_INT32, kFaulty, world, nullptr, nullptr), "tell");
    }
    if (self.rank != kFaulty) continue;
    std::printf("%s: %d allocations; %d failed it, %d let it be made again\n", name.c_str(),
                faulty.allocations, faulty.times[kFailed], faulty.times[kAgain]);
    must(faulty.times[kFailed] > 0, name + " has no allocation behind its first operation");
  }
  must_do(fsccl_comm_destroy(world), "destroy");
  return 0;
}

TEST(HalfCall, FailsOnAllRanksAtOnce) {
  Processes processes;
  for (int rank = 0; rank < kRanks; rank++)
    processes.start("member", rank, kRanks,
                    with(job(rank, kRanks, 20450), {{"FSCCL_HOST_ID", rank < 2 ? "a" : "b"},
                                                    {"FSCCL_NETWORK", "tcp"},
                                                    {"FSCCL_HIERARCHY", "on"},
                                                    {"FSCCL_TIMEOUT_MS", kTimeoutMs},
                                                    {"CUDA_VISIBLE_DEVICES", ""}}));
  EXPECT_TRUE(processes.finish(limit_ms(kLimitMs))) << processes.report();
  std::printf("%s", processes.output(kFaulty).c_str());
}

}  // namespace
}  // namespace fsccl::testing

int main(int argc, char** argv) {
  using namespace fsccl::testing;
  if (const auto code = run_role(argc, argv, {{"member", member}})) return *code;
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
