#include "kernels/cuda/table_memory.h"

#include <algorithm>
#include <bit>

namespace fsccl::cuda {
namespace {

constexpr size_t kLeast = 4096;

}  // namespace

Result<std::unique_ptr<TableMemory::Bytes>> TableMemory::take(size_t bytes) {
  const size_t size = std::bit_ceil(std::max(bytes, kLeast));
  CUdeviceptr begin = 0;
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = spare_.find(size); found != spare_.end()) {
      begin = found->second;
      spare_.erase(found);
    }
  }
  if (!begin) FSCCL_TRY(device_.check("cuMemAlloc", device_.driver().cuMemAlloc(&begin, size)));
  return std::make_unique<Bytes>(*this, begin, size);
}

void TableMemory::give_back(CUdeviceptr begin, size_t bytes) {
  const std::lock_guard lock(mutex_);
  spare_.emplace(bytes, begin);
}

}  // namespace fsccl::cuda
