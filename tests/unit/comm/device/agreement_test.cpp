// Tests the decision about collectives on GPUs, which every rank makes from the terms of all ranks.
#include "comm/device/agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

namespace fsccl {
namespace {

using ::testing::HasSubstr;

std::vector<DeviceTerms> ranks_with_nccl(size_t ranks) {
  std::vector<DeviceTerms> terms(ranks);
  for (size_t rank = 0; rank < ranks; rank++) {
    terms[rank].version = 22809;
    terms[rank].driver = 13000;
    terms[rank].has_windows = terms[rank].has_all_to_all = terms[rank].has_revoke =
        terms[rank].kernels = 1;
    terms[rank].device[0] = static_cast<unsigned char>(rank);
  }
  return terms;
}

// Decides for ranks that are all on one host.
Result<DeviceDecision> decide(const std::vector<DeviceTerms>& terms) {
  return fsccl::decide(terms, std::vector<uint64_t>(terms.size(), 7));
}

TEST(DeviceAgreement, NcclWhereAllCan) {
  const DeviceDecision decision = decide(ranks_with_nccl(4)).take();
  EXPECT_TRUE(decision.nccl && decision.kernels) << decision.why;
  EXPECT_EQ(decision.ranks_on_gpu, 1);
  EXPECT_EQ(decision.facts.version, 22809);
}

TEST(DeviceAgreement, WhatOneRankLacksNobodyHas) {
  std::vector<DeviceTerms> terms = ranks_with_nccl(3);
  terms[1].has_windows = terms[2].kernels = 0;
  terms[2].driver = 12040;
  const DeviceDecision decision = decide(terms).take();
  EXPECT_TRUE(decision.nccl);
  EXPECT_FALSE(decision.facts.has_windows);
  EXPECT_FALSE(decision.kernels);
  EXPECT_EQ(decision.facts.driver, 12040);
}

TEST(DeviceAgreement, StagedAndWhy) {
  std::vector<DeviceTerms> terms = ranks_with_nccl(2);
  terms[1].version = 0;
  std::strcpy(terms[1].why, "NCCL is not installed");
  EXPECT_EQ(decide(terms).value().why, "rank 1: NCCL is not installed");
  std::memset(terms[1].why, 'x', sizeof terms[1].why);  // the text has no end
  EXPECT_FALSE(decide(terms).value().nccl);

  terms = ranks_with_nccl(2);
  terms[1].version = 22907;
  std::strcpy(terms[0].host, "here");
  std::memset(terms[1].host, 'y', sizeof terms[1].host);
  EXPECT_THAT(decide(terms).value().why,
              HasSubstr("2.28.9 on rank 0 (here); 2.29.7 on rank 1 (yyy"));
  terms[0].version = terms[1].version = 21805;
  EXPECT_THAT(decide(terms).value().why, HasSubstr("this needs 2.19"));
}

TEST(DeviceAgreement, NotWithANcclThatIsToldToBlock) {
  std::vector<DeviceTerms> terms = ranks_with_nccl(2);
  terms[1].blocks = 1;
  EXPECT_FALSE(decide(terms).value().nccl);
  EXPECT_THAT(decide(terms).value().why, HasSubstr("rank 1: NCCL_COMM_BLOCKING is 1"));
  for (DeviceTerms& one : terms) one.choice = static_cast<int32_t>(DeviceTransport::kNccl);
  EXPECT_THAT(decide(terms).status().text(), HasSubstr("unset it"));
}

TEST(DeviceAgreement, OneGpuForTwoRanks) {
  std::vector<DeviceTerms> terms = ranks_with_nccl(3);
  terms[2].device[0] = 1;
  EXPECT_THAT(decide(terms).value().why, HasSubstr("ranks 1 and 2 are on one GPU"));
  EXPECT_EQ(decide(terms).value().ranks_on_gpu, 2);
  terms[1].nccl_host = 5, terms[2].nccl_host = 7;
  EXPECT_TRUE(decide(terms).value().nccl);
  terms[1].nccl_host = terms[2].nccl_host = 0;
  for (DeviceTerms& one : terms) one.shares_gpus = 1;
  EXPECT_FALSE(decide(terms).value().nccl);  // NCCL before 2.30 cannot share GPUs
  for (DeviceTerms& one : terms) one.version = 23006;
  EXPECT_TRUE(decide(terms).value().nccl);
}

TEST(DeviceAgreement, HostsAreThoseThatNcclTellsApart) {
  std::vector<DeviceTerms> terms = ranks_with_nccl(3);
  EXPECT_EQ(fsccl::decide(terms, {7, 7, 7}).value().facts.hosts, 1);
  EXPECT_EQ(fsccl::decide(terms, {7, 8, 7}).value().facts.hosts, 2);
  terms[2].nccl_host = 5;
  EXPECT_EQ(fsccl::decide(terms, {7, 7, 7}).value().facts.hosts, 2);
  terms[1].nccl_host = 5;
  EXPECT_EQ(fsccl::decide(terms, {7, 8, 9}).value().facts.hosts, 2);
}

TEST(DeviceAgreement, SettingsAreAlikeAndKept) {
  std::vector<DeviceTerms> terms = ranks_with_nccl(2);
  terms[1].choice = static_cast<int32_t>(DeviceTransport::kStaged);
  EXPECT_EQ(decide(terms).status().code(), FSCCL_ERR_MISMATCH);
  EXPECT_THAT(decide(terms).status().text(),
              HasSubstr("rank 1 has FSCCL_DEVICE_TRANSPORT staged, rank 0 has auto"));
  terms[0].choice = terms[1].choice;
  EXPECT_FALSE(decide(terms).value().nccl);
  for (DeviceTerms& one : terms) one.choice = static_cast<int32_t>(DeviceTransport::kNccl);
  EXPECT_TRUE(decide(terms).value().nccl);
  terms[1].version = 0;
  EXPECT_EQ(decide(terms).status().code(), FSCCL_ERR_NOT_AVAILABLE);
  terms = ranks_with_nccl(2);
  terms[0].reproducible = 1;
  EXPECT_EQ(decide(terms).status().code(), FSCCL_ERR_MISMATCH);
}

std::vector<ExchangeTerms> ranks_with_ucx(size_t ranks) {
  std::vector<ExchangeTerms> terms(ranks);
  for (ExchangeTerms& one : terms) one.version = 1 << 16 | 18;
  return terms;
}

TEST(DeviceAgreement, UcxIsAskedWhereNcclIsNotWanted) {
  std::string why;
  for (const DeviceTransport asked :
       {DeviceTransport::kAuto, DeviceTransport::kP2p, DeviceTransport::kUcx}) {
    DeviceDecision decision;
    decision.asked = asked;
    EXPECT_TRUE(tries_exchange(decision, &why));
  }
  for (const DeviceTransport asked : {DeviceTransport::kNccl, DeviceTransport::kStaged}) {
    DeviceDecision decision;
    decision.asked = asked;
    EXPECT_FALSE(tries_exchange(decision, &why));
    EXPECT_THAT(why, HasSubstr("FSCCL_DEVICE_TRANSPORT is "));
  }
  std::vector<DeviceTerms> terms = ranks_with_nccl(2);
  for (DeviceTerms& one : terms) one.choice = static_cast<int32_t>(DeviceTransport::kUcx);
  EXPECT_FALSE(decide(terms).value().nccl);
  EXPECT_EQ(decide(terms).value().why, "FSCCL_DEVICE_TRANSPORT is ucx");
}

TEST(DeviceAgreement, UcxWhereAllHaveTheSameForGpus) {
  constexpr auto kAuto = DeviceTransport::kAuto, kUcx = DeviceTransport::kUcx;
  std::vector<ExchangeTerms> terms = ranks_with_ucx(3);
  EXPECT_EQ(obstacle_to_exchange(terms, {7, 7, 7}, kAuto), "");
  // The exchange needs RDMA between hosts, or a setting that asks for it.
  EXPECT_THAT(obstacle_to_exchange(terms, {7, 7, 8}, kAuto),
              HasSubstr("rank 0 has no device for RDMA"));
  EXPECT_EQ(obstacle_to_exchange(terms, {7, 7, 8}, kUcx), "");
  for (ExchangeTerms& one : terms) one.rdma = 1;
  EXPECT_EQ(obstacle_to_exchange(terms, {7, 7, 8}, kAuto), "");
  terms[1].version = 1 << 16 | 19;
  EXPECT_EQ(obstacle_to_exchange(terms, {7, 7, 7}, kUcx), "rank 1 has UCX 1.19, rank 0 1.18");
  terms[2].version = 0;
  std::memset(terms[2].why, 'z', sizeof terms[2].why);  // the text has no end
  terms[1].version = terms[0].version;
  EXPECT_EQ(obstacle_to_exchange(terms, {7, 7, 7}, kUcx),
            "rank 2: " + std::string(sizeof terms[2].why, 'z'));
}

}  // namespace
}  // namespace fsccl
