// Helpers of tests that make plans by hand.
#pragma once
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "plan/verify.h"

namespace fsccl::testing {

inline Step copy_bytes_step(Operand dst, Operand src, uint64_t bytes) {
  Step step;
  step.kind = StepKind::copy;
  step.dst = dst;
  step.src = src;
  step.count = bytes;
  return step;
}

inline void expect_error(const std::vector<Plan>& plans, const char* part) {
  const Status status = verify(plans, {});
  ASSERT_FALSE(status.ok()) << part;
  EXPECT_NE(status.text().find(part), std::string::npos) << status.text();
}

}  // namespace fsccl::testing
