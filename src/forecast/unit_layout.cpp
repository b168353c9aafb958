#include "forecast/unit_layout.h"

#include <algorithm>

#include "base/round_up.h"

namespace fsccl::forecast {
namespace {

// Returns the elements of parameters that are not frozen on the rank that holds most of them, in a
// layout that cuts a unit as a whole.
uint64_t most_trained(const ModelUnit& unit, const Layout& layout, int ranks) {
  if (ranks > UnitLayout::kMostRagged)
    return std::min<uint64_t>(unit.trained_elements(), layout.largest_shard());
  uint64_t most = 0;
  for (int rank = 0; rank < ranks; rank++) {
    uint64_t held = 0;
    for (size_t i = 0; i < unit.params.size(); i++)
      held += unit.params[i].frozen ? 0 : layout.piece(rank, i).count;
    most = std::max(most, held);
  }
  return most;
}

}  // namespace

Group shard_group(const StepConfig& setup, const Machine& machine) {
  const int shared = setup.shared_by(), per_host = std::min(shared, machine.ranks_per_host);
  return {shared, shared / per_host, per_host};
}
// Returns the group of the ranks that have copies of one shard. If a copy fills a host or more,
// they are on different hosts.
Group replica_group(const StepConfig& setup, const Machine& machine) {
  const int copies = setup.ranks / setup.shared_by();
  const int per_host = std::min(
      copies, std::max(1, std::min(setup.ranks, machine.ranks_per_host) / setup.shared_by()));
  return {copies, copies / per_host, per_host};
}

Result<UnitLayout> UnitLayout::make(const ModelUnit& unit, const StepConfig& setup,
                                    const Group& group, bool sums_in_slots) {
  const bool equal = setup.layout == FSCCL_LAYOUT_RAGGED && group.ranks > kMostRagged;
  const fsccl_layout_t kind = equal ? FSCCL_LAYOUT_FLAT : setup.layout;
  FSCCL_ASSIGN(Layout layout, Layout::make(kind, unit.shapes(), group.ranks));
  UnitLayout places{std::move(layout), {}, {}, unit.elements(), 0, {}, 0, {}};
  StepConfig alone = setup;
  alone.by_parameter = false;
  for (size_t i = 0; setup.by_parameter && i < unit.params.size(); i++) {
    const ModelUnit one{.name = unit.name, .params = {unit.params[i]}};
    FSCCL_ASSIGN(UnitLayout made, make(one, alone, group, sums_in_slots));
    places.params.push_back(std::move(made));
  }
  const auto map = [&](const Layout& of, const std::vector<size_t>& sizes) {
    return setup.by_parameter ? make_slots_by_parameter(of, sizes) : make_slot_map(of, sizes);
  };
  const auto most = [&](const Layout& of) {
    return setup.layout == FSCCL_LAYOUT_PER_PARAM ? of.shard_total(0) : of.largest_shard();
  };
  std::vector<size_t> sizes(places.layout.size(), dtype_size(setup.wire));
  places.parameters = map(places.layout, sizes);
  for (size_t i = 0; i < sizes.size(); i++)
    sizes[i] = unit.params[i].frozen ? 0 : dtype_size(setup.reduce);
  places.gradients = map(places.layout, sizes);
  places.shard_elements = most(places.layout);
  if (!unit.trains()) return places;
  FSCCL_ASSIGN(Layout trained, Layout::make(kind, unit.trained_shapes(), group.ranks));
  UnitLayout::Reduced& reduced = places.reduced;
  reduced.slots = map(trained, std::vector<size_t>(trained.size(), dtype_size(setup.reduce)));
  reduced.elements = unit.trained_elements();
  reduced.shard_elements = setup.layout == FSCCL_LAYOUT_PER_PARAM
                               ? most(trained)
                               : most_trained(unit, places.layout, group.ranks);
  reduced.layout = std::move(trained);
  if (sums_in_slots && group.hosts > 1 && group.per_host > 1 && setup.reduce != FSCCL_FLOAT32)
    places.gradient_extra = round_up(
        reduced.elements / static_cast<uint64_t>(group.per_host) * sizeof(float), uint64_t{64});
  return places;
}

}  // namespace fsccl::forecast
