// The factors and divisors of the sums of a reduction of gradients. A mean is divided by the number
// of contributions, once, after the last sum. For a unit with replicas the last sum is the one over
// the replicas. If a reduction leaves that sum to a later reduction, the sharded gradients hold
// undivided sums until then. 16-bit sums must not overflow, so they are divided twice: by the
// number of shard ranks after the first sum, and by the number of replicas after the last.
#pragma once
#include <cstdint>

#include "unit/unit_definition.h"

namespace fsccl {

struct Scaling {
  double scale = 1;
  int64_t divisor = 1;
};

class GradScaling {
 public:
  // Returns the scaling of the sum over the shard ranks. A `scale` of 0 means the mean. `pending`
  // says that sums of earlier reductions still wait for the sum over the replicas.
  Scaling next(const UnitSpec& spec, double scale, bool accumulates, bool pending) {
    const int64_t ranks = spec.shard_comm->size(),
                  replicas = spec.replicate_comm ? spec.replicate_comm->size() : 1;
    const bool mean = scale == 0;
    if (!pending) {
      const bool narrow = dtype_size(spec.grad_dtype) == 2;
      // When gradients accumulate, the last sum must not divide the present content again.
      const bool divides_last = mean && !accumulates && spec.replicate_comm;
      replicas_divisor_ = !divides_last ? 1 : narrow ? replicas : ranks * replicas;
    }
    if (mean) return {1, ranks * replicas / replicas_divisor_};
    return {scale * static_cast<double>(replicas_divisor_), 1};
  }
  // Returns the divisor of the sum over the replicas that ends those reductions.
  int64_t replicas_divisor() const { return replicas_divisor_; }

 private:
  int64_t replicas_divisor_ = 1;
};

}  // namespace fsccl
