// Runs the tests of the files that the command line names, or all tests.
#include "../test_files.h"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  fsccl::testing::run_only_files(argc, argv);
  return RUN_ALL_TESTS();
}
