#include "kernels/cuda/table_memory.h"

#include <algorithm>
#include <bit>

namespace fsccl::cuda {
namespace {

constexpr size_t kLeast = 4096;

}  // namespace

Result<std::unique_ptr<TableMemory::Bytes>> TableMemory::take(size_t bytes) {
  const size_t size = std::bit_ceil(std::max(bytes, kLeast));
  auto taken = std::make_unique<Bytes>(*this);
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = spare_.find(size); found != spare_.end()) {
      taken->memory_ = spare_.extract(found);
      return taken;
    }
  }
  Spare made;
  const auto memory = made.emplace(size, 0);
  FSCCL_TRY(device_.check("cuMemAlloc", device_.driver().cuMemAlloc(&memory->second, size)));
  taken->memory_ = made.extract(memory);
  return taken;
}

void TableMemory::give_back(Spare::node_type memory) {
  const std::lock_guard lock(mutex_);
  spare_.insert(std::move(memory));
}

}  // namespace fsccl::cuda
