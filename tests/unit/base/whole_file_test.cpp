#include "base/whole_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "temporary_directory.h"

namespace fsccl {
namespace {

size_t files_in(const std::string& path) {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(path), std::filesystem::directory_iterator()));
}

TEST(WholeFile, IsThereAtTheEndAndReplacesWhatWas) {
  const TemporaryDirectory directory;
  directory.write("a", "before");
  Result<WholeFile> file = WholeFile::create(directory.path("a"));
  ASSERT_TRUE(file.ok());
  file.value().append("new ");
  EXPECT_EQ(directory.read("a"), "before");
  file.value().append("words");
  ASSERT_TRUE(file.value().commit().ok());
  EXPECT_EQ(directory.read("a"), "new words");
  EXPECT_EQ(files_in(directory.path()), 1u);
  struct stat status {};
  ASSERT_EQ(::stat(directory.path("a").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
}

TEST(WholeFile, LeavesNothingWithoutCommit) {
  const TemporaryDirectory directory;
  { Result<WholeFile> file = WholeFile::create(directory.path("a")); }
  EXPECT_EQ(files_in(directory.path()), 0u);
}

TEST(WholeFile, SaysWhereAndWhyNot) {
  const TemporaryDirectory directory;
  const Result<WholeFile> none = WholeFile::create(directory.path("missing/a"));
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.status().code(), FSCCL_ERR_SYSTEM);
  EXPECT_THAT(none.status().text(), testing::HasSubstr("missing/a' cannot be written: No such file"));
  std::filesystem::create_directory(directory.path("folder"));
  Result<WholeFile> over = WholeFile::create(directory.path("folder"));
  ASSERT_TRUE(over.ok());
  EXPECT_THAT(over.value().commit().text(), testing::HasSubstr("folder' cannot be written: Is a directory"));
}

}  // namespace
}  // namespace fsccl
