// Tests units whose parameters or gradients cross between hosts with a codec of the program: a
// codec that does what its table promises, codecs that do not, codecs that only some ranks have,
// and tables that are refused. The tests need several hosts (TEST_HOSTS) where a codec does nothing
// on one host.
#include <cmath>
#include <cstring>
#include <string>

#include "codec_case.h"
#include "examples/float12.h"
#include "fsccl/codec.h"
#include "fsccl/insight.h"

namespace fsccl::testing {
namespace {

constexpr double kBound = 1.0 / 16 + 1.0 / 256 + 1e-4;

std::vector<std::vector<float>> shards_of(fsccl_unit_t unit) {
  std::vector<std::vector<float>> all;
  for (size_t i = 0; i < 4; i++) {
    fsccl_view_t view;
    EXPECT_OK(fsccl_unit_shard(unit, i, &view));
    const auto* const floats = static_cast<const float*>(view.data);
    all.emplace_back(floats, floats + view.count);
  }
  return all;
}

std::string explained(fsccl_comm_t comm, const char* operation) {
  std::vector<char> text(4096);
  EXPECT_OK(fsccl_explain(comm, operation, 1 << 20, text.data(), text.size()));
  return text.data();
}

void gathers_near(CodecCase c, int ranks) {
  c.custom = &kFloat12;
  c.audit_every = 2;
  run_ranks(ranks,
            [&](Rank& self) {
              PoolScope pool(self.comm);
              {
                CodecUnit plain({.wire = c.wire}, self, pool.get(), FSCCL_CODEC_NONE),
                    coded(c, self, pool.get(), FSCCL_CODEC_CUSTOM);
                ASSERT_EQ(plain.status, FSCCL_OK);
                ASSERT_EQ(coded.status, FSCCL_OK);
                for (int step = 0; step < 4; step++) {
                  for (CodecUnit* unit : {&plain, &coded})
                    unit->update([&](float value, uint64_t element) {
                      return step ? trained(value, element, step) : initial(element);
                    });
                  const Words exact = plain.gathered(), forward = coded.gathered();
                  ASSERT_TRUE(coded.gathered() == forward) << step;
                  expect_alike(forward, self);
                  expect_near(exact, forward, c.wire, hosts_given() ? kBound : 0);
                }
                const fsccl_codec_report_t report = coded.report();
                EXPECT_STREQ(report.gather_codec, "float12");
                EXPECT_EQ(report.reduce_codec, nullptr);
                if (!hosts_given()) return;
                for (const char* operation : {"all_gather", "reduce_scatter"})
                  EXPECT_NE(explained(self.comm, operation)
                                .find(R"("kind":"custom","name":"float12","version":1)"),
                            std::string::npos)
                      << operation;
                if (!report.gathers) return;
                EXPECT_EQ(report.coded, report.gathers);
                EXPECT_EQ(report.exact_blocks, 0u);
                EXPECT_EQ(report.beyond_bound, 0u);
                EXPECT_GT(report.audited_blocks, 0u);
                EXPECT_GT(report.max_error, 0);
                EXPECT_LE(report.max_error, report.bound);
                EXPECT_LE(report.bound, kBound);
                const double share = static_cast<double>(report.sent_bytes) /
                                     static_cast<double>(report.plain_bytes);
                EXPECT_LT(share, c.wire == FSCCL_FLOAT32 ? 0.39 : 0.78);
              }
              EXPECT_EQ(pool.stats().local_live_bytes, 0u);
            },
            {.hosts = c.hosts});
}

TEST(CustomCodec, GathersNear) { gathers_near({}, 4); }
TEST(CustomCodec, OfFp32InOtherBlocks) { gathers_near({.wire = FSCCL_FLOAT32, .block = 1024}, 3); }
TEST(CustomCodec, FlatLayout) { gathers_near({.layout = FSCCL_LAYOUT_FLAT}, 3); }
TEST(CustomCodec, ByParameter) { gathers_near({.by_parameter = true}, 4); }
TEST(CustomCodec, HostsOfAnyShape) {
  if (!hosts_given()) GTEST_SKIP() << "needs hosts";
  gathers_near({.hosts = {0, 0, 1}}, 3);
}

TEST(CustomCodec, WhatIsTooFarGoesExactly) {
  if (!hosts_given()) GTEST_SKIP() << "needs hosts";
  run_ranks(static_cast<int>(number_of_hosts()), [](Rank& self) {
    PoolScope pool(self.comm);
    CodecUnit plain({}, self, pool.get(), FSCCL_CODEC_NONE),
        coded({.custom = &kFloat12}, self, pool.get(), FSCCL_CODEC_CUSTOM),
        strict({.max_relative_error = 1e-7, .custom = &kFloat12}, self, pool.get(),
               FSCCL_CODEC_CUSTOM);
    for (CodecUnit* unit : {&plain, &coded, &strict})
      unit->update([](float, uint64_t element) {
        const uint64_t at = element & 0xffffffffu;
        return element >> 32 == 0 && at % 20'000 == 7 ? NAN : initial(element);
      });
    const Words exact = plain.gathered(), near = coded.gathered();
    EXPECT_TRUE(strict.gathered() == exact);
    EXPECT_EQ(strict.report().plain, 1u);
    for (size_t at = 7; at < exact[0].size(); at += 20'000) EXPECT_EQ(near[0][at], exact[0][at]);
    EXPECT_EQ(coded.report().coded, 1u);
    EXPECT_TRUE(self.rank != 0 || coded.report().exact_blocks > 0);
    expect_alike(near, self);
  });
}

// A codec that does what kFloat12 does, except for what its flags say: it writes behind the end of
// its output, or decodes wrong values.
struct Liar {
  fsccl_block_codec_t table = kFloat12;
  bool encodes_beyond = false, decodes_beyond = false, decodes_zeros = false;
  int good_decodes = 0;  // so many blocks are decoded rightly first

  Liar() {
    table.name = "liar";
    table.version = 7;
    table.context = this;
    table.encode = [](void* context, const float* elements, size_t count, void* out) {
      kFloat12.encode(nullptr, elements, count, out);
      if (static_cast<Liar*>(context)->encodes_beyond)
        static_cast<uint8_t*>(out)[kFloat12.bytes(nullptr, count)] ^= 1;
    };
    table.decode = [](void* context, const void* in, size_t count, float* elements) {
      auto& self = *static_cast<Liar*>(context);
      kFloat12.decode(nullptr, in, count, elements);
      if (self.good_decodes-- > 0) return;
      if (self.decodes_beyond) elements[count] = -elements[count];
      if (self.decodes_zeros) std::fill_n(elements, count, 0.0f);
    };
  }
};

// Runs a gather in which one rank's codec does what `lies` sets. The gather must fail on every
// rank, with an error that names the codec, the rank and `what`, and no shard may change.
template <class Lies>
void expect_named(const Lies& lies, const char* what, uint32_t audit_every = 0) {
  if (!hosts_given()) GTEST_SKIP() << "needs hosts";
  const int ranks = 2 * static_cast<int>(number_of_hosts());
  run_ranks(ranks, [&](Rank& self) {
    PoolScope pool(self.comm);
    Liar liar;
    if (self.rank == 1) lies(liar);
    CodecUnit unit({.audit_every = audit_every, .custom = &liar.table}, self, pool.get(),
                   FSCCL_CODEC_CUSTOM);
    ASSERT_EQ(unit.status, FSCCL_OK);
    unit.update([](float, uint64_t element) { return initial(element); });
    const std::vector<std::vector<float>> before = shards_of(unit.get());
    self.meet();
    EXPECT_ERROR(fsccl_unit_unshard(unit.get(), FSCCL_UNSHARD_READ, nullptr, nullptr),
                 FSCCL_ERR_PROTOCOL, "custom codec 'liar' (version 7)", "rank 1 has", what);
    EXPECT_TRUE(shards_of(unit.get()) == before);
    EXPECT_EQ(unit.report().beyond_bound > 0, self.rank == 1 && liar.decodes_zeros);
  });
}

TEST(CustomCodec, AnErrorBeyondItsBoundIsNamedOnEveryRank) {
  expect_named([](Liar& liar) { liar.decodes_zeros = true; },
               "states a bound of 0.0625, 0.06642 with bfloat16, and has an error of 1 in a block");
}
TEST(CustomCodec, EncodingBeyondItsSizeIsNamedOnEveryRank) {
  expect_named([](Liar& liar) { liar.encodes_beyond = true; },
               "encode() wrote 1 bytes or more beyond the 192 bytes of a block of 128 elements");
}
TEST(CustomCodec, DecodingBeyondItsSizeIsNamedOnEveryRank) {
  expect_named([](Liar& liar) { liar.decodes_beyond = true; },
               "decode() wrote 4 bytes or more beyond the 512 bytes of a block of 128 elements",
               1u << 30);
}

TEST(CustomCodec, SumsNear) {
  CodecCase c{.sums = FSCCL_CODEC_CUSTOM, .custom = &kFloat12};
  sums_near(c, 4, 0.03, 0.78);
  c.sums_flags = FSCCL_CODEC_ERROR_FEEDBACK;
  c.reduce = FSCCL_FLOAT32;
  sums_near(c, 3, 0.04, 0.39);
  c.scope = FSCCL_CODEC_EVERYWHERE;
  c.block = 1024;
  sums_near(c, 3, 0.04, 0.39);
  c.by_parameter = true;
  sums_near(c, 3, 0.04, 0.39);
}

CodecCase sums_by(const Liar& liar, uint32_t audit_every = 0) {
  return {.audit_every = audit_every,
          .sums = FSCCL_CODEC_CUSTOM,
          .custom = &liar.table,
          .scope = FSCCL_CODEC_EVERYWHERE};
}

// Runs a reduction in which one rank's codec does what `lies` sets; it fails as a gather does.
template <class Lies>
void expect_named_in_sums(const Lies& lies, const char* what) {
  run_ranks(3, [&](Rank& self) {
    PoolScope pool(self.comm);
    Liar liar;
    if (self.rank == 1) lies(liar);
    CodecUnit unit(sums_by(liar), self, pool.get(), FSCCL_CODEC_NONE);
    ASSERT_EQ(unit.status, FSCCL_OK);
    unit.set_grads([&](uint64_t element) { return gradient(element, self.rank, 0); });
    self.meet();
    EXPECT_ERROR(fsccl_unit_reduce_grads(unit.get(), nullptr, nullptr, nullptr), FSCCL_ERR_PROTOCOL,
                 "custom codec 'liar' (version 7)", "rank 1 has", what);
  });
}

TEST(CustomCodec, SumsBeyondItsBoundAreNamedOnEveryRank) {
  expect_named_in_sums(
      [](Liar& liar) { liar.decodes_zeros = true; },
      "states a bound of 0.0625, 0.06251 with float32, and has an error of 1 in a block");
}
TEST(CustomCodec, SumsEncodedBeyondItsSizeAreNamedOnEveryRank) {
  expect_named_in_sums([](Liar& liar) { liar.encodes_beyond = true; },
                       "encode() wrote 1 bytes or more beyond the 192 bytes");
}
// The receiver finds it, because the sender's audit decodes only the first block. The other ranks
// may have their sums already, and learn of it in the next call.
TEST(CustomCodec, SumsDecodedBeyondItsSizeFailTheCommunicator) {
  run_ranks(3, [&](Rank& self) {
    PoolScope pool(self.comm);
    Liar liar;
    liar.decodes_beyond = self.rank == 1;
    liar.good_decodes = 1;
    CodecUnit unit(sums_by(liar, 1u << 30), self, pool.get(), FSCCL_CODEC_NONE);
    ASSERT_EQ(unit.status, FSCCL_OK);
    unit.set_grads([&](uint64_t element) { return gradient(element, self.rank, 0); });
    self.meet();
    fsccl_status_t status = fsccl_unit_reduce_grads(unit.get(), nullptr, nullptr, nullptr);
    if (self.rank != 1 && status == FSCCL_OK) status = fsccl_barrier(self.comm, nullptr, nullptr);
    EXPECT_ERROR(status, FSCCL_ERR_PROTOCOL, "custom codec 'liar' (version 7)", "rank 1 has",
                 "decode() wrote 4 bytes or more beyond the");
  });
}

TEST(CustomCodec, OnSomeRanksOnlyIsNamedOnEveryRank) {
  run_ranks(3, [](Rank& self) {
    PoolScope pool(self.comm);
    const bool other = self.rank == 1;
    CodecUnit some({.custom = other ? nullptr : &kFloat12}, self, pool.get(),
                   other ? FSCCL_CODEC_NONE : FSCCL_CODEC_CUSTOM);
    EXPECT_ERROR(some.status, FSCCL_ERR_MISMATCH, "codecs for the gather", "rank 0 float12",
                 "rank 1 none");
    CodecUnit built_in({.custom = other ? nullptr : &kFloat12}, self, pool.get(),
                       other ? FSCCL_CODEC_INT8 : FSCCL_CODEC_CUSTOM);
    EXPECT_ERROR(built_in.status, FSCCL_ERR_MISMATCH, "rank 0 float12", "rank 1 int8");
    const auto expect_named = [&](const auto& change, const char* what) {
      fsccl_block_codec_t table = kFloat12;
      if (other) change(table);
      CodecUnit unit({.custom = &table}, self, pool.get(), FSCCL_CODEC_CUSTOM);
      EXPECT_ERROR(unit.status, FSCCL_ERR_MISMATCH, "rank 0 float12", what);
    };
    expect_named([](auto& table) { table.name = "float13"; }, "rank 1 float13");
    expect_named([](auto& table) { table.version = 2; }, "version 2");
    expect_named([](auto& table) { table.bound = 0.5; }, "bound 0.5");
    expect_named([](auto& table) { table.bytes = [](void*, size_t count) { return count + 5; }; },
                 "133 bytes");
  });
}

TEST(CustomCodec, WhatCannotBeIsRefused) {
  run_ranks(1, [](Rank& self) {
    PoolScope pool(self.comm);
    const auto expect_refused = [&](const CodecCase& c, fsccl_codec_kind_t kind, const char* why) {
      CodecUnit unit(c, self, pool.get(), kind);
      EXPECT_ERROR(unit.status, FSCCL_ERR_INVALID_ARGUMENT, why);
    };
    expect_refused({}, FSCCL_CODEC_CUSTOM, "gather_codec: custom is NULL");
    expect_refused({.custom = &kFloat12}, FSCCL_CODEC_INT8, "leave it NULL with kind 3");
    expect_refused({.sums = FSCCL_CODEC_CUSTOM}, FSCCL_CODEC_NONE, "reduce_codec: custom is NULL");
    expect_refused({.wire = FSCCL_FLOAT64, .custom = &kFloat12}, FSCCL_CODEC_CUSTOM, "float64");
    expect_refused({.block = 48, .custom = &kFloat12}, FSCCL_CODEC_CUSTOM, "block is 48");
    fsccl_block_codec_t table = kFloat12;
    table.name = "mxfp8";
    expect_refused({.custom = &table}, FSCCL_CODEC_CUSTOM,
                   "gather_codec: the table of the custom codec has the name mxfp8 of a built-in");
    table = kFloat12;
    table.bytes = [](void*, size_t count) { return 2 * count; };
    expect_refused(
        {.custom = &table}, FSCCL_CODEC_CUSTOM,
        "takes 256 bytes and one of the library for a block of 128 elements, which are 256 "
        "bytes as bfloat16");
    expect_refused({.sums = FSCCL_CODEC_CUSTOM, .custom = &table}, FSCCL_CODEC_NONE,
                   "reduce_codec: custom codec 'float12' takes 256 bytes");
    table = kFloat12;
    table.bound = 1;
    expect_refused(
        {.sums = FSCCL_CODEC_CUSTOM, .sums_flags = FSCCL_CODEC_ERROR_FEEDBACK, .custom = &table},
        FSCCL_CODEC_NONE, "rounding errors may grow without end");
    fsccl_codec_t codec = FSCCL_CODEC_INIT;
    codec.kind = FSCCL_CODEC_CUSTOM;
    codec.custom = &kFloat12;
    codec.size = offsetof(fsccl_codec_t, custom);  // an older program does not know the field
    fsccl_unit_config_t config = FSCCL_UNIT_CONFIG_INIT;
    fsccl_param_t param = FSCCL_PARAM_INIT;
    fsccl_unit_t unit = nullptr;
    config.shard_comm = self.comm;
    config.pool = pool.get();
    config.gather_codec = &codec;
    EXPECT_ERROR(fsccl_unit_create(&config, &param, 1, &unit), FSCCL_ERR_INVALID_ARGUMENT,
                 "custom is NULL");
  });
}

}  // namespace
}  // namespace fsccl::testing
