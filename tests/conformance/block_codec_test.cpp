// Tests units whose parameters or gradients cross between hosts with a codec that loses precision.
// Errors stay within the bound, and are the same on all ranks and in forward and backward. Blocks
// that the codec cannot carry arrive exactly. In sums, error feedback keeps what rounding loses.
// The tests need several hosts (TEST_HOSTS). On one host they check that a codec does nothing.
#include <cmath>
#include <string>

#include "codec_case.h"
#include "fsccl/codec.h"
#include "fsccl/insight.h"
#include "fsccl/redistribute.h"

namespace fsccl::testing {
namespace {

void gathers_near(const CodecCase& c, fsccl_codec_kind_t kind, int ranks) {
  run_ranks(ranks,
            [&](Rank& self) {
              PoolScope pool(self.comm);
              {
                CodecUnit plain(c, self, pool.get(), FSCCL_CODEC_NONE),
                    coded(c, self, pool.get(), kind);
                ASSERT_EQ(plain.status, FSCCL_OK);
                ASSERT_EQ(coded.status, FSCCL_OK);
                const double bound = kind == FSCCL_CODEC_INT8  ? 0.0079
                                     : kind == FSCCL_CODEC_FP8 ? 0.0397
                                                               : 0.0665;
                for (int step = 0; step < 6; step++) {
                  for (CodecUnit* unit : {&plain, &coded})
                    unit->update([&](float value, uint64_t element) {
                      return step ? trained(value, element, step) : initial(element);
                    });
                  const Words exact = plain.gathered();
                  const Words forward =
                      coded.gathered(step % 3 == 2 ? FSCCL_UNSHARD_WRITABLE : FSCCL_UNSHARD_READ);
                  const uint64_t blocks = coded.report().blocks;
                  const Words backward = coded.gathered();
                  ASSERT_TRUE(forward == backward) << step;
                  // The second gather sends no blocks again, because no shard has changed. If the
                  // first one allowed writes, the library does not rely on that.
                  EXPECT_TRUE(step % 3 == 2 || coded.report().blocks == blocks);
                  expect_alike(forward, self);
                  expect_near(exact, forward, c.wire, codes(c) ? bound : 0);
                }
                const fsccl_codec_report_t report = coded.report();
                if (codes(c) && report.gathers) {
                  EXPECT_EQ(report.coded, report.gathers);
                  EXPECT_EQ(report.exact_blocks, 0u);
                  EXPECT_EQ(report.beyond_bound, 0u);
                  EXPECT_GT(report.audited_blocks, 0u);
                  EXPECT_GT(report.max_error, 0);
                  EXPECT_LE(report.max_error, report.bound);
                  EXPECT_LE(report.bound, bound);
                  const double share = static_cast<double>(report.sent_bytes) /
                                       static_cast<double>(report.plain_bytes);
                  EXPECT_LT(share, c.wire == FSCCL_FLOAT32 ? 0.28 : 0.54);
                }
              }
              EXPECT_EQ(pool.stats().local_live_bytes, 0u);
            },
            {.hosts = c.hosts});
}

TEST(BlockCodec, GathersNearInt8) { gathers_near({.audit_every = 2}, FSCCL_CODEC_INT8, 4); }
TEST(BlockCodec, GathersNearFp8) { gathers_near({.audit_every = 2}, FSCCL_CODEC_FP8, 3); }
TEST(BlockCodec, GathersNearMxFp8) { gathers_near({.audit_every = 2}, FSCCL_CODEC_MXFP8, 4); }
TEST(BlockCodec, OfFp32) {
  gathers_near({.wire = FSCCL_FLOAT32, .audit_every = 2}, FSCCL_CODEC_INT8, 4);
}
TEST(BlockCodec, OfHalfPrecision) {
  gathers_near({.wire = FSCCL_FLOAT16, .block = 512, .audit_every = 2}, FSCCL_CODEC_FP8, 2);
}
TEST(BlockCodec, FlatLayout) {
  gathers_near({.layout = FSCCL_LAYOUT_FLAT, .audit_every = 2}, FSCCL_CODEC_INT8, 3);
}
TEST(BlockCodec, PrivateSlots) {
  gathers_near({.sharing = FSCCL_SHARING_PRIVATE, .audit_every = 2}, FSCCL_CODEC_INT8, 4);
}
TEST(BlockCodec, ByParameter) {
  gathers_near({.by_parameter = true, .audit_every = 1}, FSCCL_CODEC_FP8, 4);
}
TEST(BlockCodec, Everywhere) {
  for (const fsccl_sharing_t sharing :
       {FSCCL_SHARING_READ_ONLY, FSCCL_SHARING_PRIVATE, FSCCL_SHARING_COPY_ON_WRITE})
    gathers_near({.sharing = sharing, .audit_every = 2, .scope = FSCCL_CODEC_EVERYWHERE},
                 FSCCL_CODEC_INT8, 3);
  gathers_near({.layout = FSCCL_LAYOUT_FLAT,
                .keep = FSCCL_KEEP_ALWAYS,
                .audit_every = 2,
                .scope = FSCCL_CODEC_EVERYWHERE},
               FSCCL_CODEC_FP8, 4);
  gathers_near({.by_parameter = true, .audit_every = 1, .scope = FSCCL_CODEC_EVERYWHERE},
               FSCCL_CODEC_INT8, 2);
  gathers_near({.audit_every = 2, .scope = FSCCL_CODEC_EVERYWHERE}, FSCCL_CODEC_MXFP8, 1);
}
TEST(BlockCodec, HostsOfAnyShape) {
  if (!hosts_given()) GTEST_SKIP() << "needs hosts";
  for (const std::vector<int>& hosts : {std::vector<int>{0, 1, 1}, {1, 0, 1, 0}, {0, 0, 0, 1, 1}})
    gathers_near({.hosts = hosts, .audit_every = 2}, FSCCL_CODEC_INT8,
                 static_cast<int>(hosts.size()));
}

// Shows what a codec makes of the elements of a rank, on a communicator of that rank alone.
class Alone {
 public:
  explicit Alone(Rank& self) {
    EXPECT_OK(fsccl_comm_split(self.comm, self.rank, 0, nullptr, &comm_));
  }
  ~Alone() { EXPECT_OK(fsccl_comm_destroy(comm_)); }
  Alone(const Alone&) = delete;

  // Returns the elements of each piece after coding and decoding, as fp32.
  Sums coded(const Sums& pieces, fsccl_codec_kind_t kind, fsccl_dtype_t wire) {
    PoolScope pool(comm_);
    std::vector<fsccl_param_t> params;
    for (const std::vector<float>& piece : pieces) {
      fsccl_param_t param = FSCCL_PARAM_INIT;
      param.dims = 1;
      param.shape[0] = static_cast<int64_t>(piece.size());
      param.dtype = FSCCL_FLOAT32;
      params.push_back(param);
    }
    fsccl_codec_t codec = FSCCL_CODEC_INIT;
    codec.kind = kind;
    codec.scope = FSCCL_CODEC_EVERYWHERE;
    fsccl_unit_config_t config = FSCCL_UNIT_CONFIG_INIT;
    config.name = "alone";
    config.layout = FSCCL_LAYOUT_PER_PARAM;
    config.shard_comm = comm_;
    config.pool = pool.get();
    config.wire_dtype = wire;
    config.gather_codec = &codec;
    fsccl_unit_t unit = nullptr;
    EXPECT_OK(fsccl_unit_create(&config, params.data(), params.size(), &unit));
    fsccl_view_t view;
    for (size_t i = 0; i < pieces.size(); i++) {
      EXPECT_OK(fsccl_unit_shard(unit, i, &view));
      std::copy(pieces[i].begin(), pieces[i].end(), static_cast<float*>(view.data));
    }
    EXPECT_OK(fsccl_unit_mark_changed(unit));
    EXPECT_OK(fsccl_unit_unshard(unit, FSCCL_UNSHARD_READ, nullptr, nullptr));
    Sums made;
    for (size_t i = 0; i < pieces.size(); i++) {
      EXPECT_OK(fsccl_unit_param(unit, i, &view));
      const auto* const words = static_cast<const uint16_t*>(view.data);
      made.push_back(
          values({words, words + view.count * fsccl_dtype_size(wire) / sizeof *words}, wire));
    }
    EXPECT_OK(fsccl_unit_reshard(unit, nullptr));
    EXPECT_OK(fsccl_unit_destroy(unit));
    return made;
  }

 private:
  fsccl_comm_t comm_ = nullptr;
};

// Returns, by rank and parameter, the pieces of the parameters that own their elements.
std::vector<std::vector<fsccl_piece_t>> pieces_of(const CodecCase& c, int ranks) {
  std::vector<fsccl_param_t> params = params_of(c);
  std::vector<std::vector<fsccl_piece_t>> all(static_cast<size_t>(ranks));
  for (int rank = 0; rank < ranks; rank++) {
    std::vector<fsccl_piece_t>& pieces = all[static_cast<size_t>(rank)];
    pieces.resize(params.size());
    EXPECT_OK(fsccl_layout_plan(c.layout, params.data(), params.size(), ranks, rank, pieces.data(),
                                nullptr));
    pieces.pop_back();  // the last parameter is tied
  }
  return all;
}

// The hosts on which a case runs: all shapes that the given hosts allow.
std::vector<std::vector<int>> shapes_of_hosts() {
  if (!hosts_given()) return {{}};
  return {{0, 0, 0, 1}, {1, 0, 1, 0}, {0, 1, 1, 1}};
}

// The parameters that a codec everywhere brings are those that each rank's codec makes of the
// rank's own pieces, whichever ranks share a host.
TEST(BlockCodec, EverywhereItMakesTheSameOnAnyHosts) {
  for (const std::vector<int>& hosts : shapes_of_hosts())
    run_ranks(4,
              [](Rank& self) {
                const CodecCase c{.scope = FSCCL_CODEC_EVERYWHERE};
                const auto pieces = pieces_of(c, self.ranks);
                PoolScope pool(self.comm);
                Alone alone(self);
                CodecUnit coded(c, self, pool.get(), FSCCL_CODEC_INT8);
                ASSERT_EQ(coded.status, FSCCL_OK);
                coded.update([](float, uint64_t element) { return initial(element); });
                const Words all = coded.gathered();
                for (size_t i = 0; i + 1 < all.size(); i++) {
                  const std::vector<float> gathered = values(all[i], c.wire);
                  for (const std::vector<fsccl_piece_t>& of_rank : pieces) {
                    const fsccl_piece_t piece = of_rank[i];
                    std::vector<float> own(piece.count);
                    for (uint64_t k = 0; k < piece.count; k++)
                      own[k] = initial(i << 32 | (piece.begin + k));
                    if (own.empty()) continue;
                    const std::vector<float> expected =
                        alone.coded({own}, FSCCL_CODEC_INT8, c.wire).front();
                    EXPECT_TRUE(std::equal(expected.begin(), expected.end(),
                                           gathered.begin() + static_cast<ptrdiff_t>(piece.begin)))
                        << "parameter " << i;
                  }
                }
              },
              {.hosts = hosts});
}

// A block with NaNs or infinities arrives as it is, and so does a block whose error would exceed
// the bound. In the unit `strict` that is the case for all blocks.
TEST(BlockCodec, WhatIsTooFarGoesExactly) {
  if (!hosts_given()) GTEST_SKIP() << "needs hosts";
  run_ranks(static_cast<int>(number_of_hosts()), [](Rank& self) {
    PoolScope pool(self.comm);
    CodecUnit plain({}, self, pool.get(), FSCCL_CODEC_NONE),
        coded({}, self, pool.get(), FSCCL_CODEC_INT8),
        strict({.max_relative_error = 1e-7}, self, pool.get(), FSCCL_CODEC_INT8);
    for (CodecUnit* unit : {&plain, &coded, &strict})
      unit->update([](float, uint64_t element) {
        const uint64_t at = element & 0xffffffffu;
        if (element >> 32 == 0 && at % 20'000 == 7) return at % 40'000 == 7 ? NAN : -INFINITY;
        return initial(element);
      });
    const Words exact = plain.gathered(), near = coded.gathered();
    EXPECT_TRUE(strict.gathered() == exact);
    EXPECT_EQ(strict.report().plain, 1u);
    EXPECT_EQ(strict.report().sent_bytes, strict.report().plain_bytes);
    EXPECT_FALSE(near == exact);
    for (size_t at = 7; at < exact[0].size(); at += 20'000) EXPECT_EQ(near[0][at], exact[0][at]);
    EXPECT_EQ(coded.report().coded, 1u);
    EXPECT_TRUE(self.rank != 0 || coded.report().exact_blocks > 0);
    expect_alike(near, self);
  });
}

TEST(BlockCodec, OfOtherKindsOrBlocksIsNamed) {
  run_ranks(3, [](Rank& self) {
    PoolScope pool(self.comm);
    CodecUnit kind({}, self, pool.get(), self.rank == 1 ? FSCCL_CODEC_FP8 : FSCCL_CODEC_INT8);
    EXPECT_ERROR(kind.status, FSCCL_ERR_MISMATCH, "unit 'coded'", "codecs for the gather",
                 "rank 1");
    CodecUnit block({.block = self.rank == 2 ? 64u : 32u}, self, pool.get(), FSCCL_CODEC_INT8);
    EXPECT_ERROR(block.status, FSCCL_ERR_MISMATCH, "codecs for the gather", "block", "rank 2");
    CodecUnit scope({.scope = self.rank == 1 ? FSCCL_CODEC_EVERYWHERE : FSCCL_CODEC_BETWEEN_HOSTS},
                    self, pool.get(), FSCCL_CODEC_FP8);
    EXPECT_ERROR(scope.status, FSCCL_ERR_MISMATCH, "codecs for the gather", "everywhere", "rank 1");
    CodecUnit sums({.sums = self.rank == 2 ? FSCCL_CODEC_NONE : FSCCL_CODEC_INT8}, self, pool.get(),
                   FSCCL_CODEC_FP8);
    EXPECT_ERROR(sums.status, FSCCL_ERR_MISMATCH, "codecs for the reduction", "rank 2");
  });
}

// The units of a lane share memory, which is as large as the largest of them needs. That may be one
// which is made later.
TEST(BlockCodec, SharedMemoryIsReportedAsItIsNow) {
  run_ranks(2, [](Rank& self) {
    PoolScope pool(self.comm);
    const CodecCase c{.scope = FSCCL_CODEC_EVERYWHERE};
    CodecUnit first(c, self, pool.get(), FSCCL_CODEC_INT8);
    const uint64_t before = first.report().state_bytes;
    CodecUnit larger({.wire = FSCCL_FLOAT32, .scope = c.scope}, self, pool.get(), FSCCL_CODEC_INT8);
    const uint64_t own = larger.report().state_bytes - first.report().state_bytes;
    EXPECT_GT(first.report().state_bytes, before);
    EXPECT_LT(own, before);
  });
}

TEST(BlockCodec, WhatDoesNotFitIsNamedOnEveryRank) {
  if (!hosts_given()) GTEST_SKIP() << "needs hosts";
  run_ranks(2, [](Rank& self) {
    PoolScope pool(self.comm, 1u << 20);
    CodecUnit plain({}, self, pool.get(), FSCCL_CODEC_NONE);
    EXPECT_EQ(plain.status, FSCCL_OK);
    CodecUnit coded({}, self, pool.get(), FSCCL_CODEC_INT8);
    EXPECT_ERROR(coded.status, FSCCL_ERR_OUT_OF_MEMORY);
    CodecUnit sums({.sums = FSCCL_CODEC_INT8, .sums_flags = FSCCL_CODEC_ERROR_FEEDBACK}, self,
                   pool.get(), FSCCL_CODEC_NONE);
    EXPECT_ERROR(sums.status, FSCCL_ERR_OUT_OF_MEMORY);
  });
}

TEST(BlockCodec, WhatItCannotDoIsRefused) {
  run_ranks(1, [](Rank& self) {
    PoolScope pool(self.comm);
    const auto expect_refused = [&](const CodecCase& c, fsccl_codec_kind_t kind, const char* first,
                                    const char* second) {
      CodecUnit unit(c, self, pool.get(), kind);
      EXPECT_ERROR(unit.status, FSCCL_ERR_INVALID_ARGUMENT, first, second);
    };
    expect_refused({.block = 48}, FSCCL_CODEC_INT8, "gather_codec", "block is 48");
    expect_refused({.block = 2048}, FSCCL_CODEC_FP8, "gather_codec", "block is 2048");
    expect_refused({.max_relative_error = 2}, FSCCL_CODEC_FP8, "gather_codec",
                   "max_relative_error is 2");
    expect_refused({.max_relative_error = NAN}, FSCCL_CODEC_FP8, "gather_codec",
                   "max_relative_error");
    expect_refused({.wire = FSCCL_FLOAT64}, FSCCL_CODEC_INT8, "gather_codec", "float64");
    expect_refused({.scope = wild<fsccl_codec_scope_t>(2)}, FSCCL_CODEC_INT8, "gather_codec",
                   "scope 2 is not");
    expect_refused({}, FSCCL_CODEC_INT4, "gather_codec", "kind 6 is not of gathers");
    expect_refused({.sums = FSCCL_CODEC_DELTA}, FSCCL_CODEC_NONE, "reduce_codec",
                   "kind 1 is not of reductions");
    expect_refused({.sums = FSCCL_CODEC_INT8, .sums_flags = 1}, FSCCL_CODEC_NONE, "reduce_codec",
                   "flags 0x1");
    expect_refused({.sums = wild<fsccl_codec_kind_t>(77)}, FSCCL_CODEC_NONE, "reduce_codec",
                   "kind 77");
  });
}

// ---- reductions

TEST(CodedSum, Int8) { sums_near({.sums = FSCCL_CODEC_INT8}, 4, 0.01); }
TEST(CodedSum, Bf16) { sums_near({.sums = FSCCL_CODEC_BF16}, 4, 0.004); }
TEST(CodedSum, Int4) { sums_near({.sums = FSCCL_CODEC_INT4}, 4, 0.25); }
TEST(CodedSum, WithFeedback) {
  sums_near({.sums = FSCCL_CODEC_INT4, .sums_flags = FSCCL_CODEC_ERROR_FEEDBACK}, 4, 0.3);
}
TEST(CodedSum, OfFp32Gradients) {
  sums_near(
      {.sums = FSCCL_CODEC_INT8, .sums_flags = FSCCL_CODEC_ERROR_FEEDBACK, .reduce = FSCCL_FLOAT32},
      3, 0.01);
}
TEST(CodedSum, FlatLayout) {
  sums_near({.layout = FSCCL_LAYOUT_FLAT, .sums = FSCCL_CODEC_INT8}, 3, 0.01);
}
TEST(CodedSum, Everywhere) {
  sums_near({.sums = FSCCL_CODEC_INT8, .scope = FSCCL_CODEC_EVERYWHERE}, 3, 0.01);
  sums_near({.sums = FSCCL_CODEC_INT4,
             .sums_flags = FSCCL_CODEC_ERROR_FEEDBACK,
             .reduce = FSCCL_FLOAT32,
             .scope = FSCCL_CODEC_EVERYWHERE},
            4, 0.3);
}
TEST(CodedSum, ByParameter) {
  sums_near({.by_parameter = true, .sums = FSCCL_CODEC_INT8}, 4, 0.01);
  sums_near({.by_parameter = true,
             .sums = FSCCL_CODEC_INT4,
             .sums_flags = FSCCL_CODEC_ERROR_FEEDBACK,
             .reduce = FSCCL_FLOAT32,
             .scope = FSCCL_CODEC_EVERYWHERE},
            3, 0.3);
}

// A gradient has the same sums, and the same rounding errors for the next reduction, whether it is
// reduced alone or with others.
TEST(CodedSum, ByParameterEachGradientStandsAlone) {
  run_ranks(4, [](Rank& self) {
    PoolScope pool(self.comm);
    const CodecCase c{.by_parameter = true,
                      .sums = FSCCL_CODEC_INT4,
                      .sums_flags = FSCCL_CODEC_ERROR_FEEDBACK,
                      .scope = FSCCL_CODEC_EVERYWHERE};
    CodecUnit together(c, self, pool.get(), FSCCL_CODEC_NONE),
        alone(c, self, pool.get(), FSCCL_CODEC_NONE);
    ASSERT_EQ(alone.status, FSCCL_OK);
    for (int step = 0; step < 4; step++) {
      const auto value = [&](uint64_t element) { return gradient(element, self.rank, step); };
      const Sums expected = together.reduced(value, nullptr);
      EXPECT_TRUE(alone.reduced_one_by_one(value) == expected) << step;
    }
  });
}

TEST(CodedSum, HostsOfAnyShape) {
  if (!hosts_given()) GTEST_SKIP() << "needs hosts";
  for (const std::vector<int>& hosts : {std::vector<int>{0, 1, 1}, {1, 0, 1, 0}, {0, 0, 0, 1, 1}})
    sums_near({.hosts = hosts, .sums = FSCCL_CODEC_INT8}, static_cast<int>(hosts.size()), 0.01);
}

// The sums of a codec everywhere are those over all ranks in their order, each rank's gradients
// coded for the rank that sums them, and its own as they are, whichever ranks share a host.
TEST(CodedSum, EverywhereItMakesTheSameOnAnyHosts) {
  for (const std::vector<int>& hosts : shapes_of_hosts())
    run_ranks(4,
              [](Rank& self) {
                const CodecCase c{.sums = FSCCL_CODEC_INT8,
                                  .reduce = FSCCL_FLOAT32,
                                  .scope = FSCCL_CODEC_EVERYWHERE};
                const auto pieces = pieces_of(c, self.ranks);
                PoolScope pool(self.comm);
                Alone alone(self);
                CodecUnit unit(c, self, pool.get(), FSCCL_CODEC_NONE);
                ASSERT_EQ(unit.status, FSCCL_OK);
                const Sums sums = unit.reduced(
                    [&](uint64_t element) { return gradient(element, self.rank, 0); }, nullptr);
                for (size_t i = 0; i < sums.size(); i++) {
                  if (sums[i].empty()) continue;
                  const fsccl_piece_t piece = pieces[static_cast<size_t>(self.rank)][i];
                  std::vector<float> expected(piece.count);
                  for (int rank = 0; rank < self.ranks; rank++) {
                    std::vector<float> of_rank(piece.count);
                    for (uint64_t k = 0; k < piece.count; k++)
                      of_rank[k] = gradient(i << 32 | (piece.begin + k), rank, 0);
                    if (rank != self.rank)
                      of_rank = alone.coded({of_rank}, FSCCL_CODEC_INT8, FSCCL_FLOAT32).front();
                    for (uint64_t k = 0; k < piece.count; k++)
                      expected[k] = rank ? expected[k] + of_rank[k] : of_rank[k];
                  }
                  for (float& sum : expected) sum /= 4;  // the reduction averages over the ranks
                  EXPECT_TRUE(sums[i] == expected) << "parameter " << i;
                }
              },
              {.hosts = hosts});
}

// In each block one gradient is large, and the others lie below half a step of the codec. Without
// feedback these are lost; with it their sum over the steps is not.
TEST(CodedSum, FeedbackKeepsWhatLiesBelowHalfAStep) {
  if (!hosts_given()) GTEST_SKIP() << "needs hosts";
  run_ranks(static_cast<int>(number_of_hosts()), [](Rank& self) {
    PoolScope pool(self.comm);
    const CodecCase c{.sums = FSCCL_CODEC_INT8, .reduce = FSCCL_FLOAT32};
    CodecCase feeding = c;
    feeding.sums_flags = FSCCL_CODEC_ERROR_FEEDBACK;
    CodecUnit without(c, self, pool.get(), FSCCL_CODEC_NONE),
        with(feeding, self, pool.get(), FSCCL_CODEC_NONE);
    ASSERT_EQ(with.status, FSCCL_OK);
    constexpr float kSmall = 1e-3f;
    constexpr int kSteps = 300;
    // Half a step of a block is 1/254 of its largest element. A rank's elements of parameter 2, the
    // small vector, lie in one block.
    const auto value = [&](uint64_t element) {
      return element >> 32 != 2 ? 0 : (element & 0xffffffffu) % 33 % 11 == 0 ? 1.0f : kSmall;
    };
    double lost = 0, kept = 0;
    size_t count = 0;
    for (int step = 0; step < kSteps; step++) {
      const Sums rough = without.reduced(value, nullptr), fed = with.reduced(value, nullptr);
      count = 0;
      for (size_t k = 0; k < fed[2].size(); k++) {
        if (rough[2][k] > 0.5f) continue;
        lost += static_cast<double>(rough[2][k]);
        kept += static_cast<double>(fed[2][k]);
        count++;
      }
    }
    if (!count) return;
    // In the average over the ranks a rank's own part is exact, and that of the others is lost.
    const double whole = static_cast<double>(count) * kSteps * static_cast<double>(kSmall);
    EXPECT_NEAR(lost, whole / self.ranks, 0.01 * whole);
    EXPECT_NEAR(kept, whole, 0.03 * whole);
  });
}

// Shards are dealt out anew to the ranks that stay; then one rank leaves, and the others go on with
// units of their own. Units of the old communicator and of the new one give the same results as
// units without a codec.
void goes_on_with_fewer_ranks(fsccl_codec_kind_t kind) {
  constexpr int kLeaver = 2;
  const int steps = steps_of_a_test();
  run_ranks(
      3,
      [&](Rank& self) {
        fsccl_comm_t child = nullptr, shrunk = nullptr;
        ASSERT_OK(fsccl_comm_split(self.comm, 0, 0, nullptr, &child));
        Rank inside{self.rank, self.ranks, child};
        const CodecCase c;
        std::vector<fsccl_param_t> params = params_of(c);
        const bool stays = self.rank != kLeaver;
        std::vector<fsccl_piece_t> pieces(params.size());
        if (stays) {
          ASSERT_OK(fsccl_layout_plan(c.layout, params.data(), params.size(), 2, self.rank,
                                      pieces.data(), nullptr));
        }
        std::vector<std::vector<float>> moved(params.size());
        {
          PoolScope pool(child);
          CodecUnit plain(c, inside, pool.get(), FSCCL_CODEC_NONE),
              coded(c, inside, pool.get(), kind);
          ASSERT_EQ(coded.status, FSCCL_OK);
          for (int step = 0; step < steps / 2; step++) {
            for (CodecUnit* unit : {&plain, &coded})
              unit->update([&](float value, uint64_t element) {
                return step ? trained(value, element, step) : initial(element);
              });
            expect_near(plain.gathered(), coded.gathered(), c.wire,
                        kind == FSCCL_CODEC_DELTA ? 0 : 0.0079);
          }
          std::vector<fsccl_redistributed_t> buffers;
          for (size_t i = 0; i + 1 < params.size(); i++) {
            fsccl_view_t view;
            ASSERT_OK(fsccl_unit_shard(coded.get(), i, &view));
            moved[i].resize(pieces[i].count);
            buffers.push_back({i, FSCCL_FLOAT32, view.data, moved[i].data()});
          }
          fsccl_redistribute_config_t config = FSCCL_REDISTRIBUTE_CONFIG_INIT;
          config.params = params.data();
          config.count = params.size();
          config.from = {c.layout, 3, self.rank};
          config.to = {c.layout, 2, stays ? self.rank : FSCCL_NO_SHARD};
          ASSERT_OK(fsccl_redistribute(&config, buffers.data(), buffers.size(), child, nullptr));
          ASSERT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
        }
        if (!stays) {
          EXPECT_OK(fsccl_comm_destroy(child));
          EXPECT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
          return;
        }
        fsccl_status_t status = FSCCL_OK;
        while (status >= 0) status = fsccl_barrier(child, nullptr, nullptr);
        ASSERT_EQ(status, FSCCL_ERR_PEER_DEAD) << explain(status);
        ASSERT_OK(fsccl_comm_shrink(child, nullptr, &shrunk));
        Rank left{self.rank, 2, shrunk};
        {
          PoolScope pool(shrunk);
          CodecUnit plain(c, left, pool.get(), FSCCL_CODEC_NONE), coded(c, left, pool.get(), kind);
          ASSERT_EQ(coded.status, FSCCL_OK);
          for (CodecUnit* unit : {&plain, &coded})
            for (size_t i = 0; i + 1 < params.size(); i++) {
              fsccl_view_t view;
              ASSERT_OK(fsccl_unit_shard(unit->get(), i, &view));
              ASSERT_EQ(view.count, moved[i].size());
              std::copy(moved[i].begin(), moved[i].end(), static_cast<float*>(view.data));
              ASSERT_OK(fsccl_unit_mark_changed(unit->get()));
            }
          for (int step = steps / 2; step < steps; step++) {
            expect_near(plain.gathered(), coded.gathered(), c.wire,
                        kind == FSCCL_CODEC_DELTA ? 0 : 0.0079);
            for (CodecUnit* unit : {&plain, &coded})
              unit->update(
                  [&](float value, uint64_t element) { return trained(value, element, step); });
          }
          EXPECT_TRUE(!hosts_given() || coded.report().coded > coded.report().plain);
        }
        EXPECT_OK(fsccl_comm_destroy(shrunk));
        EXPECT_OK(fsccl_comm_destroy(child));
        EXPECT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
      },
      {.hosts = hosts_given() ? std::vector<int>{0, 1, 1} : std::vector<int>{}});
}

TEST(ShrinkWithACodec, Delta) { goes_on_with_fewer_ranks(FSCCL_CODEC_DELTA); }
TEST(ShrinkWithACodec, Int8) { goes_on_with_fewer_ranks(FSCCL_CODEC_INT8); }

}  // namespace
}  // namespace fsccl::testing
