// A unit on a GPU beside the same unit on host memory: both are given the same bytes, and whatever
// comes out of one must be what comes out of the other, bit for bit.
#pragma once
#include <memory>
#include <vector>

#include "gpu.h"
#include "mesh.h"
#include "unit_case.h"

namespace fsccl::testing {

// A pool on the rank's GPU.
class DevicePoolScope {
 public:
  DevicePoolScope(fsccl_comm_t comm, int device);
  ~DevicePoolScope();
  DevicePoolScope(const DevicePoolScope&) = delete;
  fsccl_pool_t get() const { return pool_; }

 private:
  fsccl_pool_t pool_ = nullptr;
};

// Makes the unit of a case in `pool`. *unit is null if the library refuses the unit. Shards are in
// memory of the unit, or in the memory that `shards` names.
fsccl_status_t make_unit(const UnitCase& c, fsccl_comm_t comm, fsccl_pool_t pool,
                         fsccl_unit_t* unit, const std::vector<void*>& shards = {},
                         const std::vector<void*>& sharded_grads = {},
                         fsccl_comm_t replicas = nullptr);

class TwinUnits {
 public:
  // Makes both units over the communicators of `mesh`, with replicas, or over all ranks if it is
  // null.
  TwinUnits(const UnitCase& c, const Rank& self, fsccl_pool_t host_pool, fsccl_pool_t device_pool,
            Gpu& gpu, CudaStream* stream, const Mesh* mesh = nullptr);
  ~TwinUnits();
  TwinUnits(const TwinUnits&) = delete;

  fsccl_unit_t get() const { return device_; }
  fsccl_unit_t host() const { return host_; }
  // Sets the stream of the following calls for the unit on the GPU.
  void set_stream(CudaStream* stream) { stream_ = stream; }

  void write_shards(uint64_t version);
  void unshard(fsccl_unshard_mode_t mode = FSCCL_UNSHARD_READ);
  void compare_params();
  void scribble();  // writes over the parameters of the unit on the GPU
  void reshard();
  void broadcast_state(int root);
  void write_grads(uint64_t step);
  // Writes gradients to memory of the test, for `config.grads` of each unit.
  void own_grads(uint64_t step, std::vector<const void*>* host, std::vector<const void*>* device);
  // Reduces the gradients of both units with these settings; `config` gets its own grads and
  // result.
  void reduce(fsccl_reduce_config_t config, bool own = false, uint64_t step = 0);
  void compare_grads();

 private:
  template <class Get>
  void compare(Get view_of, const char* what);
  std::vector<char> values(uint64_t seed, fsccl_dtype_t dtype, uint64_t count) const;
  void put(const fsccl_view_t& view, const std::vector<char>& bytes);

  UnitCase case_;
  int rank_;
  Gpu& gpu_;
  CudaStream* stream_;
  fsccl_unit_t host_ = nullptr, device_ = nullptr;
  std::vector<std::vector<char>> own_grads_;
  std::vector<void*> own_device_grads_;
};

}  // namespace fsccl::testing
