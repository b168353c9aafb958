// Proves the plans of units for random units (scalars, empty dimensions, ties, frozen parameters,
// mixed dtypes) in all layouts, with one slot and with a slot for each parameter, for 1 to 64
// ranks.
#include "plan/unit_plans.h"

#include <gtest/gtest.h>

#include "../layout/random_params.h"
#include "plan/verify.h"

namespace fsccl::testing {
namespace {

struct Unit {
  Layout layout;
  UnitShape shape;  // the shape on rank 0
};

fsccl_dtype_t random_float(std::mt19937_64& random) {
  constexpr fsccl_dtype_t kFloats[] = {FSCCL_FLOAT16, FSCCL_BFLOAT16, FSCCL_FLOAT32, FSCCL_FLOAT64};
  return kFloats[random() % 4];
}

// Returns a random unit. Half of the units have mixed dtypes. The others have one dtype for all
// parameters, which is the usual case, and in which pieces of the flat layout touch each other. In
// slots of gradients frozen parameters have no bytes.
Unit random_unit(std::mt19937_64& random, fsccl_layout_t kind, int ranks, bool gradients) {
  const auto params = kind == FSCCL_LAYOUT_RAGGED ? random_blocks(random) : random_params(random);
  Unit unit{Layout::make(kind, params, ranks).take(), {}};
  const bool mixed = random() % 2 == 0;
  const fsccl_dtype_t shard = random_float(random), slot = random_float(random),
                      grad = random_float(random);
  std::vector<size_t> size;
  for (size_t i = 0; i < params.size(); ++i) {
    unit.shape.shard_dtype.push_back(mixed ? random_float(random) : shard);
    unit.shape.slot_dtype.push_back(mixed ? random_float(random) : slot);
    unit.shape.grad_dtype.push_back(mixed ? random_float(random) : grad);
    const bool frozen = gradients && random() % 4 == 0;
    size.push_back(frozen ? 0 : dtype_size(unit.shape.slot_dtype[i]));
  }
  unit.shape.slot =
      random() % 2 ? make_slots_by_parameter(unit.layout, size) : make_slot_map(unit.layout, size);
  return unit;
}

// These return the plan's buffer for the k-th of `params` parameters.
uint32_t slot_buffer(const Unit& unit, size_t k) {
  return static_cast<uint32_t>(unit.shape.slot.by_parameter ? k : 0);
}
uint32_t shard_buffer(const Unit& unit, size_t k, size_t params) {
  return static_cast<uint32_t>((unit.shape.slot.by_parameter ? params : 1) + k);
}

template <class Builder>
std::vector<Plan> for_ranks(Unit& unit, Builder build) {
  std::vector<Plan> plans;
  unit.shape.layout = &unit.layout;
  for (int rank = 0; rank < unit.layout.ranks(); ++rank) {
    unit.shape.rank = rank;
    plans.push_back(build(unit.shape));
  }
  return plans;
}

// Adds the expected contents of the slot that `rank` sees: every piece of every rank, converted.
void expect_slot(const Unit& unit, int rank, std::vector<Expected>& expected) {
  for (size_t i = 0; i < unit.layout.size(); ++i) {
    if (unit.layout.tied(i)) continue;
    const uint64_t size = dtype_size(unit.shape.slot_dtype[i]);
    for (int q = 0; q < unit.layout.ranks(); ++q) {
      const Piece piece = unit.layout.piece(q, i);
      if (piece.count == 0) continue;
      const Operand operand{slot_buffer(unit, i), rank,
                            unit.shape.slot.offset[i] + piece.begin * size};
      const Operand source{shard_buffer(unit, i, unit.layout.size()), q, 0};
      expected.push_back({operand, source, piece.count, unit.shape.shard_dtype[i],
                          unit.shape.slot_dtype[i], false});
    }
  }
}

class UnitPlans : public ::testing::TestWithParam<fsccl_layout_t> {
 protected:
  template <class Check>
  void for_random_units(uint64_t seed, bool gradients, Check check) {
    std::mt19937_64 random(seed);
    for (int ranks = 1; ranks <= 64; ++ranks) {
      const int rounds = ranks <= 16 ? 6 : 1;
      for (int round = 0; round < rounds; ++round) {
        Unit unit = random_unit(random, GetParam(), ranks, gradients);
        const Status status = check(unit);
        ASSERT_TRUE(status.ok()) << "ranks " << ranks << ", round " << round << ": "
                                 << status.text();
      }
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Layouts, UnitPlans,
                         ::testing::Values(FSCCL_LAYOUT_FLAT, FSCCL_LAYOUT_PER_PARAM,
                                           FSCCL_LAYOUT_RAGGED));

TEST_P(UnitPlans, UnshardShared) {
  for_random_units(11, false, [](Unit& unit) {
    const auto plans = for_ranks(unit, unshard_shared);
    std::vector<Expected> expected;
    expect_slot(unit, 0, expected);
    return verify(plans, expected);
  });
}

TEST_P(UnitPlans, UnshardKept) {
  for_random_units(12, false,
                   [](Unit& unit) { return verify(for_ranks(unit, unshard_barrier), {}); });
}

TEST_P(UnitPlans, UnshardPrivate) {
  for (const bool writable : {false, true}) {
    for_random_units(13, false, [&](Unit& unit) {
      const auto plans =
          for_ranks(unit, [&](const UnitShape& shape) { return unshard_private(shape, writable); });
      std::vector<Expected> expected;
      for (int rank = 0; rank < unit.layout.ranks(); ++rank) expect_slot(unit, rank, expected);
      return verify(plans, expected);
    });
  }
}

// Reduces all parameters, or some.
TEST_P(UnitPlans, ReduceGrads) {
  std::mt19937_64 random(17);
  for_random_units(14, true, [&random](Unit& unit) {
    const bool all = random() % 3 == 0;
    std::vector<size_t>& params = unit.shape.params.emplace();
    for (size_t i = 0; i < unit.layout.size(); ++i)
      if (all || random() % 2) params.push_back(i);
    const auto plans = for_ranks(unit, reduce_grads);
    std::vector<Expected> expected;
    for (size_t k = 0; k < params.size(); ++k) {
      const size_t i = params[k];
      if (unit.layout.tied(i) || unit.shape.slot.offset[i] == SlotMap::kAbsent) continue;
      for (int rank = 0; rank < unit.layout.ranks(); ++rank) {
        const Piece piece = unit.layout.piece(rank, i);
        const Operand source{
            slot_buffer(unit, k), 0,
            unit.shape.slot.offset[i] + piece.begin * dtype_size(unit.shape.slot_dtype[i])};
        expected.push_back({{shard_buffer(unit, k, params.size()), rank, 0},
                            source,
                            piece.count,
                            unit.shape.slot_dtype[i],
                            unit.shape.grad_dtype[i],
                            true});
      }
    }
    return verify(plans, expected);
  });
}

// Returns for each rank of a host the ranks of the layout for which it acts. For some ranks of the
// layout no rank of this host acts.
std::vector<std::vector<int>> random_acts_for(std::mt19937_64& random, int layout_ranks,
                                              bool one_each) {
  const size_t ranks = 1 + random() % static_cast<size_t>(layout_ranks);
  std::vector<std::vector<int>> acts_for(ranks);
  std::vector<int> order(static_cast<size_t>(layout_ranks));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  for (size_t k = 0; k < order.size(); ++k)
    if (k < ranks || (!one_each && random() % 3))
      acts_for[k < ranks ? k : random() % ranks].push_back(order[k]);
  if (!one_each && random() % 2) acts_for.back().clear();  // this rank has no lane
  return acts_for;
}

template <class Builder>
std::vector<Plan> for_host(Unit& unit, Builder build) {
  std::vector<Plan> plans;
  unit.shape.layout = &unit.layout;
  for (unit.shape.rank = 0; unit.shape.rank < static_cast<int>(unit.shape.acts_for.size());
       ++unit.shape.rank)
    plans.push_back(build(unit.shape));
  return plans;
}

// Calls visit(holder, parameter, place in a slot, elements) for all pieces for which a rank of the
// host acts.
template <class Visit>
void each_held(const Unit& unit, Visit visit) {
  for (size_t q = 0; q < unit.shape.acts_for.size(); ++q)
    for (const int held : unit.shape.acts_for[q])
      for (size_t i = 0; i < unit.layout.size(); ++i) {
        if (unit.layout.tied(i) || unit.shape.slot.offset[i] == SlotMap::kAbsent) continue;
        const Piece piece = unit.layout.piece(held, i);
        if (piece.count)
          visit(static_cast<int>(q), i,
                unit.shape.slot.offset[i] + piece.begin * dtype_size(unit.shape.slot_dtype[i]),
                piece.count);
      }
}

TEST_P(UnitPlans, OfAHostGatherWhatItsRanksHold) {
  std::mt19937_64 random(21);
  for (const bool shared : {true, false})
    for_random_units(18, false, [&](Unit& unit) {
      unit.shape.acts_for = random_acts_for(random, unit.layout.ranks(), true);
      const auto plans = for_host(unit, [&](const UnitShape& shape) {
        return shared ? unshard_shared(shape) : unshard_private(shape, false);
      });
      std::vector<Expected> expected;
      for (int rank = 0; rank < (shared ? 1 : static_cast<int>(plans.size())); ++rank)
        each_held(unit, [&](int q, size_t i, uint64_t at, uint64_t count) {
          expected.push_back({{slot_buffer(unit, i), rank, at},
                              {shard_buffer(unit, i, unit.layout.size()), q, 0},
                              count,
                              unit.shape.shard_dtype[i],
                              unit.shape.slot_dtype[i],
                              false});
        });
      return verify(plans, expected);
    });
}

TEST_P(UnitPlans, OfAHostPassOnWhatCameFromOthers) {
  std::mt19937_64 random(22);
  for_random_units(19, false, [&](Unit& unit) {
    unit.shape.acts_for = random_acts_for(random, unit.layout.ranks(), false);
    const auto plans = for_host(unit, unshard_pull);
    std::vector<Expected> expected;
    for (int rank = 0; rank < static_cast<int>(plans.size()); ++rank)
      each_held(unit, [&](int q, size_t i, uint64_t at, uint64_t count) {
        const fsccl_dtype_t dtype = unit.shape.slot_dtype[i];
        if (q != rank)
          expected.push_back({{slot_buffer(unit, i), rank, at},
                              {slot_buffer(unit, i), q, at},
                              count,
                              dtype,
                              dtype,
                              false});
      });
    return verify(plans, expected);
  });
}

// Sums replace the rank's own contribution in its slot if both have one type. Otherwise they lie
// behind the gradients of the slot.
TEST_P(UnitPlans, OfAHostSumForItsLanes) {
  std::mt19937_64 random(23);
  for (const bool in_place : {true, false})
    for_random_units(20, true, [&](Unit& unit) {
      UnitShape& shape = unit.shape;
      shape.acts_for = random_acts_for(random, unit.layout.ranks(), false);
      shape.sums.dtype = FSCCL_FLOAT64;
      if (in_place) {  // replaces the slots' dtypes, which were not used yet
        std::vector<size_t> size;
        for (size_t i = 0; i < unit.layout.size(); ++i)
          size.push_back(shape.slot.offset[i] == SlotMap::kAbsent ? 0 : dtype_size(FSCCL_FLOAT64));
        shape.slot_dtype.assign(unit.layout.size(), FSCCL_FLOAT64);
        shape.slot = shape.slot.by_parameter ? make_slots_by_parameter(unit.layout, size)
                                             : make_slot_map(unit.layout, size);
      }
      shape.sums.offset.assign(unit.layout.size(),
                               std::vector<uint64_t>(static_cast<size_t>(unit.layout.ranks())));
      std::vector<uint64_t> end = shape.slot.slots;
      for (size_t i = 0; i < unit.layout.size(); ++i)
        for (int rank = 0; rank < unit.layout.ranks(); ++rank) {
          if (unit.layout.tied(i) || shape.slot.offset[i] == SlotMap::kAbsent) continue;
          const Piece piece = unit.layout.piece(rank, i);
          uint64_t& next = end[shape.slot.slot_of(i)];
          shape.sums.offset[i][static_cast<size_t>(rank)] =
              in_place ? shape.slot.offset[i] + piece.begin * 8 : next;
          next += in_place ? 0 : piece.count * 8;
        }
      shape.slot.slots = end;
      const auto plans = for_host(unit, reduce_partials);
      std::vector<Expected> expected;
      for (int q = 0; q < static_cast<int>(plans.size()); ++q)
        for (const int held : shape.acts_for[static_cast<size_t>(q)])
          for (size_t i = 0; i < unit.layout.size(); ++i) {
            if (unit.layout.tied(i) || shape.slot.offset[i] == SlotMap::kAbsent) continue;
            const Piece piece = unit.layout.piece(held, i);
            const uint64_t at =
                shape.slot.offset[i] + piece.begin * dtype_size(shape.slot_dtype[i]);
            if (piece.count)
              expected.push_back(
                  {{slot_buffer(unit, i), q, shape.sums.offset[i][static_cast<size_t>(held)]},
                   {slot_buffer(unit, i), 0, at},
                   piece.count,
                   shape.slot_dtype[i],
                   FSCCL_FLOAT64,
                   true});
          }
      return verify(plans, expected);
    });
}

uint64_t moved(const Plan& plan, StepKind kind) {
  uint64_t elements = 0;
  for (const Step& step : plan.steps)
    if (step.kind == kind) elements += step.count;
  return elements;
}

// Shards are uneven, and only their elements are moved, without padding.
TEST_P(UnitPlans, PaddingIsNotMoved) {
  std::mt19937_64 random(16);
  for (int round = 0; round < 100; ++round) {
    Unit unit = random_unit(random, GetParam(), 1 + static_cast<int>(random() % 16), false);
    unit.shape.layout = &unit.layout;
    for (unit.shape.rank = 0; unit.shape.rank < unit.layout.ranks(); ++unit.shape.rank) {
      const uint64_t own = unit.layout.shard_total(unit.shape.rank);
      const Plan shared = unshard_shared(unit.shape), pulled = unshard_private(unit.shape, false),
                 reduced = reduce_grads(unit.shape);
      EXPECT_EQ(moved(shared, StepKind::cast) + moved(shared, StepKind::copy), own);
      EXPECT_EQ(moved(pulled, StepKind::cast) + moved(pulled, StepKind::copy), unit.layout.total());
      EXPECT_EQ(moved(reduced, StepKind::reduce), own);
    }
  }
}

// The first steps of a reduction need the peers. After them come only sums, for which the rank
// needs no peer.
TEST_P(UnitPlans, ReductionsEnterAndThenSum) {
  std::mt19937_64 random(17);
  for (int round = 0; round < 50; ++round) {
    Unit unit = random_unit(random, GetParam(), 1 + static_cast<int>(random() % 16), true);
    const auto whole = for_ranks(unit, reduce_grads), enter = for_ranks(unit, reduce_grads_enter);
    for (size_t rank = 0; rank < whole.size(); ++rank) {
      ASSERT_EQ(enter[rank].ticks, whole[rank].ticks);
      ASSERT_EQ(enter[rank].buffers.size(), whole[rank].buffers.size());
      for (size_t k = 0; k < whole[rank].steps.size(); ++k) {
        const bool sums = whole[rank].steps[k].kind == StepKind::reduce;
        EXPECT_EQ(sums, k >= enter[rank].steps.size()) << k;
        if (!sums) {
          EXPECT_EQ(enter[rank].steps[k].kind, whole[rank].steps[k].kind);
        }
      }
    }
  }
}

TEST_P(UnitPlans, BuffersAreNumberedByParameter) {
  std::mt19937_64 random(15);
  for (int round = 0; round < 50; ++round) {
    Unit unit = random_unit(random, GetParam(), 1 + static_cast<int>(random() % 16), true);
    for (const Plan& plan : for_ranks(unit, reduce_grads)) {
      ASSERT_EQ(plan.buffers.size(), unit.shape.slot.slots.size() + unit.layout.size());
      for (size_t k = 0; k < unit.shape.slot.slots.size(); ++k)
        EXPECT_EQ(plan.buffers[k].bytes, unit.shape.slot.slots[k]);
      for (size_t i = 0; i < unit.layout.size(); ++i) {
        const bool present = !unit.layout.tied(i) && unit.shape.slot.offset[i] != SlotMap::kAbsent;
        const uint64_t count = present ? unit.layout.piece(plan.rank, i).count : 0;
        EXPECT_EQ(plan.buffers[shard_buffer(unit, i, unit.layout.size())].bytes,
                  count * dtype_size(unit.shape.grad_dtype[i]));
      }
    }
  }
}

TEST(UnitPlans, FlatPiecesThatTouchArePulledAtOnce) {
  Unit unit{Layout::make(FSCCL_LAYOUT_FLAT, {{{3}}, {{5}}, {{4}}}, 2).take(), {}};
  unit.shape.shard_dtype.assign(3, FSCCL_FLOAT32);
  unit.shape.slot_dtype.assign(3, FSCCL_BFLOAT16);
  unit.shape.slot = make_slot_map(unit.layout, {2, 2, 2});
  const auto plans =
      for_ranks(unit, [](const UnitShape& shape) { return unshard_private(shape, false); });
  size_t copies = 0;
  for (const Step& step : plans[1].steps) copies += step.kind == StepKind::copy;
  EXPECT_EQ(copies, 1u);
}

TEST(UnitPlans, BroadcastShards) {
  std::mt19937_64 random(16);
  for (int ranks = 1; ranks <= 64; ++ranks) {
    for (const int root : {0, ranks / 2, ranks - 1}) {
      std::vector<uint64_t> bytes(random() % 6);
      for (uint64_t& size : bytes) size = random() % 3 == 0 ? 0 : random() % 1000;
      std::vector<Plan> plans;
      std::vector<Expected> expected;
      for (int rank = 0; rank < ranks; ++rank) {
        plans.push_back(broadcast_shards(bytes, rank, ranks, root));
        for (uint32_t i = 0; i < bytes.size(); ++i)
          expected.push_back(
              {{i, rank, 0}, {i, root, 0}, bytes[i], FSCCL_UINT8, FSCCL_UINT8, false});
      }
      const Status status = verify(plans, expected);
      ASSERT_TRUE(status.ok()) << "ranks " << ranks << ", root " << root << ": " << status.text();
    }
  }
}

}  // namespace
}  // namespace fsccl::testing
