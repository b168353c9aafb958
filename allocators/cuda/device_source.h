// Memory of a GPU as a source: each block is an arena with one segment. A give-back waits until the
// named stream has done all work that it was given, or, if no stream is named, until the whole
// context has. PyTorch relies on this, because cudaFree waits so; unmapping memory alone is not
// certain to wait. Other streams are the caller's affair.
#pragma once
#include <memory>

#include "allocators/adaptors/memory_source.h"
#include "cuda/device.h"

namespace fsccl {

std::shared_ptr<MemorySource> make_device_source(const cuda::Device& device);

}  // namespace fsccl
