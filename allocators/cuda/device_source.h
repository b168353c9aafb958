// Memory of a GPU as a source: each block an arena with one segment. It does not know of streams: who gives a block back says that
// nothing uses it any more.
#pragma once
#include <memory>

#include "allocators/adaptors/memory_source.h"
#include "cuda/device.h"

namespace fsccl {

std::shared_ptr<MemorySource> make_device_source(const cuda::Device& device);

}  // namespace fsccl
