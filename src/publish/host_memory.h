// Says whether a shard can be read and written by the host, which is where weights are published
// from and received in.
#pragma once
#include <cstddef>
#include <string_view>

#include "base/status.h"
#include "cuda/pointer.h"

namespace fsccl::publish {

inline Status check_host_memory(const void* shard, size_t index, std::string_view name) {
  int device = 0;
  if (!shard || !cuda::on_device(shard, &device)) return success();
  return fail(FSCCL_ERR_NOT_AVAILABLE,
              "parameter {} ('{}') is memory of GPU {}: in this release weights are published from "
              "and received in host memory; copy it there",
              index, name, device);
}

}  // namespace fsccl::publish
