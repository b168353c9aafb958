#include "kernels/cuda/tables.h"

#include <algorithm>
#include <limits>

#include "kernels/float_mode.h"
#include "kernels/kernels.h"

namespace fsccl::cuda {
namespace {

static_assert(kReduceTile == kNormBlock);

Element element(fsccl_dtype_t dtype) {
  static_assert(kFp16 == 0 && kBf16 == 1 && kFp32 == 2 && kFp64 == 3);
  static_assert(FSCCL_FLOAT16 == 8 && FSCCL_BFLOAT16 == 9 && FSCCL_FLOAT32 == 10 &&
                FSCCL_FLOAT64 == 11);
  return static_cast<Element>(dtype - FSCCL_FLOAT16);
}

Status add(Cut& cut, const Range& piece, uint32_t most) {
  const uint64_t tiles = piece.count / most + (piece.count % most != 0);
  if (cut.pieces.size() + cut.tiles.size() + tiles >= std::numeric_limits<int32_t>::max())
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "{} elements are more than one launch can do: divide the unit", piece.count);
  const auto index = static_cast<uint32_t>(cut.pieces.size());
  cut.pieces.push_back(piece);
  for (uint64_t i = 0; i < tiles; i++) cut.tiles.push_back({index, static_cast<uint32_t>(i)});
  return success();
}

}  // namespace

Result<Cut> cut_casts(const std::vector<CastRange>& pieces) {
  Cut cut;
  for (const CastRange& piece : pieces) {
    if (!cast_supported(piece.to, piece.from))
      return fail(FSCCL_ERR_NOT_AVAILABLE, "no kernel converts {} to {}", dtype_name(piece.from),
                  dtype_name(piece.to));
    if (piece.from == piece.to) {
      FSCCL_TRY(add(
          cut,
          {piece.source, piece.destination, piece.count * dtype_size(piece.from), kBytes, kBytes},
          kCopyTile));
    } else {
      FSCCL_TRY(add(
          cut,
          {piece.source, piece.destination, piece.count, element(piece.from), element(piece.to)},
          kCastTile));
    }
  }
  return cut;
}

Result<Cut> cut_reduces(const std::vector<ReduceRange>& pieces) {
  Cut cut;
  for (const ReduceRange& piece : pieces) {
    if (!dtype_float(piece.from) || !dtype_float(piece.to))
      return fail(FSCCL_ERR_NOT_AVAILABLE, "kernels reduce fp16, bf16, fp32 and fp64, not {} to {}",
                  dtype_name(piece.from), dtype_name(piece.to));
    FSCCL_TRY(add(
        cut, {piece.offset, piece.destination, piece.count, element(piece.from), element(piece.to)},
        kReduceTile));
  }
  return cut;
}

uint32_t even_grid(uint32_t tiles, uint32_t multiprocessors, uint32_t most) {
  if (tiles <= most) return tiles;
  const uint32_t rounds = (tiles + most - 1) / most, blocks = (tiles + rounds - 1) / rounds;
  return std::min(most, (blocks + multiprocessors - 1) / multiprocessors * multiprocessors);
}

Grid reduce_grid(uint32_t tiles, bool norm, uint32_t multiprocessors, uint32_t most) {
  const uint32_t adding = norm ? 1 : 0;
  return {even_grid(tiles, multiprocessors, most - adding) + adding,
          norm ? kReduceThreads : kWorkers};
}

ReduceLaunch reduce_launch(const CUdeviceptr* bases, uint32_t sources,
                           const ReduceEpilogue& epilogue) {
  const DefaultFloatMode mode;
  ReduceLaunch launch{};
  const Quotient<double> quotient(epilogue.scale, epilogue.divisor);
  launch.scale = quotient.factor;
  launch.divisor = quotient.divisor;
  launch.accumulate = epilogue.accumulate;
  launch.sources = sources;
  for (uint32_t s = 0; s < sources; s++) launch.misalignment |= static_cast<uint32_t>(bases[s]);
  if (sources <= kBasesInside) std::copy_n(bases, sources, launch.bases);
  return launch;
}

}  // namespace fsccl::cuda
