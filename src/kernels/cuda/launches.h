// The arguments of the kernels. The host fills them in and the kernels read them, even if different
// compilers compile the two.
#pragma once
#include <cstdint>

namespace fsccl::cuda {

// The elements that kernels convert, and bytes, which they copy.
enum Element : uint32_t { kFp16, kBf16, kFp32, kFp64, kBytes };

// A piece of a table. An address is an offset if the launch has a base for it. `count` is a number
// of elements, or of bytes if the types are kBytes.
struct Range {
  uint64_t source, destination, count;
  uint32_t from, to;  // elements; kBytes in both or in neither
};

// A tile is the unit of a block's work: part `index` of a piece. Blocks follow a list of tiles
// instead of searching for their work, so many small pieces are dealt out like the parts of a large
// one.
struct Tile {
  uint32_t piece, index;
};

// A cast's tile is a number of elements, a copy's a number of bytes.
inline constexpr uint32_t kCastThreads = 256, kCastTile = 4096, kCopyTile = 16384;
// A block has kWorkers threads that reduce, and with a norm one more warp, which adds the squares
// of what the workers have stored. A tile is a block of the norm.
inline constexpr uint32_t kWorkers = 128, kReduceThreads = kWorkers + 32, kReduceTile = 4096;
// At least this many blocks fit on a multiprocessor: the kernels are compiled to use few enough
// registers.
inline constexpr uint32_t kBlocksPerMultiprocessor = 5;

struct CastLaunch {
  const Range* pieces;
  const Tile* tiles;
  uint64_t source_base, destination_base;
  uint32_t tile_count;
};

// A launch holds up to kBasesInside bases itself. If there are more, launches of fsccl_put_bases
// put them into device memory first, kBasesPut at a time.
inline constexpr uint32_t kBasesInside = 64, kBasesPut = 480;

// The sums of squares of the tiles pass through ReduceLaunch::sums to the block that adds them up.
// Each is a double that is not negative, with the sign bit set if an element was not finite. kNoSum
// means that the sum is not there yet.
inline constexpr uint64_t kNoSum = ~uint64_t{0};

struct ReduceLaunch {
  const Range* pieces;  // `source` is an offset behind each base
  const Tile* tiles;
  const uint64_t* more_bases;  // used if there are more than kBasesInside
  uint64_t* sums;              // one for each tile; kNoSum before and after the launch
  void* norm;                  // a DeviceNorm, or null if no norm is wanted
  double scale, divisor;       // with a divisor of 1 the sum is multiplied by scale
  uint32_t tile_count, sources, accumulate;
  uint32_t misalignment;  // bitwise or of the low bits of all bases
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
