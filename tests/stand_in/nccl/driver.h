// The functions of CUDA's driver that the stand-in uses, found in the libcuda.so.1 of the process.
#pragma once
#include <cstddef>

namespace fsccl::stand_in_nccl {

bool on_device(const void* memory);
// The kind of physical memory behind a buffer. `other` is memory without handles, on which there
// can be no window.
enum class Backing { none, other, one_piece, several };
Backing backing_of(const void* memory, size_t bytes);
bool capturing(void* stream);
// Launches a function in the order of the stream. Returns false if the driver refused.
bool launch(void* stream, void (*function)(void*), void* context);

}  // namespace fsccl::stand_in_nccl
