#include "allocators/host/host_source.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <unordered_map>

#include "allocators/host/arena.h"
#include "base/limits.h"
#include "base/round_up.h"

namespace fsccl {
namespace {

constexpr uint64_t kMostHostBytes = uint64_t{1} << 47;

class HostSource : public EndSource {
 public:
  bool is_system() const override { return true; }

  Result<SharedMemory> share(void* pointer) override {
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(pointer);
    if (found == blocks_.end())
      return fail(FSCCL_ERR_INVALID_ARGUMENT, "{} is not a block of host memory", pointer);
    SharedMemory shared;
    shared.fd = make_fd([&] { return fcntl(found->second.fd(), F_DUPFD_CLOEXEC, 0); });
    if (!shared.fd.valid()) return fail_errno(errno, "share: a descriptor of the block's file");
    shared.offset =
        static_cast<uint64_t>(static_cast<std::byte*>(pointer) - found->second.control());
    return shared;
  }

 private:
  Result<void*> make(const MemoryRequest& request) override {
    if (request.bytes > kMostHostBytes || request.alignment > kMostHostBytes)
      return fail(FSCCL_ERR_INVALID_ARGUMENT,
                  "{} bytes aligned to {} are more than any machine has", request.bytes,
                  request.alignment);
    // An arena begins at a page or at a multiple of more. The bytes before the first aligned
    // address get no memory.
    const uint64_t space = std::max<uint64_t>(request.bytes, 1) +
                           (request.alignment > page_bytes() ? request.alignment : 0);
    FSCCL_ASSIGN(HostArena arena, HostArena::create(1, 0, space));
    const uint64_t address = reinterpret_cast<uint64_t>(arena.region(0)),
                   skip = round_up(address, request.alignment) - address;
    FSCCL_TRY(arena.reserve(0, skip, std::max<uint64_t>(request.bytes, 1), false));
    void* const pointer = arena.region(0) + skip;
    const std::lock_guard lock(mutex_);
    blocks_.emplace(pointer, std::move(arena));
    return pointer;
  }
  Status give_back(void* pointer, const MemoryRequest&) override {
    const std::unique_lock lock(mutex_);
    if (blocks_.erase(pointer) == 1) return success();
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "{} is not a block of host memory, or was given back before", pointer);
  }

  std::mutex mutex_;
  std::unordered_map<void*, HostArena> blocks_;
};

}  // namespace

std::shared_ptr<MemorySource> make_host_source() { return std::make_shared<HostSource>(); }

}  // namespace fsccl
