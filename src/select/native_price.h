// The time that a way on memory of GPUs took where somebody measured it (`fsccl-perf tune --memory
// gpu`), from a tuning file. It takes the place of the prediction that is made of constants.
// native.h and unit_algorithm.h say which ways there are.
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
  int hosts = 1, per_host = 1;  // the place of the ranks that measured
  Algorithm algorithm{};        // one of_device()
  std::vector<Point> points;    // by size, at least one

  // Between two sizes the time is on the line between them; beyond the last it grows on as between
  // the last two, or with the bytes where there is one size.
  double at(uint64_t bytes) const;
};

// Returns the price of this way of `op` on ranks placed so; null: nobody measured it.
const NativePrice* measured_price(const std::vector<NativePrice>* prices, OpCode op,
                                  Algorithm algorithm, const HostShape& host_shape);

}  // namespace fsccl
