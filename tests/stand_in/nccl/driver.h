// The functions of CUDA's driver that the stand-in uses, found in the libcuda.so.1 of the process.
#pragma once
#include <cstddef>

namespace fsccl::stand_in_nccl {

bool on_device(const void* memory);
// other: memory without handles, which windows cannot be on
enum class Backing { none, other, one_piece, several };
Backing backing_of(const void* memory, size_t bytes);
bool capturing(void* stream);
// Launches a function in the order of the stream. Returns false if the driver refused.
bool launch(void* stream, void (*function)(void*), void* context);

}  // namespace fsccl::stand_in_nccl
