// Tests the grammar of rules, and which rule counts for a call.
#include "select/rules.h"

#include <gtest/gtest.h>

#include <random>

namespace fsccl::testing {
namespace {

TEST(Rules, WhatTheySay) {
  const auto rules = parse_rules(
      " all_gather@2x4:64K-1M=slots/32K,all_reduce = all_reduce_small_slots , "
      "send=broadcast_balanced,"
      "broadcast@*x2:-4096=by_hosts, reduce:1M-=balanced",
      "here");
  EXPECT_FALSE(rules.ok());
  EXPECT_NE(rules.status().text().find("\"balanced\" is not one of slots, small_slots, direct"),
            std::string::npos)
      << rules.status().text();
  const auto good = parse_rules(
      " all_gather@2x4:64K-1M=slots/32K,all_reduce = all_reduce_small_slots , "
      "send=broadcast_balanced,"
      "broadcast@*x2:-4096=by_hosts, reduce:1M-=direct",
      "here");
  ASSERT_TRUE(good.ok()) << good.status().text();
  const std::vector<Rule>& all = good.value();
  ASSERT_EQ(all.size(), 5u);
  EXPECT_TRUE(all[0].op == OpCode::all_gather && all[0].algorithm == Algorithm::slots &&
              all[0].chunk == 32u << 10);
  EXPECT_TRUE(all[0].from == 64u << 10 && all[0].to == 1u << 20 && all[0].hosts == 2 &&
              all[0].per_host == 4);
  EXPECT_TRUE(all[1].algorithm == Algorithm::small_slots && all[1].from == 0 &&
              all[1].to == UINT64_MAX && all[1].hosts == 0);
  EXPECT_TRUE(all[2].op == OpCode::send && all[2].algorithm == Algorithm::direct);
  EXPECT_TRUE(all[3].algorithm == Algorithm::by_hosts && all[3].to == 4096 && all[3].hosts == 0 &&
              all[3].per_host == 2);
  EXPECT_TRUE(all[4].from == 1u << 20 && all[4].to == UINT64_MAX);
  EXPECT_EQ(all[0].origin, "here");
  EXPECT_TRUE(parse_rules("", "here").value().empty());
}

TEST(Rules, ErrorsSayWhatIsAccepted) {
  const std::pair<const char*, const char*> kCases[] = {
      {"all_gather", "has no \"=\""},
      {"allgather=slots", "operation \"allgather\" is not one of all_gather, reduce_scatter"},
      {"barrier=slots", "is not one of"},
      {"all_gather=ring",
       "plan \"ring\" is not one of slots, direct, read, 2_steps, 3_steps, 4_steps, by_hosts, "
       "flat, "
       "nccl, ucx, staged"},
      {"gather=by_hosts", "is not one of slots, direct, read"},
      {"all_gather=slots/100", "multiple of 64"},
      {"all_gather=slots/2G", "from 4K to 1G"},
      {"all_gather=by_hosts/4K", "by_hosts does not go in pieces"},
      {"all_gather:64K=slots", "\"64K\" is not FROM-TO"},
      {"all_gather:2M-1M=slots", "is not FROM-TO"},
      {"all_gather:x-=slots", "is not FROM-TO"},
      {"all_gather@2=slots", "\"2\" is not HOSTSxRANKS"},
      {"all_gather@0x2=slots", "is not HOSTSxRANKS"},
      {"all_gather=slots,", "none"},
      {"all_gather=slots,,all_gather=slots", "has no \"=\""},
  };
  for (const auto& [text, expected] : kCases) {
    const auto rules = parse_rules(text, "FSCCL_PLAN");
    const std::string problem = rules.ok() ? "none" : rules.status().text();
    EXPECT_NE(problem.find(expected), std::string::npos) << text << "\n" << problem;
    EXPECT_TRUE(rules.ok() || problem.starts_with("FSCCL_PLAN: rule ")) << problem;
  }
}

TEST(Rules, TheFirstThatFitsCounts) {
  const std::vector<Rule> rules = parse_rules(
                                      "all_gather@2x2=by_hosts, all_gather@1x*:1K-4K=slots/16K, "
                                      "all_gather=direct, all_reduce=flat",
                                      "here")
                                      .take();
  const auto plan = [&](OpCode op, uint64_t bytes, HostShape host_shape) {
    return rule_of_plan(rules, {op, bytes, host_shape});
  };
  const auto hosts = [&](OpCode op, uint64_t bytes, HostShape host_shape) {
    return rule_of_hosts(rules, {op, bytes, host_shape});
  };
  EXPECT_EQ(plan(OpCode::all_gather, 1024, {1, 2}), &rules[1]);
  EXPECT_EQ(plan(OpCode::all_gather_v, 4096, {1, 7}), &rules[1]) << "the uneven form too";
  EXPECT_EQ(plan(OpCode::all_gather, 4097, {1, 2}), &rules[2]);
  EXPECT_EQ(plan(OpCode::all_gather, 1023, {1, 2}), &rules[2]);
  EXPECT_EQ(plan(OpCode::all_gather, 1024, {2, 2}), &rules[2])
      << "by_hosts says nothing of the plan";
  EXPECT_EQ(hosts(OpCode::all_gather, 1024, {2, 2}), &rules[0]);
  EXPECT_EQ(hosts(OpCode::all_gather, 1024, {2, 0}), &rules[2])
      << "hosts that differ have no such number";
  EXPECT_EQ(plan(OpCode::all_reduce, 1, {1, 2}), nullptr);
  EXPECT_EQ(hosts(OpCode::all_reduce, 1, {1, 2}), &rules[3]);
  EXPECT_EQ(hosts(OpCode::broadcast, 1, {1, 2}), nullptr);
}

TEST(Rules, BytesThatAreNoRules) {
  std::mt19937 random(11);
  const std::string whole =
      "all_gather@2x4:64K-1M=slots/32K, all_reduce=by_hosts, broadcast@*x2:-4096=balanced/64K";
  for (int i = 0; i < 5000; i++) {
    std::string text = whole;
    for (int k = 0; k < 1 + i % 4; k++)
      text[random() % text.size()] = static_cast<char>(random() % 256);
    if (i % 3 == 0) text.resize(random() % text.size());
    const auto rules = parse_rules(text, "FSCCL_PLAN");
    EXPECT_TRUE(rules.ok() || rules.status().text().starts_with("FSCCL_PLAN: rule ")) << text;
  }
}

}  // namespace
}  // namespace fsccl::testing
