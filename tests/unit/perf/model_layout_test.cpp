// Tests the ragged layout for units of large models, through the public function. The padding is
// within a hundredth of the bound max(N / W, largest block, b * ceil(B / W)) * W, which the test
// computes from the shapes, for single elements and for blocks of 32 x 32. The numbers of elements
// are checked, too, to make sure that the shapes are those of the models.
#include <fsccl/fsccl.h>
#include <fsccl/insight.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <string>
#include <vector>

#include "perf/model.h"

namespace fsccl::perf {
namespace {

struct Named {
  const char *model, *unit;
  uint64_t elements;
};

class ModelLayouts : public ::testing::TestWithParam<Named> {
 protected:
  void SetUp() override {
    std::string error;
    const auto model = load_model(GetParam().model, {FSCCL_MODELS}, &error);
    ASSERT_TRUE(model) << error;
    const auto unit = std::find_if(model->units.begin(), model->units.end(),
                                   [](const auto& one) { return one.name == GetParam().unit; });
    ASSERT_NE(unit, model->units.end());
    unit_ = *unit;
    ASSERT_EQ(unit_.elements(), GetParam().elements);
  }
  // Returns the parameters. Matrices have blocks of `side` x `side`, and vectors can be cut
  // anywhere.
  std::vector<fsccl_param_t> params(uint64_t side) const {
    std::vector<fsccl_param_t> list;
    for (const ModelParam& given : unit_.params) {
      fsccl_param_t param = FSCCL_PARAM_INIT;
      param.dims = static_cast<int>(given.dims.size());
      std::copy(given.dims.begin(), given.dims.end(), param.shape);
      if (param.dims > 1) param.block_rows = param.block_columns = side;
      list.push_back(param);
    }
    return list;
  }
  // Returns the padding that no plan can avoid, as a fraction of N.
  double bound(uint64_t side, int world) const {
    uint64_t full = 0;
    for (const ModelParam& param : unit_.params) {
      if (param.dims.size() < 2) continue;
      const auto columns = static_cast<uint64_t>(param.dims.back()),
                 rows = static_cast<uint64_t>(param.dims[param.dims.size() - 2]);
      full += param.elements() / (rows * columns) * (rows / side) * (columns / side);
    }
    const auto n = static_cast<double>(unit_.elements()), w = static_cast<double>(world);
    const double block = static_cast<double>(side * side),
                 blocks = std::ceil(static_cast<double>(full) / w);
    return std::max({n / w, full > 0 ? block : 0, block * blocks}) * w / n - 1;
  }
  ModelUnit unit_;
};

TEST_P(ModelLayouts, PadLittleMoreThanTheyMust) {
  for (const uint64_t side : {1, 32})
    for (const int world : {64, 128, 256, 512, 1024, 2048, 4096}) {
      const auto list = params(side);
      fsccl_layout_stats_t stats = FSCCL_LAYOUT_STATS_INIT;
      ASSERT_EQ(fsccl_layout_plan(FSCCL_LAYOUT_RAGGED, list.data(), list.size(), world,
                                  FSCCL_ALL_RANKS, nullptr, &stats),
                FSCCL_OK);
      const auto n = static_cast<double>(stats.elements);
      ASSERT_EQ(stats.elements, GetParam().elements);
      EXPECT_EQ(stats.padding, static_cast<uint64_t>(world) * stats.largest_shard - stats.elements);
      EXPECT_LE(static_cast<double>(stats.padding) / n, bound(side, world) + 0.01)
          << "block " << side << ", world " << world;
      EXPECT_GE(static_cast<double>(stats.padding) / n, bound(side, world) - 1e-12);
      EXPECT_NEAR(static_cast<double>(stats.padding_bound) / n, bound(side, world), 1e-12);
      if (side == 1) {
        EXPECT_LT(stats.padding, static_cast<uint64_t>(world));
      }
    }
}

INSTANTIATE_TEST_SUITE_P(Units, ModelLayouts,
                         ::testing::Values(Named{"llama-3-8b", "layers.0", 218'112'000},
                                           Named{"llama-3-70b", "layers.0", 855'654'400},
                                           Named{"qwen2.5-7b", "layers.0", 233'057'792},
                                           Named{"deepseek-v3", "layers.0", 583'483'392},
                                           Named{"deepseek-v3", "layers.3.attention", 232'997'120},
                                           Named{"deepseek-v3", "layers.3.experts", 11'274'289'152},
                                           Named{"gpt-oss-120b", "layers.0.experts",
                                                 3'186'155'520}),
                         [](const auto& named) {
                           std::string name =
                               std::string(named.param.model) + "_" + named.param.unit;
                           for (char& c : name)
                             if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
                           return name;
                         });

fsccl_param_t matrix(int64_t rows, int64_t columns, uint64_t block_rows = 0,
                     uint64_t block_columns = 0) {
  fsccl_param_t param = FSCCL_PARAM_INIT;
  param.dims = 2;
  param.shape[0] = rows;
  param.shape[1] = columns;
  param.block_rows = block_rows;
  param.block_columns = block_columns;
  return param;
}

TEST(LayoutPlan, GivesThePiecesOfOneRankOrOfAll) {
  std::vector<fsccl_param_t> list = {matrix(6, 6, 2, 3), matrix(5, 2), matrix(6, 6, 2, 3)};
  list[2].tied_to = 0;
  std::vector<fsccl_piece_t> all(4 * list.size()), one(list.size());
  ASSERT_EQ(fsccl_layout_plan(FSCCL_LAYOUT_RAGGED, list.data(), list.size(), 4, FSCCL_ALL_RANKS,
                              all.data(), nullptr),
            FSCCL_OK);
  uint64_t sum[3] = {};
  for (int rank = 0; rank < 4; ++rank) {
    ASSERT_EQ(fsccl_layout_plan(FSCCL_LAYOUT_RAGGED, list.data(), list.size(), 4, rank, one.data(),
                                nullptr),
              FSCCL_OK);
    for (size_t i = 0; i < list.size(); ++i) {
      const fsccl_piece_t& piece = all[static_cast<size_t>(rank) * list.size() + i];
      EXPECT_EQ(one[i].begin, piece.begin);
      EXPECT_EQ(one[i].count, piece.count);
      if (piece.count > 0) {
        EXPECT_EQ(piece.begin, sum[i]);
      }
      sum[i] += piece.count;
    }
  }
  EXPECT_EQ(sum[0], 36u);
  EXPECT_EQ(sum[1], 10u);
  EXPECT_EQ(sum[2], 36u);
  fsccl_layout_stats_t stats = FSCCL_LAYOUT_STATS_INIT;
  ASSERT_EQ(fsccl_layout_plan(FSCCL_LAYOUT_RAGGED, list.data(), list.size(), 4, 0, nullptr, &stats),
            FSCCL_OK);
  EXPECT_EQ(stats.elements, 46u);
  // There are six blocks of 6 elements, and 10 elements. Two ranks have two blocks, and two have a
  // block and 5 elements.
  EXPECT_EQ(stats.largest_shard, 12u);
  EXPECT_EQ(stats.padding, 2u);
  EXPECT_EQ(stats.padding_bound, 2u);
}

TEST(LayoutPlan, RefusesWithAdvice) {
  const fsccl_param_t good = matrix(4, 4), blocks = matrix(4, 4, 2, 2);
  fsccl_param_t wide = good;
  wide.dims = 9;
  fsccl_layout_stats_t stats{};
  fsccl_piece_t piece;
  const auto refused = [](fsccl_status_t status, const char* word) {
    EXPECT_EQ(status, FSCCL_ERR_INVALID_ARGUMENT);
    fsccl_error_info_t info = FSCCL_ERROR_INFO_INIT;
    ASSERT_EQ(fsccl_last_error(&info), FSCCL_OK);
    EXPECT_NE(std::string(info.text).find(word), std::string::npos) << info.text;
  };
  refused(fsccl_layout_plan(FSCCL_LAYOUT_RAGGED, nullptr, 1, 2, 0, &piece, nullptr), "parameters");
  refused(fsccl_layout_plan(FSCCL_LAYOUT_RAGGED, &good, 0, 2, 0, &piece, nullptr), "parameters");
  refused(fsccl_layout_plan(FSCCL_LAYOUT_RAGGED, &wide, 1, 2, 0, &piece, nullptr), "dims is 9");
  refused(fsccl_layout_plan(FSCCL_LAYOUT_RAGGED, &good, 1, 0, 0, &piece, nullptr), "ranks is 0");
  refused(fsccl_layout_plan(FSCCL_LAYOUT_RAGGED, &good, 1, 2'000'000, 0, &piece, nullptr),
          "1048576");
  refused(fsccl_layout_plan(FSCCL_LAYOUT_RAGGED, &good, 1, 2, 2, &piece, nullptr), "rank is 2");
  refused(fsccl_layout_plan(FSCCL_LAYOUT_RAGGED, &good, 1, 2, 0, nullptr, &stats), "INIT");
  refused(fsccl_layout_plan(FSCCL_LAYOUT_FLAT, &blocks, 1, 2, 0, &piece, nullptr),
          "FSCCL_LAYOUT_RAGGED");
}

}  // namespace
}  // namespace fsccl::perf
