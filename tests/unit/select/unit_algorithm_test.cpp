// Tests the choice of the algorithm by which units on GPUs move their bytes.
#include "select/unit_algorithm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "select/tuning_file.h"
#include "tests/unit/select/with_rules.h"

namespace fsccl {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kBytes = 64u << 20;

UnitCall reached() { return {kBytes, 8, true, {}}; }
UnitCall against(UnitAlgorithm algorithm) {
  UnitCall call = reached();
  call.obstacles[static_cast<size_t>(algorithm)] = "it is not there";
  return call;
}
// Returns options with the times of both algorithms in a tuning file of one host with 8 ranks.
SelectOptions with_times(double p2p, double collectives) {
  SelectOptions options;
  options.host_shape = {1, 8};
  options.native = std::make_shared<const std::vector<NativePrice>>(std::vector<NativePrice>{
      {OpCode::unshard, 1, 8, Algorithm::p2p, {{kBytes, p2p}}},
      {OpCode::unshard, 1, 8, Algorithm::collectives, {{kBytes, collectives}}}});
  return options;
}

TEST(UnitAlgorithm, TheSettingIsAnObstacle) {
  const auto chosen = [](DeviceTransport asked, std::string_view unreached) {
    return choose_unit_algorithm(unit_call(kBytes, 2, true, asked, unreached), {}).algorithm;
  };
  EXPECT_EQ(chosen(DeviceTransport::kAuto, ""), UnitAlgorithm::p2p);
  EXPECT_EQ(chosen(DeviceTransport::kAuto, "a rank does not"), UnitAlgorithm::collectives);
  EXPECT_EQ(chosen(DeviceTransport::kP2p, "a rank does not"), UnitAlgorithm::p2p)
      << "which is an error";
  for (const auto asked : {DeviceTransport::kNccl, DeviceTransport::kUcx, DeviceTransport::kStaged})
    EXPECT_EQ(chosen(asked, ""), UnitAlgorithm::collectives);
}

TEST(UnitAlgorithm, ACandidateWithAnObstacleIsNotTaken) {
  EXPECT_EQ(choose_unit_algorithm(against(UnitAlgorithm::p2p), {}).algorithm,
            UnitAlgorithm::collectives);
  EXPECT_EQ(choose_unit_algorithm(against(UnitAlgorithm::collectives), {}).algorithm,
            UnitAlgorithm::p2p);
}

// The algorithm `p2p` moves the same bytes and launches no kernel of NCCL.
TEST(UnitAlgorithm, PeerToPeerIsPredictedToBeTheFaster) {
  for (const uint64_t bytes : {uint64_t{1} << 20, uint64_t{1} << 26, uint64_t{1} << 34}) {
    UnitCall call = reached();
    call.bytes = bytes;
    const UnitChoice choice = choose_unit_algorithm(call, {});
    EXPECT_EQ(choice.algorithm, UnitAlgorithm::p2p) << bytes;
    EXPECT_GT(choice.candidates[0].ns, 0);
    EXPECT_GT(choice.candidates[1].ns, choice.candidates[0].ns);
  }
}

TEST(UnitAlgorithm, ARuleNamesTheAlgorithm) {
  const UnitChoice choice =
      choose_unit_algorithm(reached(), with_rules("unit_unshard=collectives"));
  EXPECT_EQ(choice.algorithm, UnitAlgorithm::collectives);
  EXPECT_EQ(choice.why, "FSCCL_PLAN says so");
  EXPECT_EQ(
      choose_unit_algorithm(reached(), with_rules("unit_unshard:128M-=collectives")).algorithm,
      UnitAlgorithm::p2p)
      << "the rule is for larger units";
  EXPECT_EQ(choose_unit_algorithm(reached(), with_rules("all_gather=nccl")).algorithm,
            UnitAlgorithm::p2p)
      << "the rule is for collectives";
}

TEST(UnitAlgorithm, ARuleThatCannotBeFollowedIsTold) {
  const UnitChoice choice =
      choose_unit_algorithm(against(UnitAlgorithm::p2p), with_rules("unit_unshard=p2p"));
  EXPECT_EQ(choice.algorithm, UnitAlgorithm::collectives);
  EXPECT_THAT(choice.why, HasSubstr("FSCCL_PLAN is not followed: it is not there"));
}

TEST(UnitAlgorithm, MeasuredTimesTakeThePlaceOfConstants) {
  EXPECT_EQ(choose_unit_algorithm(reached(), with_times(2e6, 1e6)).algorithm,
            UnitAlgorithm::collectives);
  EXPECT_EQ(choose_unit_algorithm(reached(), with_times(1e6, 2e6)).algorithm, UnitAlgorithm::p2p);
  SelectOptions other = with_times(2e6, 1e6);
  other.host_shape = {1, 4};
  const UnitChoice choice = choose_unit_algorithm(reached(), other);
  EXPECT_FALSE(choice.candidates[0].measured) << "other ranks have measured";
}

TEST(UnitAlgorithm, RulesAndTuningFilesKnowTheAlgorithms) {
  EXPECT_EQ(parse_rule("unit_unshard@1x8:64M-=p2p").take().algorithm, Algorithm::p2p);
  EXPECT_THAT(parse_rule("unit_unshard=slots").status().text(),
              HasSubstr("plan \"slots\" is not one of p2p, collectives"));
  EXPECT_THAT(parse_rule("all_gather=p2p").status().text(), HasSubstr("is not one of slots"));
  const Tuning tuning =
      parse_tuning(R"({"fsccl_tuning": 1, "native": [{"operation": "unit_unshard", "hosts": 1,)"
                   R"( "ranks_per_host": 8, "algorithm": "p2p", "sizes": [4096], "ns": [10]}]})",
                   "file")
          .take();
  ASSERT_EQ(tuning.native.size(), 1u);
  EXPECT_EQ(tuning.native[0].op, OpCode::unshard);
  EXPECT_EQ(tuning.native[0].algorithm, Algorithm::p2p);
}

}  // namespace
}  // namespace fsccl
