// Tests casts and copies with every 16-bit value, many wider ones and all special values, on every
// instruction set.
#include <algorithm>

#include "reference.h"

namespace fsccl {
namespace {

using namespace reference;

constexpr uint64_t kCastSeed = 20240613;

bool is_nan(fsccl_dtype_t type, const void* at) { return std::isnan(read_float(type, at)); }

TEST(Cast, EveryValueRoundsOnceToNearestEvenOnEveryTarget) {
  for (const fsccl_dtype_t from : kFloats) {
    const std::vector<uint8_t> in = interesting(from);
    const size_t count = in.size() / dtype_size(from);
    for (const fsccl_dtype_t to : kFloats) {
      if (from == to) continue;
      const size_t size = dtype_size(to);
      std::vector<uint8_t> first;
      for (const std::string& target : targets()) {
        SCOPED_TRACE(target + " " + dtype_name(from) + " to " + dtype_name(to));
        const UseTarget use(target);
        std::vector<uint8_t> out(count * size);
        ASSERT_TRUE(cast(out.data(), to, in.data(), from, count, Stores::cached));
        if (first.empty()) first = out;
        EXPECT_TRUE(out == first) << "bits differ between instruction sets";
        size_t wrong = 0;
        for (size_t i = 0; i < count; ++i) {
          const double value = read_float(from, in.data() + i * dtype_size(from));
          uint64_t want = 0;
          uint64_t got = 0;
          write_float(to, &want, value);
          std::memcpy(&got, out.data() + i * size, size);
          const bool same = std::isnan(value) ? is_nan(to, &got) : want == got;
          if (!same && ++wrong < 4)
            ADD_FAILURE() << "value " << value << " gave " << std::hex << got << ", not " << want;
        }
        EXPECT_EQ(wrong, 0u);
      }
    }
  }
}

TEST(Cast, AnyCountAndAlignmentBothStores) {
  std::mt19937_64 random(kCastSeed);
  std::vector<size_t> counts(201);
  for (size_t i = 0; i < counts.size(); ++i) counts[i] = i;
  counts.insert(counts.end(), {4095, 4096, 9001, 33333});
  for (const std::string& target : targets()) {
    const UseTarget use(target);
    for (const fsccl_dtype_t from : kFloats) {
      for (const fsccl_dtype_t to : kFloats) {
        for (const size_t count : counts) {
          const Stores stores = random() % 2 == 0 ? Stores::cached : Stores::streaming;
          Buffer in(count * dtype_size(from), random() % 128),
              out(count * dtype_size(to), random() % 128);
          std::vector<uint8_t> want(count * dtype_size(to));
          for (size_t i = 0; i < count; ++i) {
            write_float(
                from, in.data() + i * dtype_size(from),
                static_cast<double>(static_cast<int64_t>(random() % 2000001) - 1000000) / 64);
            write_float(to, want.data() + i * dtype_size(to),
                        read_float(from, in.data() + i * dtype_size(from)));
          }
          ASSERT_TRUE(cast(out.data(), to, in.data(), from, count, stores));
          ASSERT_EQ(out.bytes(), want) << target << " " << dtype_name(from) << " to "
                                       << dtype_name(to) << ", count " << count;
          ASSERT_TRUE(out.guards_intact()) << target << " " << dtype_name(from) << " to "
                                           << dtype_name(to) << ", count " << count;
        }
      }
    }
  }
}

TEST(Cast, EqualTypesAreACopyAndOthersAreRefused) {
  const uint8_t in[4] = {1, 2, 3, 4};
  uint8_t out[4] = {9, 9, 9, 9};
  EXPECT_TRUE(cast(out, FSCCL_FLOAT8_E4M3, in, FSCCL_FLOAT8_E4M3, 4, Stores::cached));
  EXPECT_TRUE(std::equal(in, in + 4, out));
  for (const auto& [to, from] : {std::pair{FSCCL_FLOAT32, FSCCL_INT8},
                                 {FSCCL_INT8, FSCCL_UINT8},
                                 {FSCCL_FLOAT8_E5M2, FSCCL_FLOAT16},
                                 {FSCCL_BOOL, FSCCL_INT8}}) {
    uint8_t untouched[8] = {7, 7, 7, 7, 7, 7, 7, 7};
    EXPECT_FALSE(cast_supported(to, from));
    EXPECT_FALSE(cast(untouched, to, in, from, 1, Stores::cached));
    for (const uint8_t byte : untouched) EXPECT_EQ(byte, 7);
  }
}

// Copies every size between random alignments, on each instruction set and in each way.
template <class Way>
void check_copies(const std::vector<size_t>& sizes, const std::vector<Way>& ways,
                  void (*copy)(void*, const void*, size_t, Way)) {
  std::mt19937_64 random(kCastSeed);
  for (const std::string& target : targets()) {
    const UseTarget use(target);
    for (const size_t bytes : sizes) {
      for (const Way way : ways) {
        Buffer in(bytes, random() % 128), out(bytes, random() % 128);
        std::generate_n(in.data(), bytes, [&] { return static_cast<uint8_t>(random()); });
        copy(out.data(), in.data(), bytes, way);
        ASSERT_EQ(out.bytes(), in.bytes()) << target << ", " << bytes << " bytes";
        ASSERT_TRUE(out.guards_intact()) << target << ", " << bytes << " bytes";
      }
    }
  }
}

TEST(Copy, AnySizeAndAlignmentAllStores) {
  std::vector<size_t> sizes(1300);
  for (size_t i = 0; i < sizes.size(); ++i) sizes[i] = i;
  sizes.insert(sizes.end(), {4096, 16384, 16384 + 63, 40001, 100003, 1 << 20});
  check_copies<Stores>(sizes, {Stores::cached, Stores::streaming, Stores::unfenced}, copy_bytes);
}

// Tests all small distances by which the destination lies further into a page than the source. At
// some of them memcpy is not used (slow_to_move()).
TEST(Copy, AnyDistanceWithinAPage) {
  for (const std::string& target : targets()) {
    const UseTarget use(target);
    for (const size_t bytes : {2112, 2113, 4096, 9999}) {
      for (size_t ahead = 0; ahead < 80; ahead++) {
        alignas(4096) static uint8_t in[4096 * 4], out[4096 * 4];
        const size_t at = ahead * 53 % 4096;
        for (size_t i = 0; i < sizeof in; i++)
          in[i] = static_cast<uint8_t>(i * 7 + i / 256 + ahead);
        std::fill(std::begin(out), std::end(out), uint8_t{0xEE});
        copy_bytes(out + at + ahead, in + at, bytes, Stores::cached);
        ASSERT_EQ(std::memcmp(out + at + ahead, in + at, bytes), 0)
            << target << ", " << bytes << " bytes, ahead by " << ahead;
        ASSERT_TRUE(std::all_of(out, out + at + ahead, [](uint8_t b) { return b == 0xEE; }));
        ASSERT_TRUE(std::all_of(out + at + ahead + bytes, std::end(out),
                                [](uint8_t b) { return b == 0xEE; }));
        EXPECT_EQ(slow_to_move(out + at + ahead, in + at, bytes),
                  bytes > 2112 && ahead > 0 && ahead < 32);
      }
    }
  }
}

// Pages are copied four side by side, then two, then line after line, and then the rest.
TEST(Copy, BetweenCoresAnySizeAndAlignment) {
  std::vector<size_t> sizes{0, 1, 4096, 16384 + 8192 + 4096 + 63, 100003, 1 << 20};
  for (size_t bytes = 2100; bytes < 2300; bytes++) sizes.push_back(bytes);
  for (const size_t pages : {2, 3, 4, 5, 6, 8})
    sizes.insert(sizes.end(), {pages * 4096 - 1, pages * 4096, pages * 4096 + 1});
  check_copies<Cores>(sizes, {Cores::near, Cores::far}, copy_between_cores);
}

TEST(Target, TheBestIsChosenAndUnknownOnesAreRefused) {
  const std::vector<std::string> all = targets();
  ASSERT_FALSE(all.empty());
  EXPECT_EQ(kernels_target(), all.back());
  EXPECT_FALSE(kernels_use_target_for_test("abacus"));
  EXPECT_EQ(kernels_target(), all.back());
}

}  // namespace
}  // namespace fsccl
