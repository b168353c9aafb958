// Runs a test's body in a process of its own, because the stand-in reads its settings once. gtest
// does not print the output of a death test's process and looks only at its exit, so the process
// reports its failures itself.
#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <utility>

#include "tests/stand_in/nccl/control.h"

namespace fsccl::stand_in_nccl {

[[noreturn]] inline void exit_with_outcome() {
  const ::testing::TestResult& result =
      *::testing::UnitTest::GetInstance()->current_test_info()->result();
  for (int i = 0; i < result.total_part_count(); i++) {
    const ::testing::TestPartResult& part = result.GetTestPartResult(i);
    if (part.failed())
      std::fprintf(stderr, "%s:%d: %s\n", part.file_name() ? part.file_name() : "?",
                   part.line_number(), part.message());
  }
  std::fprintf(stderr, "rules: %s", Control().broken_rules().c_str());
  _exit(::testing::Test::HasFailure() ? 1 : 0);
}

// Runs the body in a process with these variables. The body must keep NCCL's rules, too.
template <class Body>
void in_process(std::initializer_list<std::pair<const char*, const char*>> environment, Body body) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        for (const auto& [name, value] : environment) setenv(name, value, 1);
        body();
        exit_with_outcome();
      },
      ::testing::ExitedWithCode(0), "rules: $");
}

}  // namespace fsccl::stand_in_nccl
