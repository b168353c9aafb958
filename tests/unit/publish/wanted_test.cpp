// Tests how the wishes of subscribers are matched with publications. Each element comes from one
// rank, once, for all layouts and numbers of ranks. Errors name what does not fit.
#include "publish/wanted.h"
#include "fsccl/redistribute.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <vector>

namespace fsccl::publish {
namespace {

using ::testing::HasSubstr;

Catalog catalog_of(fsccl_layout_t layout, int ranks) {
  Catalog catalog;
  catalog.layout = layout;
  catalog.addresses.resize(static_cast<size_t>(ranks));
  catalog.unit_params = {3, 1};
  catalog.params = {{"a", {{7, 5}}, FSCCL_BFLOAT16},
                    {"b", {{}}, FSCCL_BFLOAT16},
                    {"tied", {{7, 5}, 0}, FSCCL_BFLOAT16},
                    {"c", {{13, 2}}, FSCCL_FLOAT32}};
  return catalog;
}

std::vector<WantedParam> wanted_of(std::vector<std::vector<uint32_t>>& memory) {
  memory = {std::vector<uint32_t>(26), std::vector<uint32_t>(35), std::vector<uint32_t>(35)};
  return {{"c", {{13, 2}}, FSCCL_FLOAT32, memory[0].data()},
          {"a", {{7, 5}}, FSCCL_FLOAT32, memory[1].data()},
          {"tied", {{7, 5}}, FSCCL_FLOAT32, memory[2].data()}};
}

TEST(Wanted, EveryElementComesOnceFromWhoeverHasIt) {
  const fsccl_layout_t all[] = {FSCCL_LAYOUT_FLAT, FSCCL_LAYOUT_PER_PARAM, FSCCL_LAYOUT_RAGGED};
  for (const fsccl_layout_t from : all)
    for (const fsccl_layout_t to : all)
      for (const int publishing : {1, 2, 3, 16})
        for (const int parts : {1, 3}) {
          std::map<uint32_t*, int> times;
          std::vector<std::vector<uint32_t>> memory;
          for (int part = 0; part < parts; part++) {
            // Each part has memory of its own for whole parameters, and its pieces begin there.
            const std::vector<WantedParam> params = wanted_of(memory);
            const Result<Wanted> made =
                match(catalog_of(from, publishing), params, {to, parts, part});
            ASSERT_TRUE(made.ok()) << made.status().text();
            uint64_t elements = 0;
            for (const auto& rank : made.value().ranks)
              for (const Delivery& one : rank.deliveries) {
                EXPECT_LE(one.begin + one.count, one.piece.count);
                for (uint64_t i = 0; i < one.count; i++) {
                  elements++;
                  EXPECT_EQ(++times[static_cast<uint32_t*>(one.to) + i], 1);
                }
              }
            times.clear();
            if (parts == 1) {
              EXPECT_EQ(elements, 26u + 35 + 35);
            }
          }
        }
}

TEST(Wanted, WhatDoesNotFitIsNamed) {
  const Catalog catalog = catalog_of(FSCCL_LAYOUT_PER_PARAM, 2);
  const fsccl_sharding_t whole{FSCCL_LAYOUT_PER_PARAM, 1, 0};
  uint32_t memory[64] = {};
  const auto text_of = [&](const WantedParam& param) {
    const Result<Wanted> made = match(catalog, {param}, whole);
    return made.ok() ? std::string() : made.status().text();
  };
  EXPECT_THAT(text_of({"d", {{3}}, FSCCL_FLOAT32, memory}), HasSubstr("'d' is not published"));
  EXPECT_THAT(text_of({"d", {{3}}, FSCCL_FLOAT32, memory}),
              ::testing::Not(HasSubstr("names must be equal")));
  EXPECT_THAT(text_of({"module.a", {{3}}, FSCCL_FLOAT32, memory}),
              HasSubstr("none of this name; it has 'a': names must be equal"));
  EXPECT_THAT(text_of({"a", {{5, 7}}, FSCCL_FLOAT32, memory}), HasSubstr("5 x 7"));
  EXPECT_THAT(text_of({"c", {{13, 2}}, FSCCL_INT32, memory}), HasSubstr("only floats"));
  EXPECT_THAT(text_of({"a", {{7, 5}}, FSCCL_FLOAT32, nullptr}), HasSubstr("NULL"));
  EXPECT_EQ(match(catalog, {{"a", {{7, 5}}, FSCCL_FLOAT32, memory}}, {FSCCL_LAYOUT_PER_PARAM, 2, 2})
                .status()
                .code(),
            FSCCL_ERR_INVALID_ARGUMENT);
}

// Units may have parameters of one name. None of them is taken for the other.
TEST(Wanted, ANameOfSeveralParametersIsRefused) {
  Catalog catalog = catalog_of(FSCCL_LAYOUT_PER_PARAM, 2);
  catalog.params[3] = {"a", {{7, 5}}, FSCCL_BFLOAT16};
  const fsccl_sharding_t whole{FSCCL_LAYOUT_PER_PARAM, 1, 0};
  uint32_t memory[2][64] = {};
  const Result<Wanted> made = match(catalog, {{"a", {{7, 5}}, FSCCL_FLOAT32, memory[0]}}, whole);
  EXPECT_EQ(made.status().code(), FSCCL_ERR_MISMATCH);
  EXPECT_THAT(made.status().text(), HasSubstr("'a' is the name of several published parameters"));
  EXPECT_TRUE(match(catalog, {{"", {{7, 5}}, FSCCL_FLOAT32, memory[0]}}, whole).ok());
}

// A parameter of one dimension is one row, so its blocks do not change its order.
TEST(Wanted, BlocksOfRowsMatterForMatricesAlone) {
  Catalog catalog = catalog_of(FSCCL_LAYOUT_RAGGED, 2);
  ParamShape blocked{{7, 5}};
  blocked.block_rows = blocked.block_columns = 3;
  catalog.params = {{"a", blocked, FSCCL_BFLOAT16}};
  catalog.params.push_back({"bias", {{40}}, FSCCL_BFLOAT16});
  catalog.params[1].shape.block_rows = catalog.params[1].shape.block_columns = 8;
  catalog.unit_params = {2};
  uint32_t memory[64] = {};
  const auto wanted = [&](const char* name, std::vector<int64_t> dims) {
    return match(catalog, {{name, {std::move(dims)}, FSCCL_FLOAT32, memory}},
                 {FSCCL_LAYOUT_PER_PARAM, 1, 0})
        .status()
        .code();
  };
  EXPECT_EQ(wanted("a", {7, 5}), FSCCL_ERR_NOT_AVAILABLE);
  EXPECT_EQ(wanted("bias", {40}), FSCCL_OK);
}

// A tied parameter is delivered from the elements of its owner, whose type counts.
TEST(Wanted, ATiedParameterHasTheTypeOfItsOwner) {
  Catalog catalog = catalog_of(FSCCL_LAYOUT_PER_PARAM, 1);
  catalog.params[0].dtype = FSCCL_INT32;
  uint32_t memory[64] = {};
  const Result<Wanted> made =
      match(catalog, {{"tied", {{7, 5}}, FSCCL_FLOAT32, memory}}, {FSCCL_LAYOUT_PER_PARAM, 1, 0});
  EXPECT_EQ(made.status().code(), FSCCL_ERR_MISMATCH);
  EXPECT_THAT(made.status().text(), HasSubstr("'tied' is published as int32"));
}

// The numbers of words of these units add up to that of "w" alone, if 64 bits hold the sum.
TEST(Wanted, UnitsWhoseWordsDoNotFitANumberAreRefused) {
  Catalog catalog;
  catalog.layout = FSCCL_LAYOUT_PER_PARAM;
  catalog.addresses.resize(1);
  const int64_t most = int64_t{1} << 58, first = int64_t{1} << 38;
  catalog.params = {{"before", {{first}}, FSCCL_FLOAT64}, {"w", {{8}}, FSCCL_FLOAT64}};
  for (int i = 0; i < 15; i++) catalog.params.push_back({"", {{most}}, FSCCL_FLOAT64});
  catalog.params.push_back({"", {{most - first}}, FSCCL_FLOAT64});
  catalog.unit_params.assign(catalog.params.size(), 1);
  double memory[8] = {};
  const Result<Wanted> made =
      match(catalog, {{"w", {{8}}, FSCCL_FLOAT64, memory}}, {FSCCL_LAYOUT_PER_PARAM, 1, 0});
  EXPECT_EQ(made.status().code(), FSCCL_ERR_PROTOCOL);
  EXPECT_THAT(made.status().text(), HasSubstr("elements"));
}

// Such a catalog is not long, but its pieces would take hours and all memory.
TEST(Wanted, MorePiecesThanTheLimitAreRefused) {
  Catalog catalog;
  catalog.layout = FSCCL_LAYOUT_PER_PARAM;
  catalog.addresses.resize(1u << 16);
  catalog.params.assign(1u << 14, {"", {{1}}, FSCCL_BFLOAT16});
  catalog.unit_params.assign(1, 1u << 14);
  uint32_t memory[1] = {};
  const Result<Wanted> made =
      match(catalog, {{"", {{1}}, FSCCL_BFLOAT16, memory}}, {FSCCL_LAYOUT_PER_PARAM, 1, 0});
  EXPECT_EQ(made.status().code(), FSCCL_ERR_LIMIT);
  EXPECT_THAT(made.status().text(), HasSubstr("16384 parameters and 1 units on 65536 ranks"));
}

TEST(Wanted, ARankWithoutAnythingIsNotAsked) {
  const Catalog catalog = catalog_of(FSCCL_LAYOUT_PER_PARAM, 2);
  uint32_t memory[64] = {};
  const Result<Wanted> made =
      match(catalog, {{"a", {{7, 5}}, FSCCL_BFLOAT16, memory}}, {FSCCL_LAYOUT_PER_PARAM, 2, 1});
  ASSERT_TRUE(made.ok());
  EXPECT_TRUE(made.value().ranks[0].deliveries.empty());
  EXPECT_FALSE(made.value().ranks[1].deliveries.empty());
}

}  // namespace
}  // namespace fsccl::publish
