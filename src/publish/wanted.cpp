#include "publish/wanted.h"

#include <algorithm>
#include <unordered_map>

#include "fsccl/redistribute.h"
#include "kernels/kernels.h"

namespace fsccl::publish {
namespace {

std::string shape_text(const ParamShape& shape) {
  std::string text;
  for (const int64_t dim : shape.dims) text += fmt::format("{}{}", text.empty() ? "" : " x ", dim);
  return text.empty() ? "a scalar" : text;
}

std::string name_of(const WantedParam& param, size_t index) {
  return param.name.empty() ? fmt::format("parameter {}", index)
                            : fmt::format("parameter '{}'", param.name);
}

// Returns true if the parameter is stored row by row: always, except where blocks of the ragged
// layout have several rows and are narrower than the matrix.
bool row_major(const ParamShape& shape) {
  return shape.block_rows <= 1 || shape.dims.empty() ||
         shape.block_columns >= static_cast<uint64_t>(std::max<int64_t>(shape.dims.back(), 0));
}

// `owner` is the parameter that has the elements of the one that was found.
Status check(const WantedParam& wanted, size_t index, const Catalog& catalog, size_t found,
             size_t owner, fsccl_layout_t layout) {
  const Param& published = catalog.params[found];
  const fsccl_dtype_t dtype = catalog.params[owner].dtype;
  if (wanted.shape.dims != published.shape.dims)
    return fail(FSCCL_ERR_MISMATCH, "{} is {}, the publication has it as {}",
                name_of(wanted, index), shape_text(wanted.shape), shape_text(published.shape));
  if (!cast_supported(wanted.dtype, dtype))
    return fail(FSCCL_ERR_MISMATCH,
                "{} is published as {}, which does not become {}: only floats are converted",
                name_of(wanted, index), dtype_name(dtype), dtype_name(wanted.dtype));
  const bool same_order = layout == catalog.layout &&
                          wanted.shape.block_rows == published.shape.block_rows &&
                          wanted.shape.block_columns == published.shape.block_columns;
  if (same_order || (row_major(wanted.shape) && row_major(published.shape))) return success();
  return fail(
      FSCCL_ERR_NOT_AVAILABLE,
      "{} is stored in blocks that are not in row-major order: take it in the ragged layout "
      "with the same blocks",
      name_of(wanted, index));
}

}  // namespace

Result<Wanted> match(const Catalog& catalog, const std::vector<WantedParam>& params,
                     const fsccl_sharding_t& sharding) {
  FSCCL_ASSIGN(const std::vector<Layout> published, layouts_of(catalog));
  std::vector<ParamShape> shapes;
  for (const WantedParam& param : params) shapes.push_back(param.shape);
  if (sharding.rank < 0 || sharding.rank >= sharding.ranks)
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "sharding.rank is {}, it is 0 .. {}", sharding.rank,
                sharding.ranks - 1);
  FSCCL_ASSIGN(const Layout wanted,
               Layout::make(sharding.layout, std::move(shapes), sharding.ranks));
  std::unordered_map<std::string, size_t> by_name;
  for (size_t i = 0; i < catalog.params.size(); i++) by_name.emplace(catalog.params[i].name, i);

  Wanted made;
  std::vector<std::vector<size_t>> piece_of(static_cast<size_t>(catalog.ranks()));
  for (int rank = 0; rank < catalog.ranks(); rank++) {
    made.ranks.push_back({words_of_rank(catalog, published, rank), {}});
    auto& places = piece_of[static_cast<size_t>(rank)];
    places.assign(catalog.params.size(), SIZE_MAX);
    const auto& pieces = made.ranks.back().range.pieces;
    for (size_t k = 0; k < pieces.size(); k++) places[pieces[k].param] = k;
  }
  for (size_t i = 0; i < params.size(); i++) {
    const auto named = by_name.find(params[i].name);
    const bool there = params[i].name.empty() ? i < catalog.params.size() : named != by_name.end();
    if (!there)
      return fail(FSCCL_ERR_MISMATCH, "{} is not published: the publication has {} parameters{}",
                  name_of(params[i], i), catalog.params.size(),
                  params[i].name.empty() ? "" : ", none of this name");
    const size_t found = params[i].name.empty() ? i : named->second;
    const size_t owner = owner_of(catalog, published, found);
    FSCCL_TRY(check(params[i], i, catalog, found, owner, sharding.layout));
    const Piece mine = wanted.piece(sharding.rank, i);
    if (wanted.tied(i) || mine.count == 0) continue;
    if (!params[i].to)
      return fail(FSCCL_ERR_INVALID_ARGUMENT, "{}: its shard is NULL", name_of(params[i], i));
    for (size_t rank = 0; rank < made.ranks.size(); rank++) {
      if (piece_of[rank][owner] == SIZE_MAX) continue;
      const WordPiece& piece = made.ranks[rank].range.pieces[piece_of[rank][owner]];
      const uint64_t begin = std::max(mine.begin, piece.begin),
                     end = std::min(mine.begin + mine.count, piece.begin + piece.count);
      if (begin >= end) continue;
      auto* const to = static_cast<std::byte*>(params[i].to) +
                       (begin - mine.begin) * dtype_size(params[i].dtype);
      made.ranks[rank].deliveries.push_back({piece, begin - piece.begin, end - begin,
                                             catalog.params[owner].dtype, params[i].dtype, to});
    }
  }
  return made;
}

}  // namespace fsccl::publish
