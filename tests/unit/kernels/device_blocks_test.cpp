// Compares the block codecs of GPUs with the host's (codec/blocks.h): every byte of the chunks, and
// every decoded element. A test compares the whole arena, so that a byte that is written beyond a
// part or a range is noticed, too.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "codec/blocks.h"
#include "device_machine.h"
#include "reference.h"

namespace fsccl::cuda {
namespace {

using Random = std::mt19937_64;

static_assert(kChunkMost == kBlocksMost && kChunkHeader == kBlocksHeaderBytes);
static_assert(kLeastCodecBlock == kLeastBlock && kMostCodecBlock == kMostBlock);
constexpr BlockKind kind_of(BlockCodec codec) { return static_cast<BlockKind>(codec); }
static_assert(kind_of(kCodecInt8) == BlockKind::int8 && kind_of(kCodecFp8) == BlockKind::fp8 &&
              kind_of(kCodecMxFp8) == BlockKind::mxfp8);

constexpr BlockCodec kCodecs[] = {kCodecInt8, kCodecFp8, kCodecMxFp8};
constexpr fsccl_dtype_t kTypes[] = {FSCCL_BFLOAT16, FSCCL_FLOAT16, FSCCL_FLOAT32};

class DeviceBlocks : public OnMachine {};
INSTANTIATE_TEST_SUITE_P(Ways, DeviceBlocks, testing::Values("emulated", "driver"),
                         [](const auto& way) { return way.param; });

// How the elements of a range are drawn.
enum class Drawn : uint8_t { weights, halves, powers, zeros, any_bits, rare_nan };

double draw(Random& random, Drawn how) {
  const double sign = random() % 2 ? 1 : -1;
  switch (how) {
    case Drawn::halves:  // 127 or 448 is drawn often, so many elements lie between two codes
      return sign * (random() % 8   ? static_cast<double>(random() % 255) / 2
                     : random() % 2 ? 127
                                    : 448);
    case Drawn::powers:  // subnormal numbers of the type, and its largest
      return sign * std::ldexp(1.0 + static_cast<double>(random() % 16) / 16,
                               static_cast<int>(random() % 290) - 152);
    case Drawn::zeros:
      return sign * (random() % 64 ? 0.0 : 1e-6);
    case Drawn::rare_nan:
      if (random() % 4000 == 0) return random() % 2 ? NAN : INFINITY;
      [[fallthrough]];
    default:
      return sign * 0.02 * static_cast<double>(random() % 100'001) / 1e5;
  }
}

constexpr uint64_t kRun = 5;  // the number of the operation that is audited

void fill(Random& random, const BlockRange& range, Drawn how, Arena& arena) {
  // Neighbours have like magnitudes, so that some blocks have only small ones.
  double by = 1;
  for (uint64_t i = 0; i < range.count; i++) {
    if (how == Drawn::powers && i % 512 == 0)
      by = std::ldexp(1.0, -static_cast<int>(i % 8192) / 64);
    uint64_t bits = random();
    if (how != Drawn::any_bits) reference::write_float(range.dtype, &bits, draw(random, how) * by);
    const size_t size = dtype_size(range.dtype);
    std::memcpy(arena.data() + range.elements + i * size, &bits, size);
  }
}

BlockForm form_of(const BlockCoding& coding) { return {kind_of(coding.codec), coding.block}; }

// Writes the part as the host's encoder makes it. Returns false, with no chunks in the directory,
// if too many elements would go exactly. It measures the blocks that the call says, as run kRun of
// an audit, and writes their figures.
bool encode_on_host(Arena& arena, const CodedCall& call) {
  const BlockCoding& coding = call.coding;
  const CodedPart& part = call.parts[0];
  const size_t begin = call.begins[0];
  BlockFigures figures{};
  auto* const directory = reinterpret_cast<uint32_t*>(arena.data() + begin);
  uint8_t* out = arena.data() + begin + part.directory_bytes();
  const BlockForm form = form_of(coding);
  BlockAudit audit{.most_error = call.measure.most_error,
                   .every = call.measure.every,
                   .room = part.exact_room()};
  uint64_t blocks = 0;
  std::vector<uint8_t> chunk(form.chunk_bytes(kBlocksMost) + part.exact_room());
  size_t index = 0;
  for (const BlockRange& range : part.ranges()) {
    const size_t size = dtype_size(range.dtype);
    for (uint64_t at = 0; at < range.count; at += kBlocksMost, index++) {
      const size_t count = std::min<uint64_t>(range.count - at, kBlocksMost);
      audit.phase = audit_phase(kRun, blocks, audit.every);
      const BlocksWritten made = encode_blocks(arena.data() + range.elements + at * size,
                                               range.dtype, count, form, audit, chunk.data());
      if (!made.bytes) {
        std::fill_n(directory, part.chunks(), kNoChunk);
        return false;
      }
      blocks += made.blocks;
      figures.blocks += made.blocks;
      figures.exact += made.exact;
      figures.measured += made.audited;
      figures.beyond += made.beyond;
      figures.largest = std::max(figures.largest, std::bit_cast<uint32_t>(made.largest));
      directory[index] = static_cast<uint32_t>(part.exact_room() - audit.room);
      std::copy_n(chunk.data(), made.bytes, out);
      out += made.bytes;
      audit.room -= made.bytes - form.chunk_bytes(count);
    }
  }
  if (call.measure.figures)
    std::memcpy(arena.data() + call.measure.figures, &figures, sizeof figures);
  return true;
}

void decode_on_host(Arena& arena, const BlockCoding& coding, const CodedPart& part, size_t begin) {
  const uint8_t* in = arena.data() + begin + part.directory_bytes();
  const uint8_t* const end = arena.data() + begin + part.bytes();
  for (const BlockRange& range : part.ranges())
    for (uint64_t at = 0; at < range.count; at += kBlocksMost) {
      const size_t count = std::min<uint64_t>(range.count - at, kBlocksMost);
      const size_t read =
          decode_blocks(in, static_cast<size_t>(end - in),
                        arena.data() + range.elements + at * dtype_size(range.dtype), range.dtype,
                        count, form_of(coding));
      ASSERT_GT(read, 0u);
      in += read;
    }
}

// Makes a part of ranges with these counts, each at any alignment, and draws their elements.
void add_part(Random& random, const std::vector<uint64_t>& counts, fsccl_dtype_t dtype, Drawn how,
              Arena& arena, CodedCall& call) {
  std::vector<BlockRange> ranges;
  for (const uint64_t count : counts) {
    const size_t size = dtype_size(dtype);
    ranges.push_back(
        {arena.take(count * size, random() % 3 ? random() % 16 * size : 0), count, dtype});
    fill(random, ranges.back(), how, arena);
  }
  call.parts.emplace_back(call.coding, std::move(ranges));
  call.begins.push_back(arena.take(call.parts.back().bytes(), 0));
}

void expect_same(const Arena& got, const Arena& want, const CodedCall& call, const char* what) {
  const auto differs = std::mismatch(got.data(), got.data() + got.used(), want.data());
  ASSERT_TRUE(got == want) << what << " by codec " << call.coding.codec << " in blocks of "
                           << call.coding.block << ": the first other byte is at "
                           << differs.first - got.data() << ", the part begins at "
                           << call.begins.front();
}

// Encodes a part and decodes it again, both as on the host. Returns false if there was no room.
bool check(Machine& machine, const Arena& before, const CodedCall& call) {
  Arena got = before, want = before;
  const bool fits = encode_on_host(want, call);
  machine.encode(got, call);
  const size_t directory = call.parts[0].chunks() * sizeof(uint32_t);
  if (!fits) {
    EXPECT_EQ(std::memcmp(got.data() + call.begins[0], want.data() + call.begins[0], directory), 0);
    return false;
  }
  expect_same(got, want, call, "encoded");
  for (const BlockRange& range : call.parts[0].ranges())
    std::memset(want.data() + range.elements, 0x5a, range.count * dtype_size(range.dtype));
  got = want;
  decode_on_host(want, call.coding, call.parts[0], call.begins[0]);
  machine.decode(got, call);
  expect_same(got, want, call, "decoded");
  return true;
}

TEST_P(DeviceBlocks, EveryByteIsTheHosts) {
  Random random(577215);
  int without_room = 0;
  for (const BlockCodec codec : kCodecs)
    for (const fsccl_dtype_t dtype : kTypes)
      for (const uint32_t block : {32u, 128u, 1024u})
        for (const Drawn how : {Drawn::weights, Drawn::halves, Drawn::powers, Drawn::zeros,
                                Drawn::any_bits, Drawn::rare_nan}) {
          Arena arena(1 << 18);
          CodedCall call{.coding = {codec, block}};
          call.states = arena.take(4, 0);
          add_part(random, {1, 16, 33, 700, 1024, 2100 + random() % 300, 5000}, dtype, how, arena,
                   call);
          without_room += !check(*machine_, arena, call);
          if (HasFatalFailure()) return;
        }
  EXPECT_GT(without_room, 0) << "elements of any bits are mostly beyond the range";
}

TEST_P(DeviceBlocks, OfEverySizeAndOfEveryValueOf16Bits) {
  Random random(141421);
  for (const BlockCodec codec : kCodecs)
    for (const uint32_t block : {32u, 64u, 128u, 256u, 512u, 1024u}) {
      Arena arena(1 << 20);
      CodedCall call{.coding = {codec, block}};
      call.states = arena.take(4, 0);
      add_part(random, {70'000, 65'536}, FSCCL_FLOAT16, Drawn::weights, arena, call);
      // Two blocks go exactly, of which the second is the last of its range and shorter.
      const std::vector<BlockRange>& ranges = call.parts[0].ranges();
      constexpr uint16_t kNan = 0x7c01;
      for (const uint64_t at : {uint64_t{5000}, ranges[0].count - 1})
        std::memcpy(arena.data() + ranges[0].elements + 2 * at, &kNan, sizeof kNan);
      // Fp16 are encoded up to 2^15, so the second range has all of those.
      const BlockRange& all = ranges[1];
      for (uint32_t bits = 0; bits < all.count; bits++) {
        const auto half = static_cast<uint16_t>(bits % 0x7800 | (bits & 1) << 15);
        std::memcpy(arena.data() + all.elements + 2 * bits, &half, sizeof half);
      }
      EXPECT_TRUE(check(*machine_, arena, call));
      if (HasFatalFailure()) return;
    }
}

// The blocks that are measured, the errors and what goes exactly because of them are the host's.
TEST_P(DeviceBlocks, OfMeasuredBlocks) {
  Random random(602214);
  for (const BlockCodec codec : kCodecs)
    for (const fsccl_dtype_t dtype : kTypes)
      for (const uint32_t block : {32u, 1024u})
        for (const auto& [most_error, every] :
             {std::pair{0.0, 1u}, {0.0, 7u}, {0.9, 3u}, {0.5 / 254, 1u}, {1e-9, 1u}}) {
          Arena arena(1 << 18);
          CodedCall call{.coding = {codec, block}};
          call.states = arena.take(4, 0);
          call.measure = {most_error, every, static_cast<uint32_t>(kRun * 97 % every)};
          const BlockForm form = form_of(call.coding);
          call.measure.bounds[kFp16] = block_bound(form, FSCCL_FLOAT16);
          call.measure.bounds[kBf16] = block_bound(form, FSCCL_BFLOAT16);
          call.measure.bounds[kFp32] = block_bound(form, FSCCL_FLOAT32);
          call.measure.figures = arena.take(sizeof(BlockFigures), 0);
          add_part(random, {9000, 1, 33, 2000, 3000}, dtype, Drawn::halves, arena, call);
          // Few blocks have errors, so that those which may not be coded have room.
          const BlockRange& range = call.parts[0].ranges()[0];
          std::memset(arena.data() + range.elements, 0, range.count * dtype_size(dtype));
          for (uint64_t at = 0; at < range.count; at += 999)
            for (uint64_t i = 0; i < 2; i++) {
              uint64_t bits = 0;
              reference::write_float(dtype, &bits, i ? 0.37 : 1.0);
              std::memcpy(arena.data() + range.elements + (at + i) * dtype_size(dtype), &bits,
                          dtype_size(dtype));
            }
          const bool fits = check(*machine_, arena, call);
          if (HasFatalFailure()) return;
          EXPECT_TRUE(fits || (most_error > 0 && most_error < 0.01));
        }
}

// The longest chunk that there is: all of its blocks go exactly, with scales in fp32.
TEST_P(DeviceBlocks, OfAChunkWithoutACodedBlock) {
  Random random(299792);
  Arena arena(1 << 23);
  CodedCall call{.coding = {kCodecInt8, kLeastCodecBlock}};
  call.states = arena.take(4, 0);
  // The room for exact elements is one in 16.
  add_part(random, {kChunkMost, 16 * kChunkMost}, FSCCL_FLOAT32, Drawn::weights, arena, call);
  const BlockRange& exact = call.parts[0].ranges().front();
  for (uint64_t i = 0; i < exact.count; i++) {
    const auto nan = static_cast<uint32_t>(0x7fc00000u + i);
    std::memcpy(arena.data() + exact.elements + i * sizeof nan, &nan, sizeof nan);
  }
  EXPECT_TRUE(check(*machine_, arena, call));
}

// Returns true if all elements of the part are NaN.
bool all_nan(const Arena& arena, const CodedPart& part) {
  for (const BlockRange& range : part.ranges())
    for (uint64_t i = 0; i < range.count; i++) {
      float value;
      std::memcpy(&value, arena.data() + range.elements + i * sizeof value, sizeof value);
      if (value == value) return false;
    }
  return true;
}

// The second of three parts has too many elements that go exactly. A byte of the third is damaged.
TEST_P(DeviceBlocks, WhatCannotBeDecodedIsNanAndSaysWhy) {
  Random random(662607);
  for (const BlockCodec codec : kCodecs) {
    Arena arena(1 << 18);
    CodedCall all{.coding = {codec, 64}};
    all.states = arena.take(3 * sizeof(uint32_t), 0);
    for (const Drawn how : {Drawn::rare_nan, Drawn::any_bits, Drawn::weights})
      add_part(random, {3000, 65}, FSCCL_FLOAT32, how, arena, all);
    for (size_t k = 0; k < 3; k++)
      machine_->encode(arena, {all.coding, {all.parts[k]}, {all.begins[k]}, 0});
    const uint64_t first = all.begins[2] + all.parts[2].directory_bytes();
    const uint64_t bytes = form_of(all.coding).chunk_bytes(3000);
    for (const uint64_t at :
         {uint64_t{0}, uint64_t{5}, uint64_t{9}, uint64_t{14}, bytes / 2, bytes - 1}) {
      Arena got = arena;
      got.data()[first + at] ^= 0x10;
      machine_->decode(got, all);
      uint32_t states[3];
      std::memcpy(states, got.data() + all.states, sizeof states);
      EXPECT_EQ(states[0], kPartGood);
      EXPECT_EQ(states[1], kPartNoRoom);
      EXPECT_EQ(states[2], kPartDamaged) << at;
      EXPECT_FALSE(all_nan(got, all.parts[0]));
      EXPECT_TRUE(all_nan(got, all.parts[1]));
      const auto ranges = all.parts[2].ranges();
      EXPECT_TRUE(all_nan(got, CodedPart(all.coding, {ranges[0]}))) << "the damaged chunk";
      EXPECT_FALSE(all_nan(got, CodedPart(all.coding, {ranges[1]}))) << "the other chunk";
    }
  }
}

}  // namespace
}  // namespace fsccl::cuda
