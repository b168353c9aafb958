// The code that tests of codecs between hosts share: a unit with some parameters, with codecs or
// without, and how training changes it.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "fsccl/codec.h"
#include "fsccl/insight.h"
#include "support.h"

namespace fsccl::testing {

inline uint16_t bfloat16_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Returns how many steps a test of the delta codec trains: CODEC_STEPS, or some tens.
inline int steps_of_a_test() {
  const char* const given = std::getenv("CODEC_STEPS");
  return given ? static_cast<int>(std::strtol(given, nullptr, 10)) : 24;
}

struct CodecCase {
  fsccl_layout_t layout = FSCCL_LAYOUT_PER_PARAM;
  fsccl_dtype_t wire = FSCCL_BFLOAT16, shard = FSCCL_FLOAT32;
  fsccl_sharing_t sharing = FSCCL_SHARING_READ_ONLY;
  fsccl_keep_t keep = FSCCL_KEEP_NONE;
  bool by_parameter = false;
  uint32_t flags = FSCCL_CODEC_NEVER_DECLINES;  // flags of the delta codec
  std::vector<int> hosts = {};
  uint64_t limit_bytes = 0;
  double max_relative_error = 0;
  uint32_t block = 0, audit_every = 0;
  fsccl_codec_kind_t sums = FSCCL_CODEC_NONE;  // codec of the reduction
  uint32_t sums_flags = 0;
  fsccl_dtype_t reduce = FSCCL_BFLOAT16;
  const fsccl_block_codec_t* custom = nullptr;  // the codec of FSCCL_CODEC_CUSTOM
  fsccl_codec_scope_t scope = FSCCL_CODEC_BETWEEN_HOSTS;
};

// The parameters are a matrix that is trained, one that is frozen, a small vector, another matrix,
// and the first one again, tied.
inline constexpr int64_t kRows = 300, kColumns = 257;
inline std::vector<fsccl_param_t> params_of(const CodecCase& c) {
  std::vector<fsccl_param_t> params(5, fsccl_param_t FSCCL_PARAM_INIT);
  for (fsccl_param_t& param : params) {
    param.dims = 2;
    param.shape[0] = kRows, param.shape[1] = kColumns;
    param.dtype = c.shard;
  }
  params[1].shape[0] = 40;
  params[1].flags = FSCCL_PARAM_FROZEN;
  params[2].dims = 1, params[2].shape[0] = 33;
  params[3].shape[0] = 150;
  params[4].tied_to = 0;
  return params;
}

// Returns true if the codecs of the case code anything.
inline bool codes(const CodecCase& c) { return hosts_given() || c.scope == FSCCL_CODEC_EVERYWHERE; }

class CodecUnit {
 public:
  CodecUnit(const CodecCase& c, Rank& self, fsccl_pool_t pool, fsccl_codec_kind_t kind)
      : rank_(self.rank) {
    fsccl_codec_t codec = FSCCL_CODEC_INIT;
    codec.kind = kind;
    codec.flags = kind == FSCCL_CODEC_DELTA ? c.flags : 0;
    codec.max_relative_error = c.max_relative_error;
    codec.block = c.block;
    codec.audit_every = c.audit_every;
    codec.custom = c.custom;
    codec.scope = c.scope;
    fsccl_codec_t sums = FSCCL_CODEC_INIT;
    sums.kind = c.sums;
    sums.flags = c.sums_flags;
    sums.scope = c.scope;
    if (c.sums == FSCCL_CODEC_CUSTOM) sums.custom = c.custom, sums.audit_every = c.audit_every;
    fsccl_unit_config_t config = FSCCL_UNIT_CONFIG_INIT;
    const bool coded = kind != FSCCL_CODEC_NONE || c.sums != FSCCL_CODEC_NONE;
    config.name = coded ? "coded" : "plain";
    config.layout = c.layout;
    config.shard_comm = self.comm;
    config.pool = pool;
    config.wire_dtype = c.wire;
    config.reduce_dtype = c.reduce;
    config.sharing = c.sharing;
    if (c.sums != FSCCL_CODEC_NONE) config.reduce_codec = &sums;
    config.keep = c.keep;
    config.by_parameter = c.by_parameter;
    if (kind != FSCCL_CODEC_NONE) config.gather_codec = &codec;
    const std::vector<fsccl_param_t> params = params_of(c);
    size_ = params.size();
    status = fsccl_unit_create(&config, params.data(), params.size(), &unit_);
  }
  ~CodecUnit() { EXPECT_TRUE(!unit_ || fsccl_unit_destroy(unit_) == FSCCL_OK); }
  CodecUnit(const CodecUnit&) = delete;

  // Changes the values: change(old value, number of the element among all) gives the new one.
  template <class Change>
  void update(const Change& change) {
    for (size_t i = 0; i + 1 < size_; i++) {
      fsccl_view_t view;
      ASSERT_OK(fsccl_unit_shard(unit_, i, &view));
      for (uint64_t k = 0; k < view.count; k++) {
        const uint64_t element = i << 32 | (view.offset + k);
        if (view.dtype == FSCCL_FLOAT32)
          static_cast<float*>(view.data)[k] = change(static_cast<float*>(view.data)[k], element);
        else
          static_cast<uint16_t*>(view.data)[k] = static_cast<uint16_t>(mix(element, 77));
      }
    }
    ASSERT_OK(fsccl_unit_mark_changed(unit_));
  }
  std::vector<std::vector<uint16_t>> gathered(fsccl_unshard_mode_t mode = FSCCL_UNSHARD_READ) {
    std::vector<std::vector<uint16_t>> all(size_);
    EXPECT_OK(fsccl_unit_unshard(unit_, mode, nullptr, nullptr));
    for (size_t i = 0; i < size_; i++) {
      fsccl_view_t view{};
      EXPECT_OK(fsccl_unit_param(unit_, i, &view));
      const auto* const words = static_cast<const uint16_t*>(view.data);
      all[i].assign(words, words + view.count * fsccl_dtype_size(view.dtype) / sizeof *words);
    }
    EXPECT_OK(fsccl_unit_reshard(unit_, nullptr));
    return all;
  }
  // Writes value(element) in reduce_dtype as the gradients of the parameters that learn.
  template <class Value>
  void set_grads(const Value& value) {
    for (size_t i = 0; i + 1 < size_; i++) {
      if (i == 1) continue;
      fsccl_view_t view{};
      ASSERT_OK(fsccl_unit_grad(unit_, i, nullptr, &view));
      for (uint64_t k = 0; k < view.count; k++) {
        const float one = value(i << 32 | k);
        if (view.dtype == FSCCL_FLOAT32)
          static_cast<float*>(view.data)[k] = one;
        else
          static_cast<uint16_t*>(view.data)[k] = bfloat16_of(one);
      }
    }
  }
  // Sums such gradients over the ranks, and returns this rank's sums.
  template <class Value>
  std::vector<std::vector<float>> reduced(const Value& value, fsccl_reduce_result_t* result) {
    set_grads(value);
    fsccl_reduce_config_t config = FSCCL_REDUCE_CONFIG_INIT;
    config.result = result;
    EXPECT_OK(fsccl_unit_reduce_grads(unit_, &config, nullptr, nullptr));
    return sharded_grads();
  }
  // Does the same, parameter by parameter in the reverse order, for a unit by parameter.
  template <class Value>
  std::vector<std::vector<float>> reduced_one_by_one(const Value& value) {
    set_grads(value);
    for (const size_t i : {size_t{3}, size_t{2}, size_t{0}}) {
      fsccl_reduce_config_t config = FSCCL_REDUCE_CONFIG_INIT;
      config.first = i;
      config.count = 1;
      EXPECT_OK(fsccl_unit_reduce_grads(unit_, &config, nullptr, nullptr));
    }
    return sharded_grads();
  }
  std::vector<std::vector<float>> sharded_grads() const {
    std::vector<std::vector<float>> sums(size_);
    for (size_t i = 0; i + 1 < size_; i++) {
      if (i == 1) continue;
      fsccl_view_t view;
      EXPECT_OK(fsccl_unit_sharded_grad(unit_, i, &view));
      const auto* const floats = static_cast<const float*>(view.data);
      sums[i].assign(floats, floats + view.count);
    }
    return sums;
  }
  fsccl_codec_report_t report() const {
    fsccl_codec_report_t made = FSCCL_CODEC_REPORT_INIT;
    EXPECT_OK(fsccl_unit_codec(unit_, &made));
    return made;
  }
  fsccl_unit_t get() const { return unit_; }
  fsccl_status_t status = FSCCL_OK;

 private:
  int rank_ = 0;
  size_t size_ = 0;
  fsccl_unit_t unit_ = nullptr;
};

inline float initial(uint64_t element) {
  return 0.02f * (static_cast<float>(mix(element, 1) % 2001) / 1000.0f - 1.0f) + 1e-4f;
}
// Moves a value a little up or down, as a step of an optimizer does; parameter 1 is frozen.
inline float trained(float value, uint64_t element, int step) {
  if (element >> 32 == 1) return value;
  return value +
         4e-5f * (static_cast<float>(mix(element, 1000 + static_cast<uint64_t>(step)) % 2001) /
                      1000.0f -
                  1.0f);
}

// ---- the parameters of a codec with a loss

using Words = std::vector<std::vector<uint16_t>>;

inline float half_value(uint16_t bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const float magnitude = exponent == 31 ? (mantissa ? NAN : INFINITY)
                          : exponent
                              ? std::ldexp(1024.0f + static_cast<float>(mantissa), exponent - 25)
                              : std::ldexp(static_cast<float>(mantissa), -24);
  return bits & 0x8000 ? -magnitude : magnitude;
}

inline std::vector<float> values(const std::vector<uint16_t>& words, fsccl_dtype_t dtype) {
  std::vector<float> made;
  if (dtype == FSCCL_FLOAT32) {
    made.resize(words.size() / 2);
    std::memcpy(made.data(), words.data(), words.size() * sizeof(uint16_t));
    return made;
  }
  for (const uint16_t word : words) {
    const uint32_t wide = uint32_t{word} << 16;
    float value;
    std::memcpy(&value, &wide, sizeof value);
    made.push_back(dtype == FSCCL_FLOAT16 ? half_value(word) : value);
  }
  return made;
}

// Expects that all ranks have the same words.
inline void expect_alike(const Words& words, const Rank& self) {
  uint64_t mine = 1;
  for (const auto& of : words)
    for (const uint16_t word : of) mine = mix(mine, word);
  std::vector<uint64_t> all(static_cast<size_t>(self.ranks));
  ASSERT_OK(fsccl_all_gather(&mine, all.data(), 1, FSCCL_UINT64, self.comm, nullptr, nullptr));
  for (const uint64_t other : all) ASSERT_EQ(other, mine);
}

// Expects that each value has an error within the bound for the largest value near it, which may
// lie in its block.
inline void expect_near(const Words& exact, const Words& coded, fsccl_dtype_t dtype, double bound) {
  constexpr size_t kAround = 1024;
  for (size_t p = 0; p < exact.size(); p++) {
    const std::vector<float> before = values(exact[p], dtype), after = values(coded[p], dtype);
    for (size_t at = 0; at < before.size(); at += kAround) {
      const size_t from = at < kAround ? 0 : at - kAround,
                   to = std::min(before.size(), at + 2 * kAround);
      double largest = 0;
      for (size_t i = from; i < to; i++)
        largest = std::max(largest, std::fabs(static_cast<double>(before[i])));
      for (size_t i = at; i < std::min(before.size(), at + kAround); i++)
        ASSERT_LE(std::fabs(static_cast<double>(before[i]) - static_cast<double>(after[i])),
                  bound * largest)
            << "parameter " << p << ", element " << i;
    }
  }
}

// ---- reductions

using Sums = std::vector<std::vector<float>>;

inline float gradient(uint64_t element, int rank, int step) {
  return 1e-3f * (static_cast<float>(mix(element * 31 + static_cast<uint64_t>(rank),
                                         50 + static_cast<uint64_t>(step)) %
                                     2001) /
                      1000.0f -
                  1.0f);
}

inline double distance(const Sums& one, const Sums& other) {
  double error = 0, size = 0;
  for (size_t i = 0; i < one.size(); i++)
    for (size_t k = 0; k < one[i].size(); k++) {
      error += std::pow(static_cast<double>(one[i][k]) - static_cast<double>(other[i][k]), 2);
      size += std::pow(static_cast<double>(one[i][k]), 2);
    }
  return size > 0 ? std::sqrt(error / size) : 0;
}

// Sums with the codec of the case and without it, and expects that they differ by at most `most`,
// and that the codec sends at most `share` of the plain bytes.
inline void sums_near(CodecCase c, int ranks, double most, double share = 0.54) {
  run_ranks(
      ranks,
      [&](Rank& self) {
        PoolScope pool(self.comm);
        {
          CodecCase without = c;
          without.sums = FSCCL_CODEC_NONE, without.sums_flags = 0;
          CodecUnit plain(without, self, pool.get(), FSCCL_CODEC_NONE),
              coded(c, self, pool.get(), FSCCL_CODEC_NONE),
              again(c, self, pool.get(), FSCCL_CODEC_NONE);
          ASSERT_EQ(coded.status, FSCCL_OK);
          Random random(static_cast<uint64_t>(self.rank));
          for (int step = 0; step < 4; step++) {
            const auto value = [&](uint64_t element) { return gradient(element, self.rank, step); };
            fsccl_reduce_result_t result{};
            const Sums exact = plain.reduced(value, nullptr), near = coded.reduced(value, &result);
            dawdle(random);
            EXPECT_TRUE(again.reduced(value, nullptr) == near)
                << "the same gradients, at other times";
            EXPECT_EQ(result.finite, 1);
            EXPECT_LE(distance(exact, near), codes(c) ? most : 0) << step;
          }
          fsccl_reduce_result_t result{};
          (void)coded.reduced(
              [&](uint64_t element) { return element == 5 && self.rank == 0 ? NAN : 1.0f; },
              &result);
          std::vector<int32_t> finite(static_cast<size_t>(self.ranks));
          const int32_t mine = result.finite;
          ASSERT_OK(
              fsccl_all_gather(&mine, finite.data(), 1, FSCCL_INT32, self.comm, nullptr, nullptr));
          EXPECT_EQ(std::count(finite.begin(), finite.end(), 0), 1)
              << "who has the gradient that is not finite";
          const fsccl_codec_report_t report = coded.report();
          if (codes(c) && report.reductions) {
            EXPECT_EQ(report.reductions, c.by_parameter ? 15u : 5u);
            EXPECT_LT(static_cast<double>(report.reduce_sent_bytes),
                      share * static_cast<double>(report.reduce_plain_bytes));
            EXPECT_GT(report.reduce_state_bytes, 0u);
          }
        }
        EXPECT_EQ(pool.stats().local_live_bytes, 0u);
      },
      {.hosts = c.hosts});
}

}  // namespace fsccl::testing
