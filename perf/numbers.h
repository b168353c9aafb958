// Reads and writes numbers as people do: sizes, data types, operators, percentiles. These are pure
// functions; for a text that they do not understand they return nothing.
#pragma once
#include <fsccl/fsccl.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fsccl::perf {

// Reads a size such as "4096", "64K", "1.5M" or "2GiB". K, M, G and T are powers of 1024; the
// result must be a whole number of bytes below 2^62.
std::optional<uint64_t> parse_bytes(std::string_view text);
std::string format_bytes(uint64_t bytes);  // "1.5 GiB"

struct DtypeName {
  const char* name;
  fsccl_dtype_t dtype;
};
const std::vector<DtypeName>& reducible_dtypes();
// The names float, half, double and bfloat16 are accepted as well.
std::optional<fsccl_dtype_t> parse_dtype(std::string_view name);
const char* dtype_name(fsccl_dtype_t dtype);

// Reads sum, avg, min, max, prod, or mulsum (also premul), which multiplies by 0.5.
std::optional<fsccl_op_t> parse_op(std::string_view name);
const char* op_name(int32_t kind);

// Returns the value below which `fraction` of the samples lie, interpolated between neighbours, or
// 0 without samples.
double percentile(std::vector<double> samples, double fraction);

inline constexpr size_t kMostSizes = 100'000;
// Both return sizes from `first` to `last`. Each size is `factor` times the one before, and at
// least 1 more, or it is `increment` more. A factor of at most 1 gives `first` alone. A sweep of
// more than kMostSizes sizes ends with one size too many.
std::vector<uint64_t> size_sweep(uint64_t first, uint64_t last, double factor);
// Says what is wrong with the sizes of a sweep, and what to do; nothing if they are good.
std::string sweep_problem(const std::vector<uint64_t>& sizes, std::string_view first,
                          std::string_view last, double factor);
std::vector<uint64_t> size_steps(uint64_t first, uint64_t last, uint64_t increment);

}  // namespace fsccl::perf
