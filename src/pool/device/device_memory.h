// The memory of a pool on its GPU: an arena for slots and an arena for blocks, which grow by whole
// segments, and the limits that the two keep together. Before it refuses a request, it gives back
// memory that blocks do not use and asks the program, once a request.
//
// Growth passes through the program's source, if there is one. Adaptors over fsccl_allocator_cuda()
// see it and may refuse it, but the memory is the arena's own. (Other processes must map a segment
// at a place of the arena, so memory that somebody else has allocated cannot be one.)
//
// Any thread may call the functions. The lock is not held while `Relief` or the source is called.
#pragma once
#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "allocators/adaptors/memory_source.h"
#include "allocators/cuda/device_arena.h"
#include "allocators/placement/journal.h"

namespace fsccl {

// Debug pools fill memory that must not be read with this byte: a NaN in every type of floating
// point.
inline constexpr unsigned char kPoison = 0xff;

enum class DevicePart : uint8_t { slots, blocks };

class DeviceMemory {
 public:
  struct Limits {
    uint64_t all = 0;    // the bytes that this rank may reserve
    uint64_t slots = 0;  // the bytes that slots may take: the smallest of the ranks' limits
    uint64_t soft = 0;   // the program is asked for memory beyond it; 0: never
  };
  struct Relief {
    // Gives back what blocks do not use, and waits for that.
    std::function<void()> trim;
    std::function<void(uint64_t bytes)> ask;  // asks the program to free so many bytes
    std::function<std::string()> holders;     // returns the holders of memory, for the error
  };
  using Source = std::shared_ptr<MemorySource>;

  // Checks that a pool on this device can use the source. A null source is valid.
  static Status check(const Result<Source>& source, const cuda::Device& device);
  static Result<std::unique_ptr<DeviceMemory>> reserve(const cuda::Device& device,
                                                       const Limits& limits, std::string pool,
                                                       int rank);
  ~DeviceMemory();
  void set_source(Source source) { source_ = std::move(source); }
  void set_relief(Relief relief) { relief_ = std::move(relief); }
  void set_journal(Journal* journal) { journal_ = journal; }  // the journal outlives this object
  // Lets the memory exist for ever, because work on the device may still use it.
  void leak();

  // Adds a segment of `bytes`, a multiple of the granularity. *asked says that the program has been
  // asked for memory for this request.
  Status grow(DevicePart part, uint64_t bytes, bool* asked);
  // Gives back the segments that lie completely at or above `bytes`, which must not be used any
  // more. Returns the number of their bytes.
  uint64_t shrink(DevicePart part, uint64_t bytes);
  // Returns the bytes that shrink() would leave.
  uint64_t kept_by_shrink(DevicePart part, uint64_t bytes) const;
  const DeviceArena& arena(DevicePart part) const { return *arenas_[static_cast<size_t>(part)]; }
  cuda::CUdeviceptr base(DevicePart part) const { return arena(part).base(); }
  uint64_t bytes(DevicePart part) const {
    // This load pairs with the stores in grow() and shrink().
    return bytes_[static_cast<size_t>(part)].load(std::memory_order_acquire);
  }

  const Limits& limits() const { return limits_; }
  uint64_t held() const { return bytes(DevicePart::slots) + bytes(DevicePart::blocks); }
  uint64_t left() const { return limits_.all - std::min(held(), limits_.all); }
  bool beyond_soft_limit() const { return limits_.soft && held() > limits_.soft; }
  uint64_t growths() const { return growths_.load(std::memory_order_relaxed); }
  // Returns the number of bytes that were given back so far.
  uint64_t given_back_bytes() const { return given_back_.load(std::memory_order_relaxed); }

 private:
  DeviceMemory(const Limits& limits, std::string pool, int rank)
      : limits_(limits), pool_(std::move(pool)), rank_(rank) {}
  DeviceArena& of(DevicePart part) { return *arenas_[static_cast<size_t>(part)]; }
  Status extend(DevicePart part, uint64_t bytes);
  Status extend_now(DevicePart part, uint64_t bytes);  // under the lock
  Status refuse(uint64_t bytes) const;
  void tell_source(DevicePart part, uint64_t from, uint64_t bytes);
  struct Growth;

  const Limits limits_;
  const std::string pool_;
  const int rank_;
  Source source_;
  Relief relief_;
  Journal* journal_ = nullptr;

  mutable std::mutex mutex_;  // changes of the arenas
  std::array<std::optional<DeviceArena>, 2> arenas_;
  std::array<std::atomic<uint64_t>, 2> bytes_{};
  std::atomic<uint64_t> growths_{0}, given_back_{0};
};

}  // namespace fsccl
