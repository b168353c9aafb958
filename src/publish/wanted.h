// The part of a publication that a subscriber wants: for each rank, which elements of its pieces go
// where in the caller's memory. This is pure arithmetic over the catalog and copies no elements.
#pragma once
#include <string>
#include <vector>

#include "base/status.h"
#include "fsccl/redistribute.h"
#include "layout/layout.h"
#include "publish/catalog.h"
#include "publish/words.h"

namespace fsccl::publish {

struct WantedParam {
  std::string name;  // empty: the parameter is found by its index
  ParamShape shape;
  fsccl_dtype_t dtype = FSCCL_BFLOAT16;  // the type in the caller's memory
  void* to = nullptr;
};

// Elements begin .. begin + count of a rank's piece.
struct Delivery {
  WordPiece piece;
  uint64_t begin = 0, count = 0;
  fsccl_dtype_t sent{};
  fsccl_dtype_t stored{};
  void* to = nullptr;
};

struct Wanted {
  struct OfRank {
    WordRange range;                   // words of all that the rank publishes; has no pieces
    std::vector<Delivery> deliveries;  // empty: the rank need not be asked
  };
  std::vector<OfRank> ranks;
};

// Fails with FSCCL_ERR_MISMATCH if a parameter is not published, is published with another shape or
// a type that is not converted, or has a name that several have; with FSCCL_ERR_NOT_AVAILABLE if it
// is stored in other blocks. The error names the first such parameter.
Result<Wanted> match(const Catalog& catalog, const std::vector<WantedParam>& params,
                     const fsccl_sharding_t& sharding);

}  // namespace fsccl::publish
