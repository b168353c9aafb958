// Broadcast of all shards of a unit from one replica to the others, in place. Ranks signal once
// when they enter and once when they have read; between these signals each rank pulls each
// parameter.
#include <algorithm>

#include "plan/build.h"
#include "plan/unit_plans.h"

namespace fsccl {

Plan broadcast_shards(const std::vector<uint64_t>& bytes, int rank, int ranks, int root) {
  Builder build("broadcast_shards", rank, ranks, ranks > 1 ? 2 : 1);
  for (size_t i = 0; i < bytes.size(); ++i)
    build.buffer("shard " + std::to_string(i), Role::inout, bytes[i]).address_exchanged =
        bytes[i] > 0 && ranks > 1;
  const bool empty =
      std::all_of(bytes.begin(), bytes.end(), [](uint64_t size) { return size == 0; });
  if (empty || ranks == 1) return build.barrier_only();

  build.signal(0);
  if (rank == root) {
    build.signal(1);
    build.wait_all(0);
    build.wait_all(1);
    return build.take();
  }
  build.wait(root, 0);
  for (size_t i = 0; i < bytes.size(); ++i) {
    const auto buffer = static_cast<uint32_t>(i);
    build.copy(build.mine(buffer, 0), build.at(root, buffer, 0), bytes[i], FSCCL_UINT8);
  }
  build.signal(1);
  build.wait_all(0);
  return build.take();
}

}  // namespace fsccl
