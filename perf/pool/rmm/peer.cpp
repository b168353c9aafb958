// Makes the library of peer.h: RMM's own pool (rmm::mr::pool_memory_resource, which grows as it
// does by default), over address space of the host instead of memory of a device. Its placement,
// its growth and its waits of one stream for another need no device. This file also has the
// functions of the CUDA runtime that the pool calls: events do nothing, and waits are counted.
#include "peer.h"

#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <memory>
#include <new>
#include <rmm/mr/pool_memory_resource.hpp>

namespace {

uint64_t growths = 0, waits = 0;

struct AddressSpace {
  void* allocate_sync(std::size_t bytes, std::size_t = 0) {
    ++growths;
    void* at = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) throw std::bad_alloc();
    return at;
  }
  void deallocate_sync(void* at, std::size_t bytes, std::size_t = 0) noexcept { munmap(at, bytes); }
  void* allocate(cuda::stream_ref, std::size_t bytes, std::size_t alignment = 0) {
    return allocate_sync(bytes, alignment);
  }
  void deallocate(cuda::stream_ref, void* at, std::size_t bytes, std::size_t = 0) noexcept {
    deallocate_sync(at, bytes);
  }
  bool operator==(const AddressSpace&) const { return true; }
  friend void get_property(const AddressSpace&, cuda::mr::device_accessible) noexcept {}
};

std::unique_ptr<rmm::mr::pool_memory_resource> pool;

cuda::stream_ref stream_of(uint32_t number) {
  return cudaStream_t(uintptr_t{0x1000} * (number + 1));
}

const rmm_peer kPeer = {
    .open =
        [] {
          pool.reset();
          growths = waits = 0;
          pool = std::make_unique<rmm::mr::pool_memory_resource>(AddressSpace{}, 0);
        },
    .take = [](uint64_t bytes, uint32_t stream) -> void* {
      try {
        return pool->allocate(stream_of(stream), bytes, 256);
      } catch (const std::exception&) {
        return nullptr;
      }
    },
    .give_back = [](void* block, uint64_t bytes,
                    uint32_t stream) { pool->deallocate(stream_of(stream), block, bytes, 256); },
    .reserved = [] { return uint64_t{pool->pool_size()}; },
    .growths = [] { return growths; },
    .waits = [] { return waits; },
};

}  // namespace

extern "C" {

const rmm_peer* fsccl_perf_rmm_peer() { return &kPeer; }

cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) {
  ++waits;
  return cudaSuccess;
}
cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long* id) {
  *id = reinterpret_cast<uintptr_t>(stream);
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  static uintptr_t last = 0;
  *event = reinterpret_cast<cudaEvent_t>(++last);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "no CUDA here"; }
const char* cudaGetErrorName(cudaError_t) { return "no CUDA here"; }
}
