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

// Block codecs (codec/blocks.h, which has the same numbers and the same format of a chunk).
enum BlockCodec : uint32_t { kCodecInt8, kCodecFp8, kCodecMxFp8, kCodecInt4, kCodecBf16 };
inline constexpr uint32_t kChunkMost = 1u << 16;  // elements of a chunk
inline constexpr uint32_t kChunkHeader = 16;      // bytes
inline constexpr uint32_t kLeastCodecBlock = 32, kMostCodecBlock = 1024;
inline constexpr uint32_t kCodecThreads = 256;

// A chunk of a part (chunks.h). Offsets are behind the bases that a launch names.
struct Chunk {
  uint64_t elements;        // where they lie
  uint64_t codes;           // where the chunk begins if no block before it in the part goes exactly
  uint64_t directory;       // where the part's directory begins
  uint32_t count, element;  // its elements, and their type
  uint32_t index, part;     // its number in the part, and the part's number
  uint32_t exact_room;      // bytes of elements of the part that may go exactly
  uint32_t first_block;     // blocks of the part before it
};
// An entry of a directory is the number of bytes of exact elements in the chunks before. kNoChunk
// says that more elements would go exactly than there is room for, so there are no chunks.
inline constexpr uint32_t kNoChunk = ~0u;

// Describes the blocks of an encoded chunk. `exact_bytes` are bytes of elements that go exactly.
// `largest` has the bits of the largest error of a measured block that goes coded, as a float;
// errors are not negative, so larger bits are a larger error.
struct ChunkFigures {
  uint32_t exact_bytes, exact, measured, beyond, largest;
};
// The figures of all parts that were encoded so far. One thread of a launch adds to them, and
// launches follow each other; the host may read them at any time.
struct BlockFigures {
  uint64_t blocks, exact, measured, beyond;  // beyond: the bound of the codec
  uint32_t largest, unused;
};

// The first launch encodes all chunks as if no block went exactly. With `closes` a second launch
// writes the directory and the headers, and encodes the chunks anew if blocks do go exactly.
//
// A block is measured if its number in the part, modulo `measure_every`, is `measure_phase`, and
// goes exactly if its error is beyond the bound, which that of a correct codec never is. With
// `measure_all` all blocks are measured, and go exactly if their error is above `most_error`.
struct EncodeLaunch {
  const Chunk* chunks;    // all belong to one part
  ChunkFigures* found;    // by chunk, from the first launch to the second
  BlockFigures* figures;  // null: nobody wants them
  uint64_t elements_base, codes_base;
  float most_error, bounds[3];  // bounds: by Element, of fp16, bf16 and fp32
  uint32_t chunk_count, codec, block, closes;
  uint32_t measure_all, measure_every, measure_phase;  // measure_every 0: no block
};

// A decoder says what it has found in a part.
enum PartState : uint32_t { kPartGood, kPartNoRoom, kPartDamaged };
struct DecodeLaunch {
  const Chunk* chunks;
  uint64_t elements_base, codes_base;
  uint32_t* states;  // a PartState for each part, written if it is not good; host memory
  uint32_t chunk_count, codec, block;
};

// A chunk of elements that are to be summed. It lies at a multiple of 4 bytes.
struct SumChunk {
  uint64_t elements, codes;  // offsets behind the bases that a launch names
  uint64_t feedback;         // elements before it, in the order of the table
  uint32_t count, element;   // its elements, and their type; decoded ones are fp32
  uint32_t part, unused;     // the number of its part
};
struct SumsLaunch {
  const SumChunk* chunks;
  uint64_t elements_base, codes_base;
  uint64_t feedback;  // the encoder's: floats, one for each element of the table; 0: none
  uint32_t* states;   // the decoder's: a PartState for each part, as in DecodeLaunch
  uint32_t chunk_count, codec, block;
};

struct PutLaunch {
  uint64_t* to;
  uint32_t count;
  uint64_t bases[kBasesPut];
};

}  // namespace fsccl::cuda
