// Numbers as people write and read them: sizes, data types, operators, percentiles. Pure functions;
// a text that is not understood gives nothing.
#pragma once
#include <fsccl/fsccl.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fsccl::perf {

// "4096", "64K", "1.5M", "2GiB": K, M, G and T are powers of 1024; the result must be a whole
// number of bytes below 2^62.
std::optional<uint64_t> parse_bytes(std::string_view text);
std::string format_bytes(uint64_t bytes);  // "1.5 GiB"

struct DtypeName {
  const char* name;
  fsccl_dtype_t dtype;
};
const std::vector<DtypeName>& reducible_dtypes();
// also float, half, double, bfloat16
std::optional<fsccl_dtype_t> parse_dtype(std::string_view name);
const char* dtype_name(fsccl_dtype_t dtype);

// sum avg min max prod mulsum (by 0.5; also premul)
std::optional<fsccl_op_t> parse_op(std::string_view name);
const char* op_name(int32_t kind);

// The value below which `fraction` of the samples lie, linear between neighbours; 0 without
// samples.
double percentile(std::vector<double> samples, double fraction);

// Sizes from `first` to `last`, each `factor` times the one before (only `first` when it is not
// above 1) or `increment` more.
std::vector<uint64_t> size_sweep(uint64_t first, uint64_t last, double factor);
std::vector<uint64_t> size_steps(uint64_t first, uint64_t last, uint64_t increment);

}  // namespace fsccl::perf
