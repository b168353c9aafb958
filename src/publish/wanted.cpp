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
// layout have several rows and are narrower than the matrix. One dimension is one row.
bool row_major(const ParamShape& shape) {
  return shape.block_rows <= 1 || shape.dims.size() < 2 ||
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

// Elements that are wanted, in the published parameter that holds them.
struct Source {
  size_t wanted = 0, owner = 0;
  Piece mine;
};

// Returns what an error adds for a name that is not published: the published name that differs by a
// prefix, if there is just one. Wrappers of models, such as PyTorch's DDP, add prefixes.
std::string like_it(const Catalog& catalog, const std::string& name) {
  const auto behind = [](const std::string& longer, const std::string& end) {
    return longer.size() > end.size() && longer.ends_with(end) &&
           longer[longer.size() - end.size() - 1] == '.';
  };
  const auto like = [&](const Param& param) {
    return behind(param.name, name) || behind(name, param.name);
  };
  const auto found = std::ranges::find_if(catalog.params, like);
  if (std::ranges::count_if(catalog.params, like) != 1) return {};
  return fmt::format("; it has '{}': names must be equal", found->name);
}

// Returns the sources of all parameters of which this process's piece has elements.
Result<std::vector<Source>> find_sources(const Catalog& catalog,
                                         const std::vector<Layout>& published,
                                         const std::vector<WantedParam>& params,
                                         const fsccl_sharding_t& sharding) {
  std::vector<ParamShape> shapes;
  for (const WantedParam& param : params) shapes.push_back(param.shape);
  FSCCL_ASSIGN(const Layout wanted,
               Layout::make(sharding.layout, std::move(shapes), sharding.ranks));
  constexpr size_t kSeveral = SIZE_MAX;
  std::unordered_map<std::string, size_t> by_name;
  for (size_t i = 0; i < catalog.params.size(); i++) {
    const auto [place, fresh] = by_name.emplace(catalog.params[i].name, i);
    if (!fresh) place->second = kSeveral;
  }
  const std::vector<size_t> owners = owners_of(published);
  std::vector<Source> sources;
  for (size_t i = 0; i < params.size(); i++) {
    const auto named = by_name.find(params[i].name);
    const bool there = params[i].name.empty() ? i < catalog.params.size() : named != by_name.end();
    if (!there)
      return fail(FSCCL_ERR_MISMATCH, "{} is not published: the publication has {} parameters{}",
                  name_of(params[i], i), catalog.params.size(),
                  params[i].name.empty()
                      ? std::string()
                      : ", none of this name" + like_it(catalog, params[i].name));
    const size_t found = params[i].name.empty() ? i : named->second;
    if (found == kSeveral)
      return fail(FSCCL_ERR_MISMATCH,
                  "{} is the name of several published parameters: ask for parameters without "
                  "names, which are found by their places, or publish them with other names",
                  name_of(params[i], i));
    FSCCL_TRY(check(params[i], i, catalog, found, owners[found], sharding.layout));
    const Piece mine = wanted.piece(sharding.rank, i);
    if (wanted.tied(i) || mine.count == 0) continue;
    if (!params[i].to)
      return fail(FSCCL_ERR_INVALID_ARGUMENT, "{}: its shard is NULL", name_of(params[i], i));
    sources.push_back({i, owners[found], mine});
  }
  return sources;
}

// Takes the part of a source that lies in a rank's piece, if there is any.
void take(const Source& source, const WordPiece& piece, const WantedParam& param,
          fsccl_dtype_t sent, std::vector<Delivery>* deliveries) {
  const Piece& mine = source.mine;
  const uint64_t begin = std::max(mine.begin, piece.begin),
                 end = std::min(mine.begin + mine.count, piece.begin + piece.count);
  if (begin >= end) return;
  auto* const to =
      static_cast<std::byte*>(param.to) + (begin - mine.begin) * dtype_size(param.dtype);
  deliveries->push_back({piece, begin - piece.begin, end - begin, sent, param.dtype, to});
}

}  // namespace

// The pieces of all ranks together may take much memory, so those of one rank are there at a time.
Result<Wanted> match(const Catalog& catalog, const std::vector<WantedParam>& params,
                     const fsccl_sharding_t& sharding) {
  FSCCL_ASSIGN(const std::vector<Layout> published, layouts_of(catalog));
  if (sharding.rank < 0 || sharding.rank >= sharding.ranks)
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "sharding.rank is {}, it is 0 .. {}", sharding.rank,
                sharding.ranks - 1);
  FSCCL_ASSIGN(const std::vector<Source> sources,
               find_sources(catalog, published, params, sharding));
  Wanted made;
  std::vector<size_t> place_of(catalog.params.size());
  for (int rank = 0; rank < catalog.ranks(); rank++) {
    const WordRange range = words_of_rank(catalog, published, rank);
    made.ranks.push_back({{{}, range.words}, {}});
    place_of.assign(catalog.params.size(), SIZE_MAX);
    for (size_t k = 0; k < range.pieces.size(); k++) place_of[range.pieces[k].param] = k;
    for (const Source& source : sources) {
      const size_t place = place_of[source.owner];
      if (place != SIZE_MAX)
        take(source, range.pieces[place], params[source.wanted], catalog.params[source.owner].dtype,
             &made.ranks.back().deliveries);
    }
  }
  return made;
}

}  // namespace fsccl::publish
