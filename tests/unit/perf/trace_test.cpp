#include "perf/pool/trace.h"

#include <gtest/gtest.h>

namespace fsccl::perf {
namespace {

const char* const kTwoSteps = R"({"op":"meta","name":"two"}
{"op":"alloc","id":1,"bytes":100,"stream":"ag","kind":"ag_out","key":"0/ag"}
{"op":"event","id":1,"stream":"ag"}
{"op":"wait","stream":"compute","event":1}
{"op":"alloc","id":2,"bytes":50,"stream":"compute","kind":"act","key":"0/act"}
{"op":"use","id":2,"stream":"compute"}
{"op":"use","id":1,"stream":"compute"}
{"op":"free","id":1,"stream":"compute"}
{"op":"mark","what":"step_end"}
{"op":"alloc","id":3,"bytes":100,"stream":"ag","kind":"ag_out","key":"0/ag"}
{"op":"event","id":2,"stream":"ag"}
{"op":"wait","stream":"compute","event":2}
{"op":"use","id":3,"stream":"compute"}
{"op":"free","id":3,"stream":"compute"}
{"op":"mark","what":"step_end"}
)";

TEST(Trace, StepsThatAreAlikeAreSeenAsSuch) {
  std::string error;
  const std::optional<Trace> trace = parse_trace(kTwoSteps, "two.jsonl", &error);
  ASSERT_TRUE(trace) << error;
  EXPECT_EQ(trace->name, "two");
  ASSERT_EQ(trace->steps.size(), 2U);
  EXPECT_TRUE(trace->steady);
  EXPECT_EQ(trace->live_bytes, 100U) << "activations are not of the pool";
  EXPECT_EQ(trace->blocks, 2U);
  EXPECT_EQ(trace->streams, 2U);
  const std::vector<StepEvent>& step = trace->steps[0];
  ASSERT_EQ(step.size(), 5U);
  EXPECT_TRUE(step[0].takes() && step[0].stable);
  EXPECT_EQ(step[1].op, StepOp::kRecord);
  EXPECT_EQ(step[2].op, StepOp::kWait);
  EXPECT_EQ(step[2].key, step[1].key);
  EXPECT_EQ(step[3].op, StepOp::kUse);
  EXPECT_EQ(step[4].op, StepOp::kGiveBack);
}

TEST(Trace, BlocksOfOneKeyThatAreThereTogetherAreTold) {
  std::string error;
  const std::optional<Trace> trace = parse_trace(R"({"op":"alloc","id":1,"bytes":1,"stream":"s","kind":"grad","key":"g"}
{"op":"alloc","id":2,"bytes":1,"stream":"s","kind":"grad","key":"g"}
{"op":"free","id":1,"stream":"s"}
{"op":"alloc","id":3,"bytes":1,"stream":"s","kind":"grad","key":"g"}
)",
                                                 "keys.jsonl", &error);
  ASSERT_TRUE(trace) << error;
  EXPECT_NE(trace->steps[0][0].key, trace->steps[0][1].key);
  EXPECT_EQ(trace->steps[0][0].key, trace->steps[0][3].key);
  EXPECT_FALSE(trace->steps[0][0].stable);
  EXPECT_EQ(trace->live_bytes, 2U);
}

// Whatever is cut off or changed, the reader answers: a trace, or a line and what is wrong there.
TEST(Trace, DamageIsNamedByItsLine) {
  const std::string whole = kTwoSteps;
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const char* with : {"", "\"", "-", "9999999999999999999999", "\n", "{}"}) {
      std::string error, damaged = whole;
      damaged.replace(at, 1, with);
      if (parse_trace(damaged, "damaged.jsonl", &error)) continue;
      EXPECT_EQ(error.rfind("damaged.jsonl:", 0), 0U) << error;
    }
    std::string error;
    if (parse_trace(whole.substr(0, at), "cut.jsonl", &error)) continue;
    EXPECT_EQ(error.rfind("cut.jsonl:", 0), 0U) << error;
  }
}

}  // namespace
}  // namespace fsccl::perf
