// The groups of ranks that share the shards of a unit or have copies of them, and the layout of a
// unit over such a group.
#pragma once
#include <optional>
#include <vector>

#include "forecast/machine.h"
#include "forecast/model.h"
#include "forecast/step_config.h"
#include "layout/layout.h"

namespace fsccl::forecast {

// Ranks that share a unit's shards, or ranks that have copies of one shard. They fill their hosts,
// or lie on a part of one host.
struct Group {
  int ranks = 1, hosts = 1, per_host = 1;
};
Group shard_group(const StepConfig& setup, const Machine& machine);
Group replica_group(const StepConfig& setup, const Machine& machine);
// A unit's layout over the ranks of a group, and its slots.
struct UnitLayout {
  static constexpr int kMostRagged =
      4096;  // up to so many ranks, ragged layouts are planned; for more, shards count as equal
  Layout layout;
  SlotMap parameters, gradients;  // a frozen parameter has a place of 0 bytes among the gradients
  uint64_t elements = 0;
  uint64_t shard_elements = 0;  // elements of the rank that holds most

  // The parameters that are not frozen, laid out as if the unit had no others, because the plans of
  // reductions leave frozen ones out. `shard_elements` counts those of the rank that holds most of
  // them in the unit's own layout.
  struct Reduced {
    std::optional<Layout> layout;  // none: all parameters are frozen
    SlotMap slots;
    uint64_t elements = 0, shard_elements = 0;
  } reduced;
  uint64_t gradient_extra =
      0;  // bytes behind a rank's gradients in its slot: fp32 sums of its host for other hosts

  // By parameter: each parameter as a unit of its own, which is how its gradient is reduced.
  std::vector<UnitLayout> params;

  // `sums_in_slots` is true if the sums of a host for other hosts lie behind the gradients, as they
  // do in host memory.
  static Result<UnitLayout> make(const ModelUnit& unit, const StepConfig& setup, const Group& group,
                                 bool sums_in_slots);
};

}  // namespace fsccl::forecast
