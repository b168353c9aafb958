// Tests units on GPUs of which one rank finds no memory in the middle of a call. One allocation of
// the rank fails, another one in each run. If the call had told no other rank by then, it can be
// made again. Otherwise the communicator fails at once, and no stream waits for this rank.
#include <dlfcn.h>

#include <chrono>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>

#include "fsccl/insight.h"
#include "mesh.h"
#include "on_gpu.h"

namespace {

thread_local int to_fail = 0;  // the number of the library's allocation that fails; 0: none

// Returns true if the code at this address is the library's. The stand-in for the driver finds
// memory.
bool of_the_library(const void* code) {
  Dl_info here{}, library{};
  return dladdr(code, &here) &&
         dladdr(reinterpret_cast<const void*>(fsccl_unit_unshard), &library) &&
         here.dli_fbase == library.dli_fbase;
}

}  // namespace

// The library calls this function as well, because the program's definition comes first.
[[gnu::noinline]] void* operator new(size_t bytes) {
  if (to_fail && of_the_library(__builtin_return_address(0)) && --to_fail == 0)
    throw std::bad_alloc();
  if (void* const memory = std::malloc(bytes ? bytes : 1)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace fsccl::testing {
namespace {

constexpr auto kSoon = std::chrono::seconds(20);  // below the timeout of run_ranks()

// A rank with a unit, and memory of the caller.
struct Caller {
  fsccl_comm_t comm;
  fsccl_unit_t unit = nullptr;
  CudaStream* stream;
  std::byte *memory, *sums;
  static constexpr size_t kBytes = (4 << 20) - 64;  // two equal rounds of a staged call
  // Two ranks exchange each other's part in two rounds, with as many elements in both.
  static constexpr size_t kSummed = 8 << 20;  // elements of a rank's part
};
using Call = fsccl_status_t (*)(const Caller& caller);

fsccl_status_t unshard(const Caller& caller) {
  return fsccl_unit_unshard(caller.unit, FSCCL_UNSHARD_READ, caller.stream, nullptr);
}
fsccl_status_t reduce_grads(const Caller& caller) {
  return fsccl_unit_reduce_grads(caller.unit, nullptr, caller.stream, nullptr);
}
fsccl_status_t reduce_callers_grads(const Caller& caller) {
  const void* const grads[] = {caller.memory, caller.memory + (256 << 10)};
  fsccl_reduce_config_t config = FSCCL_REDUCE_CONFIG_INIT;
  config.grads = grads;
  return fsccl_unit_reduce_grads(caller.unit, &config, caller.stream, nullptr);
}
fsccl_status_t broadcast(const Caller& caller) {
  return fsccl_broadcast(caller.memory, Caller::kBytes, FSCCL_UINT8, 0, caller.comm, caller.stream,
                         nullptr);
}

fsccl_status_t reduce_scatter(const Caller& caller) {
  return fsccl_reduce_scatter(caller.memory, caller.sums, Caller::kSummed, FSCCL_BFLOAT16,
                              FSCCL_SUM, caller.comm, caller.stream, nullptr);
}

// Elements that ranks reduce_scatter(): 1 in the first round, and 2 in the second.
std::vector<uint16_t> rounds(uint16_t one, uint16_t two, size_t parts) {
  std::vector<uint16_t> elements(parts * Caller::kSummed, one);
  for (size_t part = 0; part < parts; part++) {
    const auto begin = elements.begin() + static_cast<ptrdiff_t>(part * Caller::kSummed);
    std::fill_n(begin + Caller::kSummed / 2, Caller::kSummed / 2, two);
  }
  return elements;
}

// Makes the call on both ranks, in which the allocation `number` of rank 0 fails. Returns how many
// allocations the call makes on rank 0 if none fails (number 0). Counts in *failed the
// communicators that failed.
int call_once(Rank& self, const UnitCase& c, Call call, int number, int* failed) {
  fsccl_comm_t comm = nullptr;
  EXPECT_OK(fsccl_comm_split(self.comm, 0, self.rank, nullptr, &comm));
  Rank part = self;
  part.comm = comm;
  int allocations = 0;
  {
    OnGpu on(part);
    // Rank 0 has other bytes in the second round of a broadcast, and rank 1 has zeros.
    std::vector<char> bytes(Caller::kBytes, 1), zeros(bytes.size());
    std::fill_n(bytes.begin(), bytes.size() / 2, 2);
    const bool sums = call == reduce_scatter;
    const size_t part_bytes = sums ? Caller::kSummed * sizeof(uint16_t) : 0;
    Caller caller{
        .comm = comm,
        .stream = on.stream,
        .memory = static_cast<std::byte*>(on.gpu.memory(std::max(bytes.size(), 2 * part_bytes))),
        .sums = static_cast<std::byte*>(on.gpu.memory(std::max<size_t>(part_bytes, 1)))};
    EXPECT_OK(make_unit(c, comm, on.pool.get(), &caller.unit));
    for (size_t i = 0; call == reduce_grads && i < c.params.size(); i++) {
      fsccl_view_t view{};
      EXPECT_OK(fsccl_unit_grad(caller.unit, i, on.stream, &view));
    }
    // The first call makes what later ones use.
    if (call == broadcast || sums) {
      EXPECT_OK(call(caller));
    }
    on.gpu.copy(caller.memory, (self.rank ? zeros : bytes).data(), bytes.size(), on.stream);
    constexpr uint16_t kOne = 0x3f80, kTwo = 0x4000, kFour = 0x4080;  // in bf16
    if (sums) on.gpu.copy(caller.memory, rounds(kOne, kTwo, 2).data(), 2 * part_bytes, on.stream);
    on.gpu.synchronize(on.stream);
    EXPECT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
    const auto begin = std::chrono::steady_clock::now();
    if (self.rank == 0) to_fail = number ? number : INT_MAX;
    fsccl_status_t status = call(caller);
    if (self.rank == 0) allocations = INT_MAX - std::exchange(to_fail, 0);
    fsccl_status_t state = FSCCL_OK;
    EXPECT_OK(fsccl_comm_async_error(comm, &state));
    if (status < 0 && state >= 0) status = call(caller);  // nobody was told
    on.gpu.synchronize(on.stream);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, kSoon) << "allocation " << number;
    EXPECT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
    EXPECT_OK(fsccl_comm_async_error(comm, &state));
    EXPECT_TRUE(status >= 0 || state < 0) << "allocation " << number << ": " << explain(status);
    *failed += state < 0;
    if (call == broadcast && state >= 0) {
      EXPECT_TRUE(on.gpu.read(caller.memory, bytes.size(), on.stream) == bytes)
          << "allocation " << number;
    }
    if (sums && state >= 0) {
      std::vector<char> expected(part_bytes);
      std::memcpy(expected.data(), rounds(kTwo, kFour, 1).data(), part_bytes);
      EXPECT_TRUE(on.gpu.read(caller.sums, part_bytes, on.stream) == expected)
          << "allocation " << number;
    }
    EXPECT_OK(fsccl_unit_destroy(caller.unit));
  }
  EXPECT_OK(fsccl_comm_destroy(comm));
  return allocations;
}

// Reduces a unit of two replicas of two ranks, in which the allocation `number` of rank 0 fails.
// The other replica waits for rank 0 in the sum over the replicas.
int reduce_replicas_once(Rank& self, int number, int* failed) {
  const Mesh mesh(self, 2);
  Rank part = self;
  part.comm = mesh.shard;
  OnGpu on(part);
  fsccl_unit_t unit = nullptr;
  EXPECT_OK(make_unit(simple_unit({{64, 257}, {33}}), mesh.shard, on.pool.get(), &unit, {}, {},
                      mesh.replicas));
  for (size_t i = 0; i < 2; i++) {
    fsccl_view_t view{};
    EXPECT_OK(fsccl_unit_grad(unit, i, on.stream, &view));
  }
  on.gpu.synchronize(on.stream);
  EXPECT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
  const auto begin = std::chrono::steady_clock::now();
  if (self.rank == 0) to_fail = number ? number : INT_MAX;
  fsccl_status_t status = fsccl_unit_reduce_grads(unit, nullptr, on.stream, nullptr);
  const int allocations = self.rank == 0 ? INT_MAX - std::exchange(to_fail, 0) : 0;
  const auto state = [&] {
    fsccl_status_t of_shard = FSCCL_OK, of_replicas = FSCCL_OK;
    EXPECT_OK(fsccl_comm_async_error(mesh.shard, &of_shard));
    EXPECT_OK(fsccl_comm_async_error(mesh.replicas, &of_replicas));
    return std::min(of_shard, of_replicas);
  };
  if (status < 0 && state() >= 0)  // nobody was told
    status = fsccl_unit_reduce_grads(unit, nullptr, on.stream, nullptr);
  // A thread that waits in the driver would keep the other ranks, which are threads, out of it.
  EXPECT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
  on.gpu.synchronize(on.stream);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kSoon) << "allocation " << number;
  EXPECT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
  EXPECT_TRUE(status >= 0 || state() < 0) << "allocation " << number << ": " << explain(status);
  *failed += state() < 0;
  EXPECT_OK(fsccl_unit_destroy(unit));
  return allocations;
}

class DeviceNoMemory : public OnGpus {
 protected:
  // Lets each allocation of a call fail once. once() makes the call.
  void fail_each(const char* plan, int ranks,
                 const std::function<int(Rank& self, int number, int* failed)>& once) {
    const Settings settings{{"FSCCL_PLAN", plan}};
    run_ranks(
        ranks,
        [&](Rank& self) {
          int failed = 0, number = once(self, 0, &failed);
          while (true) {
            ASSERT_OK(fsccl_broadcast(&number, 1, FSCCL_INT32, 0, self.comm, nullptr, nullptr));
            if (number == 0 || HasFailure()) break;
            (void)once(self, number, &failed);
            number--;
          }
          EXPECT_GT(failed, 0) << "no allocation is behind the begin of the call";
        },
        {.timeout_ms = 30'000});
  }
  void fail_each(const char* plan, Call call, const fsccl_codec_t& codec = FSCCL_CODEC_INIT,
                 bool by_parameter = false) {
    UnitCase c = simple_unit({{64, 257}, {33}});
    c.gather_codec = c.reduce_codec = codec;
    c.by_parameter = by_parameter;
    fail_each(plan, 2, [&](Rank& self, int number, int* failed) {
      return call_once(self, c, call, number, failed);
    });
  }
};

TEST_F(DeviceNoMemory, UnshardByPeers) { fail_each("unit_unshard=p2p", unshard); }
TEST_F(DeviceNoMemory, UnshardByCollectives) { fail_each("unit_unshard=collectives", unshard); }
TEST_F(DeviceNoMemory, ReduceByPeers) { fail_each("unit_unshard=p2p", reduce_grads); }
TEST_F(DeviceNoMemory, ReduceByCollectives) { fail_each("unit_unshard=collectives", reduce_grads); }
TEST_F(DeviceNoMemory, ReduceWithACodec) {
  fsccl_codec_t codec = FSCCL_CODEC_INIT;
  codec.kind = FSCCL_CODEC_INT8;
  codec.scope = FSCCL_CODEC_EVERYWHERE;
  fail_each("", reduce_grads, codec);
}

TEST_F(DeviceNoMemory, ReduceOfReplicasByPeers) {
  fail_each("unit_unshard=p2p", 4, reduce_replicas_once);
}
TEST_F(DeviceNoMemory, ReduceOfReplicasByCollectives) {
  fail_each("unit_unshard=collectives", 4, reduce_replicas_once);
}

TEST_F(DeviceNoMemory, UnshardByParameter) { fail_each("", unshard, FSCCL_CODEC_INIT, true); }
TEST_F(DeviceNoMemory, ReduceByParameter) { fail_each("", reduce_grads, FSCCL_CODEC_INIT, true); }
TEST_F(DeviceNoMemory, ReduceCallersGradients) { fail_each("", reduce_callers_grads); }
TEST_F(DeviceNoMemory, ReduceCallersGradientsByParameter) {
  fail_each("", reduce_callers_grads, FSCCL_CODEC_INIT, true);
}
TEST_F(DeviceNoMemory, BroadcastInRounds) { fail_each("broadcast=staged", broadcast); }
// UCX or NCCL exchanges what is summed, so this test needs one of them.
TEST_F(DeviceNoMemory, SumInRounds) { fail_each("reduce_scatter=summed", reduce_scatter); }

}  // namespace
}  // namespace fsccl::testing
