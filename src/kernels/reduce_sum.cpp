// The most frequent reduce: SUM (and AVG) of n floating-point sources with the whole epilogue
// (scale, accumulate, round, store, norm) in one sweep. It takes a few groups at a time and loops
// over the sources inside, so that everything between the loads and the store stays in registers.
// (Loops unrolled for two or four sources were measured to be no faster.) Other reduces go to
// reduce_general.cpp.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/reduce_sum.cpp"
#include "hwy/foreach_target.h"  // must come before highway.h
// clang-format off
#include <limits>
#include "hwy/highway.h"
#include "kernels/group_inl.h"
#include "kernels/kernel_table.h"
#include "kernels/norm.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace fsccl {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR
// With one lane in a vector, the plain loops of the general kernel are faster.
void install_sum_here(KernelTable&) {}
#else

// The partial sums of squares of one block. Lane k has those of the elements whose index in the
// block, modulo 16, is that of k + `rotation`. `rotation` is not 0 if the groups begin at an
// aligned address, and not at the first element of the block.
struct NormBlock {
  double lanes[kGroup];
  bool finite = true;  // kept up to date for fp64 elements only

  // Vectors store the zeros: compilers would make a string instruction of a plain initialisation,
  // and that holds up all loads.
  HWY_INLINE NormBlock() { store<false>(zero_group<double>(), lanes); }
  void add_to(Norm& norm, size_t rotation, bool is_fp64) const {
    double partial[kNormPartials];
    for (size_t k = 0; k < kGroup; ++k) partial[(k + rotation) % kGroup] = lanes[k];
    add_norm_block(partial, is_fp64, finite, norm);
  }
};

struct NoNormBlock {};

// The sums of a NormBlock in registers, while groups of type A are added to them.
template <class A>
struct NormLanes {
  Group<double> sum;
  hn::Vec<Doubles> poison;  // NaN once an fp64 element is not finite

  HWY_INLINE void begin(const NormBlock& block) {
    load(block.lanes, sum);
    poison = hn::Zero(Doubles());
  }
  HWY_INLINE void end(NormBlock& block) const {
    store<false>(sum, block.lanes);
    if constexpr (std::is_same_v<A, double>)
      block.finite = block.finite && hn::AllTrue(Doubles(), hn::Eq(poison, hn::Zero(Doubles())));
  }
  // The square of a float is exact in double, so fusing the square with the addition changes no
  // bit.
  HWY_INLINE void add_exact_square(size_t k, hn::Vec<Doubles> x) {
    sum.v[k] = hn::MulAdd(x, x, sum.v[k]);
  }
  HWY_INLINE void add(const Group<A>& g) {
    if constexpr (std::is_same_v<A, double>) {
      for (size_t k = 0; k < kVectors<double>; ++k) {
        sum.v[k] = hn::Add(sum.v[k], hn::Mul(g.v[k], g.v[k]));
        poison = hn::Add(poison, hn::Sub(g.v[k], g.v[k]));
      }
    } else {
      const hn::Half<Tag<A> > half;
      for (size_t k = 0; k < kVectors<A>; ++k) {
        add_exact_square(2 * k, hn::PromoteTo(Doubles(), hn::LowerHalf(half, g.v[k])));
        add_exact_square(2 * k + 1, hn::PromoteTo(Doubles(), hn::UpperHalf(half, g.v[k])));
      }
    }
  }
};

HWY_INLINE hn::Vec<Floats> quiet_nan(Floats d) {
  return hn::BitCast(d, hn::Set(hn::RebindToUnsigned<Floats>(), 0x7fc00000u));
}
HWY_INLINE hn::Vec<Doubles> quiet_nan(Doubles d) {
  return hn::BitCast(d, hn::Set(hn::RebindToUnsigned<Doubles>(), uint64_t{0x7ff8} << 48));
}

template <class From, class To, bool kNorm>
struct SumPass {
  using A = std::conditional_t<std::is_same_v<To, double>, double, float>;
  using Block = std::conditional_t<kNorm, NormBlock, NoNormBlock>;
  // The groups reduced at a time: enough for long runs within each source, and few enough for the
  // sums to stay in registers.
  static constexpr size_t kGroups = std::is_same_v<A, double> ? 2 : 4;

  const void* const* sources;
  size_t n;
  To* dst;
  hn::Vec<Tag<A> > factor, divisor;
  // The factor and the divisor once more, as scalars: reading a lane of the vectors above from
  // memory soon after they were stored can take as long as the whole rest of a small call.
  Quotient<A> quotient;
  bool divides;
  bool accumulate;
  bool scales_only;  // it neither divides nor accumulates; this is one test for each group
  bool stream;
  size_t ahead;  // bytes of each source that are fetched ahead; 0: none

  HWY_INLINE const From* source(size_t s) const { return static_cast<const From*>(sources[s]); }
  HWY_INLINE static void add(Group<A>& to, const Group<A>& g) {
    for (size_t k = 0; k < kVectors<A>; ++k) to.v[k] = hn::Add(to.v[k], g.v[k]);
  }
  template <size_t kCount>
  HWY_INLINE void fetch_ahead(const From* from) const {
    for (size_t at = 0; at < kCount * kGroup * sizeof(From); at += kLineBytes)
      hwy::Prefetch(reinterpret_cast<const char*>(from) + ahead + at);
  }
  template <size_t kCount>
  HWY_INLINE void add_sources(size_t i, Group<A>* g) const {
    if (ahead)
      for (size_t s = 0; s < n; ++s) fetch_ahead<kCount>(source(s) + i);
    for (size_t u = 0; u < kCount; ++u) load(source(0) + i + u * kGroup, g[u]);
    for (size_t s = 1; s < n; ++s) {
      const From* from = source(s) + i;
      for (size_t u = 0; u < kCount; ++u) {
        Group<A> other;
        load(from + u * kGroup, other);
        add(g[u], other);
      }
    }
  }

  // Does everything after the reduction. Every NaN becomes the same one, because it differs between
  // machines which operand's payload survives an addition.
  HWY_INLINE void finish(Group<A>& g, const To* old, To* out, bool streaming) const {
    const Tag<A> d;
    const auto nan = quiet_nan(d);
    for (size_t k = 0; k < kVectors<A>; ++k) g.v[k] = hn::Mul(g.v[k], factor);
    if (!scales_only) {
      if (divides)
        for (size_t k = 0; k < kVectors<A>; ++k) g.v[k] = hn::Div(g.v[k], divisor);
      if (accumulate) {
        Group<A> before;
        load(old, before);
        for (size_t k = 0; k < kVectors<A>; ++k) g.v[k] = hn::Add(before.v[k], g.v[k]);
      }
    }
    for (size_t k = 0; k < kVectors<A>; ++k)
      g.v[k] = hn::IfThenElse(hn::IsNaN(g.v[k]), nan, g.v[k]);
    if (streaming) {
      store<true, true>(g, out);
    } else {
      store<false, true>(g, out);
    }
  }

  // Reduces the elements [i, i + valid) one at a time: for two or three elements, a padded group
  // would cost more than the rest of the call. The function is static and gets all it needs as
  // arguments, in registers: when it loaded the factor from this object, which had just been
  // written, that took three times as long as the rest (measured on Zen 3).
  HWY_NOINLINE static void few_scalar(const void* const* sources, size_t n, To* dst,
                                      Quotient<A> quotient, bool accumulate, size_t i,
                                      size_t valid) {
    const auto at = [&](size_t s) { return read(static_cast<const From*>(sources[s]) + i); };
    for (; valid > 0; ++i, --valid) {
      A acc = at(0);
      for (size_t s = 1; s < n; ++s) acc += at(s);
      acc *= quotient.factor;
      if (quotient.divides()) acc /= quotient.divisor;
      if (accumulate) acc += read(dst + i);
      if (acc != acc) acc = std::numeric_limits<A>::quiet_NaN();
      std::memcpy(dst + i, &acc, sizeof acc);
    }
  }
  template <class T>
  HWY_INLINE static T read(const T* at) {
    T value;
    std::memcpy(&value, at, sizeof value);
    return value;
  }

  // Reduces the elements [i, i + valid), fewer than 16, in the lanes from `lane` on.
  HWY_INLINE void few(size_t i, size_t valid, size_t lane, Block& block) const {
    if constexpr (std::is_same_v<From, To> && std::is_same_v<From, A> && !kNorm)
      few_scalar(sources, n, dst, quotient, accumulate, i, valid);
    else
      few_padded(i, valid, lane, block);
  }
  HWY_NOINLINE void few_padded(size_t i, size_t valid, size_t lane, Block& block) const {
    Group<A> g = zero_group<A>();
    for (size_t s = 0; s < n; ++s) {
      From in[kGroup] = {};
      copy_few(in + lane, source(s) + i, valid);
      Group<A> other;
      load(in, other);
      if (s == 0) {
        g = other;
      } else {
        add(g, other);
      }
    }
    To old[kGroup] = {}, out[kGroup];
    if (accumulate) copy_few(old + lane, dst + i, valid);
    finish(g, old, out, false);
    copy_few(dst + i, out + lane, valid);
    if constexpr (kNorm) {
      To stored[kGroup] = {};  // the unused lanes must count as zeros
      copy_few(stored + lane, out + lane, valid);
      load(stored, g);
      NormLanes<A> lanes;
      lanes.begin(block);
      lanes.add(g);
      lanes.end(block);
    }
  }

  template <size_t kCount>
  HWY_INLINE void groups(size_t i, NormLanes<A>& lanes) const {
    Group<A> g[kCount];
    add_sources<kCount>(i, g);
    HWY_UNROLL(4)  // without this, the groups do not stay in registers
    for (size_t u = 0; u < kCount; ++u) {
      finish(g[u], dst + i + u * kGroup, dst + i + u * kGroup, stream);
      if constexpr (kNorm) round_to<To>(g[u]), lanes.add(g[u]);
    }
  }

  HWY_INLINE size_t full_groups(size_t i, size_t end, Block& block) const {
    NormLanes<A> lanes;
    if constexpr (kNorm) lanes.begin(block);
    for (; i + kGroups * kGroup <= end; i += kGroups * kGroup) {
      groups<kGroups>(i, lanes);
    }
    for (; i + kGroup <= end; i += kGroup) groups<1>(i, lanes);
    if constexpr (kNorm) lanes.end(block);
    return i;
  }

  HWY_INLINE void run(size_t total, Norm* norm) const {
    const size_t most = kNorm ? kNormBlock : total;
    for (size_t begin = 0; begin < total; begin += most) {
      const size_t end = begin + (total - begin < most ? total - begin : most);
      Block block;
      const size_t head = stream ? elements_to_alignment<To>(dst + begin, end - begin) : 0;
      if (head > 0) few(begin, head, kGroup - head, block);
      const size_t i = full_groups(begin + head, end, block);
      if (i < end) few(i, end - i, 0, block);
      if constexpr (kNorm) block.add_to(*norm, head, std::is_same_v<A, double>);
    }
  }
};

template <class From, class To, bool kNorm>
HWY_INLINE void sum_range_with(const Reduce& args, Variant variant) {
  using Pass = SumPass<From, To, kNorm>;
  using A = typename Pass::A;
  const Quotient<A> quotient(args.scale, args.divisor);
  Pass pass{.sources = args.sources,
            .n = static_cast<size_t>(args.n),
            .dst = static_cast<To*>(args.dst),
            .factor = hn::Set(Tag<A>(), quotient.factor),
            .divisor = hn::Set(Tag<A>(), quotient.divisor),
            .quotient = quotient,
            .divides = quotient.divides(),
            .accumulate = args.accumulate,
            .scales_only = !quotient.divides() && !args.accumulate,
            .stream = false,
            .ahead = variant.ahead};
  // If the destination is read, its lines are in the cache when they are stored, and a plain store
  // costs less than one that bypasses the cache.
  bool reads_dst = args.accumulate;
  for (int s = 0; s < args.n; ++s) reads_dst = reads_dst || args.sources[s] == args.dst;
  pass.stream =
      variant.store == Variant::Store::nontemporal && !reads_dst && can_stream<To>(args.dst);
  pass.run(args.count, args.norm);
  if (pass.stream) hwy::FlushStream();
}

template <class From, class To>
void sum_range(const Reduce& args, Variant variant) {
  if (args.norm != nullptr) {
    sum_range_with<From, To, true>(args, variant);
  } else {
    sum_range_with<From, To, false>(args, variant);
  }
}

void install_sum_here(KernelTable& table) {
  constexpr int kFp16 = 0, kBf16 = 1, kFp32 = 2, kFp64 = 3;
  table.sum[kFp16][kFp16] = sum_range<Fp16, Fp16>;
  table.sum[kFp16][kFp32] = sum_range<float, Fp16>;
  table.sum[kBf16][kBf16] = sum_range<Bf16, Bf16>;
  table.sum[kBf16][kFp32] = sum_range<float, Bf16>;
  table.sum[kFp32][kFp16] = sum_range<Fp16, float>;
  table.sum[kFp32][kBf16] = sum_range<Bf16, float>;
  table.sum[kFp32][kFp32] = sum_range<float, float>;
  table.sum[kFp64][kFp64] = sum_range<double, double>;
}
#endif  // more than one lane

}  // namespace HWY_NAMESPACE
}  // namespace fsccl
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fsccl {
FSCCL_INSTALL(install_sum)
}  // namespace fsccl
#endif
