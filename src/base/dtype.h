// The properties of each element type: size, name, and the type in which it accumulates.
#pragma once
#include <cstddef>

#include "fsccl/fsccl.h"

namespace fsccl {

inline constexpr size_t kDtypeSize[FSCCL_DTYPE_COUNT] = {1, 1, 2, 2, 4, 4, 8, 8,
                                                         2, 2, 4, 8, 1, 1, 1};
inline constexpr const char* kDtypeName[FSCCL_DTYPE_COUNT] = {
    "int8",    "uint8",    "int16",   "uint16",  "int32", "uint32",  "int64",  "uint64",
    "float16", "bfloat16", "float32", "float64", "bool",  "fp8e4m3", "fp8e5m2"};

constexpr bool dtype_valid(int dtype) { return dtype >= 0 && dtype < FSCCL_DTYPE_COUNT; }
constexpr size_t dtype_size(fsccl_dtype_t dtype) { return kDtypeSize[dtype]; }
constexpr const char* dtype_name(fsccl_dtype_t dtype) {
  return dtype_valid(dtype) ? kDtypeName[dtype] : "unknown dtype";
}
constexpr bool dtype_float(fsccl_dtype_t dtype) {
  return dtype >= FSCCL_FLOAT16 && dtype <= FSCCL_FLOAT64;
}
constexpr bool dtype_bytes_only(fsccl_dtype_t dtype) { return dtype >= FSCCL_FLOAT8_E4M3; }

}  // namespace fsccl
