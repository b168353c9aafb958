// The arguments of the kernels. The host fills them in and the kernels read them, even if different
// compilers compile the two.
#pragma once
#include <cstdint>

namespace fsccl::cuda {

// The elements that kernels convert, and bytes, which they copy.
enum Element : uint32_t { kFp16, kBf16, kFp32, kFp64, kBytes };

// A piece of a table. Its addresses are offsets where the launch names a base; `count` is of
// elements, or of bytes.
struct Range {
  uint64_t source, destination, count;
  uint32_t from, to;  // Element; kBytes only both
};

// A tile is the unit of a block's work: part `index` of a piece. Blocks follow a list of tiles
// instead of searching for their work, so many small pieces are dealt out like the parts of a large
// one.
struct Tile {
  uint32_t piece, index;
};

// elements; bytes
inline constexpr uint32_t kCastThreads = 256, kCastTile = 4096, kCopyTile = 16384;
// The threads that reduce, and with a norm one more warp, which adds the squares of what they
// stored before. A tile is a block of the norm.
inline constexpr uint32_t kWorkers = 128, kReduceThreads = kWorkers + 32, kReduceTile = 4096;
// the least for either kernel: registers leave room for them
inline constexpr uint32_t kBlocksPerMultiprocessor = 5;

struct CastLaunch {
  const Range* pieces;
  const Tile* tiles;
  uint64_t source_base, destination_base;
  uint32_t tile_count;
};

// A launch holds this many bases itself; more are put into device memory before it.
inline constexpr uint32_t kBasesInside = 64, kBasesPut = 480;

// A tile's sum of squares on its way to the block that adds them up: a double that is not negative,
// with its sign bit set if an element was not finite. kNoSum means that the sum is not there yet.
inline constexpr uint64_t kNoSum = ~uint64_t{0};

struct ReduceLaunch {
  const Range* pieces;  // `source`: behind each base
  const Tile* tiles;
  const uint64_t* more_bases;  // where there are more than kBasesInside
  uint64_t* sums;              // one a tile, kNoSum before the launch and after it
  void* norm;                  // a DeviceNorm, or null: no sums are taken
  double scale, divisor;       // the sum is divided, or, where the divisor is 1, multiplied
  uint32_t tile_count, sources, accumulate;
  uint32_t misalignment;  // the low bits of all bases, joined by or
  uint64_t bases[kBasesInside];
};

inline constexpr uint32_t kDivideThreads = 256;
struct DivideLaunch {
  void* values;  // floats, or with `wide` doubles
  uint64_t count;
  double divisor;
  uint32_t wide;
};

struct PutLaunch {
  uint64_t* to;
  uint32_t count;
  uint64_t bases[kBasesPut];
};

}  // namespace fsccl::cuda
