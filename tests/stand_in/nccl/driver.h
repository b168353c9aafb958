// What the stand-in uses of CUDA's driver, found in the libcuda.so.1 of the process.
#pragma once

namespace fsccl::stand_in_nccl {

bool on_device(const void* memory);
// In the order of the stream. False: the driver refused.
bool launch(void* stream, void (*function)(void*), void* context);

}  // namespace fsccl::stand_in_nccl
