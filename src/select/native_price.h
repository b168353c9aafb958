// The measured times of an algorithm on memory of GPUs (native.h, unit_algorithm.h). They come from
// a tuning file, which `fsccl-perf tune --memory gpu` writes, and replace the prediction that is
// made of constants.
#pragma once
#include <cstdint>
#include <vector>

#include "plan/fingerprint.h"
#include "select/rules.h"

namespace fsccl {

struct NativePrice {
  struct Point {
    uint64_t bytes = 0;  // bytes of the larger buffer
    double ns = 0;
  };
  OpCode op{};
  int hosts = 1, per_host = 1;  // the hosts of the ranks that measured
  Algorithm algorithm{};        // an algorithm for which Rule::of_device() is true
  std::vector<Point> points;    // by size, at least one

  // Returns the time: interpolated between two sizes, extrapolated beyond the last from the last
  // two. If there is one size, the time is proportional to the bytes.
  double at(uint64_t bytes) const;
};

// Returns the price of the algorithm for `op` on such hosts, or null if it was not measured.
const NativePrice* measured_price(const std::vector<NativePrice>* prices, OpCode op,
                                  Algorithm algorithm, const HostShape& host_shape);

}  // namespace fsccl
