// Tests units whose parameters cross between hosts with the delta codec, beside units without a
// codec. Both must have the same parameters, bit for bit, whatever changes between the steps. The
// tests also check how many bytes cross, that stale copies are found, and which uses are refused.
// They need several hosts (TEST_HOSTS). On one host they check that a codec does nothing.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "codec_case.h"
#include "fsccl/codec.h"
#include "fsccl/insight.h"

namespace fsccl::testing {
namespace {

// Returns the value of an element after a step. Some steps do something other than training.
float changed(float value, uint64_t element, int step) {
  switch (step % 12) {
    case 3:  // a step that is skipped
      return value;
    case 5:  // a state that is loaded
      return initial(element ^ 0xabcdef);
    case 7:  // a step that diverges: NaNs of both signs, infinities, zeros of both signs
      if (mix(element, 5) % 97 == 0) return std::nanf("");
      if (mix(element, 5) % 97 == 1) return -INFINITY;
      if (mix(element, 5) % 97 == 2) return -0.0f;
      if (mix(element, 5) % 97 == 3) return -std::nanf("");
      return trained(value, element, step);
    case 8:  // the parameters are restored
      return initial(element ^ 0xabcdef);
    default:
      return trained(value, element, step);
  }
}

void gathers_the_same(const CodecCase& c, int ranks) {
  run_ranks(ranks,
            [&](Rank& self) {
              PoolScope pool(self.comm);
              {
                CodecUnit plain(c, self, pool.get(), FSCCL_CODEC_NONE),
                    coded(c, self, pool.get(), FSCCL_CODEC_DELTA);
                ASSERT_EQ(plain.status, FSCCL_OK);
                ASSERT_EQ(coded.status, FSCCL_OK);
                for (CodecUnit* unit : {&plain, &coded})
                  unit->update([](float, uint64_t element) { return initial(element); });
                for (int step = 0; step < steps_of_a_test(); step++) {
                  if (step)
                    for (CodecUnit* unit : {&plain, &coded})
                      unit->update([&](float value, uint64_t element) {
                        return changed(value, element, step);
                      });
                  const auto expected = plain.gathered();
                  ASSERT_TRUE(coded.gathered(step % 5 == 2 ? FSCCL_UNSHARD_WRITABLE
                                                           : FSCCL_UNSHARD_READ) == expected)
                      << step;
                  ASSERT_TRUE(coded.gathered() == expected) << step << ", again";
                }
                const fsccl_codec_report_t report = coded.report();
                if (hosts_given() && report.gathers) {
                  EXPECT_EQ(report.coded + report.plain + report.declined, report.gathers);
                  // A codec that may decline decides by times, which a busy machine stretches.
                  if (c.flags & FSCCL_CODEC_NEVER_DECLINES) {
                    EXPECT_GT(report.coded, report.plain);
                  }
                  EXPECT_EQ(report.mended, 0u);
                }
              }
              EXPECT_EQ(pool.stats().local_live_bytes, 0u);
            },
            {.hosts = c.hosts});
}

TEST(Codec, GathersTheSameAsNone) { gathers_the_same({}, 4); }
TEST(Codec, FlatLayout) { gathers_the_same({.layout = FSCCL_LAYOUT_FLAT}, 3); }
TEST(Codec, RaggedLayout) { gathers_the_same({.layout = FSCCL_LAYOUT_RAGGED}, 4); }
TEST(Codec, HalfPrecision) { gathers_the_same({.wire = FSCCL_FLOAT16}, 2); }
TEST(Codec, PrivateSlots) { gathers_the_same({.sharing = FSCCL_SHARING_PRIVATE}, 4); }
TEST(Codec, CopyOnWrite) { gathers_the_same({.sharing = FSCCL_SHARING_COPY_ON_WRITE}, 4); }
TEST(Codec, Kept) { gathers_the_same({.keep = FSCCL_KEEP_ALWAYS}, 4); }
TEST(Codec, ByParameter) { gathers_the_same({.by_parameter = true}, 4); }
TEST(Codec, NibblesOnly) {
  gathers_the_same({.flags = FSCCL_CODEC_NEVER_DECLINES | FSCCL_CODEC_NIBBLES_ONLY}, 3);
}
TEST(Codec, Everywhere) { gathers_the_same({.scope = FSCCL_CODEC_EVERYWHERE}, 3); }
TEST(Codec, ThatMayDecline) { gathers_the_same({.flags = FSCCL_CODEC_NIBBLES_ONLY}, 2); }

TEST(Codec, HostsOfAnyShape) {
  if (!hosts_given()) GTEST_SKIP() << "needs hosts";
  for (const std::vector<int>& hosts : {std::vector<int>{0, 1, 1}, {1, 0, 1, 0}, {0, 0, 0, 1, 1}})
    gathers_the_same({.hosts = hosts}, static_cast<int>(hosts.size()));
}

// Returns the value of a metric of which this process has one sample.
uint64_t metric(const std::string& name) {
  std::string text;
  EXPECT_OK(fsccl_metrics([](void* to, const char* some,
                             size_t bytes) { static_cast<std::string*>(to)->assign(some, bytes); },
                          &text));
  const size_t at = text.find("\n" + name + "{");
  if (at == std::string::npos) return ~uint64_t{0};
  return std::strtoull(text.c_str() + text.find("} ", at) + 2, nullptr, 10);
}

// Steps of training send little more than a quarter of the plain bytes as nibbles, and fewer bytes
// as codes. The network's counter agrees.
TEST(Codec, SendsFewerBytes) {
  if (!hosts_given()) GTEST_SKIP() << "needs hosts";
  for (const uint32_t more : {FSCCL_CODEC_FEWEST_BYTES, FSCCL_CODEC_NIBBLES_ONLY})
    run_ranks(static_cast<int>(number_of_hosts()), [&](Rank& self) {
      PoolScope pool(self.comm);
      CodecUnit coded({.flags = FSCCL_CODEC_NEVER_DECLINES | more}, self, pool.get(),
                      FSCCL_CODEC_DELTA);
      ASSERT_EQ(coded.status, FSCCL_OK);
      coded.update([](float, uint64_t element) { return initial(element); });
      (void)coded.gathered();
      const fsccl_codec_report_t before = coded.report();
      const int64_t wire_before = bytes_sent();
      constexpr int kSteps = 20;
      for (int step = 0; step < kSteps; step++) {
        coded.update(
            [&](float value, uint64_t element) { return trained(value, element, step + 100); });
        (void)coded.gathered();
      }
      const fsccl_codec_report_t after = coded.report();
      EXPECT_EQ(metric("fsccl_codec_sent_bytes_total"), after.sent_bytes);
      EXPECT_EQ(metric("fsccl_codec_plain_bytes_total"), after.plain_bytes);
      EXPECT_EQ(after.coded - before.coded, uint64_t{kSteps});
      const double plain = static_cast<double>(after.plain_bytes - before.plain_bytes);
      const double sent = static_cast<double>(after.sent_bytes - before.sent_bytes);
      const auto elements = static_cast<uint64_t>(kRows + 40 + 150) * kColumns + 33;
      EXPECT_NEAR(plain, 2.0 * kSteps * static_cast<double>(elements / number_of_hosts()),
                  0.02 * plain);
      EXPECT_LE(sent, plain / (more == FSCCL_CODEC_NIBBLES_ONLY ? 3.4 : 5.0))
          << plain / sent << " times fewer";
      // Headers of packets, acknowledgements and the plans' signals come on top.
      if (wire_before >= 0) {
        EXPECT_LE(static_cast<double>(bytes_sent() - wire_before),
                  1.1 * sent * static_cast<double>(number_of_hosts() - 1) + 10'000.0 * kSteps);
      }
    });
}

// Finds the words of `pattern` in all memory that this process shares with others, and changes the
// first word of each place. Slots are written anew by the next gather, but copies of the codec are
// stale then. Returns the number of places.
int spoil(const std::vector<uint16_t>& pattern) {
  int found = 0;
  std::FILE* const maps = std::fopen("/proc/self/maps", "r");
  char line[512];
  std::vector<std::pair<char*, char*>> ranges;
  while (maps && std::fgets(line, sizeof line, maps)) {
    unsigned long begin = 0, end = 0;
    char rights[8] = {};
    if (std::sscanf(line, "%lx-%lx %7s", &begin, &end, rights) == 3 &&
        std::strncmp(rights, "rw-s", 4) == 0 && std::strstr(line, "fsccl"))
      ranges.push_back({reinterpret_cast<char*>(begin), reinterpret_cast<char*>(end)});
  }
  if (maps) std::fclose(maps);
  const size_t bytes = pattern.size() * sizeof(uint16_t);
  for (const auto& [begin, end] : ranges)
    for (char* at = begin; at + bytes <= end; at += sizeof(uint16_t)) {
      if (std::memcmp(at, pattern.data(), bytes) != 0) continue;
      at[0] = static_cast<char>(at[0] ^ 1);
      found++;
    }
  return found;
}

TEST(Codec, AStaleCopyIsFoundAndMended) {
  if (!hosts_given()) GTEST_SKIP() << "needs hosts";
  run_ranks(static_cast<int>(number_of_hosts()), [&](Rank& self) {
    ASSERT_OK(fsccl_config_set("FSCCL_POOL_REGION_BYTES", "3M"));  // spoil() reads all of it
    PoolScope pool(self.comm);
    CodecUnit plain({}, self, pool.get(), FSCCL_CODEC_NONE),
        coded({}, self, pool.get(), FSCCL_CODEC_DELTA);
    for (CodecUnit* unit : {&plain, &coded})
      unit->update([](float, uint64_t element) { return initial(element); });
    std::vector<std::vector<uint16_t>> last;
    for (int step = 0; step < 6; step++) {
      if (step == 3 && self.rank == 1) {  // these words, in the first rows, come from rank 0
        EXPECT_GE(spoil({last[0].begin() + 5, last[0].begin() + 105}), 1);
      }
      if (step)
        for (CodecUnit* unit : {&plain, &coded})
          unit->update(
              [&](float value, uint64_t element) { return trained(value, element, step); });
      last = coded.gathered();
      ASSERT_TRUE(last == plain.gathered()) << step;
    }
    EXPECT_EQ(coded.report().mended, self.rank == 0 ? 1u : 0u);
    EXPECT_EQ(coded.report().coded, self.rank == 0 ? 4u : 5u);
  });
}

TEST(Codec, OnSomeRanksOnlyIsNamed) {
  run_ranks(3, [](Rank& self) {
    PoolScope pool(self.comm);
    CodecUnit unit({}, self, pool.get(), self.rank == 1 ? FSCCL_CODEC_NONE : FSCCL_CODEC_DELTA);
    EXPECT_ERROR(unit.status, FSCCL_ERR_MISMATCH, "unit", "other codecs for the gather", "rank 1");
    CodecUnit flags({.flags = self.rank == 2 ? FSCCL_CODEC_NIBBLES_ONLY : 0u}, self, pool.get(),
                    FSCCL_CODEC_DELTA);
    EXPECT_ERROR(flags.status, FSCCL_ERR_MISMATCH, "unit 'coded'", "other codecs for the gather",
                 "rank 2");
  });
}

TEST(Codec, ACopyThatDoesNotFitIsNamedOnEveryRank) {
  if (!hosts_given()) GTEST_SKIP() << "needs hosts";
  run_ranks(2, [](Rank& self) {
    PoolScope pool(self.comm, 1u << 20);
    CodecUnit plain({}, self, pool.get(), FSCCL_CODEC_NONE);
    EXPECT_EQ(plain.status, FSCCL_OK);
    CodecUnit coded({}, self, pool.get(), FSCCL_CODEC_DELTA);
    EXPECT_ERROR(coded.status, FSCCL_ERR_OUT_OF_MEMORY);
  });
}

TEST(Codec, WhatItCannotDoIsRefused) {
  run_ranks(1, [](Rank& self) {
    PoolScope pool(self.comm);
    CodecUnit wide({.wire = FSCCL_FLOAT32}, self, pool.get(), FSCCL_CODEC_DELTA);
    EXPECT_ERROR(wide.status, FSCCL_ERR_INVALID_ARGUMENT, "gather_codec", "float32");
    CodecUnit kind({}, self, pool.get(), wild<fsccl_codec_kind_t>(9));
    EXPECT_ERROR(kind.status, FSCCL_ERR_INVALID_ARGUMENT, "kind 9");
    CodecUnit block({.block = 64}, self, pool.get(), FSCCL_CODEC_DELTA);
    EXPECT_ERROR(block.status, FSCCL_ERR_INVALID_ARGUMENT, "block", "FSCCL_CODEC_DELTA");
    CodecUnit flags({.flags = 128}, self, pool.get(), FSCCL_CODEC_DELTA);
    EXPECT_ERROR(flags.status, FSCCL_ERR_INVALID_ARGUMENT, "flags 0x80");
    CodecUnit both({.flags = FSCCL_CODEC_NIBBLES_ONLY | FSCCL_CODEC_FEWEST_BYTES}, self, pool.get(),
                   FSCCL_CODEC_DELTA);
    EXPECT_ERROR(both.status, FSCCL_ERR_INVALID_ARGUMENT, "NIBBLES_ONLY", "FEWEST_BYTES");
    CodecUnit none({}, self, pool.get(), FSCCL_CODEC_NONE);
    fsccl_codec_report_t report = FSCCL_CODEC_REPORT_INIT;
    EXPECT_ERROR(fsccl_unit_codec(none.get(), &report), FSCCL_ERR_INVALID_STATE, "gather_codec");
    CodecUnit alone({}, self, pool.get(), FSCCL_CODEC_DELTA);
    EXPECT_EQ(alone.report().gathers, 0u);
  });
}

}  // namespace
}  // namespace fsccl::testing
