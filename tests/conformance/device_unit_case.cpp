#include "device_unit_case.h"

#include <algorithm>

namespace fsccl::testing {
namespace {

uint64_t count_of(const std::vector<int64_t>& shape) {
  uint64_t count = 1;
  for (const int64_t dim : shape) count *= static_cast<uint64_t>(dim);
  return count;
}

}  // namespace

DevicePoolScope::DevicePoolScope(fsccl_comm_t comm, int device) {
  fsccl_pool_config_t config = FSCCL_POOL_CONFIG_INIT;
  config.memory = FSCCL_MEMORY_CUDA;
  config.device = device;
  config.limit_bytes = 128u << 20;
  EXPECT_OK(fsccl_pool_create(comm, &config, &pool_));
}

DevicePoolScope::~DevicePoolScope() {
  if (pool_) {
    EXPECT_OK(fsccl_pool_destroy(pool_));
  }
}

fsccl_status_t make_unit(const UnitCase& c, fsccl_comm_t comm, fsccl_pool_t pool,
                         fsccl_unit_t* unit, const std::vector<void*>& shards,
                         const std::vector<void*>& sharded_grads, fsccl_comm_t replicas) {
  const std::string name = name_of(c);
  fsccl_unit_config_t config = config_of(c, comm, pool, name);
  config.replicate_comm = replicas;
  config.by_parameter = c.by_parameter && !replicas;
  std::vector<fsccl_param_t> params;
  for (const UnitCase::Param& given : c.params) {
    fsccl_param_t param = param_of(given);
    if (!shards.empty()) param.shard = shards[params.size()];
    if (!sharded_grads.empty()) param.sharded_grad = sharded_grads[params.size()];
    params.push_back(param);
  }
  return fsccl_unit_create(&config, params.data(), params.size(), unit);
}

TwinUnits::TwinUnits(const UnitCase& c, const Rank& self, fsccl_pool_t host_pool,
                     fsccl_pool_t device_pool, Gpu& gpu, CudaStream* stream, const Mesh* mesh)
    : case_(c), rank_(self.rank), gpu_(gpu), stream_(stream) {
  // Some shards and gradients are memory of the test, as large as the whole, because the library
  // says only later which part is this rank's. All of it is allocated before anything is on a
  // stream: the driver may wait for the device then, and so for ranks of other threads.
  std::vector<void*> shards, grads;
  own_grads_.resize(c.params.size());
  for (const UnitCase::Param& param : c.params) {
    const uint64_t count = count_of(param.shape);
    shards.push_back(param.own_shard ? gpu.memory(count * fsccl_dtype_size(param.dtype)) : nullptr);
    grads.push_back(param.own_grad ? gpu.memory(count * fsccl_dtype_size(c.grad)) : nullptr);
    own_device_grads_.push_back(gpu.memory(count * fsccl_dtype_size(c.reduce)));
  }
  const fsccl_comm_t comm = mesh ? mesh->shard : self.comm,
                     replicas = mesh ? mesh->replicas : nullptr;
  EXPECT_OK(make_unit(c, comm, host_pool, &host_, {}, {}, replicas)) << describe(c);
  EXPECT_OK(make_unit(c, comm, device_pool, &device_, shards, grads, replicas)) << describe(c);
}

TwinUnits::~TwinUnits() {
  if (device_) {
    EXPECT_OK(fsccl_unit_destroy(device_));
  }
  if (host_) {
    EXPECT_OK(fsccl_unit_destroy(host_));
  }
}

void TwinUnits::broadcast_state(int root) {
  EXPECT_OK(fsccl_unit_broadcast_state(device_, root, stream_, nullptr)) << describe(case_);
  EXPECT_OK(fsccl_unit_broadcast_state(host_, root, nullptr, nullptr)) << describe(case_);
}

std::vector<char> TwinUnits::values(uint64_t seed, fsccl_dtype_t dtype, uint64_t count) const {
  std::vector<char> bytes(count * fsccl_dtype_size(dtype));
  fill_values(dtype, bytes.data(), count, mix(case_.seed, seed), true);
  return bytes;
}

void TwinUnits::put(const fsccl_view_t& view, const std::vector<char>& bytes) {
  gpu_.copy(view.data, bytes.data(), bytes.size(), stream_);
  gpu_.synchronize(stream_);
}

void TwinUnits::write_shards(uint64_t version) {
  for (size_t i = 0; i < case_.params.size(); i++) {
    if (case_.params[i].tied_to >= 0) continue;
    fsccl_view_t host{}, device{};
    ASSERT_OK(fsccl_unit_shard(host_, i, &host));
    ASSERT_OK(fsccl_unit_shard(device_, i, &device));
    ASSERT_EQ(host.count, device.count);
    ASSERT_EQ(host.offset, device.offset);
    const auto bytes =
        values(version << 32 | i << 8 | static_cast<uint64_t>(rank_), host.dtype, host.count);
    if (host.count) std::memcpy(host.data, bytes.data(), bytes.size());
    put(device, bytes);
  }
}

void TwinUnits::unshard(fsccl_unshard_mode_t mode) {
  EXPECT_OK(fsccl_unit_unshard(device_, mode, stream_, nullptr));
  EXPECT_OK(fsccl_unit_unshard(host_, mode, nullptr, nullptr));
}

void TwinUnits::reshard() {
  EXPECT_OK(fsccl_unit_reshard(device_, stream_));
  EXPECT_OK(fsccl_unit_reshard(host_, nullptr));
}

template <class Get>
void TwinUnits::compare(Get view_of, const char* what) {
  for (size_t i = 0; i < case_.params.size(); i++) {
    fsccl_view_t host{}, device{};
    const fsccl_status_t status = view_of(host_, i, &host);
    ASSERT_EQ(view_of(device_, i, &device), status);
    if (status != FSCCL_OK) continue;
    ASSERT_EQ(host.count, device.count);
    ASSERT_EQ(host.dtype, device.dtype);
    ASSERT_EQ(host.offset, device.offset);
    const size_t bytes = host.count * fsccl_dtype_size(host.dtype);
    ASSERT_TRUE(
        gpu_.read(device.data, bytes, stream_) ==
        std::vector<char>(static_cast<char*>(host.data), static_cast<char*>(host.data) + bytes))
        << what << " " << i << " on rank " << rank_ << " of " << describe(case_);
  }
}

void TwinUnits::compare_params() { compare(fsccl_unit_param, "parameter"); }

void TwinUnits::compare_grads() {
  compare([](fsccl_unit_t unit, size_t i,
             fsccl_view_t* view) { return fsccl_unit_sharded_grad(unit, i, view); },
          "sharded gradient");
}

void TwinUnits::scribble() {
  for (size_t i = 0; i < case_.params.size(); i++) {
    fsccl_view_t view{};
    ASSERT_OK(fsccl_unit_param(device_, i, &view));
    put(view, std::vector<char>(view.count * fsccl_dtype_size(view.dtype), '\x5a'));
  }
}

void TwinUnits::write_grads(uint64_t step) {
  for (size_t i = 0; i < case_.params.size(); i++) {
    fsccl_view_t host{}, device{};
    const fsccl_status_t status = fsccl_unit_grad(host_, i, nullptr, &host);
    ASSERT_EQ(fsccl_unit_grad(device_, i, stream_, &device), status);
    if (status != FSCCL_OK || case_.params[i].tied_to >= 0) continue;
    const auto bytes =
        values(step << 32 | i << 8 | static_cast<uint64_t>(rank_) | 0x80, host.dtype, host.count);
    if (host.count) std::memcpy(host.data, bytes.data(), bytes.size());
    put(device, bytes);
  }
}

void TwinUnits::own_grads(uint64_t step, std::vector<const void*>* host,
                          std::vector<const void*>* device) {
  const size_t count = case_.params.size();
  for (size_t i = 0; i < count; i++) {
    const UnitCase::Param& param = case_.params[i];
    const bool wanted = param.tied_to < 0 && !param.frozen;
    own_grads_[i] = values(step << 32 | i << 8 | static_cast<uint64_t>(rank_) | 0x80, case_.reduce,
                           wanted ? count_of(param.shape) : 0);
    gpu_.copy(own_device_grads_[i], own_grads_[i].data(), own_grads_[i].size(), stream_);
    host->push_back(wanted ? own_grads_[i].data() : nullptr);
    device->push_back(wanted ? own_device_grads_[i] : nullptr);
  }
  gpu_.synchronize(stream_);
}

void TwinUnits::reduce(fsccl_reduce_config_t config, bool own, uint64_t step) {
  std::vector<const void*> host_grads, device_grads;
  if (own)
    own_grads(step, &host_grads, &device_grads);
  else
    write_grads(step);
  fsccl_reduce_result_t on_host{}, on_device{-1, -1};
  config.grads = own ? device_grads.data() : nullptr;
  config.result = &on_device;
  EXPECT_OK(fsccl_unit_reduce_grads(device_, &config, stream_, nullptr));
  config.grads = own ? host_grads.data() : nullptr;
  config.result = &on_host;
  EXPECT_OK(fsccl_unit_reduce_grads(host_, &config, nullptr, nullptr));
  EXPECT_EQ(on_device.norm_squared, on_host.norm_squared) << "the same bits: " << describe(case_);
  EXPECT_EQ(on_device.finite != 0, on_host.finite != 0);
}

}  // namespace fsccl::testing
