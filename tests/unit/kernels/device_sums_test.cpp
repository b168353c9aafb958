// Compares the codecs of reductions on GPUs with the host's encode_sums() and add_sums()
// (codec/blocks.h): every byte of the chunks, every bit of the feedback, and every decoded element.
// A test compares the whole arena, so that a byte that is written beyond a part or a range is
// noticed, too.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "codec/blocks.h"
#include "device_machine.h"
#include "reference.h"

namespace fsccl::cuda::sums_test {
namespace {

using Random = std::mt19937_64;

static_assert(static_cast<BlockKind>(kCodecInt8) == BlockKind::int8 &&
              static_cast<BlockKind>(kCodecInt4) == BlockKind::int4 &&
              static_cast<BlockKind>(kCodecBf16) == BlockKind::bf16);

constexpr BlockCodec kCodecs[] = {kCodecInt8, kCodecInt4, kCodecBf16};
constexpr fsccl_dtype_t kTypes[] = {FSCCL_BFLOAT16, FSCCL_FLOAT16, FSCCL_FLOAT32};

class DeviceSums : public OnMachine {};
INSTANTIATE_TEST_SUITE_P(Ways, DeviceSums, testing::Values("emulated", "driver"),
                         [](const auto& way) { return way.param; });

// How gradients are drawn.
enum class Drawn : uint8_t { gradients, halves, small, any_bits };

void fill(Random& random, const BlockRange& range, Drawn how, Arena& arena) {
  for (uint64_t i = 0; i < range.count; i++) {
    uint64_t bits = random();
    const double sign = random() % 2 ? 1 : -1;
    // By blocks of 64: nothing, what lies below 2^-100, and what is above 2^100 are all drawn.
    const int power = how == Drawn::small ? static_cast<int>(i / 64 % 8) * 32 - 148 : 0;
    const double value = how == Drawn::halves ? static_cast<double>(random() % 255) / 2
                                              : static_cast<double>(random() % 100'001) / 1e5;
    if (how != Drawn::any_bits)
      reference::write_float(range.dtype, &bits, sign * std::ldexp(value, power));
    const size_t size = dtype_size(range.dtype);
    std::memcpy(arena.data() + range.elements + i * size, &bits, size);
  }
}

struct Case {
  Arena arena{1 << 21};
  SumsCall call;
  std::vector<std::vector<BlockRange>> decoded;  // the parts' ranges in fp32
};

// Makes parts of ranges with these counts, each at any alignment of its elements.
void make_parts(Random& random, fsccl_dtype_t dtype, Drawn how, bool feeds_back,
                const std::vector<std::vector<uint64_t>>& counts, Case& c) {
  c.call.states = c.arena.take(counts.size() * sizeof(uint32_t), 0);
  uint64_t elements = 0;
  for (const std::vector<uint64_t>& of_part : counts) {
    std::vector<BlockRange>& ranges = c.call.parts.emplace_back();
    std::vector<BlockRange>& decoded = c.decoded.emplace_back();
    for (const uint64_t count : of_part) {
      const size_t size = dtype_size(dtype);
      ranges.push_back(
          {c.arena.take(count * size, random() % 3 ? random() % 16 * size : 0), count, dtype});
      decoded.push_back(
          {c.arena.take(count * 4, random() % 2 ? random() % 4 * 4 : 0), count, FSCCL_FLOAT32});
      fill(random, ranges.back(), how, c.arena);
      elements += count;
    }
    c.call.begins.push_back(c.arena.take(sum_bytes(c.call.coding, ranges), 0));
  }
  if (!feeds_back) return;
  c.call.feedback = c.arena.take(elements * sizeof(float), 0);
  auto* const feedback = reinterpret_cast<float*>(c.arena.data() + c.call.feedback);
  for (uint64_t i = 0; i < elements; i++)
    feedback[i] = static_cast<float>(random() % 2001) / 1e6f - 1e-3f;
}

BlockForm form_of(const BlockCoding& coding) {
  return {static_cast<BlockKind>(coding.codec), coding.block};
}

// Calls act(offset in its range, offset of its codes, its elements) for each chunk of a part.
template <class Act>
void for_each_chunk(const SumsCall& call, size_t part, const std::vector<BlockRange>& ranges,
                    const Act& act) {
  uint64_t codes = call.begins[part];
  for (const BlockRange& range : ranges)
    for (uint64_t at = 0; at < range.count; at += kBlocksMost) {
      const size_t count = std::min<uint64_t>(range.count - at, kBlocksMost);
      act(range.elements + at * dtype_size(range.dtype), codes, count);
      codes += form_of(call.coding).chunk_bytes(count);
    }
}

void encode_on_host(Arena& arena, const SumsCall& call) {
  auto* feedback = call.feedback ? reinterpret_cast<float*>(arena.data() + call.feedback) : nullptr;
  for (size_t k = 0; k < call.parts.size(); k++)
    for_each_chunk(call, k, call.parts[k], [&](uint64_t elements, uint64_t codes, size_t count) {
      encode_sums(arena.data() + elements, call.parts[k][0].dtype, count, form_of(call.coding),
                  feedback, arena.data() + codes);
      if (feedback) feedback += count;
    });
}

void decode_on_host(Arena& arena, const SumsCall& call,
                    const std::vector<std::vector<BlockRange>>& decoded) {
  for (size_t k = 0; k < decoded.size(); k++)
    for_each_chunk(call, k, decoded[k], [&](uint64_t elements, uint64_t codes, size_t count) {
      std::vector<float> sums(count);
      const BlockForm form = form_of(call.coding);
      ASSERT_EQ(
          add_sums(arena.data() + codes, form.chunk_bytes(count), sums.data(), count, form, false),
          form.chunk_bytes(count));
      // The bits of a NaN do not matter: the sum replaces it.
      const auto nan = static_cast<uint32_t>(0x7fc00000u);
      for (float& sum : sums)
        if (sum != sum) std::memcpy(&sum, &nan, sizeof sum);
      std::memcpy(arena.data() + elements, sums.data(), count * sizeof(float));
    });
}

void expect_same(const Arena& got, const Arena& want, const Case& c, const char* what) {
  const auto differs = std::mismatch(got.data(), got.data() + got.used(), want.data());
  ASSERT_TRUE(got == want) << what << " by codec " << c.call.coding.codec << " in blocks of "
                           << c.call.coding.block << ": the first other byte is at "
                           << differs.first - got.data() << ", the first part begins at "
                           << c.call.begins.front() << ", the feedback at " << c.call.feedback;
}

void check(Machine& machine, const Case& c) {
  Arena got = c.arena, want = c.arena;
  encode_on_host(want, c.call);
  machine.encode_sums(got, c.call);
  expect_same(got, want, c, "encoded");
  SumsCall decode = c.call;
  decode.parts = c.decoded;
  got = want;
  decode_on_host(want, c.call, c.decoded);
  machine.decode_sums(got, decode);
  expect_same(got, want, c, "decoded");
}

TEST_P(DeviceSums, EveryByteIsTheHosts) {
  constexpr uint32_t kBlocks[] = {32, 128, 1024, 256};
  Random random(271828);
  uint64_t number = 0;
  for (const BlockCodec codec : kCodecs)
    for (const fsccl_dtype_t dtype : kTypes)
      for (const Drawn how : {Drawn::gradients, Drawn::halves, Drawn::small, Drawn::any_bits}) {
        Case c;
        const uint64_t at = number++;
        c.call.coding = {codec, kBlocks[(at + at / 4) % 4]};
        make_parts(random, dtype, how, at % 3 != 0,
                   {{1, 16, 33, 700}, {1024, 1100 + random() % 300}}, c);
        check(*machine_, c);
        if (HasFatalFailure()) return;
      }
}

TEST_P(DeviceSums, OfLongRanges) {
  Random random(161803);
  for (const BlockCodec codec : kCodecs) {
    Case c;
    c.call.coding = {codec, 128};
    make_parts(random, FSCCL_BFLOAT16, Drawn::gradients, true, {{66'000}, {5}}, c);
    check(*machine_, c);
    if (HasFatalFailure()) return;
  }
}

TEST_P(DeviceSums, DamageIsToldAndBecomesNan) {
  Random random(112358);
  for (const BlockCodec codec : kCodecs) {
    Case c;
    c.call.coding = {codec, 64};
    make_parts(random, FSCCL_FLOAT32, Drawn::gradients, false, {{3000, 65}, {500}}, c);
    machine_->encode_sums(c.arena, c.call);
    SumsCall decode = c.call;
    decode.parts = c.decoded;
    const uint64_t bytes = form_of(c.call.coding).chunk_bytes(3000);
    for (const uint64_t at :
         {uint64_t{0}, uint64_t{5}, uint64_t{9}, uint64_t{14}, bytes / 2, bytes - 1}) {
      Arena got = c.arena;
      got.data()[c.call.begins[0] + at] ^= 0x10;
      machine_->decode_sums(got, decode);
      uint32_t states[2];
      std::memcpy(states, got.data() + c.call.states, sizeof states);
      EXPECT_EQ(states[0], kPartDamaged) << at;
      EXPECT_EQ(states[1], kPartGood);
      const auto is_nan = [&](const BlockRange& range, uint64_t i) {
        float value;
        std::memcpy(&value, got.data() + range.elements + i * sizeof value, sizeof value);
        return std::isnan(value);
      };
      for (uint64_t i = 0; i < 3000; i++) ASSERT_TRUE(is_nan(c.decoded[0][0], i)) << i;
      EXPECT_FALSE(is_nan(c.decoded[0][1], 0)) << "the other chunk";
      EXPECT_FALSE(is_nan(c.decoded[1][0], 0)) << "the other part";
    }
  }
}

}  // namespace
}  // namespace fsccl::cuda::sums_test
