// Host memory to which a device writes results for the host, and words that say how far a stream
// has come. Memory that was given back is kept for the next request, because registering memory, or
// ending a registration, may wait for all work of the device. A stream of this process may in turn
// wait for a peer that waits for work behind this call.
//
// A copy to ordinary memory of the host is different: the driver carries it out, and the call stays
// inside the driver until the stream has reached the copy, so calls of other threads wait there.
// Therefore nothing is copied to ordinary memory behind a wait for a peer.
#pragma once
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>

#include "cuda/device.h"

namespace fsccl::cuda {

class HostMemory {
  struct Chunk {
    std::byte* host = nullptr;
    CUdeviceptr device = 0;
  };
  // By size, which is a power of two. A node moves between the map and those who use the memory, so
  // that memory can be given back when the program has no memory left.
  using Spare = std::multimap<size_t, Chunk>;

 public:
  // Returns the memory of this device, which lives as long as the process.
  static HostMemory& of(const Device& device);
  explicit HostMemory(const Device& device) : device_(device) {}
  HostMemory(const HostMemory&) = delete;

  // Registered bytes, which the destructor gives back. By then nothing that was put on a stream may
  // use them any more.
  class Bytes {
   public:
    explicit Bytes(HostMemory& from) : from_(from) {}
    ~Bytes() {
      if (!kept_) from_.give_back(std::move(memory_));
    }
    Bytes(const Bytes&) = delete;

    template <class T>
    T* as() const {
      return reinterpret_cast<T*>(memory_.mapped().host);
    }
    CUdeviceptr device() const { return memory_.mapped().device; }
    void keep() { kept_ = true; }  // something may use it for ever: it is not given back

   private:
    friend class HostMemory;
    HostMemory& from_;
    Spare::node_type memory_;
    bool kept_ = false;
  };
  // Returns at least `bytes` bytes, which share no cache line with others. Any thread may call it;
  // the caller holds a Current.
  Result<std::unique_ptr<Bytes>> take(size_t bytes);

 private:
  Status add(size_t bytes);
  void give_back(Spare::node_type memory);

  const Device& device_;
  std::mutex mutex_;
  Spare spare_;
};

}  // namespace fsccl::cuda
