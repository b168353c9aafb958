// Proves the plans of lists for random lists: mixed dtypes, uneven and empty parts, empty lists, in
// place or not, through slots that all ranks map and through mirrored ones. The buckets of a list
// run one after the other, so they are proved as one plan.
#include "plan/list_plans.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "plan/verify.h"

namespace fsccl::testing {
namespace {

size_t ticks_of(const std::vector<Plan>& buckets) {
  size_t ticks = 0;
  for (const Plan& plan : buckets) ticks += static_cast<size_t>(plan.ticks);
  return ticks;
}

// Joins plans into one, with the ticks and slots of all, which are no more than one plan may have.
Plan joined(const std::vector<Plan>& buckets) {
  Plan all = buckets[0];
  const auto slot = static_cast<uint32_t>(all.buffers.size()) - static_cast<uint32_t>(all.ticks);
  for (size_t k = 1; k < buckets.size(); ++k) {
    const auto before = static_cast<uint32_t>(all.ticks);
    for (size_t tick = 0; tick < static_cast<size_t>(buckets[k].ticks); ++tick) {
      all.buffers.push_back(buckets[k].buffers[slot + tick]);
      all.buffers.back().slot_tick = static_cast<uint16_t>(before + tick);
      all.slots[before + tick] = buckets[k].slots[tick];
    }
    all.ticks += buckets[k].ticks;
    all.completes_early |= buckets[k].completes_early;
    for (Step step : buckets[k].steps) {
      step.tick = static_cast<uint16_t>(step.tick + before);
      for (Operand* operand : {&step.dst, &step.src, &step.own})
        if (operand->buffer >= slot) operand->buffer += before;
      all.steps.push_back(step);
    }
  }
  return all;
}

std::vector<Expected> expect_list(const ListShape& shape) {
  std::vector<Expected> expected;
  for (int rank = 0; rank < shape.ranks; ++rank)
    for (size_t t = 0; t < shape.tensors.size(); ++t) {
      const auto send = static_cast<uint32_t>(2 * t), recv = send + 1;
      const ListShape::Tensor& tensor = shape.tensors[t];
      const uint64_t size = dtype_size(tensor.dtype);
      const auto expect = [&](Operand operand, Operand source, uint64_t count, bool reduced) {
        expected.push_back({operand, source, count, tensor.dtype, tensor.received, reduced});
      };
      if (shape.kind == ListKind::broadcast)
        expect({recv, rank, 0}, {recv, shape.root, 0}, tensor.counts[0], false);
      uint64_t before = 0;
      for (int q = 0; q < shape.ranks && shape.kind != ListKind::broadcast; ++q) {
        const uint64_t count = tensor.counts[static_cast<size_t>(q)];
        if (shape.kind == ListKind::all_gather)
          expect({recv, rank, before * size}, {send, q, 0}, count, false);
        if (shape.kind == ListKind::reduce_scatter && q == rank)
          expect({recv, rank, 0}, {send, 0, before * size}, count, true);
        before += count;
      }
    }
  return expected;
}

std::vector<Alias> in_place(ListShape shape, std::mt19937_64& random) {
  std::vector<Alias> aliases;
  if (shape.kind == ListKind::broadcast) return aliases;
  for (shape.rank = 0; shape.rank < shape.ranks; ++shape.rank)
    for (size_t t = 0; t < shape.tensors.size(); ++t) {
      const auto send = static_cast<uint32_t>(2 * t), recv = send + 1;
      const uint64_t at = shape.before(t, shape.rank) * dtype_size(shape.tensors[t].dtype);
      const bool gathers = shape.kind == ListKind::all_gather;
      if (random() % 2 && shape.tensors[t].dtype == shape.tensors[t].received)
        aliases.push_back({shape.rank, gathers ? send : recv, gathers ? recv : send, at});
    }
  return aliases;
}

ListShape random_list(ListKind kind, int ranks, std::mt19937_64& random) {
  constexpr fsccl_dtype_t kDtypes[] = {FSCCL_UINT8, FSCCL_BFLOAT16, FSCCL_FLOAT32, FSCCL_FLOAT64};
  ListShape shape;
  shape.kind = kind;
  shape.ranks = ranks;
  shape.root = static_cast<int>(random() % static_cast<uint64_t>(ranks));
  shape.tensors.resize(random() % 7);
  const uint64_t most = random() % 2 ? 10 : 700;
  for (ListShape::Tensor& tensor : shape.tensors) {
    tensor.received = tensor.dtype = kDtypes[random() % 4];
    if (kind == ListKind::reduce_scatter && tensor.dtype != FSCCL_UINT8)
      tensor.received = kDtypes[1 + random() % 3];
    for (int q = 0; q < (kind == ListKind::broadcast ? 1 : ranks); ++q)
      tensor.counts.push_back(random() % 4 == 0 ? 0 : random() % most);
  }
  return shape;
}

Plan reading(const ListShape& shape) { return list_read(shape, false); }
Plan reading_and_writing(const ListShape& shape) { return list_read(shape, true); }

// Verifies the plan of a list. `in_one_copy` makes a plan in one copy, or is null for a plan
// through slots.
Status verify_list(ListShape shape, Plan (*in_one_copy)(const ListShape&),
                   const std::vector<Alias>& aliases) {
  std::vector<Plan> plans;
  for (shape.rank = 0; shape.rank < shape.ranks; ++shape.rank) {
    if (in_one_copy) {
      plans.push_back(in_one_copy(shape));
      continue;
    }
    uint64_t bytes = 4096;  // doubled until there are no more buckets than a plan can have ticks
    std::vector<Plan> buckets = list_slots(shape, bytes);
    while (ticks_of(buckets) > static_cast<size_t>(kMaxTicks))
      buckets = list_slots(shape, bytes *= 2);
    plans.push_back(joined(buckets));
  }
  return verify(plans, expect_list(shape), aliases);
}

constexpr Plan (*kSlots)(const ListShape&) = nullptr;

class Lists : public ::testing::TestWithParam<ListKind> {};

TEST_P(Lists, AreProved) {
  std::mt19937_64 random(23);
  size_t several = 0;
  for (int ranks = 1; ranks <= 17; ++ranks)
    for (int round = 0; round < 40; ++round) {
      ListShape shape = random_list(GetParam(), ranks, random);
      const std::vector<Alias> aliases = round % 2 ? in_place(shape, random) : std::vector<Alias>{};
      for (Plan (*const in_one_copy)(const ListShape&) :
           {&list_direct, &reading, &reading_and_writing, kSlots})
        for (const bool mirrored : {false, true}) {
          if (in_one_copy != kSlots && mirrored) continue;
          shape.mirrored = mirrored;
          const Status status = verify_list(shape, in_one_copy, aliases);
          ASSERT_TRUE(status.ok()) << ranks << " ranks, round " << round
                                   << (mirrored ? ", mirrored: " : ": ") << status.text();
        }
      several += ticks_of(list_slots(shape, 4096)) > 1;
    }
  EXPECT_GT(several, 20u);
}

INSTANTIATE_TEST_SUITE_P(Kinds, Lists,
                         ::testing::Values(ListKind::all_gather, ListKind::reduce_scatter,
                                           ListKind::broadcast));

// A plan with the buffers of few tensors does the same as the plan with all of them.
TEST_P(Lists, BucketsHaveTheBuffersThatTheyUse) {
  std::mt19937_64 random(29);
  size_t fewer = 0;
  for (int round = 0; round < 300; ++round) {
    ListShape shape = random_list(GetParam(), 1 + static_cast<int>(random() % 5), random);
    shape.rank = static_cast<int>(random() % static_cast<uint64_t>(shape.ranks));
    shape.mirrored = round % 2;
    const ListBuckets buckets(shape, 4096);
    for (size_t k = 0; k < buckets.size(); k++) {
      const Plan all = buckets.plan(k);
      const ListBucket few = buckets.bucket(k);
      ASSERT_EQ(few.plan.steps.size(), all.steps.size());
      ASSERT_EQ(few.plan.ticks, buckets.ticks(k));
      const auto slots =
          static_cast<size_t>(std::count_if(all.buffers.begin(), all.buffers.end(),
                                            [](const Buffer& buffer) { return buffer.slot; }));
      const size_t tensors = (few.plan.buffers.size() - slots) / 2, whole = shape.tensors.size();
      const auto same = [&](const Operand& one, const Operand& other) {
        const bool slot = all.buffers[other.buffer].slot;
        const size_t shift = 2 * (slot ? whole - tensors : few.first);
        ASSERT_EQ(one.offset, other.offset);
        ASSERT_EQ(one.rank, other.rank);
        ASSERT_EQ(one.buffer + shift, other.buffer);
        ASSERT_EQ(few.plan.buffers[one.buffer].name, all.buffers[other.buffer].name);
      };
      for (size_t i = 0; i < all.steps.size(); i++) {
        const Step &one = few.plan.steps[i], &other = all.steps[i];
        ASSERT_EQ(one.kind, other.kind);
        ASSERT_EQ(one.count, other.count);
        if (one.count == 0) continue;
        same(one.src, other.src);
        same(one.dst, other.dst);
        if (one.kind == StepKind::reduce) same(one.own, other.own);
      }
      fewer += few.plan.buffers.size() < all.buffers.size();
    }
  }
  EXPECT_GT(fewer, 5u);
}

// The plans of a large list of many tensors have few buffers, so they take little memory.
TEST(Lists, ManyBucketsTakeLittleMemory) {
  ListShape shape;
  shape.kind = ListKind::broadcast;
  shape.ranks = 2;
  shape.tensors.assign(300, {FSCCL_UINT8, {4u << 20}});
  const ListBuckets buckets(shape, 128u << 10);
  ASSERT_GT(buckets.size(), 30'000u);
  EXPECT_LT(buckets.memory(), 64u << 20);
  for (size_t k = 0; k < buckets.size(); k += 1'000)
    EXPECT_LE(buckets.bucket(k).plan.buffers.size(), 5u);
}

// There is one put for each peer, however many tensors there are, and a tensor that travels alone
// is put from where it lies. The messages to each peer have at least a line in a slot.
TEST(Lists, ManyRanksReduceThroughMirroredSlots) {
  ListShape shape;
  shape.kind = ListKind::reduce_scatter;
  shape.ranks = 5000;
  shape.mirrored = true;
  shape.tensors.push_back({FSCCL_FLOAT32, std::vector<uint64_t>(5000, 20)});
  const uint64_t slot_bytes = 5000 * 64;
  const std::vector<Plan> plans = list_slots(shape, slot_bytes);
  ASSERT_EQ(plans.size(), 2u) << "20 elements take two lines";
  for (const Plan& plan : plans) EXPECT_LE(plan.slots[0], slot_bytes);
}

TEST(Lists, MirroredSlotsGetOnePutForEachPeer) {
  for (const size_t tensors : {1, 2, 30}) {
    ListShape shape;
    shape.kind = ListKind::all_gather;
    shape.ranks = 3;
    shape.mirrored = true;
    shape.tensors.assign(tensors, {FSCCL_FLOAT32, {5, 6, 7}});
    const std::vector<Plan> buckets = list_slots(shape, 4096);
    ASSERT_EQ(buckets.size(), 1u);
    size_t puts = 0, packed = 0;
    for (const Step& step : buckets[0].steps) {
      puts += step.kind == StepKind::put;
      packed += step.kind == StepKind::copy && buckets[0].buffers[step.dst.buffer].slot;
    }
    EXPECT_EQ(puts, 2u);
    EXPECT_EQ(packed, tensors == 1 ? 0 : tensors);
  }
}

// The root of a broadcast fills a slot while a receiver empties the one before, so the time is that
// of one of the two copies, and an exchange for each bucket.
TEST(Lists, BucketsOverlapInThePredictedTime) {
  Costs costs;
  costs.exchange = 1000;
  costs.slot_cached.ns = {512, 4096, 262144};  // 2 ns a byte, one for each of the two copies
  costs.slot_streaming.ns = {1e9, 1e9, 1e9};
  const uint64_t bytes = 16 << 20, slot_bytes = 1 << 20;
  std::array<ListShape, 2> shapes;
  for (int rank = 0; rank < 2; rank++) {
    ListShape& shape = shapes[static_cast<size_t>(rank)];
    shape.kind = ListKind::broadcast;
    shape.rank = rank;
    shape.ranks = 2;
    shape.tensors.push_back({FSCCL_UINT8, {bytes}});
  }
  const double ns = list_slots_ns(shapes, slot_bytes, costs);
  EXPECT_GT(ns, static_cast<double>(bytes));
  EXPECT_LT(ns, 1.1 * static_cast<double>(bytes));
}

}  // namespace
}  // namespace fsccl::testing
