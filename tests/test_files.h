// Lets one program hold the tests of many files, and run those of some: `PROGRAM NAME ...` runs the
// tests of the files NAME_test.cpp. A program of many files takes a third of the time to compile
// that a program for each file takes, because what the files include is compiled once for many.
#pragma once
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>

namespace fsccl::testing {

// Returns the NAME of each suite, by the name of the suite. Ends the program if a suite is in two
// files, because one of them would then run with the other.
inline std::map<std::string, std::string> file_of_suites() {
  std::map<std::string, std::string> files;
  const ::testing::UnitTest& all = *::testing::UnitTest::GetInstance();
  for (int s = 0; s < all.total_test_suite_count(); ++s) {
    const ::testing::TestSuite& suite = *all.GetTestSuite(s);
    for (int t = 0; t < suite.total_test_count(); ++t) {
      std::string file = std::filesystem::path(suite.GetTestInfo(t)->file()).stem();
      file.resize(file.ends_with("_test") ? file.size() - 5 : file.size());
      if (const auto [known, is_new] = files.emplace(suite.name(), file);
          !is_new && known->second != file) {
        std::fprintf(stderr, "error: suite %s is in %s_test.cpp and in %s_test.cpp: rename one\n",
                     suite.name(), known->second.c_str(), file.c_str());
        std::exit(2);
      }
    }
  }
  return files;
}

// Restricts the run to the files that the command line names, after InitGoogleTest() has taken its
// own arguments. A filter that begins with - takes tests out of those files. Any other filter
// decides alone, as it must where GoogleTest starts the program anew for a death test.
inline void run_only_files(int argc, char** argv) {
  const std::map<std::string, std::string> files = file_of_suites();
  if (argc < 2) return;
  std::string& filter = ::testing::GTEST_FLAG(filter);
  const std::string without = filter == "*" ? "" : filter;
  if (!without.empty() && without[0] != '-') return;
  filter.clear();
  for (int i = 1; i < argc; ++i) {
    const size_t before = filter.size();
    for (const auto& [suite, file] : files)
      if (file == argv[i]) filter += (filter.empty() ? "" : ":") + suite + ".*";
    if (filter.size() == before) {
      std::fprintf(stderr, "error: no test is in a file %s_test.cpp\n", argv[i]);
      std::exit(2);
    }
  }
  filter += without;
}

}  // namespace fsccl::testing
