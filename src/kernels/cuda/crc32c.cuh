// The CRC32C of bytes in memory, computed by all threads of a block. Each thread takes the checksum
// of a segment. Checksums are linear: the state of a segment, moved past the bytes behind it, is its
// product with a power of x modulo the polynomial, and the sum of these products is the state of the
// whole.
#pragma once
#include "kernels/cuda/elements.cuh"

namespace fsccl::cuda {

constexpr unsigned kCrcPolynomial = 0x82f63b78u;  // reflected
constexpr unsigned kCrcPowers = 19;               // for fewer than 2^19 bytes

struct CrcShared {
  unsigned tables[4][256];      // tables[k]: for a byte that k other bytes follow
  unsigned powers[kCrcPowers];  // powers[k]: x^(8 * 2^k), what 2^k bytes multiply a state by
  unsigned states[kCodecThreads];
};

__device__ __forceinline__ unsigned times_x(unsigned value) {
  return value >> 1 ^ (value & 1u ? kCrcPolynomial : 0u);
}
// Multiplies modulo the polynomial. Bit 31 is the coefficient of 1.
__device__ __forceinline__ unsigned crc_product(unsigned a, unsigned b) {
  unsigned product = 0;
  FSCCL_ROLLED
  for (; a; a <<= 1, b = times_x(b)) product ^= a >> 31 ? b : 0u;
  return product;
}

// Fills the tables. All threads of the block call it once.
__device__ __forceinline__ void make_crc_tables(CrcShared& shared) {
  static_assert(kCodecThreads == 256);
  unsigned entry = threadIdx.x;
  FSCCL_ROLLED
  for (int bit = 0; bit < 8; bit++) entry = times_x(entry);
  shared.tables[0][threadIdx.x] = entry;
  if (threadIdx.x < kCrcPowers) {
    unsigned power = 1u << (31 - 8);
    FSCCL_ROLLED
    for (unsigned k = 0; k < threadIdx.x; k++) power = crc_product(power, power);
    shared.powers[threadIdx.x] = power;
  }
  __syncthreads();
  FSCCL_ROLLED
  for (int k = 1; k < 4; k++) {
    entry = entry >> 8 ^ shared.tables[0][entry & 255u];
    shared.tables[k][threadIdx.x] = entry;
  }
  __syncthreads();
}

__device__ __forceinline__ unsigned word_at(const unsigned char* from) {
  if (reinterpret_cast<uint64_t>(from) % 4 == 0) return *reinterpret_cast<const unsigned*>(from);
  return from[0] | from[1] << 8 | from[2] << 16 | static_cast<unsigned>(from[3]) << 24;
}

// Returns the checksum, the same for all threads of the block, which all call it. What other threads
// have written to the bytes must be behind a barrier.
__device__ __forceinline__ unsigned crc_of_block(CrcShared& shared, const unsigned char* bytes,
                                                 unsigned count) {
  const unsigned each = ((count + kCodecThreads - 1) / kCodecThreads + 3) / 4 * 4,
                 behind = threadIdx.x * each, end = behind < count ? count - behind : 0,
                 begin = each < end ? end - each : 0;
  unsigned state = begin == 0 && end ? ~0u : 0u, at = begin;
  FSCCL_ROLLED
  for (; at + 4 <= end; at += 4) {
    state ^= word_at(bytes + at);
    state = shared.tables[3][state & 255u] ^ shared.tables[2][state >> 8 & 255u] ^
            shared.tables[1][state >> 16 & 255u] ^ shared.tables[0][state >> 24];
  }
  FSCCL_ROLLED
  for (; at < end; at++) state = state >> 8 ^ shared.tables[0][(state ^ bytes[at]) & 255u];
  FSCCL_ROLLED
  for (unsigned k = 0; k < kCrcPowers && state; k++)
    if (behind >> k & 1u) state = crc_product(shared.powers[k], state);
  shared.states[threadIdx.x] = state;
  __syncthreads();
  unsigned sum = 0;
  FSCCL_ROLLED
  for (unsigned k = threadIdx.x % 32; k < kCodecThreads; k += 32) sum ^= shared.states[k];
  sum = __reduce_xor_sync(~0u, sum);
  __syncthreads();  // the states may be written again
  return ~sum;
}

}  // namespace fsccl::cuda
