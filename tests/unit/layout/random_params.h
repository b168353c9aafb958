// Random lists of parameters with all kinds that are difficult for layouts: scalars, empty and
// short dimensions, ties.
#pragma once
#include <random>
#include <vector>

#include "layout/layout.h"

namespace fsccl::testing {

inline std::vector<ParamShape> random_params(std::mt19937_64& random, size_t most = 8) {
  const auto below = [&](uint64_t bound) { return random() % bound; };
  std::vector<ParamShape> params(below(most + 1));
  for (size_t i = 0; i < params.size(); ++i) {
    std::vector<size_t> owners;
    for (size_t k = 0; k < i; ++k)
      if (params[k].tied_to == -1) owners.push_back(k);
    if (!owners.empty() && below(5) == 0) {
      params[i].tied_to = static_cast<int>(owners[below(owners.size())]);
      params[i].dims = params[static_cast<size_t>(params[i].tied_to)].dims;
      continue;
    }
    const size_t dims = below(4);  // a parameter with 0 dimensions is a scalar
    for (size_t d = 0; d < dims; ++d)
      params[i].dims.push_back(
          static_cast<int64_t>(below(8) == 0 ? 0 : 1 + below(d == 0 ? 100 : 9)));
  }
  return params;
}

// Returns such a list whose parameters also have blocks, for the ragged layout.
inline std::vector<ParamShape> random_blocks(std::mt19937_64& random) {
  auto params = random_params(random);
  for (ParamShape& param : params) {
    if (random() % 3 != 0) param.block_rows = random() % 12, param.block_columns = random() % 12;
    if (param.tied_to < 0) continue;
    const ParamShape& owner = params[static_cast<size_t>(param.tied_to)];
    param.block_rows = owner.block_rows, param.block_columns = owner.block_columns;
  }
  return params;
}

}  // namespace fsccl::testing
