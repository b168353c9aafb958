// Compares the kernels for GPUs with the host's (kernels.h): every bit of every element, and of the
// norm.
#include "kernels/cuda/device_kernels.h"

#include <algorithm>
#include <cmath>

#include "device_machine.h"
#include "reference.h"

namespace fsccl::cuda {
namespace {

using reference::kFloats;
using Random = std::mt19937_64;

class DeviceKernelsTest : public OnMachine {};
INSTANTIATE_TEST_SUITE_P(Ways, DeviceKernelsTest, testing::Values("emulated", "driver"),
                         [](const auto& way) { return way.param; });

// Fills memory with ordinary values and now and then a zero of either sign. If `wild`, any bits
// occur: NaN of every kind, infinities, subnormals, values that overflow.
void fill(Random& random, fsccl_dtype_t type, uint8_t* at, size_t count, bool wild) {
  for (size_t i = 0; i < count; i++) {
    uint64_t bits = random();
    const auto number = static_cast<double>(static_cast<int64_t>(bits % 2000001) - 1000000) / 3;
    const double value = bits >> 40 & 15 ? number : std::copysign(0.0, number);
    if (dtype_float(type) && (!wild || bits >> 32 & 1)) reference::write_float(type, &bits, value);
    std::memcpy(at + i * dtype_size(type), &bits, dtype_size(type));
  }
}

size_t any_alignment(Random& random, fsccl_dtype_t type) {
  return random() % 3 ? random() % 16 * dtype_size(type) % 64 : 0;
}

void on_host(Arena& arena, const CastCall& call) {
  for (const CastRange& piece : call.pieces) {
    const uint8_t* const from =
        arena.data() + piece.source + (call.base == CastBase::destinations ? 0 : call.source_base);
    uint8_t* const to = arena.data() + piece.destination +
                        (call.base == CastBase::sources ? 0 : call.destination_base);
    ASSERT_TRUE(cast(to, piece.to, from, piece.from, piece.count, Stores::cached));
  }
}

Norm on_host(Arena& arena, const ReduceCall& call) {
  Norm norm;
  for (int time = 0; time < call.times; time++) {
    norm = {};
    for (const ReduceRange& piece : call.pieces) {
      std::vector<const void*> sources;
      for (const size_t base : call.bases) sources.push_back(arena.data() + base + piece.offset);
      Reduce args{};
      args.sources = sources.data(), args.n = static_cast<int>(sources.size());
      args.from = piece.from, args.to = piece.to, args.count = piece.count;
      args.dst = arena.data() + piece.destination;
      args.scale = call.epilogue.scale, args.divisor = call.epilogue.divisor;
      args.accumulate = call.epilogue.accumulate, args.norm = &norm;
      EXPECT_TRUE(reduce(args));
    }
  }
  return norm;
}

// Returns the first place where they differ, for a message.
size_t first_difference(const Arena& a, const Arena& b) {
  return static_cast<size_t>(std::mismatch(a.data(), a.data() + a.used(), b.data()).first -
                             a.data());
}

void check(Machine& machine, const Arena& before, const CastCall& call) {
  Arena got = before, want = before;
  on_host(want, call);
  machine.cast(got, call);
  ASSERT_TRUE(got == want) << "the first other byte is at " << first_difference(got, want);
}

void check(Machine& machine, const Arena& before, const ReduceCall& call, bool with_norm) {
  Arena got = before, want = before;
  const Norm expected = on_host(want, call);
  DeviceNorm norm{-1, -1, -1};
  machine.reduce(got, call, with_norm ? &norm : nullptr);
  ASSERT_TRUE(got == want) << call.bases.size() << " sources: the first other byte is at "
                           << first_difference(got, want);
  if (!with_norm) return;
  ASSERT_EQ(std::memcmp(&norm.sum, &expected.sum, sizeof norm.sum), 0)
      << norm.sum << ", not " << expected.sum;
  ASSERT_EQ(norm.finite, expected.finite ? 1 : 0);
}

TEST_P(DeviceKernelsTest, EveryValueIsConvertedAsOnTheHost) {
  for (const fsccl_dtype_t from : kFloats) {
    const std::vector<uint8_t> values = reference::interesting(from);
    const size_t count = values.size() / dtype_size(from);
    Arena arena(values.size() + 4 * (8 * count + 256) + 4096);
    CastCall call;
    const size_t source = arena.take(values.size(), 0);
    std::copy(values.begin(), values.end(), arena.data() + source);
    for (const fsccl_dtype_t to : kFloats)
      call.pieces.push_back({source, arena.take(count * dtype_size(to), 0), count, from, to});
    check(*machine_, arena, call);
  }
}

// One table has pieces of all pairs of types, at any alignment. Their counts lie around the numbers
// of elements that the loops of the kernels take at a time.
TEST_P(DeviceKernelsTest, PiecesOfAnySizeAlignmentAndTypeInOneLaunch) {
  Random random(271828);
  for (const CastBase base : {CastBase::both, CastBase::sources, CastBase::destinations}) {
    Arena arena(24 << 20);
    CastCall call;
    call.base = base;
    call.source_base = arena.take(64, 0), call.destination_base = arena.take(64, 0);
    const auto add = [&](fsccl_dtype_t from, fsccl_dtype_t to, size_t count) {
      const size_t source = arena.take(count * dtype_size(from), any_alignment(random, from));
      const size_t destination = arena.take(count * dtype_size(to), any_alignment(random, to));
      fill(random, from, arena.data() + source, count, true);
      call.pieces.push_back({source - (base == CastBase::destinations ? 0 : call.source_base),
                             destination - (base == CastBase::sources ? 0 : call.destination_base),
                             count, from, to});
    };
    for (const size_t count : {0,  1,   2,   3,   4,    5,    7,    8,    9,    15,   16,   17,
                               31, 255, 256, 257, 1023, 1024, 1027, 4095, 4096, 4097, 8192, 9001}) {
      for (const fsccl_dtype_t from : kFloats)
        for (const fsccl_dtype_t to : kFloats) add(from, to, count);
      for (const fsccl_dtype_t type :
           {FSCCL_INT8, FSCCL_UINT16, FSCCL_INT32, FSCCL_INT64, FSCCL_BOOL, FSCCL_FLOAT8_E4M3})
        add(type, type, count);
    }
    for (int apart = 0; apart < 17; apart++) {  // copies between any two alignments
      arena.take(static_cast<size_t>(apart), 0);
      const size_t source = arena.take(40000, random() % 16),
                   destination = arena.take(40000, random() % 16);
      fill(random, FSCCL_INT8, arena.data() + source, 40000, true);
      call.pieces.push_back({source - (base == CastBase::destinations ? 0 : call.source_base),
                             destination - (base == CastBase::sources ? 0 : call.destination_base),
                             40000u - random() % 9, FSCCL_INT8, FSCCL_INT8});
    }
    check(*machine_, arena, call);
    if (HasFatalFailure()) return;
  }
}

// Reduces pieces of random pairs of types, each of `most` elements at most. Each source has all
// pieces behind its base.
void check_reduce(Machine& machine, Random& random, size_t sources, size_t pieces, size_t most,
                  bool wild) {
  ReduceCall call;
  const double scales[] = {1, 1.0 / 3, 1.0 / static_cast<double>(sources), 1e30, 0};
  call.epilogue = {.scale = scales[random() % std::size(scales)], .accumulate = random() % 2 == 0};
  if (random() % 2 == 0)
    call.epilogue = {.divisor = static_cast<int64_t>(sources), .accumulate = random() % 2 == 0};
  Arena layout(1 << 24);
  std::vector<size_t> destinations;
  for (size_t i = 0; i < pieces; i++) {
    const fsccl_dtype_t from = kFloats[random() % 4], to = kFloats[random() % 4];
    const size_t count = random() % 8 == 0 ? 0 : random() % 4 == 0 ? most : random() % (most + 1);
    call.pieces.push_back(
        {layout.take(count * dtype_size(from), any_alignment(random, from)), 0, count, from, to});
  }
  const size_t span = layout.used();
  Arena arena(sources * (span + 128) + pieces * (most * 8 + 256) + (1 << 16));
  for (size_t s = 0; s < sources; s++) {
    call.bases.push_back(arena.take(span, s % 5 == 4 ? 8 : 0));
    for (const ReduceRange& piece : call.pieces)
      fill(random, piece.from, arena.data() + call.bases[s] + piece.offset, piece.count, wild);
  }
  for (ReduceRange& piece : call.pieces) {
    piece.destination =
        arena.take(piece.count * dtype_size(piece.to), any_alignment(random, piece.to));
    fill(random, piece.to, arena.data() + piece.destination, piece.count, wild);
    if (piece.from == piece.to && random() % 3 == 0)
      piece.destination = call.bases[random() % sources] + piece.offset;
  }
  call.times = random() % 4 == 0 ? 2 : 1;
  check(machine, arena, call, random() % 4 != 0);
}

TEST_P(DeviceKernelsTest, ReducesOfAnyTableAreTheHosts) {
  Random random(161803);
  for (size_t repeat = 0; repeat < 40; repeat++) {
    check_reduce(*machine_, random, 1 + repeat % 9, 12, repeat % 2 ? 700 : 9000, repeat % 3 == 0);
    if (HasFatalFailure()) return;
  }
  for (const size_t sources : {63, 64, 65, 70, 480, 481, 1000}) {
    check_reduce(*machine_, random, sources, 3, 2500, sources % 2 == 0);
    if (HasFatalFailure()) return;
  }
}

TEST_P(DeviceKernelsTest, DividesInPlace) {
  Random random(223606);
  for (const fsccl_dtype_t dtype : {FSCCL_FLOAT32, FSCCL_FLOAT64})
    for (const size_t count : {size_t{0}, size_t{1}, size_t{255}, size_t{257}, size_t{70'001}})
      for (const int divisor : {3, 7, 1000}) {
        Arena got(1 << 20);
        const size_t at = got.take(count * 8, dtype_size(dtype));
        fill(random, dtype, got.data() + at, count, true);
        Arena want = got;
        for (size_t i = 0; i < count; i++) {
          uint8_t* const place = want.data() + at + i * dtype_size(dtype);
          const void* const source = place;
          // A reduce makes one NaN of all NaNs, but a division may give any.
          Reduce args{.sources = &source,
                      .n = 1,
                      .from = dtype,
                      .dst = place,
                      .to = dtype,
                      .count = 1,
                      .divisor = divisor};
          ASSERT_TRUE(reduce(args));
        }
        machine_->divide(got, at, count, dtype, divisor);
        for (size_t i = 0; i < count; i++) {
          uint8_t *const have = got.data() + at + i * dtype_size(dtype), *const right =
                                                                             want.data() + at +
                                                                             i * dtype_size(dtype);
          if (std::isnan(reference::read_float(dtype, right)))
            std::memcpy(have, right, dtype_size(dtype));
        }
        ASSERT_TRUE(got == want) << dtype_name(dtype) << ", " << count << " by " << divisor;
      }
}

// The block is reduced alone, so that no larger sum hides the last bit of its norm.
TEST_P(DeviceKernelsTest, NormOfOneBlockHasTheHostsOrder) {
  Random random(173205);
  for (int repeat = 0; repeat < 60; repeat++) {
    ReduceCall call;
    call.epilogue.scale = 0.7;
    Arena arena(1 << 17);
    const fsccl_dtype_t from = kFloats[repeat % 4], to = kFloats[2 + repeat / 4 % 2];
    const size_t count = repeat % 3 ? 1 + random() % kNormBlock : kNormBlock;
    call.bases = {arena.take(count * 8, 0)};
    fill(random, from, arena.data() + call.bases[0], count, false);
    call.pieces.push_back({0, arena.take(count * 8, 0), count, from, to});
    check(*machine_, arena, call, true);
    if (HasFatalFailure()) return;
  }
}

// The norm has more blocks than one row of the block that adds them, in many pieces and in one.
TEST_P(DeviceKernelsTest, NormOverManyBlocksIsInTheirOrder) {
  Random random(141421);
  constexpr size_t kLong = 140 * kNormBlock + 777, kShort = 1001;
  ReduceCall call;
  call.epilogue.scale = 0.7;
  call.times = 2;
  Arena arena(8 << 20);
  const size_t span = kLong * 2 + 300 * kShort * 2 + 4096;
  for (int s = 0; s < 2; s++) {
    call.bases.push_back(arena.take(span, 0));
    fill(random, FSCCL_BFLOAT16, arena.data() + call.bases.back(), span / 2, false);
  }
  call.pieces.push_back({0, arena.take(kLong * 4, 0), kLong, FSCCL_BFLOAT16, FSCCL_FLOAT32});
  for (size_t i = 0; i < 300; i++)
    call.pieces.push_back({kLong * 2 + 16 + i * kShort * 2, arena.take(kShort * 4, 4 * (i % 4)),
                           kShort - i % 7, FSCCL_BFLOAT16, FSCCL_FLOAT32});
  check(*machine_, arena, call, true);
}

// The tiles are as many as the blocks that work on them, one more, and several times as many. In
// the other tests of reduces a GPU gives each block one tile at most.
TEST_P(DeviceKernelsTest, BlocksOfAReduceHaveSeveralTiles) {
  Random random(223606);
  const size_t working = machine_->blocks() - 1;
  for (const size_t count :
       {working * kNormBlock, (working + 1) * kNormBlock, working * 33 / 10 * kNormBlock + 1001}) {
    ReduceCall call;
    call.epilogue = {.scale = 0.7, .accumulate = true};
    call.times = 2;
    Arena arena(count * 8 + 4096);
    for (int s = 0; s < 2; s++) {
      call.bases.push_back(arena.take(count * 2, 0));
      fill(random, FSCCL_BFLOAT16, arena.data() + call.bases.back(), count, false);
    }
    call.pieces.push_back({0, arena.take(count * 4, 0), count, FSCCL_BFLOAT16, FSCCL_FLOAT32});
    check(*machine_, arena, call, true);
    if (HasFatalFailure()) return;
  }
}

// One element of one piece is not finite, or overflows when it is rounded or squared.
TEST_P(DeviceKernelsTest, FiniteSpeaksOfWhatWasStored) {
  const double kBig[] = {65504, 3.3e38, 3e38, 1e300};
  for (size_t from = 0; from < 4; from++) {
    for (size_t to = 0; to < 4; to++) {
      for (const size_t at : {size_t{0}, size_t{15}, kNormBlock - 1, kNormBlock + 17}) {
        ReduceCall call;
        constexpr size_t kCount = kNormBlock + 50;
        Arena arena(1 << 20);
        for (int s = 0; s < 2; s++) {
          call.bases.push_back(arena.take(kCount * 8, 0));
          for (size_t i = 0; i < kCount; i++)
            reference::write_float(kFloats[from],
                                   arena.data() + call.bases.back() + i * dtype_size(kFloats[from]),
                                   i == at ? kBig[from] : 1);
        }
        call.pieces.push_back({0, arena.take(kCount * 8, 0), kCount, kFloats[from], kFloats[to]});
        check(*machine_, arena, call, true);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(DeviceKernelsTest, NothingIsDoneToNothing) {
  Arena arena(4096);
  const size_t at = arena.take(64, 0);
  check(*machine_, arena,
        CastCall{{{at, at, 0, FSCCL_FLOAT32, FSCCL_BFLOAT16}}, CastBase::both, 0, 0});
  check(*machine_, arena, CastCall{});
  ReduceCall call;
  call.bases = {at};
  check(*machine_, arena, call, true);
  check(*machine_, arena, call, false);
  call.pieces = {{0, at, 0, FSCCL_FLOAT32, FSCCL_FLOAT32}};
  check(*machine_, arena, call, true);
}

}  // namespace
}  // namespace fsccl::cuda
