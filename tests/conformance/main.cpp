// Runs the tests of the files that the command line names, or all tests, and gives every test a
// deadline: a test that hangs is named, and ends the program.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "support.h"
#include "tests/test_files.h"

namespace {

char running[512];

void on_alarm(int) {
  constexpr char kText[] = "\nThis test passed its deadline: ";
  (void)!write(STDERR_FILENO, kText, sizeof kText - 1);
  (void)!write(STDERR_FILENO, running, strlen(running));
  (void)!write(STDERR_FILENO, "\n", 1);
  abort();
}

class Deadlines : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo& test) override {
    const std::string name = std::string(test.test_suite_name()) + "." + test.name();
    running[name.copy(running, sizeof running - 1)] = '\0';
    alarm(fsccl::testing::seconds_of_a_test());
  }
  void OnTestEnd(const testing::TestInfo&) override { alarm(0); }
};

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  fsccl::testing::run_only_files(argc, argv);
  signal(SIGALRM, on_alarm);
  testing::UnitTest::GetInstance()->listeners().Append(new Deadlines);
  return RUN_ALL_TESTS();
}
