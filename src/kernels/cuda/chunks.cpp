#include "kernels/cuda/chunks.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace fsccl::cuda {
namespace {

uint64_t chunk_bytes(const BlockCoding& coding, uint64_t count) {
  const uint64_t blocks = (count + coding.block - 1) / coding.block;
  switch (coding.codec) {
    case kCodecMxFp8:
      return kChunkHeader + blocks + (count + 15) / 16 * 16;
    case kCodecInt4:
      return kChunkHeader + blocks * sizeof(float) + (count + 31) / 32 * 16;
    case kCodecBf16:
      return kChunkHeader + (count + 15) / 16 * 32;
    default:
      return kChunkHeader + blocks * sizeof(float) + (count + 15) / 16 * 16;
  }
}

uint32_t element_of(fsccl_dtype_t dtype) {
  return dtype == FSCCL_BFLOAT16 ? kBf16 : dtype == FSCCL_FLOAT16 ? kFp16 : kFp32;
}

// Returns the largest float that is not above the limit. So the floats that are not above the
// result are those that are not above the limit.
float not_above(double limit) {
  const auto nearest = static_cast<float>(limit);
  return nearest > limit ? std::nextafter(nearest, 0.0f) : nearest;
}

template <class Act>
void for_each_chunk(const BlockRange& range, const Act& act) {
  for (uint64_t at = 0; at < range.count; at += kChunkMost)
    act(at, static_cast<uint32_t>(std::min<uint64_t>(range.count - at, kChunkMost)));
}

Status too_many(uint64_t chunks) {
  return fail(FSCCL_ERR_INVALID_ARGUMENT,
              "a rank's part has {} chunks of a codec, which are more than a launch can do: divide "
              "the unit",
              chunks);
}

}  // namespace

CodedPart::CodedPart(const BlockCoding& coding, std::vector<BlockRange> ranges)
    : ranges_(std::move(ranges)) {
  uint64_t bytes = 0;
  for (const BlockRange& range : ranges_) {
    bytes += range.count * dtype_size(range.dtype);
    for_each_chunk(range, [&](uint64_t, uint32_t count) {
      chunks_++;
      blocks_ += (count + coding.block - 1) / coding.block;
      fixed_bytes_ += chunk_bytes(coding, count);
    });
  }
  exact_room_ = std::max(bytes / kExactShare, std::min<uint64_t>(bytes, 4 * kMostCodecBlock));
}

Result<std::vector<Chunk>> cut_chunks(const BlockCoding& coding,
                                      const std::vector<CodedPart>& parts,
                                      const std::vector<uint64_t>& begins) {
  std::vector<Chunk> made;
  for (size_t k = 0; k < parts.size(); k++) {
    const CodedPart& part = parts[k];
    if (part.exact_room() >= kNoChunk || part.blocks() > std::numeric_limits<uint32_t>::max() ||
        made.size() + part.chunks() >= std::numeric_limits<int32_t>::max())
      return too_many(part.chunks());
    uint64_t codes = begins[k] + part.directory_bytes();
    uint32_t index = 0, blocks = 0;
    for (const BlockRange& range : part.ranges())
      for_each_chunk(range, [&](uint64_t at, uint32_t count) {
        made.push_back({.elements = range.elements + at * dtype_size(range.dtype),
                        .codes = codes,
                        .directory = begins[k],
                        .count = count,
                        .element = element_of(range.dtype),
                        .index = index++,
                        .part = static_cast<uint32_t>(k),
                        .exact_room = static_cast<uint32_t>(part.exact_room()),
                        .first_block = blocks});
        blocks += static_cast<uint32_t>((count + coding.block - 1) / coding.block);
        codes += chunk_bytes(coding, count);
      });
  }
  return made;
}

EncodeLaunch encode_launch(const BlockCoding& coding, const BlockMeasure& measure) {
  EncodeLaunch launch{};
  launch.figures = reinterpret_cast<BlockFigures*>(measure.figures);
  launch.most_error = not_above(measure.most_error);
  std::transform(std::begin(measure.bounds), std::end(measure.bounds), launch.bounds, not_above);
  launch.codec = coding.codec;
  launch.block = coding.block;
  launch.measure_all = measure.most_error > 0;
  launch.measure_every = measure.every;
  launch.measure_phase = measure.phase;
  return launch;
}

uint64_t sum_bytes(const BlockCoding& coding, const std::vector<BlockRange>& ranges) {
  uint64_t bytes = 0;
  for (const BlockRange& range : ranges)
    for_each_chunk(range, [&](uint64_t, uint32_t count) { bytes += chunk_bytes(coding, count); });
  return bytes;
}

Result<std::vector<SumChunk>> cut_sums(const BlockCoding& coding,
                                       const std::vector<std::vector<BlockRange>>& parts,
                                       const std::vector<uint64_t>& begins) {
  std::vector<SumChunk> made;
  uint64_t elements = 0;
  for (size_t k = 0; k < parts.size(); k++) {
    uint64_t codes = begins[k];
    for (const BlockRange& range : parts[k])
      for_each_chunk(range, [&](uint64_t at, uint32_t count) {
        made.push_back({.elements = range.elements + at * dtype_size(range.dtype),
                        .codes = codes,
                        .feedback = elements,
                        .count = count,
                        .element = element_of(range.dtype),
                        .part = static_cast<uint32_t>(k),
                        .unused = 0});
        codes += chunk_bytes(coding, count);
        elements += count;
      });
    if (made.size() >= std::numeric_limits<int32_t>::max()) return too_many(made.size());
  }
  return made;
}

}  // namespace fsccl::cuda
