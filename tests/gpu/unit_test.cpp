// Compares units on a GPU with units on host memory of the same ranks: every parameter, every
// sharded gradient and the norm have the same bits, over steps, dtypes and layouts. All ranks use
// device 0, so peers' data goes between processes on one GPU.
#include <gmock/gmock.h>

#include <array>
#include <cstdlib>
#include <vector>

#include "fsccl/insight.h"
#include "gpu/support.h"

namespace fsccl::testing {
namespace {

struct Form {
  const char* name;
  fsccl_layout_t layout;
  fsccl_dtype_t shard, wire, reduce, grad;
  bool accumulate;
  double scale;
};
constexpr Form kForms[] = {
    {"fp32 master, bf16 wire", FSCCL_LAYOUT_PER_PARAM, FSCCL_FLOAT32, FSCCL_BFLOAT16,
     FSCCL_BFLOAT16, FSCCL_FLOAT32, false, 0},
    {"bf16 all over, accumulating", FSCCL_LAYOUT_PER_PARAM, FSCCL_BFLOAT16, FSCCL_BFLOAT16,
     FSCCL_BFLOAT16, FSCCL_BFLOAT16, true, 1},
    {"fp32 all over, flat", FSCCL_LAYOUT_FLAT, FSCCL_FLOAT32, FSCCL_FLOAT32, FSCCL_FLOAT32,
     FSCCL_FLOAT32, true, 0.3},
    {"fp16 wire, ragged", FSCCL_LAYOUT_RAGGED, FSCCL_FLOAT32, FSCCL_FLOAT16, FSCCL_FLOAT32,
     FSCCL_FLOAT16, false, 0.125},
};

// Returns parameters that the ranks cannot divide evenly: matrices, a vector shorter than the
// number of ranks, odd numbers of elements, and a parameter larger than a copy engine's piece.
std::vector<fsccl_param_t> parameters(const Form& form) {
  std::vector<fsccl_param_t> params(5, fsccl_param_t FSCCL_PARAM_INIT);
  const int64_t shapes[][2] = {{67, 129}, {3, 1}, {1, 4097}, {1025, 257}, {16, 64}};
  for (size_t i = 0; i < params.size(); i++) {
    params[i].dims = 2, params[i].shape[0] = shapes[i][0], params[i].shape[1] = shapes[i][1];
    params[i].dtype = form.shard;
  }
  params[4].flags = FSCCL_PARAM_FROZEN;
  return params;
}

uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdull;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53ull;
  return x ^ (x >> 33);
}

// Returns finite numbers of any size around one, in any of the formats, as bits. Adding them in
// another order would change a sum.
std::vector<unsigned char> numbers(fsccl_dtype_t dtype, uint64_t count, uint64_t seed) {
  const size_t size = fsccl_dtype_size(dtype);
  std::vector<unsigned char> bytes(count * size);
  for (uint64_t i = 0; i < count; i++) {
    const uint64_t random = mixed(seed * 1'000'003 + i);
    if (dtype == FSCCL_FLOAT32) {
      const auto bits =
          static_cast<uint32_t>((random & 0x807fffffu) | (((random >> 40) % 12 + 121) << 23));
      std::memcpy(bytes.data() + i * size, &bits, size);
    } else if (dtype == FSCCL_BFLOAT16) {
      const auto bits =
          static_cast<uint16_t>((random & 0x807fu) | (((random >> 40) % 12 + 121) << 7));
      std::memcpy(bytes.data() + i * size, &bits, size);
    } else {
      const auto bits =
          static_cast<uint16_t>((random & 0x83ffu) | (((random >> 40) % 8 + 9) << 10));
      std::memcpy(bytes.data() + i * size, &bits, size);
    }
  }
  return bytes;
}

// The same unit on a GPU and on host memory, and calls that are made on both.
struct Twins {
  Place& place;
  fsccl_pool_t host_pool = nullptr;
  fsccl_unit_t host = nullptr, device = nullptr;
  void *gathering, *computing;

  explicit Twins(Place& where)
      : place(where), gathering(where.gpu->make_stream()), computing(where.gpu->make_stream()) {}

  int make(const Form& form, fsccl_comm_t shard = nullptr, fsccl_comm_t replicas = nullptr) {
    const fsccl_pool_config_t memory = FSCCL_POOL_CONFIG_INIT;
    MUST(fsccl_pool_create(place.comm, &memory, &host_pool) == FSCCL_OK);
    const auto params = parameters(form);
    fsccl_unit_config_t config = FSCCL_UNIT_CONFIG_INIT;
    config.layout = form.layout, config.shard_comm = shard ? shard : place.comm,
    config.pool = host_pool;
    config.replicate_comm = replicas;
    config.wire_dtype = form.wire, config.reduce_dtype = form.reduce, config.grad_dtype = form.grad;
    MUST(fsccl_unit_create(&config, params.data(), params.size(), &host) == FSCCL_OK);
    config.pool = place.pool;
    if (const int code = outcome("device unit",
                                 fsccl_unit_create(&config, params.data(), params.size(), &device)))
      return code;
    return write_shards(form, 0);
  }

  // Writes new values into the shards of both, as an optimizer would.
  int write_shards(const Form& form, uint64_t step) {
    for (size_t i = 0; i < 5; i++) {
      fsccl_view_t mine, theirs;
      MUST(fsccl_unit_shard(host, i, &mine) == FSCCL_OK &&
           fsccl_unit_shard(device, i, &theirs) == FSCCL_OK);
      MUST(mine.count == theirs.count && mine.offset == theirs.offset);
      const auto bytes =
          numbers(form.shard, mine.count, step * 100 + i * 10 + static_cast<uint64_t>(place.rank));
      if (mine.count > 0) std::memcpy(mine.data, bytes.data(), bytes.size());
      MUST(place.gpu->copy(theirs.data, bytes.data(), bytes.size(), gathering));
      MUST(place.gpu->wait(gathering));
    }
    return 0;
  }

  bool equal(const fsccl_view_t& mine, const fsccl_view_t& theirs, void* stream) const {
    if (mine.count != theirs.count || mine.dtype != theirs.dtype) return false;
    const size_t bytes = mine.count * fsccl_dtype_size(mine.dtype);
    const auto found = place.gpu->read<unsigned char>(theirs.data, bytes, stream);
    return found.size() == bytes &&
           (bytes == 0 || std::memcmp(found.data(), mine.data, bytes) == 0);
  }

  int gather() {
    MUST(fsccl_unit_unshard(host, FSCCL_UNSHARD_READ, nullptr, nullptr) == FSCCL_OK);
    MUST(fsccl_unit_unshard(device, FSCCL_UNSHARD_READ, gathering, nullptr) == FSCCL_OK);
    MUST(place.gpu->follow(computing, gathering));
    for (size_t i = 0; i < 5; i++) {
      fsccl_view_t mine, theirs;
      MUST(fsccl_unit_param(host, i, &mine) == FSCCL_OK &&
           fsccl_unit_param(device, i, &theirs) == FSCCL_OK);
      MUST(place.gpu->is_device(theirs.data) && reinterpret_cast<uintptr_t>(theirs.data) % 4 == 0);
      MUST(equal(mine, theirs, computing));
    }
    return 0;
  }

  int give_back() {
    MUST(fsccl_unit_reshard(host, nullptr) == FSCCL_OK &&
         fsccl_unit_reshard(device, computing) == FSCCL_OK);
    return 0;
  }

  // Reduces on the stream that computes, behind the stream that gathers.
  int reduce(const Form& form, int step, bool defer = false) {
    for (size_t i = 0; i < 4; i++) {
      fsccl_view_t mine, theirs;
      MUST(fsccl_unit_grad(host, i, nullptr, &mine) == FSCCL_OK &&
           fsccl_unit_grad(device, i, computing, &theirs) == FSCCL_OK);
      const auto bytes = numbers(form.reduce, mine.count,
                                 static_cast<uint64_t>(7'000 + step * 100 + place.rank * 10) + i);
      std::memcpy(mine.data, bytes.data(), bytes.size());
      MUST(place.gpu->copy(theirs.data, bytes.data(), bytes.size(), computing));
    }
    fsccl_reduce_result_t wanted = {0, 0}, found = {0, 0};
    fsccl_reduce_config_t config = FSCCL_REDUCE_CONFIG_INIT;
    config.scale = form.scale, config.accumulate = form.accumulate && step > 0,
    config.result = &wanted;
    config.defer_replicas = defer;
    MUST(fsccl_unit_reduce_grads(host, &config, nullptr, nullptr) == FSCCL_OK);
    config.result = &found;
    MUST(fsccl_unit_reduce_grads(device, &config, computing, nullptr) == FSCCL_OK);
    MUST(place.gpu->wait(computing));
    for (size_t i = 0; i < 4; i++) {
      fsccl_view_t mine, theirs;
      MUST(fsccl_unit_sharded_grad(host, i, &mine) == FSCCL_OK &&
           fsccl_unit_sharded_grad(device, i, &theirs) == FSCCL_OK);
      MUST(equal(mine, theirs, computing));
    }
    if (wanted.norm_squared != found.norm_squared || wanted.finite != found.finite)
      return std::printf("norm %.17g and %d, on the host %.17g and %d\n", found.norm_squared,
                         found.finite, wanted.norm_squared, wanted.finite),
             1;
    return 0;
  }

  int end() const {
    MUST(fsccl_unit_destroy(device) == FSCCL_OK && fsccl_unit_destroy(host) == FSCCL_OK);
    MUST(fsccl_pool_destroy(host_pool) == FSCCL_OK);
    return 0;
  }
};

// Returns the number of steps for each form: GPU_STEPS, or 4 if it is not set.
int steps() {
  const char* const given = std::getenv("GPU_STEPS");
  return given ? std::atoi(given) : 4;
}

int equal_bits(const Child&) {
  Place place;
  if (const int code = place.make()) return code;
  for (const Form& form : kForms) {
    std::printf("%s\n", form.name);
    Twins twins(place);
    if (const int code = twins.make(form)) return code;
    for (int step = 0; step < steps(); step++) {
      if (twins.gather() || twins.give_back()) return 1;
      if (twins.gather() || twins.reduce(form, step) || twins.give_back()) return 1;
      if (twins.write_shards(form, static_cast<uint64_t>(step) + 1)) return 1;
      MUST(fsccl_pool_step(place.pool) == FSCCL_OK && fsccl_pool_step(twins.host_pool) == FSCCL_OK);
    }
    if (twins.end()) return 1;
  }
  return place.end() ? 0 : 1;
}

// Runs HSDP with two groups of ranks: states are made equal, then sums are made over each group,
// and the last of them over the replicas, too.
int replicas(const Child&) {
  Place place;
  if (const int code = place.make()) return code;
  fsccl_comm_t shard = nullptr, same_shard = nullptr;
  const int per_group = place.ranks / 2;
  MUST(fsccl_comm_split(place.comm, place.rank / per_group, place.rank, nullptr, &shard) ==
       FSCCL_OK);
  MUST(fsccl_comm_split(place.comm, place.rank % per_group, place.rank, nullptr, &same_shard) ==
       FSCCL_OK);
  for (const Form& form : kForms) {
    std::printf("%s\n", form.name);
    Twins twins(place);
    if (const int code = twins.make(form, shard, same_shard)) return code;
    for (int round = 0; round < 2; round++) {
      MUST(fsccl_unit_broadcast_state(twins.host, 1, nullptr, nullptr) == FSCCL_OK);
      MUST(fsccl_unit_broadcast_state(twins.device, 1, twins.gathering, nullptr) == FSCCL_OK);
      MUST(fsccl_unit_verify_replicas(twins.device) == FSCCL_OK);
      if (twins.gather() || twins.give_back()) return 1;
      if (twins.reduce(form, 0, form.accumulate)) return 1;
      if (form.accumulate && twins.reduce(form, 1)) return 1;
      if (twins.write_shards(form, static_cast<uint64_t>(round) + 1)) return 1;
      MUST(fsccl_pool_step(place.pool) == FSCCL_OK && fsccl_pool_step(twins.host_pool) == FSCCL_OK);
    }
    if (twins.end()) return 1;
  }
  MUST(fsccl_comm_destroy(same_shard) == FSCCL_OK && fsccl_comm_destroy(shard) == FSCCL_OK);
  return place.end() ? 0 : 1;
}

constexpr size_t kLayers = 6, kRows = 512, kColumns = 512;

// Runs layer after layer on two streams, with a prefetch of one, while the stream that reads is far
// behind. A slot goes to the next layer only when the reader of the last one is done. From the
// second step on, the addresses of parameters do not change.
int pipeline(const Child&) {
  Place place;
  if (const int code = place.make()) return code;
  const Gpu& gpu = *place.gpu;
  void *gathering = gpu.make_stream(), *computing = gpu.make_stream();
  std::array<fsccl_unit_t, kLayers> layers;
  fsccl_unit_config_t config = FSCCL_UNIT_CONFIG_INIT;
  config.shard_comm = place.comm, config.pool = place.pool, config.wire_dtype = FSCCL_FLOAT32,
  config.marks_changes = 1;
  fsccl_param_t param = FSCCL_PARAM_INIT;
  param.dims = 2, param.shape[0] = kRows, param.shape[1] = kColumns,
  param.flags = FSCCL_PARAM_FROZEN;
  for (size_t i = 0; i < kLayers; i++) {
    if (const int code = outcome("unit", fsccl_unit_create(&config, &param, 1, &layers[i])))
      return code;
    fsccl_view_t shard;
    MUST(fsccl_unit_shard(layers[i], 0, &shard) == FSCCL_OK);
    MUST(gpu.fill(shard.data, static_cast<unsigned char>(i + 1), shard.count * sizeof(float),
                  gathering) &&
         gpu.wait(gathering));
  }
  std::vector<std::vector<unsigned char>> seen(
      kLayers, std::vector<unsigned char>(kRows * kColumns * sizeof(float)));
  std::array<void*, kLayers> places{};
  for (int step = 0; step < 4; step++) {
    const Gpu::Gate gate(gpu);
    // In the first step the pool grows, and the driver may wait for all streams then.
    const bool late = step > 0;
    if (late) MUST(gate.shut(computing));
    for (size_t i = 0; i < kLayers; i++) {
      fsccl_view_t whole;
      MUST(fsccl_unit_unshard(layers[i], FSCCL_UNSHARD_READ, gathering, nullptr) == FSCCL_OK);
      MUST(fsccl_unit_param(layers[i], 0, &whole) == FSCCL_OK && gpu.follow(computing, gathering));
      if (step > 1) MUST(whole.data == places[i]);
      places[i] = whole.data;
      // The copies are in device memory, because a copy to the host would wait for the gate.
      static unsigned char* copies =
          static_cast<unsigned char*>(gpu.allocate(kLayers * seen[0].size()));
      MUST(gpu.copy(copies + i * seen[0].size(), whole.data, seen[0].size(), computing));
      MUST(fsccl_unit_reshard(layers[i], computing) == FSCCL_OK);
      if (i + 1 < kLayers) continue;
      if (late) MUST(!gpu.idle(computing));
      gate.open();
      for (size_t k = 0; k < kLayers; k++)
        MUST(gpu.read<unsigned char>(copies + k * seen[0].size(), seen[0].size(), computing) ==
             std::vector<unsigned char>(seen[0].size(), static_cast<unsigned char>(k + 1)));
    }
    MUST(fsccl_pool_step(place.pool) == FSCCL_OK);
  }
  for (const fsccl_unit_t layer : layers) MUST(fsccl_unit_destroy(layer) == FSCCL_OK);
  return place.end() ? 0 : 1;
}

int wrong_use(const Child&) {
  Place place;
  if (const int code = place.make()) return code;
  Twins twins(place);
  if (const int code = twins.make(kForms[0])) return code;
  fsccl_work_t work = nullptr;
  fsccl_view_t view;
  MUST(fsccl_unit_unshard(twins.device, FSCCL_UNSHARD_READ, twins.gathering, &work) ==
       FSCCL_ERR_NOT_AVAILABLE);
  MUST(last_error().find("event") != std::string::npos);
  MUST(fsccl_unit_unshard(twins.host, FSCCL_UNSHARD_READ, twins.gathering, nullptr) ==
       FSCCL_ERR_INVALID_ARGUMENT);
  MUST(fsccl_unit_param(twins.device, 0, &view) == FSCCL_ERR_INVALID_STATE);
  MUST(fsccl_pool_destroy(place.pool) == FSCCL_ERR_INVALID_STATE);
  if (twins.gather() || twins.give_back()) return 1;
  return twins.end() == 0 && place.end() ? 0 : 1;
}

TEST(GpuUnit, OneRankHasTheBitsOfTheHost) { run_ranks("equal_bits", 1, 20320); }
class GpuUnitRanks : public ::testing::TestWithParam<int> {};
TEST_P(GpuUnitRanks, HaveTheBitsOfTheHost) {
  run_ranks("equal_bits", GetParam(), 20319 + GetParam());
}
TEST_P(GpuUnitRanks, ByNcclHaveTheBitsOfTheHost) {
  run_ranks("equal_bits", GetParam(), 20340 + GetParam(), by("nccl"));
}
INSTANTIATE_TEST_SUITE_P(GpuUnit, GpuUnitRanks, ::testing::Values(2, 3, 4));
TEST(GpuUnit, TwoReplicasHaveTheBitsOfTheHost) { run_ranks("replicas", 2, 20327); }
TEST(GpuUnit, TwoReplicasOfTwoRanksHaveTheBitsOfTheHost) { run_ranks("replicas", 4, 20328); }
TEST(GpuUnit, ReplicasByCollectivesHaveTheBitsOfTheHost) {
  run_ranks("replicas", 2, 20329, by("nccl"));
}
TEST(GpuUnit, OneRankReadsLate) { run_ranks("pipeline", 1, 20324); }
TEST(GpuUnit, TwoRanksReadLate) { run_ranks("pipeline", 2, 20325); }
TEST(GpuUnit, WrongUseIsRefused) { run_ranks("wrong_use", 2, 20326); }

}  // namespace
}  // namespace fsccl::testing

int main(int argc, char** argv) {
  using namespace fsccl::testing;
  if (const auto code = run_role(argc, argv,
                                 {{"equal_bits", equal_bits},
                                  {"pipeline", pipeline},
                                  {"wrong_use", wrong_use},
                                  {"replicas", replicas}}))
    return *code;
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
