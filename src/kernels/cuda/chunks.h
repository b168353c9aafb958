// The encoded form of a rank's elements on a GPU: a *part*. It has a directory, and behind it the
// chunks of the rank's ranges (codec/blocks.h), end to end, byte for byte as the host makes them.
// Parts have a fixed size, because the host does not wait to learn how many elements go exactly: a
// part has room for one in kExactShare of its elements, as a host's part may have. The directory
// says where each chunk begins.
#pragma once
#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "kernels/cuda/launches.h"

namespace fsccl::cuda {

struct BlockCoding {
  BlockCodec codec{};
  uint32_t block = 0;  // elements: a power of two, kLeastCodecBlock .. kMostCodecBlock
};

// Says which blocks of a part an encoder measures. With a `most_error` above 0 it measures all, and
// those with a larger error go exactly. Otherwise it measures one in `every`, beginning with number
// `phase` (below `every`), and those beyond the bound go exactly.
struct BlockMeasure {
  double most_error = 0;
  uint32_t every = 0, phase = 0;  // every 0: none
  double bounds[3] = {1, 1, 1};   // for fp16, bf16 and fp32
  // The address of a BlockFigures to which the launch adds, or 0. No two launches may add to the
  // same figures at a time.
  uint64_t figures = 0;
};

// Elements of one piece of memory. Blocks begin at its first element.
struct BlockRange {
  uint64_t elements = 0;  // an offset behind the base that a launch names
  uint64_t count = 0;
  fsccl_dtype_t dtype = FSCCL_FLOAT32;  // fp16, bf16 or fp32
};

inline constexpr uint64_t kExactShare = 16;

class CodedPart {
 public:
  CodedPart(const BlockCoding& coding, std::vector<BlockRange> ranges);
  const std::vector<BlockRange>& ranges() const { return ranges_; }
  uint64_t chunks() const { return chunks_; }
  uint64_t blocks() const { return blocks_; }
  uint64_t directory_bytes() const { return (chunks_ * sizeof(uint32_t) + 15) / 16 * 16; }
  uint64_t exact_room() const { return exact_room_; }  // bytes of elements that may go exactly
  uint64_t bytes() const { return directory_bytes() + fixed_bytes_ + exact_room_; }

 private:
  std::vector<BlockRange> ranges_;
  uint64_t chunks_ = 0, blocks_ = 0;
  uint64_t fixed_bytes_ = 0;  // bytes of the chunks if no block goes exactly
  uint64_t exact_room_ = 0;
};

// The chunks of parts, of which part k begins at `begins[k]` behind the base of codes.
Result<std::vector<Chunk>> cut_chunks(const BlockCoding& coding,
                                      const std::vector<CodedPart>& parts,
                                      const std::vector<uint64_t>& begins);

// Returns a launch with the coding and with what it measures. The caller adds the tables.
EncodeLaunch encode_launch(const BlockCoding& coding, const BlockMeasure& measure);

// A part of elements that are to be summed has neither a directory nor room for exact elements: its
// chunks lie end to end.
uint64_t sum_bytes(const BlockCoding& coding, const std::vector<BlockRange>& ranges);
Result<std::vector<SumChunk>> cut_sums(const BlockCoding& coding,
                                       const std::vector<std::vector<BlockRange>>& parts,
                                       const std::vector<uint64_t>& begins);

}  // namespace fsccl::cuda
