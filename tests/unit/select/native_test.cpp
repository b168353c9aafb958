// Tests the choice of the algorithm for collectives on memory of GPUs.
#include "select/native.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/config.h"
#include "tests/unit/select/with_rules.h"

namespace fsccl {
namespace {

constexpr std::string_view kNo = "it is not there";

NativeCall by_nccl(OpCode op, uint64_t bytes) {
  NativeCall call{op, bytes, 8, true, true, {}};
  call.obstacles[static_cast<size_t>(NativeAlgorithm::exchanged)] = kNo;
  return call;
}

NativeCall without(NativeCall call, NativeAlgorithm algorithm) {
  call.obstacles[static_cast<size_t>(algorithm)] = kNo;
  return call;
}

TEST(Native, NcclIsTheCheapestWhereItMayBeTaken) {
  for (const OpCode op : {OpCode::all_gather, OpCode::all_reduce, OpCode::reduce_scatter})
    for (const uint64_t bytes : {uint64_t{8}, uint64_t{1} << 20, uint64_t{1} << 34})
      EXPECT_EQ(choose_native(by_nccl(op, bytes), {}), NativeAlgorithm::nccl)
          << op_name(op) << bytes;
}

TEST(Native, AWayWithAnObstacleIsNotTaken) {
  NativeCall call = without(by_nccl(OpCode::all_reduce, 1 << 20), NativeAlgorithm::nccl);
  EXPECT_EQ(choose_native(call, {}), NativeAlgorithm::summed);
  call = without(call, NativeAlgorithm::summed);
  EXPECT_EQ(choose_native(call, {}), NativeAlgorithm::staged);
}

// An exchange by UCX makes the caller wait, but takes less time than two copies and an operation on
// the host.
TEST(Native, AnExchangeIsBetterThanTheHost) {
  NativeCall call{OpCode::reduce_scatter, 1 << 20, 2, false, false, {}};
  call = without(without(call, NativeAlgorithm::nccl), NativeAlgorithm::exchanged);
  for (const uint64_t bytes : {uint64_t{8}, uint64_t{1} << 20, uint64_t{1} << 30}) {
    call.bytes = bytes;
    EXPECT_EQ(choose_native(call, {}), NativeAlgorithm::summed) << bytes;
  }
}

TEST(Native, ARuleNamesTheWay) {
  const SelectOptions options = with_rules("all_reduce:1M-=summed, all_reduce=slots");
  EXPECT_EQ(choose_native(by_nccl(OpCode::all_reduce, 1 << 20), options), NativeAlgorithm::summed);
  EXPECT_EQ(choose_native(by_nccl(OpCode::all_reduce, 1 << 10), options), NativeAlgorithm::nccl)
      << "the second rule is of host memory";
  EXPECT_EQ(choose_native(by_nccl(OpCode::all_gather, 1 << 20), options), NativeAlgorithm::nccl);
}

TEST(Native, ARuleDoesNotLiftAnObstacle) {
  const SelectOptions options = with_rules("all_reduce=nccl");
  const NativeCall call = without(by_nccl(OpCode::all_reduce, 1 << 20), NativeAlgorithm::nccl);
  const NativeChoice choice = explain_native(call, options);
  EXPECT_EQ(choice.algorithm, NativeAlgorithm::summed);
  EXPECT_THAT(choice.why, ::testing::AllOf(::testing::HasSubstr("FSCCL_PLAN is not followed"),
                                           ::testing::HasSubstr(std::string(kNo))));
}

// If a tuning file has the time, that is the price, for groups of ranks like those that measured
// it.
TEST(Native, MeasuredTimesTakeThePlaceOfConstants) {
  const NativeCall call = by_nccl(OpCode::all_reduce, 1 << 20);
  SelectOptions options;
  options.host_shape = {1, 8};
  options.native = std::make_shared<const std::vector<NativePrice>>(std::vector<NativePrice>{
      {OpCode::all_reduce, 1, 8, Algorithm::nccl, {{4096, 1e9}}},
      {OpCode::all_reduce, 1, 8, Algorithm::summed, {{4096, 1000}, {1 << 21, 9000}}}});
  EXPECT_EQ(choose_native(call, options), NativeAlgorithm::summed);
  const NativeChoice choice = explain_native(call, options);
  EXPECT_TRUE(choice.candidates[static_cast<size_t>(NativeAlgorithm::summed)].measured);
  EXPECT_FALSE(choice.candidates[static_cast<size_t>(NativeAlgorithm::staged)].measured);
  options.host_shape = {1, 4};
  EXPECT_EQ(choose_native(call, options), NativeAlgorithm::nccl) << "other ranks";
}

TEST(Native, MeasuredTimesAreOnLinesBetweenSizes) {
  const NativePrice price{OpCode::all_reduce, 1, 2, Algorithm::nccl, {{100, 10}, {200, 30}}};
  EXPECT_DOUBLE_EQ(price.at(0), 10);
  EXPECT_DOUBLE_EQ(price.at(100), 10);
  EXPECT_DOUBLE_EQ(price.at(150), 20);
  EXPECT_DOUBLE_EQ(price.at(200), 30);
  EXPECT_DOUBLE_EQ(price.at(400), 70);
  const NativePrice one{OpCode::all_reduce, 1, 2, Algorithm::nccl, {{100, 10}}};
  EXPECT_DOUBLE_EQ(one.at(50), 10);
  EXPECT_DOUBLE_EQ(one.at(1000), 100);
}

TEST(Native, ExplainsEachCandidate) {
  const NativeChoice choice = explain_native(by_nccl(OpCode::all_reduce, 1 << 20), {});
  size_t chosen = 0;
  for (const NativeCandidate& one : choice.candidates) {
    chosen += one.chosen;
    EXPECT_GT(one.ns, 0) << kNativeNames[static_cast<size_t>(one.algorithm)];
  }
  EXPECT_EQ(chosen, 1u);
  EXPECT_EQ(choice.candidates[static_cast<size_t>(NativeAlgorithm::exchanged)].obstacle, kNo);
}

// Rules for memory of hosts do not apply to memory of GPUs, nor the other way round.
TEST(Native, RulesOfHostsDoNotSeeThoseOfGpus) {
  const std::vector<Rule> rules =
      parse_rules("all_gather=nccl, all_gather=by_hosts, all_gather=slots", "test").take();
  const RuledCall call{OpCode::all_gather, 100, {}};
  EXPECT_EQ(rule_of_device(rules, call)->algorithm, Algorithm::nccl);
  EXPECT_EQ(rule_of_hosts(rules, call)->algorithm, Algorithm::by_hosts);
  EXPECT_EQ(rule_of_plan(rules, call)->algorithm, Algorithm::slots);
  EXPECT_FALSE(parse_rule("all_gather=nccl/64K").ok()) << "it goes in no pieces";
  EXPECT_FALSE(parse_rule("all_gather=summed").ok()) << "nothing is summed";
}

}  // namespace
}  // namespace fsccl
