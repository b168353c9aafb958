// CRC32C, the checksum of iSCSI and ext4 (polynomial 0x1edc6f41, bits reflected; the state is
// inverted before the first byte and after the last). It uses the processor's instruction if there
// is one, and tables otherwise.
#pragma once
#include <cstddef>
#include <cstdint>

namespace fsccl {

// Returns the checksum of bytes that were summed up to `before`, followed by the `bytes` bytes at
// `data`. So a caller can sum a range piece by piece.
uint32_t crc32c(const void* data, size_t bytes, uint32_t before = 0);

// Returns the same checksum, but always computes it with tables, which works on any processor.
uint32_t crc32c_portable(const void* data, size_t bytes, uint32_t before = 0);
// Returns whether crc32c() uses an instruction on this processor.
bool crc32c_by_instruction();

}  // namespace fsccl
