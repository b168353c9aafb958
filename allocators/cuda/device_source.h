// Memory of a GPU as a source: each block an arena with one segment. A block that is given back is
// waited for, as cudaFree would, which is what PyTorch relies on (to unmap memory waits for nothing
// for certain): until the stream that it is given back on has done what it was given, or where none
// is named everything that the context was given. Other streams are the caller's affair.
#pragma once
#include <memory>

#include "allocators/adaptors/memory_source.h"
#include "cuda/device.h"

namespace fsccl {

std::shared_ptr<MemorySource> make_device_source(const cuda::Device& device);

}  // namespace fsccl
