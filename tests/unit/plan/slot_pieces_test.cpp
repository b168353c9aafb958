// Tests that bytes which one step puts into a slot are read by steps that read exactly these bytes
// (plan.h), so each piece can have a checksum.
#include <gtest/gtest.h>

#include <set>
#include <tuple>

#include "expected.h"
#include "plan/list_plans.h"

namespace fsccl::testing {
namespace {

// The key of a piece is its rank, tick, offset, number of elements, and size of an element.
using PieceKey = std::tuple<int, uint16_t, uint64_t, uint64_t, uint64_t>;

// Checks plans that run side by side: each piece that is read must have been put as that same
// piece, and no two pieces may begin in one line.
void check(const std::vector<Plan>& plans, const std::string& what) {
  std::set<PieceKey> brought;
  std::set<std::tuple<int, uint16_t, uint64_t>> lines;
  for (const Plan& plan : plans)
    for (const Step& step : plan.steps) {
      const Buffer& dst = plan.buffers[step.dst.buffer];
      const bool moves = step.kind == StepKind::copy || step.kind == StepKind::cast ||
                         step.kind == StepKind::reduce;
      if (!moves || !dst.slot) continue;
      EXPECT_TRUE(
          brought
              .emplace(plan.rank, dst.slot_tick, step.dst.offset, step.count, dtype_size(step.to))
              .second)
          << what;
      EXPECT_TRUE(lines.emplace(plan.rank, dst.slot_tick, step.dst.offset / 64).second) << what;
    }
  size_t taken = 0;
  for (const Plan& plan : plans)
    for (const Step& step : plan.steps) {
      if (step.kind != StepKind::copy && step.kind != StepKind::cast &&
          step.kind != StepKind::reduce)
        continue;
      const Buffer& src = plan.buffers[step.src.buffer];
      for (int q = 0; src.slot && q < plan.ranks; q++) {
        if (q == plan.rank || (step.kind != StepKind::reduce && q != step.src.rank)) continue;
        EXPECT_TRUE(brought.contains(
            {q, src.slot_tick, step.src.offset, step.count, dtype_size(step.from)}))
            << what << ": rank " << plan.rank << " takes " << step.count << " at "
            << step.src.offset << " of rank " << q;
        taken++;
      }
    }
  EXPECT_EQ(taken == 0, brought.empty()) << what;
}

TEST(SlotPieces, OfCollectives) {
  const auto moves = [](DataMovement (*movement)(const Shape&)) {
    return [=](const Shape& shape) { return move_slots(movement(shape), shape.slot_bytes); };
  };
  const auto reduces = [](ReductionShape (*reduction)(const Shape&)) {
    return [=](const Shape& shape) { return reduce_slots(reduction(shape), shape.slot_bytes); };
  };
  const Builder builders[] = {
      moves(all_gather_movement),       moves(gather_movement),
      moves(scatter_movement),          moves(all_to_all_movement),
      moves(broadcast_movement),        reduces(reduction_of_reduce_scatter),
      reduces(reduction_of_all_reduce), reduces(reduction_of_small_all_reduce),
      reduces(reduction_of_reduce),     reduces(reduction_of_small_reduce)};
  for (const Builder& builder : builders)
    for (const int ranks : {2, 3, 5})
      for (const uint64_t count : {1, 17, 4001, 70'003})
        for (const uint64_t slot_bytes : {3840, 30'784}) {
          Shape shape;
          shape.ranks = ranks;
          shape.root = ranks - 1;
          shape.count = count;
          shape.dtype = FSCCL_BFLOAT16;
          shape.slot_bytes = slot_bytes;
          const std::vector<Plan> plans = for_all_ranks(builder, shape);
          check(plans,
                plans[0].name + " of " + std::to_string(count) + " for " + std::to_string(ranks));
        }
}

TEST(SlotPieces, OfLists) {
  for (const ListKind kind :
       {ListKind::all_gather, ListKind::reduce_scatter, ListKind::broadcast}) {
    std::vector<std::vector<Plan>> buckets;  // by rank
    for (int rank = 0; rank < 3; rank++) {
      ListShape shape;
      shape.kind = kind;
      shape.rank = rank;
      shape.ranks = 3;
      shape.tensors = {
          {FSCCL_FLOAT32, {5, 0, 900}}, {FSCCL_UINT8, {77, 3, 1}}, {FSCCL_FLOAT64, {1, 2000, 30}}};
      for (ListShape::Tensor& tensor : shape.tensors)
        if (kind == ListKind::broadcast) tensor.counts.resize(1);
      buckets.push_back(list_slots(shape, 3840));
    }
    for (size_t k = 0; k < buckets[0].size(); k++)
      check({buckets[0][k], buckets[1][k], buckets[2][k]},
            buckets[0][k].name + " bucket " + std::to_string(k));
  }
}

}  // namespace
}  // namespace fsccl::testing
