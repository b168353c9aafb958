// Compares reduces with a reference that takes one element at a time: for every pair of types,
// every operator and several numbers of sources, with counts, alignments, stores, scale,
// accumulate, norm and in-place drawn at random from a fixed seed. Every instruction set must give
// the same bits.
#include <algorithm>

#include "reference.h"

namespace fsccl {
namespace {

using namespace reference;

constexpr uint64_t kReduceSeed = 3141592;
constexpr fsccl_op_kind_t kOps[] = {FSCCL_OP_SUM, FSCCL_OP_AVG,  FSCCL_OP_MIN,
                                    FSCCL_OP_MAX, FSCCL_OP_PROD, FSCCL_OP_PREMUL_SUM};

// Computes one element of a floating-point reduce with accumulator A, as documented.
template <class A>
A fold_float(const Reduce& r, size_t i) {
  A acc = 0;
  for (int s = 0; s < r.n; ++s) {
    A x = static_cast<A>(
        read_float(r.from, static_cast<const uint8_t*>(r.sources[s]) + i * dtype_size(r.from)));
    if (r.op == FSCCL_OP_PREMUL_SUM) x *= static_cast<A>(r.premul);
    if (s == 0) {
      acc = x;
    } else if (r.op == FSCCL_OP_MIN || r.op == FSCCL_OP_MAX) {
      const bool wins = r.op == FSCCL_OP_MIN ? x < acc : x > acc;
      if (wins || std::isnan(x)) acc = x;
    } else {
      acc = r.op == FSCCL_OP_PROD ? acc * x : acc + x;
    }
  }
  acc *= static_cast<A>(r.scale);
  acc /= static_cast<A>(r.divisor);
  const uint8_t* old = static_cast<const uint8_t*>(r.dst) + i * dtype_size(r.to);
  if (r.accumulate) acc = static_cast<A>(read_float(r.to, old)) + acc;
  return std::isnan(acc) ? std::numeric_limits<A>::quiet_NaN() : acc;
}

Norm reference_norm(fsccl_dtype_t type, const uint8_t* stored, size_t count) {
  Norm norm;
  for (size_t begin = 0; begin < count; begin += 4096) {
    double partial[16] = {};
    for (size_t i = begin; i < std::min(count, begin + 4096); ++i) {
      const double x = read_float(type, stored + i * dtype_size(type));
      partial[(i - begin) % 16] += x * x;
      norm.finite = norm.finite && std::isfinite(x);
    }
    for (int half = 8; half > 0; half /= 2) {
      for (int k = 0; k < half; ++k) partial[k] += partial[k + half];
    }
    norm.sum += partial[0];
  }
  return norm;
}

std::vector<uint8_t> reference_float(const Reduce& r) {
  std::vector<uint8_t> out(r.count * dtype_size(r.to));
  const bool wide = r.from == FSCCL_FLOAT64 || r.to == FSCCL_FLOAT64;
  for (size_t i = 0; i < r.count; ++i) {
    const double value =
        wide ? fold_float<double>(r, i) : static_cast<double>(fold_float<float>(r, i));
    write_float(r.to, out.data() + i * dtype_size(r.to), value);
  }
  return out;
}

template <class T>
std::vector<uint8_t> reference_integer(const Reduce& r) {
  using U = std::make_unsigned_t<T>;
  std::vector<uint8_t> out(r.count * sizeof(T));
  const bool is_bool = r.from == FSCCL_BOOL;
  for (size_t i = 0; i < r.count; ++i) {
    T acc = 0;
    for (int s = 0; s < r.n; ++s) {
      T x;
      std::memcpy(&x, static_cast<const uint8_t*>(r.sources[s]) + i * sizeof(T), sizeof x);
      if (is_bool) x = x != 0;
      const bool is_and = is_bool && r.op == FSCCL_OP_AVG;
      if (s == 0) {
        acc = x;
      } else if (r.op == FSCCL_OP_MIN || is_and) {
        acc = std::min(acc, x);
      } else if (r.op == FSCCL_OP_MAX || is_bool) {
        acc = r.op == FSCCL_OP_PROD ? std::min(acc, x) : std::max(acc, x);
      } else if (r.op == FSCCL_OP_PROD) {
        acc = static_cast<T>(uint64_t{1} * static_cast<U>(acc) * static_cast<U>(x));
      } else {
        acc = static_cast<T>(static_cast<U>(static_cast<U>(acc) + static_cast<U>(x)));
      }
    }
    if (r.op == FSCCL_OP_AVG && !is_bool) acc = static_cast<T>(acc / static_cast<T>(r.divisor));
    T old;
    std::memcpy(&old, static_cast<const uint8_t*>(r.dst) + i * sizeof(T), sizeof old);
    if (r.accumulate)
      acc = is_bool ? static_cast<T>(acc != 0 || old != 0)
                    : static_cast<T>(static_cast<U>(static_cast<U>(acc) + static_cast<U>(old)));
    std::memcpy(out.data() + i * sizeof(T), &acc, sizeof acc);
  }
  return out;
}

std::vector<uint8_t> reference_reduce(const Reduce& r) {
  switch (r.from) {
    case FSCCL_INT8:
      return reference_integer<int8_t>(r);
    case FSCCL_UINT8:
    case FSCCL_BOOL:
      return reference_integer<uint8_t>(r);
    case FSCCL_INT16:
      return reference_integer<int16_t>(r);
    case FSCCL_UINT16:
      return reference_integer<uint16_t>(r);
    case FSCCL_INT32:
      return reference_integer<int32_t>(r);
    case FSCCL_UINT32:
      return reference_integer<uint32_t>(r);
    case FSCCL_INT64:
      return reference_integer<int64_t>(r);
    case FSCCL_UINT64:
      return reference_integer<uint64_t>(r);
    default:
      return reference_float(r);
  }
}

// Fills memory with any integers, or with ordinary floats. If `wild`, some floats have any bits:
// NaN of every kind, infinities, subnormals, values that overflow.
void fill(fsccl_dtype_t type, uint8_t* at, size_t count, std::mt19937_64& random, bool wild) {
  for (size_t i = 0; i < count; ++i, at += dtype_size(type)) {
    const uint64_t bits = random();
    if (!dtype_float(type) || (wild && bits % 8 == 0)) {
      const uint64_t value = type == FSCCL_BOOL ? (bits >> 9) % 3 : bits;
      std::memcpy(at, &value, dtype_size(type));
    } else {
      write_float(type, at,
                  (static_cast<double>(bits >> 11) / 4503599627370496.0 - 1.0) *
                      ((bits & 2) != 0 ? 8.0 : 0.01));
    }
  }
}

struct Case {
  fsccl_dtype_t from, to;
  fsccl_op_kind_t op;
  int n;
  size_t count;
  bool wild;
};

std::string describe(const Reduce& r) {
  return std::string(dtype_name(r.from)) + " to " + dtype_name(r.to) + ", op " +
         std::to_string(r.op) + ", n " + std::to_string(r.n) + ", count " +
         std::to_string(r.count) + (r.accumulate ? ", accumulate" : "") +
         (r.norm != nullptr ? ", norm" : "") +
         (r.stores == Stores::streaming ? ", streaming" : "") + ", scale " +
         std::to_string(r.scale) + ", divisor " + std::to_string(r.divisor);
}

void check(const Case& c, const std::vector<std::string>& all_targets, std::mt19937_64& random) {
  const size_t from_bytes = c.count * dtype_size(c.from), to_bytes = c.count * dtype_size(c.to);
  const size_t align = random() % 3 == 0 ? 1 : dtype_size(c.to);
  const size_t misalignment = random() % 4 == 0 ? 0 : random() % (128 / align) * align;
  std::vector<Buffer> in;
  for (int s = 0; s < c.n; ++s)
    fill(c.from, in.emplace_back(from_bytes, random() % 128).data(), c.count, random, c.wild);
  std::vector<uint8_t> before(to_bytes);
  fill(c.to, before.data(), c.count, random, c.wild);
  const int in_place = c.from == c.to && random() % 3 == 0
                           ? static_cast<int>(random() % static_cast<uint64_t>(c.n))
                           : -1;

  Reduce r{};
  r.n = c.n, r.from = c.from, r.to = c.to, r.count = c.count, r.op = c.op;
  r.premul = random() % 2 == 0 ? 1 : 0.3;
  r.divisor = c.op == FSCCL_OP_AVG || random() % 4 == 0 ? c.n : 1;
  r.scale = r.divisor != 1 || random() % 2 == 0 ? 1 : 1.0 / 3;
  r.accumulate = random() % 3 == 0;
  r.stores = random() % 2 == 0 ? Stores::cached : Stores::streaming;
  const bool with_norm = dtype_float(c.to) && random() % 2 == 0;

  std::vector<uint8_t> want;
  for (const std::string& target : all_targets) {
    const UseTarget use(target);
    Buffer dst(to_bytes, misalignment);
    std::vector<const void*> sources;
    for (int s = 0; s < c.n; ++s)
      sources.push_back(s == in_place ? dst.data() : in[static_cast<size_t>(s)].data());
    const uint8_t* initial =
        in_place >= 0 ? in[static_cast<size_t>(in_place)].data() : before.data();
    std::copy_n(initial, to_bytes, dst.data());
    Norm norm;
    r.sources = sources.data(), r.dst = dst.data(), r.norm = with_norm ? &norm : nullptr;
    if (want.empty()) want = reference_reduce(r);
    ASSERT_TRUE(reduce(r)) << describe(r);
    ASSERT_EQ(dst.bytes(), want) << target << ": " << describe(r) << ", in place " << in_place
                                 << ", misaligned " << misalignment;
    ASSERT_TRUE(dst.guards_intact()) << target << ": " << describe(r);
    if (!with_norm) continue;
    const Norm expected = reference_norm(c.to, want.data(), c.count);
    ASSERT_EQ(std::memcmp(&norm.sum, &expected.sum, sizeof norm.sum) == 0 ||
                  (std::isnan(norm.sum) && std::isnan(expected.sum)),
              true)
        << target << ": " << describe(r) << ", norm " << norm.sum << ", not " << expected.sum
        << ", misaligned " << misalignment;
    ASSERT_EQ(norm.finite, expected.finite) << target << ": " << describe(r);
  }
}

TEST(Reduce, EveryPairOperatorAndNumberOfSources) {
  std::mt19937_64 random(kReduceSeed);
  const std::vector<std::string> all_targets = targets();
  int combinations = 0;
  for (int from = 0; from < FSCCL_DTYPE_COUNT; ++from) {
    for (int to = 0; to < FSCCL_DTYPE_COUNT; ++to) {
      for (const fsccl_op_kind_t op : kOps) {
        const auto a = static_cast<fsccl_dtype_t>(from), b = static_cast<fsccl_dtype_t>(to);
        if (!reduce_supported(a, b, op)) continue;
        ++combinations;
        for (const int n : {1, 2, 3, 4, 5, 8}) {
          for (int repeat = 0; repeat < 12; ++repeat) {
            check({a, b, op, n, random() % 201, repeat % 3 == 0}, all_targets, random);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
  EXPECT_EQ(combinations, 16 * 6 + 9 * 5);
}

TEST(Reduce, EverySmallCountOfTheHotCombinations) {
  std::mt19937_64 random(kReduceSeed + 1);
  const std::vector<std::string> all_targets = targets();
  const std::pair<fsccl_dtype_t, fsccl_dtype_t> pairs[] = {
      {FSCCL_BFLOAT16, FSCCL_FLOAT32}, {FSCCL_BFLOAT16, FSCCL_BFLOAT16},
      {FSCCL_FLOAT32, FSCCL_FLOAT32},  {FSCCL_FLOAT16, FSCCL_FLOAT32},
      {FSCCL_FLOAT16, FSCCL_FLOAT16},  {FSCCL_FLOAT32, FSCCL_BFLOAT16},
      {FSCCL_FLOAT32, FSCCL_FLOAT16},  {FSCCL_FLOAT64, FSCCL_FLOAT64}};
  for (const auto& [from, to] : pairs) {
    for (size_t count = 0; count <= 200; ++count) {
      for (const int n : {2, 3, 4}) {
        check({from, to, FSCCL_OP_SUM, n, count, count % 2 == 0}, all_targets, random);
        if (HasFatalFailure()) return;
      }
    }
    for (const size_t count : {4095u, 4096u, 4097u, 8192u, 12345u, 33331u}) {
      for (const int n : {2, 3, 4, 8}) {
        check({from, to, FSCCL_OP_SUM, n, count, count % 2 == 0}, all_targets, random);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(Reduce, NormIsTheSameHoweverTheRangeIsCut) {
  std::mt19937_64 random(kReduceSeed + 2);
  const size_t count = 5 * kNormBlock + 777;
  for (const std::string& target : targets()) {
    const UseTarget use(target);
    for (const size_t misalignment : {0u, 4u, 36u}) {
      Buffer a(count * 2, 0), b(count * 2, 2), dst(count * 4, misalignment);
      fill(FSCCL_BFLOAT16, a.data(), count, random, false);
      fill(FSCCL_BFLOAT16, b.data(), count, random, false);
      Norm whole, cut;
      const auto run = [&](size_t begin, size_t end, Stores stores, Norm* norm) {
        const void* sources[] = {a.data() + begin * 2, b.data() + begin * 2};
        Reduce r{.sources = sources,
                 .n = 2,
                 .from = FSCCL_BFLOAT16,
                 .dst = dst.data() + begin * 4,
                 .to = FSCCL_FLOAT32,
                 .count = end - begin};
        r.scale = 0.5, r.norm = norm, r.stores = stores;
        ASSERT_TRUE(reduce(r));
      };
      run(0, count, Stores::streaming, &whole);
      for (const auto& [begin, end] : {std::pair<size_t, size_t>{0, 1}, {1, 4}, {4, 5}})
        run(begin * kNormBlock, end * kNormBlock, Stores::cached, &cut);
      run(5 * kNormBlock, count, Stores::streaming, &cut);
      EXPECT_EQ(whole.sum, cut.sum) << target;
      EXPECT_TRUE(whole.finite && cut.finite);
    }
  }
}

TEST(Reduce, FiniteMeansEveryStoredElement) {
  // fp64 values whose squares overflow are finite; fp32 sums that overflow on the way to fp16 are
  // not.
  for (const std::string& target : targets()) {
    const UseTarget use(target);
    for (const size_t at : {0u, 15u, 16u, 99u}) {
      std::vector<double> big(100, 1.0), sum64(100);
      big[at] = 1e300;
      const void* sources64[] = {big.data(), big.data()};
      Norm norm64;
      Reduce r64{.sources = sources64,
                 .n = 2,
                 .from = FSCCL_FLOAT64,
                 .dst = sum64.data(),
                 .to = FSCCL_FLOAT64,
                 .count = 100};
      r64.norm = &norm64;
      ASSERT_TRUE(reduce(r64));
      EXPECT_TRUE(norm64.finite);
      EXPECT_TRUE(std::isinf(norm64.sum));

      std::vector<float> wide(100, 1.0f);
      wide[at] = 65504.0f;
      std::vector<uint16_t> narrow(100);
      const void* sources32[] = {wide.data(), wide.data()};
      Norm norm16;
      Reduce r16{.sources = sources32,
                 .n = 2,
                 .from = FSCCL_FLOAT32,
                 .dst = narrow.data(),
                 .to = FSCCL_FLOAT16,
                 .count = 100};
      r16.norm = &norm16;
      ASSERT_TRUE(reduce(r16));
      EXPECT_FALSE(norm16.finite);
    }
  }
}

TEST(Reduce, RefusesWhatItCannotDo) {
  EXPECT_FALSE(reduce_supported(FSCCL_FLOAT8_E4M3, FSCCL_FLOAT8_E4M3, FSCCL_OP_SUM));
  EXPECT_FALSE(reduce_supported(FSCCL_INT32, FSCCL_FLOAT32, FSCCL_OP_SUM));
  EXPECT_FALSE(reduce_supported(FSCCL_INT32, FSCCL_INT64, FSCCL_OP_SUM));
  EXPECT_FALSE(reduce_supported(FSCCL_INT32, FSCCL_INT32, FSCCL_OP_PREMUL_SUM));
  EXPECT_FALSE(
      reduce_supported(static_cast<fsccl_dtype_t>(FSCCL_DTYPE_COUNT), FSCCL_INT32, FSCCL_OP_SUM));
  const int32_t in[2] = {4, 5};
  int32_t out[2] = {7, 7};
  const void* sources[] = {in};
  Reduce r{.sources = sources,
           .n = 1,
           .from = FSCCL_INT32,
           .dst = out,
           .to = FSCCL_INT32,
           .count = 2,
           .op = FSCCL_OP_AVG};
  r.divisor = 0;
  EXPECT_FALSE(reduce(r));
  r.divisor = 1, r.n = 0;
  EXPECT_FALSE(reduce(r));
  EXPECT_EQ(out[0], 7);
  EXPECT_EQ(out[1], 7);
}

}  // namespace
}  // namespace fsccl
