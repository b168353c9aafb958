#include "allocators/adaptors/outside_source.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <utility>

#include "base/limits.h"
#include "base/user_call.h"

namespace fsccl {
namespace {

constexpr size_t kLongestName = 63, kLargestTable = 4096;

class OutsideSource : public EndSource {
 public:
  explicit OutsideSource(const fsccl_allocator_t& table)
      : table_(table),
        name_(table.name, strnlen(table.name, kLongestName)),
        memory_(table.memory) {}

  Result<SharedMemory> share(void* pointer) override {
    if (!table_.share)
      return fail(FSCCL_ERR_NOT_AVAILABLE, "allocator '{}' has no function share()", name_);
    int fd = -1;
    SharedMemory shared;
    FSCCL_TRY(read(
        call("share()", [&] { return table_.share(table_.context, pointer, &fd, &shared.offset); }),
        "share a block"));
    shared.fd = Fd(fd);
    if (shared.fd.valid() && shared.offset % page_bytes() == 0 && shared.offset <= INT64_MAX)
      return shared;
    return fail(FSCCL_ERR_INVALID_STATE,
                "allocator '{}' shared descriptor {} from byte {} on: it must be open, and that a "
                "whole page",
                name_, fd, shared.offset);
  }
  fsccl_memory_t memory() const override { return memory_; }
  int device() const override { return table_.device; }

 private:
  Result<void*> make(const MemoryRequest& request) override {
    const uint64_t bytes = std::max<uint64_t>(request.bytes, 1);
    void* pointer = nullptr;
    const auto allocate = [&] {
      return table_.allocate(table_.context, bytes, request.alignment, request.stream, &pointer);
    };
    FSCCL_TRY(read(call("allocate()", allocate), fmt::format("give {} bytes", bytes)));
    if (!pointer)
      return fail(FSCCL_ERR_INVALID_STATE,
                  "allocator '{}' returned FSCCL_OK for {} bytes, and NULL", name_, bytes);
    const auto address = reinterpret_cast<uint64_t>(pointer);
    if (address % request.alignment == 0 && bytes <= UINT64_MAX - address) return pointer;
    (void)call("deallocate()",
               [&] { return table_.deallocate(table_.context, pointer, bytes, request.stream); });
    return fail(FSCCL_ERR_INVALID_STATE,
                "allocator '{}' gave {} for {} bytes aligned to {}: it is not", name_, pointer,
                bytes, request.alignment);
  }
  Status give_back(void* pointer, const MemoryRequest& request) override {
    const uint64_t bytes = std::max<uint64_t>(request.bytes, 1);
    const auto deallocate = [&] {
      return table_.deallocate(table_.context, pointer, bytes, request.stream);
    };
    return read(call("deallocate()", deallocate),
                fmt::format("take back the {} bytes at {}", request.bytes, pointer));
  }

  template <class Call>
  static fsccl_status_t call(const char* what, Call&& function) {
    return call_user(what, FSCCL_ERR_SYSTEM, std::forward<Call>(function));
  }
  // Converts the status that one of the source's functions returned. Statuses other than errors of
  // usage and of resources become FSCCL_ERR_SYSTEM.
  Status read(fsccl_status_t status, const std::string& what) const {
    if (status == FSCCL_OK) return success();
    const int number = static_cast<int>(status);
    const bool known = number < 0 && number > -40;
    return fail(known ? status : FSCCL_ERR_SYSTEM, "allocator '{}' did not {}: it returned {}",
                name_, what, number);
  }

  const fsccl_allocator_t table_;
  const std::string name_;
  const fsccl_memory_t memory_;
};

}  // namespace

Result<fsccl_allocator_t> read_table(const fsccl_allocator_t* given) {
  if (!given) return fail(FSCCL_ERR_INVALID_ARGUMENT, "the allocator is NULL");
  // A table of an older version may lack the fields after `deallocate`. No version's table ends in
  // the middle of a pointer.
  if (given->size < offsetof(fsccl_allocator_t, share) || given->size > kLargestTable ||
      given->size % alignof(fsccl_allocator_t) != 0)
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "the allocator's size field is {}: initialise it with FSCCL_ALLOCATOR_INIT",
                given->size);
  if (given->abi != FSCCL_ALLOCATOR_ABI)
    return fail(FSCCL_ERR_VERSION,
                "the allocator's abi is {}, this library's {}: compile both against the same "
                "fsccl/allocator.h",
                given->abi, FSCCL_ALLOCATOR_ABI);
  fsccl_allocator_t table = FSCCL_ALLOCATOR_INIT;
  std::memcpy(&table, given, std::min(given->size, sizeof table));
  table.size = sizeof table;
  if (!table.name) table.name = "allocator";
  if (!table.allocate || !table.deallocate)
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "the allocator has no function {}",
                table.allocate ? "deallocate" : "allocate");
  if (table.memory != FSCCL_MEMORY_HOST && table.memory != FSCCL_MEMORY_CUDA)
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "the allocator's memory is {}: it must be FSCCL_MEMORY_HOST or FSCCL_MEMORY_CUDA",
                static_cast<int>(table.memory));
  return table;
}

std::shared_ptr<MemorySource> make_outside_source(const fsccl_allocator_t& table) {
  return std::make_shared<OutsideSource>(table);
}

}  // namespace fsccl
