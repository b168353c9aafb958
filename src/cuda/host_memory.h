// Host memory that a device writes to: results for the host, and words that say how far a stream
// is. Memory that was given back is kept for the next request. To register memory, or to end a
// registration, may wait for all work of the device, and a stream of this process may wait for a
// peer that waits for work behind this call.
//
// A copy to ordinary memory of the host takes another way: the driver makes it, and the call stays
// inside the driver until the stream has come to it, so that calls of other threads wait for it
// there. Nothing is therefore copied to ordinary memory behind a wait for a peer.
#pragma once
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>

#include "cuda/device.h"

namespace fsccl::cuda {

class HostMemory {
 public:
  // The device's; kept as that is.
  static HostMemory& of(const Device& device);
  explicit HostMemory(const Device& device) : device_(device) {}
  HostMemory(const HostMemory&) = delete;

  // Given back with this: then nothing that was put on a stream may use it any more.
  class Bytes {
   public:
    Bytes(HostMemory& from, std::byte* host, CUdeviceptr device, size_t bytes)
        : from_(from), host_(host), device_(device), bytes_(bytes) {}
    ~Bytes() {
      if (!kept_) from_.give_back(*this);
    }
    Bytes(const Bytes&) = delete;

    template <class T>
    T* as() const {
      return reinterpret_cast<T*>(host_);
    }
    CUdeviceptr device() const { return device_; }
    void keep() { kept_ = true; }  // something may use it for ever: it is not given back

   private:
    friend class HostMemory;
    HostMemory& from_;
    std::byte* const host_;
    const CUdeviceptr device_;
    const size_t bytes_;
    bool kept_ = false;
  };
  // At least so many, and lines of their own. The caller holds a Current. Any thread.
  Result<std::unique_ptr<Bytes>> take(size_t bytes);

 private:
  struct Chunk {
    std::byte* host = nullptr;
    CUdeviceptr device = 0;
  };
  Status add(size_t bytes);
  void give_back(const Bytes& bytes);

  const Device& device_;
  std::mutex mutex_;
  std::multimap<size_t, Chunk> spare_;  // by size, which is a power of two
};

}  // namespace fsccl::cuda
