// Memory of a GPU as a source. Each block is an arena with one segment. deallocate() waits until
// the named stream has done all work that it was given, or, if no stream is named, until the whole
// context has. PyTorch relies on that, because cudaFree waits in the same way, and the driver does
// not promise that unmapping waits by itself. If a block was used on other streams too, the caller
// must have waited for these.
#pragma once
#include <memory>

#include "allocators/adaptors/memory_source.h"
#include "cuda/device.h"

namespace fsccl {

std::shared_ptr<MemorySource> make_device_source(const cuda::Device& device);

}  // namespace fsccl
