// Translates a unit of a model into the library's parameters, with the blocks of a ragged layout.
#pragma once
#include <fsccl/fsccl.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model.h"

namespace fsccl::perf {

struct Block {
  uint64_t rows = 1, columns = 1;
};

// Reads "element", "1", or "RxC"; returns nothing for another text.
std::optional<Block> parse_block(const std::string& text);
// Checks a block of a command line: returns what is wrong with `text`, or an empty text.
std::string check_block(const std::string& text);

// Returns fp32 parameters, whose names live as long as the unit. A vector, such as a bias or a
// norm, may be cut anywhere.
std::vector<fsccl_param_t> params_of(const ModelUnit& unit, const Block& block);

}  // namespace fsccl::perf
