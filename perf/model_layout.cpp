#include "model_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace fsccl::perf {

std::optional<Block> parse_block(const std::string& text) {
  Block block;
  if (text == "element" || text == "1") return block;
  const char* const end = text.data() + text.size();
  const auto rows = std::from_chars(text.data(), end, block.rows);
  if (rows.ec != std::errc() || rows.ptr == end || *rows.ptr != 'x') return std::nullopt;
  const auto columns = std::from_chars(rows.ptr + 1, end, block.columns);
  if (columns.ec != std::errc() || columns.ptr != end || block.rows == 0 || block.columns == 0)
    return std::nullopt;
  return block;
}

std::string check_block(const std::string& text) {
  return parse_block(text)
             ? std::string()
             : fmt::format("\"{}\" is no block: give element, 1, or rows and columns as in 32x32",
                           text);
}

std::vector<fsccl_param_t> params_of(const ModelUnit& unit, const Block& block) {
  std::vector<fsccl_param_t> params;
  for (const ModelParam& shape : unit.params) {
    fsccl_param_t param = FSCCL_PARAM_INIT;
    param.name = shape.name.c_str();
    param.dims = static_cast<int>(shape.dims.size());
    std::copy(shape.dims.begin(), shape.dims.end(), param.shape);
    param.dtype = FSCCL_FLOAT32;
    if (param.dims >= 2) {
      param.block_rows = block.rows;
      param.block_columns = block.columns;
    }
    params.push_back(param);
  }
  return params;
}

}  // namespace fsccl::perf
