// Collectives on device memory through host memory. The parts are copied to pinned memory, the
// host's engine runs the collective there, and the result is copied back. This is done in pieces,
// one of which is copied while the next is moved between the ranks. All ranks that have a
// communicator can do this, and sums have the bits of the host's sums.
//
// Calls are in stream order: a call sees what was put on the stream before it, and later work on
// the stream sees the result. To achieve this, the call itself waits until the stream has reached
// it.
#pragma once
#include <array>
#include <memory>

#include "comm/chain.h"
#include "comm/communicator.h"
#include "comm/device/device_call.h"
#include "cuda/device.h"

namespace fsccl {

class Staging {
 public:
  static Result<std::unique_ptr<Staging>> create(Communicator& comm, const cuda::Device& device);
  ~Staging();
  Staging(const Staging&) = delete;

  // Runs the call. Once the other ranks have this rank's part of its first round, an error of this
  // rank, or no memory for it, fails the communicator.
  Status run(const DeviceCall& call);

 private:
  // One half of the pinned memory. While one half is copied, the engine uses the other.
  struct Half {
    std::byte* memory;
    cuda::OwnedEvent copied_in, copied_out;
  };
  struct Round {  // a part of a call
    uint64_t begin, count;
  };
  Staging(Communicator& comm, const cuda::Device& device) : comm_(comm), device_(device) {}
  Result<uint64_t> longest_part(const DeviceCall& call, Chain& chain);
  Status run_rounds(const DeviceCall& call, uint64_t whole, Chain& chain);
  Status begin(const DeviceCall& call, const Round& round, Half& half);
  Status move(const DeviceCall& call, const Round& round, Half& half);
  Status finish(const DeviceCall& call, const Round& round, Half& half);
  std::byte* results(const DeviceCall& call, const Round& round, Half& half) const;

  Communicator& comm_;
  const cuda::Device& device_;
  std::byte* memory_ = nullptr;
  std::vector<Half> halves_;
};

}  // namespace fsccl
