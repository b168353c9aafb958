// Tests which features may be used with which version of NCCL, for all versions so far, and the
// reasons that are given for the others.
#include "transports/nccl/nccl_features.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsccl::nccl {
namespace {

using ::testing::HasSubstr;

Facts best(int version) {
  Facts facts;
  facts.version = version;
  facts.has_windows = facts.has_all_to_all = facts.has_revoke = facts.peer_access =
      facts.copy_engines = true;
  facts.ranks = 8;
  facts.driver = 13000;
  return facts;
}

TEST(NcclFeatures, ByVersion) {
  struct Row {
    int version;
    bool base, windows, copy_gather, all_to_all, revoke, send_needs_window;
  };
  constexpr Row kRows[] = {
      {21805, false, false, false, false, false, true},
      {21903, true, false, false, false, false, true},
      {22005, true, false, false, false, false, true},
      {22105, true, false, false, false, false, true},
      {22203, true, false, false, false, false, true},
      {22304, true, false, false, false, false, true},
      {22403, true, false, false, false, false, true},
      {22501, true, false, false, false, false, true},
      {22602, true, false, false, false, false, true},
      {22707, true, false, false, false, false, true},
      {22803, true, false, true, true, false, true},
      {22809, true, false, true, true, true, true},
      {22907, true, true, true, true, true, false},
      {23006, true, true, true, true, true, false},
      {23101, true, true, true, true, true, false},
      {23201, true, true, true, true, true, false},
  };
  for (const Row& row : kRows) {
    const Features found = features_of(best(row.version));
    EXPECT_EQ(found.base.usable, row.base) << row.version;
    EXPECT_EQ(found.windows.usable, row.windows) << row.version;
    EXPECT_EQ(found.copy_gather.usable, row.copy_gather) << row.version;
    EXPECT_EQ(found.all_to_all.usable, row.all_to_all) << row.version;
    EXPECT_EQ(found.revoke.usable, row.revoke) << row.version;
    EXPECT_EQ(found.send_needs_window, row.send_needs_window) << row.version;
    for (const Feature* one :
         {&found.base, &found.windows, &found.copy_gather, &found.all_to_all, &found.revoke})
      EXPECT_EQ(one->why.empty(), one->usable) << row.version << ": " << one->why;
  }
}

TEST(NcclFeatures, WhyNot) {
  Facts facts = best(21805);
  EXPECT_THAT(features_of(facts).base.why, HasSubstr("NCCL is 2.18.5, this needs 2.19.0"));
  facts = best(22809);
  EXPECT_THAT(features_of(facts).windows.why,
              HasSubstr("before 2.29 nothing ends its kernels for windows when a rank dies"));
  facts.copy_engines = false;
  EXPECT_THAT(features_of(facts).copy_gather.why,
              HasSubstr("NCCL_CTA_POLICY is not ZERO (before 2.29: 2) on all ranks"));
  facts = best(22809);
  facts.has_windows = false;
  EXPECT_THAT(features_of(facts).windows.why, HasSubstr("no ncclCommWindowRegister"));
  EXPECT_THAT(features_of(facts).copy_gather.why, HasSubstr("it needs windows"));
  facts = best(22809);
  facts.peer_access = false;
  EXPECT_THAT(features_of(facts).windows.why, HasSubstr("cannot map each other's memory"));
  facts = best(22809);
  facts.windows_off = "rank 1: NCCL_WIN_ENABLE is 0";
  EXPECT_EQ(features_of(facts).windows.why, "rank 1: NCCL_WIN_ENABLE is 0");
  EXPECT_EQ(features_of(facts).copy_gather.why, "it needs windows: rank 1: NCCL_WIN_ENABLE is 0");
  facts = best(22809);
  facts.driver = 12040;
  EXPECT_THAT(features_of(facts).copy_gather.why, HasSubstr("12.4, this needs 12.5"));
  facts = best(22809);
  facts.ranks = 1;
  EXPECT_FALSE(features_of(facts).windows.usable);
}

TEST(NcclFeatures, BetweenHosts) {
  Facts facts = best(22803);
  facts.hosts = 2;
  EXPECT_THAT(features_of(facts).windows.why,
              HasSubstr("there are 2 hosts: NCCL 2.28.3 makes windows inside one"));
  EXPECT_THAT(features_of(facts).copy_gather.why, HasSubstr("it needs windows: there are 2 hosts"));
  facts.version = 22907;
  EXPECT_TRUE(features_of(facts).windows.usable);
  EXPECT_THAT(features_of(facts).copy_gather.why, HasSubstr("2 hosts"));
  facts.version = 23006;
  EXPECT_TRUE(features_of(facts).copy_gather.usable);
  EXPECT_TRUE(features_of(facts).send_needs_window);
}

TEST(NcclFeatures, MixedVersionsAreRefusedByName) {
  EXPECT_TRUE(compare_versions({22809, 22809}, {"a", "b"}).ok());
  const Status status = compare_versions({22809, 22809, 22707, 22907}, {"a", "b", "a", "a"});
  EXPECT_EQ(status.code(), FSCCL_ERR_MISMATCH);
  EXPECT_THAT(status.text(), HasSubstr("2.27.7 on rank 2 (a); 2.28.9 on rank 0 (a); 2.28.9 on rank "
                                       "1 (b); 2.29.7 on rank 3 (a)"));
}

}  // namespace
}  // namespace fsccl::nccl
