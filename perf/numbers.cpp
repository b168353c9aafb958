#include "numbers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/byte_size.h"

namespace fsccl::perf {

std::optional<uint64_t> parse_bytes(std::string_view text) {
  const std::optional<uint64_t> bytes = parse_byte_size(text);
  return bytes && *bytes >> 62 ? std::nullopt : bytes;
}

std::string format_bytes(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  size_t unit = 0;
  double value = static_cast<double>(bytes);
  while (value >= 1024 && unit + 1 < std::size(kUnits)) value /= 1024, unit++;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", value, kUnits[unit]);
}

const std::vector<DtypeName>& reducible_dtypes() {
  static const std::vector<DtypeName> names = {
      {"int8", FSCCL_INT8},     {"uint8", FSCCL_UINT8},   {"int16", FSCCL_INT16},
      {"uint16", FSCCL_UINT16}, {"int32", FSCCL_INT32},   {"uint32", FSCCL_UINT32},
      {"int64", FSCCL_INT64},   {"uint64", FSCCL_UINT64}, {"fp16", FSCCL_FLOAT16},
      {"bf16", FSCCL_BFLOAT16}, {"fp32", FSCCL_FLOAT32},  {"fp64", FSCCL_FLOAT64}};
  return names;
}

std::optional<fsccl_dtype_t> parse_dtype(std::string_view name) {
  if (name == "float") name = "fp32";
  if (name == "half") name = "fp16";
  if (name == "double") name = "fp64";
  if (name == "bfloat16") name = "bf16";
  for (const DtypeName& entry : reducible_dtypes())
    if (name == entry.name) return entry.dtype;
  return std::nullopt;
}

const char* dtype_name(fsccl_dtype_t dtype) {
  for (const DtypeName& entry : reducible_dtypes())
    if (dtype == entry.dtype) return entry.name;
  return "unknown";
}

std::optional<fsccl_op_t> parse_op(std::string_view name) {
  if (name == "sum") return FSCCL_SUM;
  if (name == "avg") return FSCCL_AVG;
  if (name == "min") return FSCCL_MIN;
  if (name == "max") return FSCCL_MAX;
  if (name == "prod") return FSCCL_PROD;
  if (name == "mulsum" || name == "premul") return fsccl_premul_sum(0.5);
  return std::nullopt;
}

const char* op_name(int32_t kind) {
  static constexpr const char* kNames[] = {"sum", "avg", "min", "max", "prod", "mulsum"};
  return kind >= 0 && kind < static_cast<int32_t>(std::size(kNames)) ? kNames[kind] : "unknown";
}

double percentile(std::vector<double> samples, double fraction) {
  if (samples.empty()) return 0;
  std::sort(samples.begin(), samples.end());
  const double place = std::clamp(fraction, 0.0, 1.0) * static_cast<double>(samples.size() - 1);
  const size_t below = static_cast<size_t>(place), above = std::min(below + 1, samples.size() - 1);
  return samples[below] + (samples[above] - samples[below]) * (place - static_cast<double>(below));
}

std::vector<uint64_t> size_sweep(uint64_t first, uint64_t last, double factor) {
  std::vector<uint64_t> sizes;
  for (double size = static_cast<double>(first); size <= static_cast<double>(last);
       size = std::max(size * factor, std::floor(size) + 1)) {
    sizes.push_back(static_cast<uint64_t>(size));
    if (factor <= 1 || size < 1 || sizes.size() > kMostSizes) break;
  }
  return sizes;
}

std::string sweep_problem(const std::vector<uint64_t>& sizes, std::string_view first,
                          std::string_view last, double factor) {
  if (sizes.empty()) return fmt::format("--minbytes {} is larger than --maxbytes {}", first, last);
  if (sizes.size() <= kMostSizes) return {};
  return fmt::format("--stepfactor {} makes more than {} sizes: give a larger one", factor,
                     kMostSizes);
}

std::vector<uint64_t> size_steps(uint64_t first, uint64_t last, uint64_t increment) {
  std::vector<uint64_t> sizes;
  for (uint64_t size = first; size <= last; size += increment) {
    sizes.push_back(size);
    if (increment == 0 || last - size < increment) break;
  }
  return sizes;
}

}  // namespace fsccl::perf
