// The memory of a pool on its GPU: an arena for slots and an arena for blocks, which grow by whole
// segments, and the limits that the two keep together. Before it refuses a request, it gives back
// memory that blocks do not use and asks the program, once a request.
//
// Growth passes through the program's source, if there is one: adaptors over fsccl_allocator_cuda()
// see it and may refuse it; the memory is the arena's own. (Other processes must map a segment, at
// a place of the arena's, so memory that somebody else has allocated cannot be one.)
//
// Any thread. The lock is not held while `Relief` or the source is called.
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

// Debug pools fill memory that nobody may read with this byte: a NaN in every type of floating
// point.
inline constexpr unsigned char kPoison = 0xff;

enum class DevicePart : uint8_t { slots, blocks };

class DeviceMemory {
 public:
  struct Limits {
    uint64_t all = 0;    // that this rank may reserve
    uint64_t slots = 0;  // that slots may take: the smallest of the ranks'
    uint64_t soft = 0;   // beyond it the program is asked; 0: none
  };
  struct Relief {
    // gives back what blocks do not use, and waits for that
    std::function<void()> trim;
    std::function<void(uint64_t bytes)> ask;  // the program, for so many bytes
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
  void set_journal(Journal* journal) { journal_ = journal; }  // which outlives it
  // Lets the memory exist for ever, because work on the device may still use it.
  void leak();

  // Adds a segment of `bytes`, a multiple of the granularity. *asked: the program has been asked
  // for memory for this request.
  Status grow(DevicePart part, uint64_t bytes, bool* asked);
  // Gives back the segments that lie wholly at or above `bytes`, which are no longer used. Returns
  // the number of their bytes.
  uint64_t shrink(DevicePart part, uint64_t bytes);
  // returns the bytes that would be left
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
  // in all
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
