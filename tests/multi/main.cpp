// Runs the tests of the files that the command line names, or all tests, or a role of a test's
// child.
#include "processes.h"
#include "tests/test_files.h"

int main(int argc, char** argv) {
  using namespace fsccl::testing;
  if (const auto code = run_role(argc, argv, known_roles())) return *code;
  ::testing::InitGoogleTest(&argc, argv);
  run_only_files(argc, argv);
  return RUN_ALL_TESTS();
}
