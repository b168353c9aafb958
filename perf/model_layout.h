// A unit of a model as the library's parameters, with the blocks of a ragged layout.
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

// "element", "1", or "RxC"; nothing if it is none of them.
std::optional<Block> parse_block(const std::string& text);
// For a command line: empty, or what is wrong with `text`.
std::string check_block(const std::string& text);

// fp32, in plain names that live as long as the unit. Vectors, such as biases and norms, are cut
// anywhere.
std::vector<fsccl_param_t> params_of(const ModelUnit& unit, const Block& block);

}  // namespace fsccl::perf
