// This adaptor puts zones of a pattern before and behind each block, and fills blocks with contents
// that make the result of a computation on them visibly wrong:
//
//   | zone: 64 bytes, or the alignment if that is larger | block | zone: 64 bytes |
//
// The table of blocks lies apart from the blocks, so a program that writes beyond a block does not
// overwrite the guard's records.
#include <algorithm>
#include <cstring>
#include <mutex>
#include <unordered_map>

#include "allocators/adaptors/adaptors.h"

namespace fsccl {
namespace {

constexpr uint64_t kZone = 64;
constexpr unsigned char kPattern = 0xFD;
constexpr unsigned char kPoison = 0xFF;  // a NaN in every floating-point type

// Finds the first and the last byte of a zone that were changed. Returns false if there are none.
bool damage(const unsigned char* zone, uint64_t bytes, uint64_t* first, uint64_t* last) {
  bool found = false;
  for (uint64_t i = 0; i < bytes; i++) {
    if (zone[i] == kPattern) continue;
    if (!found) *first = i;
    *last = i;
    found = true;
  }
  return found;
}

class Guard : public Adaptor {
 public:
  Guard(Upstream upstream, std::function<void(const std::string&)> report)
      : Adaptor(std::move(upstream)), report_(std::move(report)) {}

  Result<void*> allocate(const MemoryRequest& request) override {
    Block block{nullptr, request, std::max(kZone, request.alignment)};
    if (__builtin_add_overflow(request.bytes, block.before + kZone, &block.whole.bytes))
      return fail(FSCCL_ERR_INVALID_ARGUMENT, "{} bytes are more than any machine has",
                  request.bytes);
    FSCCL_ASSIGN(block.begin, upstream_->allocate(block.whole));
    auto* const begin = static_cast<unsigned char*>(block.begin);
    unsigned char* const pointer = begin + block.before;
    std::memset(begin, kPattern, block.before);
    std::memset(pointer, kPoison, request.bytes);
    std::memset(pointer + request.bytes, kPattern, kZone);
    const std::lock_guard lock(mutex_);
    blocks_[pointer] = block;
    return static_cast<void*>(pointer);
  }

  Status deallocate(void* pointer, const MemoryRequest& request) override {
    Block block;
    {
      const std::lock_guard lock(mutex_);
      const auto found = blocks_.find(pointer);
      if (found == blocks_.end())
        return fail(FSCCL_ERR_INVALID_ARGUMENT, "{} is not a block of this guard", pointer);
      block = found->second;
      blocks_.erase(found);
    }
    check(block, pointer, request.bytes);
    std::memset(pointer, kPoison, request.bytes);
    block.whole.stream = request.stream;
    return upstream_->deallocate(block.begin, block.whole);
  }
  Result<SharedMemory> share(void*) override {
    return fail(FSCCL_ERR_NOT_AVAILABLE,
                "a guarded block does not begin at a page of its file: share without the guard");
  }
  Result<EndSource*> end() override {
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "a guard cannot be in the source of a pool, whose slots lie side by side: use "
                "debug = 1 (FSCCL_POOL_DEBUG=1), or "
                "guard an allocator of the pool (fsccl_pool_allocator)");
  }

 private:
  struct Block {
    void* begin = nullptr;  // as upstream gave it
    MemoryRequest whole;
    uint64_t before = 0;  // bytes of the first zone
  };

  void check(const Block& block, const void* pointer, uint64_t bytes) const {
    const auto* const begin = static_cast<const unsigned char*>(block.begin);
    uint64_t first = 0, last = 0;
    if (damage(begin, block.before, &first, &last))
      report_(
          fmt::format("a block of {} bytes at {} was overrun: it was written from {} to {} bytes "
                      "before its beginning",
                      bytes, pointer, block.before - first, block.before - last));
    if (damage(begin + block.before + bytes, kZone, &first, &last))
      report_(
          fmt::format("a block of {} bytes at {} was overrun: it was written from {} to {} bytes "
                      "beyond its end",
                      bytes, pointer, first + 1, last + 1));
  }

  const std::function<void(const std::string&)> report_;
  std::mutex mutex_;
  std::unordered_map<void*, Block> blocks_;  // by the user's address
};

}  // namespace

Result<Upstream> make_guard(Upstream upstream,
                            std::function<void(const std::string& text)> report) {
  if (upstream->memory() != FSCCL_MEMORY_HOST)
    return fail(FSCCL_ERR_NOT_AVAILABLE,
                "a guard writes to the memory from the host, and this is device memory");
  return Upstream(std::make_shared<Guard>(std::move(upstream), std::move(report)));
}

}  // namespace fsccl
