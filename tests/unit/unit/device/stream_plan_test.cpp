// Tests that a plan of a unit becomes little work on a stream: one launch, one signal, one wait and
// one batch, whatever the number of parameters and peers. If all ranks carry this out, the result
// is that of the plan.
#include "unit/device/stream_plan.h"

#include <gtest/gtest.h>

#include <cstring>

#include "plan/unit_plans.h"
#include "tests/unit/layout/random_params.h"

namespace fsccl::testing {
namespace {

using Kind = StreamAction::Kind;

struct Case {
  Layout layout;
  UnitShape shape;
};

Case make_case(fsccl_layout_t kind, int ranks, fsccl_dtype_t dtype, std::mt19937_64& random) {
  const auto params = kind == FSCCL_LAYOUT_RAGGED ? random_blocks(random) : random_params(random);
  Case made{Layout::make(kind, params, ranks).take(), {}};
  made.shape.shard_dtype.assign(params.size(), dtype);
  made.shape.slot_dtype = made.shape.grad_dtype = made.shape.shard_dtype;
  made.shape.slot =
      make_slot_map(made.layout, std::vector<size_t>(params.size(), dtype_size(dtype)));
  return made;
}

StreamPlan compiled(const Plan& plan, const std::vector<cuda::CUdeviceptr>& places,
                    uint64_t scatter_below = 0) {
  Result<StreamPlan> made = compile(plan, 1, places, {scatter_below});
  EXPECT_TRUE(made.ok()) << made.status().text();
  return made.take();
}

std::vector<Kind> kinds(const StreamPlan& plan) {
  std::vector<Kind> all;
  for (const StreamAction& action : plan.actions) all.push_back(action.kind);
  return all;
}

size_t count_of(const StreamPlan& plan, Kind kind) {
  size_t count = 0;
  for (const StreamAction& action : plan.actions) count += action.kind == kind;
  return count;
}

// The memory of all ranks. The bytes of shards depend on the parameter and the element, so that
// neighbours differ.
class Ranks {
 public:
  explicit Ranks(Case& unit) : unit_(unit), ranks_(unit.layout.ranks()) {
    unit.shape.layout = &unit.layout;
    for (int rank = 0; rank < ranks_; rank++) {
      slots_.emplace_back(unit.shape.slot.bytes, std::byte{0xee});
      auto& shards = shards_.emplace_back(unit.layout.size());
      for (size_t i = 0; i < unit.layout.size(); i++) {
        const Piece piece = unit.layout.piece(rank, i);
        const uint64_t size = dtype_size(unit.shape.slot_dtype[i]);
        for (uint64_t byte = 0; byte < piece.count * size; byte++)
          shards[i].push_back(value(i, piece.begin * size + byte));
      }
    }
  }
  static std::byte value(size_t param, uint64_t byte) {
    return static_cast<std::byte>(param * 37 + byte * 11 + byte / 251);
  }

  std::vector<cuda::CUdeviceptr> places(int rank) {
    std::vector<cuda::CUdeviceptr> all;
    for (auto& shard : shards_[static_cast<size_t>(rank)])
      all.push_back(reinterpret_cast<cuda::CUdeviceptr>(shard.data()));
    return all;
  }

  // Runs all actions up to the first wait on all ranks, and then the rest. Checks that a peer is
  // read only after it has signalled.
  void run(const std::vector<StreamPlan>& plans) {
    std::vector<size_t> at(plans.size());
    std::vector<bool> signalled(plans.size());
    for (const bool behind_waits : {false, true})
      for (size_t rank = 0; rank < plans.size(); rank++)
        for (; at[rank] < plans[rank].actions.size(); at[rank]++) {
          const StreamAction& action = plans[rank].actions[at[rank]];
          if (action.kind == Kind::wait && !behind_waits) break;
          if (action.kind == Kind::signal) signalled[rank] = true;
          step(rank, action, signalled);
        }
  }

  void step(size_t rank, const StreamAction& action, const std::vector<bool>& signalled) {
    for (const cuda::CastRange& piece : action.casts) {
      ASSERT_EQ(piece.from, piece.to);
      ASSERT_FALSE(signalled[rank]) << "written after it was offered";
      std::memcpy(slots_[rank].data() + piece.destination,
                  reinterpret_cast<const void*>(piece.source),
                  piece.count * dtype_size(piece.from));
    }
    for (const CopyRange& piece : action.copies) {
      const auto peer = static_cast<size_t>(piece.peer);
      ASSERT_NE(peer, rank);
      ASSERT_TRUE(signalled[peer]);
      std::memcpy(slots_[rank].data() + piece.to, slots_[peer].data() + piece.from, piece.bytes());
    }
  }

  void expect_gathered() {
    for (int rank = 0; rank < ranks_; rank++)
      for (size_t i = 0; i < unit_.layout.size(); i++)
        for (uint64_t byte = 0;
             byte < unit_.layout.numel(i) * dtype_size(unit_.shape.slot_dtype[i]); byte++)
          ASSERT_EQ(slots_[static_cast<size_t>(rank)][unit_.shape.slot.offset[i] + byte],
                    value(unit_.layout.owner(i), byte))
              << "rank " << rank << " parameter " << i << " byte " << byte;
  }

 private:
  Case& unit_;
  const int ranks_;
  std::vector<std::vector<std::byte>> slots_;
  std::vector<std::vector<std::vector<std::byte>>> shards_;
};

struct World {
  fsccl_layout_t layout;
  int ranks;
};
class StreamPlans : public ::testing::TestWithParam<World> {};

TEST_P(StreamPlans, GatherIsOneOfEach) {
  const auto [layout, ranks] = GetParam();
  std::mt19937_64 random(static_cast<uint64_t>(ranks) * 10 + static_cast<uint64_t>(layout));
  for (int round = 0; round < 30; round++) {
    Case unit = make_case(layout, ranks, round % 2 ? FSCCL_FLOAT32 : FSCCL_BFLOAT16, random);
    Ranks memory(unit);
    std::vector<StreamPlan> plans;
    for (int rank = 0; rank < ranks; rank++) {
      unit.shape.rank = rank;
      plans.push_back(compiled(unshard_private(unit.shape, false), memory.places(rank)));
      const StreamPlan& plan = plans.back();
      EXPECT_LE(count_of(plan, Kind::place), 1u);
      EXPECT_EQ(count_of(plan, Kind::cast), 0u) << "no type differs";
      EXPECT_EQ(count_of(plan, Kind::signal), 1u);
      EXPECT_EQ(count_of(plan, Kind::wait), ranks > 1 ? 1u : 0u);
      EXPECT_LE(count_of(plan, Kind::copy), 1u);
      EXPECT_EQ(count_of(plan, Kind::reduce) + count_of(plan, Kind::scatter), 0u);
      EXPECT_FALSE(plan.says_done);
      for (const StreamAction& action : plan.actions) {
        if (action.kind != Kind::wait) continue;
        EXPECT_EQ(action.tick, 0);
        EXPECT_EQ(action.peers.size(), static_cast<size_t>(ranks - 1)) << "all peers, in one batch";
      }
    }
    memory.run(plans);
    memory.expect_gathered();
    if (HasFatalFailure()) return;
  }
}

TEST_P(StreamPlans, ReduceIsOneLaunch) {
  const auto [layout, ranks] = GetParam();
  std::mt19937_64 random(static_cast<uint64_t>(ranks) * 10 + static_cast<uint64_t>(layout));
  for (int round = 0; round < 30; round++) {
    Case unit = make_case(layout, ranks, FSCCL_BFLOAT16, random);
    Ranks memory(unit);
    for (int rank = 0; rank < ranks; rank++) {
      unit.shape.rank = rank;
      const std::vector<cuda::CUdeviceptr> places = memory.places(rank);
      const StreamPlan plan = compiled(reduce_grads(unit.shape), places);
      std::vector<Kind> wanted{Kind::signal};
      if (ranks > 1) wanted.push_back(Kind::wait);
      size_t pieces = 0;
      for (size_t i = 0; i < unit.layout.size(); i++) {
        const Piece piece = unit.layout.piece(rank, i);
        if (unit.layout.tied(i) || !piece.count) continue;
        if (!pieces) wanted.push_back(Kind::reduce);
        ASSERT_EQ(kinds(plan).back(), Kind::reduce);
        const cuda::ReduceRange& reduction = plan.actions.back().reduces.at(pieces++);
        EXPECT_EQ(reduction.offset, unit.shape.slot.offset[i] + piece.begin * 2);
        EXPECT_EQ(reduction.destination, places[i]);
        EXPECT_EQ(reduction.count, piece.count);
      }
      EXPECT_EQ(kinds(plan), wanted);
      EXPECT_TRUE(pieces == 0 || plan.actions.back().reduces.size() == pieces);
    }
  }
}

std::vector<World> worlds() {
  std::vector<World> all;
  for (const fsccl_layout_t layout :
       {FSCCL_LAYOUT_FLAT, FSCCL_LAYOUT_PER_PARAM, FSCCL_LAYOUT_RAGGED})
    for (int ranks = 1; ranks <= 4; ranks++) all.push_back({layout, ranks});
  return all;
}

std::string world_name(const ::testing::TestParamInfo<World>& info) {
  const char* const kNames[] = {"flat", "per_param", "ragged"};
  return std::string(kNames[info.param.layout]) + std::to_string(info.param.ranks);
}

INSTANTIATE_TEST_SUITE_P(Worlds, StreamPlans, ::testing::ValuesIn(worlds()), world_name);

Case two_parameters(fsccl_layout_t layout) {
  Case made{Layout::make(layout, {{{8, 4}}, {{8, 2}}}, 2).take(), {}};
  made.shape.shard_dtype.assign(2, FSCCL_FLOAT32);
  made.shape.slot_dtype = made.shape.grad_dtype = made.shape.shard_dtype;
  made.shape.slot = make_slot_map(made.layout, {4, 4});
  made.shape.layout = &made.layout;
  return made;
}

TEST(StreamPlan, PiecesThatTouchAreOneCopy) {
  // The parameters have 32 and 16 elements. Rank 0 has 24 of the first, and rank 1 all others.
  Case flat = two_parameters(FSCCL_LAYOUT_FLAT);
  flat.shape.layout = &flat.layout;
  const StreamPlan plan = compiled(unshard_private(flat.shape, false), {4096, 8192});
  ASSERT_EQ(kinds(plan), (std::vector{Kind::place, Kind::signal, Kind::wait, Kind::copy}));
  ASSERT_EQ(plan.actions[3].copies.size(), 1u);
  EXPECT_EQ(plan.actions[3].copies[0].from, 24u * 4);
  EXPECT_EQ(plan.actions[3].copies[0].count, 24u);
}

TEST(StreamPlan, SmallPiecesAreScatteredByAKernel) {
  Case unit = two_parameters(FSCCL_LAYOUT_PER_PARAM);
  unit.shape.layout = &unit.layout;
  // The peer's pieces have 16 and 8 elements, which are 48 bytes on average.
  const Plan plan = unshard_private(unit.shape, false);
  EXPECT_EQ(kinds(compiled(plan, {4096, 8192}, 48)).back(), Kind::copy);
  EXPECT_EQ(kinds(compiled(plan, {4096, 8192}, 49)).back(), Kind::scatter);
  EXPECT_EQ(compiled(plan, {4096, 8192}, 49).actions.back().copies.size(), 2u);
}

TEST(StreamPlan, OwnPiecesNeedAKernelWhereTheyAreSmallOrATypeDiffers) {
  Case unit = two_parameters(FSCCL_LAYOUT_PER_PARAM);  // own pieces have 16 and 8 elements
  unit.shape.layout = &unit.layout;
  EXPECT_EQ(kinds(compiled(unshard_private(unit.shape, false), {4096, 8192}, 48)).front(),
            Kind::place);
  EXPECT_EQ(kinds(compiled(unshard_private(unit.shape, false), {4096, 8192}, 49)).front(),
            Kind::cast);
  unit.shape.slot_dtype[1] = FSCCL_BFLOAT16;
  EXPECT_EQ(kinds(compiled(unshard_private(unit.shape, false), {4096, 8192}, 1)).front(),
            Kind::cast);
}

TEST(StreamPlan, WritableWaitsUntilPeersHaveRead) {
  Case unit = two_parameters(FSCCL_LAYOUT_PER_PARAM);
  unit.shape.layout = &unit.layout;
  const StreamPlan plan = compiled(unshard_private(unit.shape, true), {4096, 8192});
  ASSERT_EQ(kinds(plan), (std::vector{Kind::place, Kind::signal, Kind::wait, Kind::copy,
                                      Kind::signal, Kind::wait}));
  EXPECT_EQ(plan.actions[4].tick, 1);
  EXPECT_EQ(plan.actions[5].tick, 1);
  EXPECT_TRUE(plan.actions[5].peers.empty()) << "all";
  EXPECT_TRUE(plan.says_done);
}

TEST(StreamPlan, KeptMovesNothing) {
  Case unit = two_parameters(FSCCL_LAYOUT_PER_PARAM);
  unit.shape.layout = &unit.layout;
  const StreamPlan plan = compiled(unshard_barrier(unit.shape), {4096, 8192});
  EXPECT_EQ(kinds(plan), (std::vector{Kind::signal, Kind::wait}));
}

TEST(StreamPlan, RefusesStepsThatAreNoUnits) {
  Plan plan;
  plan.name = "odd";
  plan.ranks = 2;
  plan.buffers.resize(2);
  Step step;
  for (const StepKind kind : {StepKind::put, StepKind::choose, StepKind::reduce_local}) {
    step.kind = kind;
    plan.steps = {step};
    EXPECT_EQ(compile(plan, 1, {4096}, {}).status().code(), FSCCL_ERR_INTERNAL);
  }
  step.kind = StepKind::copy;  // a copy out of a peer's shard
  step.src = {1, 1, 0};
  step.count = 1;
  plan.steps = {step};
  EXPECT_EQ(compile(plan, 1, {4096}, {}).status().code(), FSCCL_ERR_INTERNAL);
}

}  // namespace
}  // namespace fsccl::testing
