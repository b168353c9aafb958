// CRC32C, the checksum of iSCSI and ext4 (polynomial 0x1edc6f41, bits reflected, first and last
// inverted): by the processor's own instruction where it has one, else by tables.
#pragma once
#include <cstddef>
#include <cstdint>

namespace fsccl {

// Returns the sum of `bytes` bytes that follow those whose sum is `before`: a range may be summed
// piece after piece.
uint32_t crc32c(const void* data, size_t bytes, uint32_t before = 0);

// The same by tables, on any processor.
uint32_t crc32c_portable(const void* data, size_t bytes, uint32_t before = 0);
// Returns whether crc32c() has an instruction here.
bool crc32c_by_instruction();

}  // namespace fsccl
