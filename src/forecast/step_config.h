// The setup of a training step that is forecast, apart from its model and its machine. The comment
// of fsccl_forecast() in insight.h describes the keys.
#pragma once
#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "base/dtype.h"
#include "base/json_value.h"
#include "base/status.h"
#include "fsccl/fsccl.h"

namespace fsccl::forecast {

inline constexpr int kMostBatch = 1 << 20, kMostAccumulate = 1 << 16, kMostPrefetch = 8;

// A layer keeps for its backward pass all activations (none); or its input, and the results of
// attention and of every second matrix, the first, the third, and so on, as torchtitan does
// (selective); or its input alone (full). The backward pass computes the rest again.
enum class Checkpoint : uint8_t { none, selective, full };
inline constexpr std::array<std::string_view, 3> kCheckpoints{"none", "selective", "full"};
constexpr std::string_view name_of(Checkpoint checkpoint) {
  return kCheckpoints[static_cast<size_t>(checkpoint)];
}

struct StepConfig {
  int ranks = 1;
  int batch = 1;               // sequences of a rank in a micro-batch
  int sequence = 2048;         // tokens of a sequence
  int accumulate = 1;          // micro-batches in a step
  int shard_over = 0;          // ranks that share a copy of the shards; 0: all
  bool copy_per_host = false;  // each host has a copy, whatever shard_over says
  int host_ranks = 0;          // ranks of a host, which the machine knows; 0: not known yet
  fsccl_dtype_t shard = FSCCL_FLOAT32, wire = FSCCL_BFLOAT16, reduce = FSCCL_BFLOAT16,
                sharded_grad = FSCCL_FLOAT32;
  std::string compute = "bf16";
  std::string optimizer = "adam";
  double optimizer_bytes = 8;  // bytes of state for each element of a shard
  fsccl_layout_t layout = FSCCL_LAYOUT_PER_PARAM;
  uint64_t keep_bytes =
      0;             // bytes of gathered parameters that stay from the forward to the backward pass
  int prefetch = 1;  // units gathered ahead
  bool by_parameter = false;
  Checkpoint checkpoint = Checkpoint::none;
  bool fused_loss = false;    // the loss keeps nothing beside its logits
  double codec_ratio = 1;     // factor by which a codec shortens what gathers move between hosts
  double codec_gb_per_s = 0;  // speed of the codec; 0: it takes no time
  uint64_t memory_limit = 0;  // memory of a rank; 0: the machine's
  // Factors on the times of computation and of communication, for what-if questions and for the
  // interval.
  double compute_factor = 1, carry_factor = 1;

  int shared_by() const {
    if (copy_per_host && host_ranks > 0) return std::min(host_ranks, ranks);
    return shard_over > 0 ? shard_over : ranks;
  }
  // Bytes of a value that the computation keeps for the backward pass.
  double value_bytes() const { return compute == "fp32" || compute == "tf32" ? 4 : 2; }
  // Bytes that an update reads and writes for each element of a shard: it reads parameter, gradient
  // and states, and writes parameter and states.
  double optimizer_touches() const {
    if (optimizer == "none") return 0;
    return static_cast<double>(2 * dtype_size(shard) + dtype_size(sharded_grad)) +
           2 * optimizer_bytes;
  }
  double tokens() const {
    return static_cast<double>(batch) * sequence * accumulate;
  }  // tokens of a rank in a step
};

// Errors name the key and say what is wrong with it. Keys that do not belong to a step are left to
// the caller.
Status read_step_config(const JsonValue& json, StepConfig* setup);
// The same for an object that has only keys of a step. `place` names it in errors.
Status read_only_step_config(const JsonValue& json, const char* place, StepConfig* setup);
// Says why the ranks, or the ranks that share a copy, do not fit the hosts or the slots, and what
// to give. Returns an empty text if they fit.
std::string misfit_of(const StepConfig& setup, int ranks_per_host);

}  // namespace fsccl::forecast
