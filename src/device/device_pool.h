// A pool on a GPU. Slots of units lie in an arena that the ranks of this host map from each other (peers' GPUs, or the same one);
// blocks, which are a rank's own affair, in a second one. Placement of slots is the host pool's (collective_region.h): the same on
// every rank, planned from the schedule, so a slot's offset is known to all.
//
// Order. Whoever gives bytes back says behind what they are free: everything that its stream has been given so far, and signals of
// peers that still read them. Whoever takes them next waits for that on its own stream: the host waits for nothing. So the edges of
// the plan are events of CUDA and nothing else.
#pragma once
#include <memory>
#include <vector>

#include "cuda/device.h"
#include "engine/communicator.h"

namespace fsccl {

class DevicePool {
 public:
  // Collective over `comm`, blocking: ranks exchange what their devices are. Ranks of other hosts are not reached.
  static Result<std::unique_ptr<DevicePool>> create(Communicator& comm, const fsccl_pool_config_t& config);
  virtual ~DevicePool() = default;

  virtual const cuda::Device& device() const = 0;
  virtual Communicator& comm() = 0;
  virtual const std::string& name() const = 0;

  // Blocks, ordered by streams as fsccl_pool_alloc() and fsccl_pool_free() say. Any thread.
  virtual Result<void*> alloc(uint64_t bytes, cuda::Stream stream, uint64_t alignment) = 0;
  virtual Status free(void* pointer, cuda::Stream stream) = 0;

  // Slots: the same calls, in order, on all ranks. `key`: who asks (unit and role); `stable`: one offset in every occurrence.
  // Returns the offset in the slots' arena. What is put on `stream` from now on follows the last use of these bytes.
  virtual Result<uint64_t> take(uint64_t key, uint64_t bytes, bool stable, cuda::Stream stream) = 0;
  // The bytes are free when everything is done that `stream` was given, and then `waits` are over.
  virtual Status give_back(uint64_t key, cuda::Stream stream, std::vector<cuda::MemoryOperation> waits) = 0;
  // Whether this process can reach the slots of `rank`, and where they begin.
  virtual bool reaches(int rank) const = 0;
  virtual cuda::DevicePointer slots(int rank) const = 0;

  virtual Status declare(const std::vector<struct StepEvent>& events) = 0;  // collective, blocking
  virtual Status end_step() = 0;
  virtual uint64_t history_hash() const = 0;
  virtual void stats(fsccl_pool_stats_t* stats) const = 0;
  virtual uint64_t trim() = 0;
  virtual Status check_empty() = 0;  // no blocks, no units: else an error that lists them
  virtual Status snapshot(const std::string& path) const = 0;
  virtual uint64_t next_unit_key() = 0;
  virtual void add_unit(uint64_t key, std::string name) = 0;
  virtual void remove_unit(uint64_t key) = 0;
};

}  // namespace fsccl
