#include "perf/pool/trace.h"

#include <gtest/gtest.h>
#include <signal.h>

#include "perf/pool/peers.h"
#include "perf/pool/system_calls.h"

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
  const std::optional<Trace> trace =
      parse_trace(R"({"op":"alloc","id":1,"bytes":1,"stream":"s","kind":"grad","key":"g"}
{"op":"alloc","id":2,"bytes":1,"stream":"s","kind":"grad","key":"g"}
{"op":"free","id":1,"stream":"s"}
{"op":"alloc","id":3,"bytes":1,"stream":"s","kind":"grad","key":"g"}
{"op":"free","id":3,"stream":"s"}
{"op":"free","id":2,"stream":"s"}
)",
                  "keys.jsonl", &error);
  ASSERT_TRUE(trace) << error;
  EXPECT_NE(trace->steps[0][0].key, trace->steps[0][1].key);
  EXPECT_EQ(trace->steps[0][0].key, trace->steps[0][3].key);
  EXPECT_FALSE(trace->steps[0][0].stable);
  EXPECT_EQ(trace->live_bytes, 2U);
}

// For text that is cut off or changed anywhere, the reader returns a trace, or an error with the
// line and the fault.
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

TEST(Trace, BlocksThatAreThereAtTheEndAreRefused) {
  std::string error;
  EXPECT_FALSE(parse_trace(R"({"op":"alloc","id":1,"bytes":1,"stream":"s","kind":"act","key":"a"}
{"op":"alloc","id":5,"bytes":1,"stream":"s","kind":"grad","key":"g"}
{"op":"alloc","id":4,"bytes":1,"stream":"s","kind":"grad","key":"h"}
{"op":"mark","what":"step_end"}
)",
                           "held.jsonl", &error));
  EXPECT_EQ(
      error.rfind(
          "held.jsonl:2: 2 blocks are not freed at the end of the trace, the first is block 5", 0),
      0U)
      << error;
}

// The trace has three steps. Each but the first begins with a block that the step before it has
// left.
TEST(Replay, BlocksMayBeHeldAcrossSteps) {
  std::string text, error;
  for (int step = 0; step < 3; ++step) {
    const std::string id = std::to_string(step), before = std::to_string(step - 1);
    if (step > 0) text += R"({"op":"free","id":)" + before + R"(,"stream":"s"})" + "\n";
    if (step < 2)
      text += R"({"op":"alloc","id":)" + id +
              R"(,"bytes":4096,"stream":"s","kind":"ag_out","key":"u"})" + "\n";
    text += R"({"op":"mark","what":"step_end"})"
            "\n";
  }
  const std::optional<Trace> trace = parse_trace(text, "across.jsonl", &error);
  ASSERT_TRUE(trace) << error;
  for (const bool recorded : {false, true})
    for (const ReplayRow& row : replay_pool(*trace, {.steps = 5, .recorded = recorded})) {
      EXPECT_FALSE(row.failed) << row.how << " " << row.note;
    }
}

// Numbers of events between streams do not count as keys of blocks.
TEST(Replay, ATraceMayHaveMoreEventsThanBlocks) {
  for (const bool with_block : {false, true}) {
    std::string text, error;
    if (with_block)
      text += R"({"op":"alloc","id":1,"bytes":4096,"stream":"s","kind":"ag_out","key":"u"})"
              "\n";
    for (int event = 0; event < 3000; ++event) {
      const std::string id = std::to_string(event);
      text += R"({"op":"event","id":)" + id + R"(,"stream":"s"})" + "\n";
      text += R"({"op":"wait","event":)" + id + R"(,"stream":"t"})" + "\n";
    }
    if (with_block)
      text += R"({"op":"free","id":1,"stream":"s"})"
              "\n";
    const std::optional<Trace> trace = parse_trace(text, "events.jsonl", &error);
    ASSERT_TRUE(trace) << error;
    ASSERT_EQ(trace->keys, with_block ? 1U : 0U);
    const ReplayRow row = replay_malloc(malloc_peers()[0], *trace, {.steps = 3});
    EXPECT_EQ(row.note, "");
    EXPECT_TRUE(row.reserved) << "the child that touches the blocks has ended well";
    for (const ReplayRow& pool : replay_pool(*trace, {.steps = 3}))
      EXPECT_FALSE(pool.failed) << pool.note;
  }
}

TEST(CountSystemCalls, WorkThatFailsOrIsKilledHasNoCount) {
  EXPECT_FALSE(count_system_calls([](const CallCounter&) { return false; }));
  EXPECT_FALSE(count_system_calls([](const CallCounter&) { return raise(SIGKILL) == 0; }));
  EXPECT_FALSE(count_system_calls([](const CallCounter&) { return raise(SIGTERM) == 0; }));
}

TEST(Trace, WhatIsNoFileIsRefused) {
  std::string error;
  EXPECT_FALSE(read_trace("/tmp", &error));
  EXPECT_NE(error.find("is a folder: give a file"), std::string::npos) << error;
  EXPECT_FALSE(read_trace("/dev/null", &error));
  EXPECT_NE(error.find("is a device"), std::string::npos) << error;
}

}  // namespace
}  // namespace fsccl::perf
