#include "base/whole_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "../../devices.h"
#include "temporary_directory.h"

namespace fsccl {
namespace {

size_t files_in(const std::string& path) {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(path),
                                           std::filesystem::directory_iterator()));
}

Status write(const std::string& path, std::string_view text, WholeFile::How how = {}) {
  FSCCL_ASSIGN(WholeFile file, WholeFile::create(path, how));
  file.append(text);
  return file.commit();
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
  EXPECT_TRUE(write(directory.path("new"), "").ok());
  EXPECT_EQ(std::filesystem::status(directory.path("new")).permissions(),
            std::filesystem::perms(0600));
}

TEST(WholeFile, LeavesNothingWithoutCommit) {
  const TemporaryDirectory directory;
  {
    Result<WholeFile> file = WholeFile::create(directory.path("a"));
  }
  EXPECT_EQ(files_in(directory.path()), 0u);
}

TEST(WholeFile, SaysWhereAndWhyNot) {
  const TemporaryDirectory directory;
  const Result<WholeFile> none = WholeFile::create(directory.path("missing/a"));
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.status().code(), FSCCL_ERR_SYSTEM);
  EXPECT_THAT(none.status().text(),
              testing::HasSubstr("missing/a' cannot be written: No such file"));
  std::filesystem::create_directory(directory.path("folder"));
  EXPECT_THAT(WholeFile::create(directory.path("folder")).status().text(),
              testing::HasSubstr("folder' cannot be written: it is a directory"));
  EXPECT_FALSE(WholeFile::create("").ok());
}

mode_t type_of(const std::string& path) {
  struct stat facts{};
  return ::lstat(path.c_str(), &facts) == 0 ? facts.st_mode & S_IFMT : 0;
}

TEST(WholeFile, WhatIsNoRegularFileIsNeverReplaced) {
  const TemporaryDirectory directory;
  const std::string fifo = directory.path("fifo"), to_fifo = directory.path("to_fifo"),
                    to_null = directory.path("to_null"), socket_path = directory.path("socket"),
                    to_folder = directory.path("to_folder");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  std::filesystem::create_symlink("fifo", to_fifo);
  const std::string null = device_like("null", 3, directory.path()),
                    full = device_like("full", 7, directory.path());
  if (null.empty() || full.empty())
    GTEST_SKIP() << "no devices of the test's own: mknod, or a temporary folder without nodev";
  std::filesystem::create_symlink(null, to_null);
  std::filesystem::create_symlink(".", to_folder);
  const Fd unix_socket = make_fd([] { return ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0); });
  sockaddr_un address{AF_UNIX, {}};
  socket_path.copy(address.sun_path, sizeof address.sun_path - 1);
  ASSERT_EQ(::bind(unix_socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address),
            0);

  const size_t files = files_in(directory.path());
  EXPECT_TRUE(write(null, "text").ok());
  EXPECT_TRUE(write(to_null, "text").ok());
  EXPECT_EQ(type_of(null), mode_t{S_IFCHR});
  EXPECT_EQ(type_of(to_null), mode_t{S_IFLNK});
  EXPECT_THAT(write(full, "text").text(),
              testing::HasSubstr("full' cannot be written: No space left"));
  EXPECT_THAT(write(socket_path, "text").text(), testing::HasSubstr("it is a socket"));
  EXPECT_THAT(write(to_folder, "text").text(), testing::HasSubstr("it is a directory"));
  for (const std::string& path : {fifo, to_fifo}) {
    EXPECT_THAT(write(path, "text").text(), testing::HasSubstr("start its reader first"));
    const Fd reader =
        make_fd([&] { return ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC); });
    EXPECT_TRUE(write(path, "text").ok());
    char text[8] = {};
    EXPECT_EQ(::read(reader.get(), text, sizeof text), 4);
    EXPECT_STREQ(text, "text");
    // The FIFO's reader reads nothing, so the writer can write only as much as the FIFO holds.
    EXPECT_THAT(write(path, std::string(1 << 20, 'x'), {.patience_ms = 10}).text(),
                testing::HasSubstr("its reader takes nothing"));
  }
  EXPECT_EQ(type_of(fifo), mode_t{S_IFIFO});
  EXPECT_EQ(type_of(to_fifo), mode_t{S_IFLNK});
  EXPECT_EQ(type_of(socket_path), mode_t{S_IFSOCK});
  EXPECT_EQ(files_in(directory.path()), files);
}

// If the reader of a FIFO goes away while it is written, the writer gets an error, and no signal.
TEST(WholeFile, AReaderThatGoesAway) {
  const TemporaryDirectory directory;
  const std::string fifo = directory.path("fifo");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  Fd reader = make_fd([&] { return ::open(fifo.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC); });
  Result<WholeFile> file = WholeFile::create(fifo);
  ASSERT_TRUE(file.ok());
  reader.reset();
  file.value().append("text");
  EXPECT_THAT(file.value().commit().text(), testing::HasSubstr("Broken pipe"));
}

// A file that is written by the name of a descriptor goes to what the descriptor has open, behind
// the bytes that are there.
TEST(WholeFile, ADescriptorByItsName) {
  const TemporaryDirectory directory;
  directory.write("a", "before ");
  const Fd open_file =
      make_fd([&] { return ::open(directory.path("a").c_str(), O_WRONLY | O_CLOEXEC); });
  for (const char* folder : {"/dev/fd/", "/proc/self/fd/"})
    EXPECT_TRUE(write(folder + std::to_string(open_file.get()), "text ").ok());
  std::filesystem::create_symlink("/dev/fd/" + std::to_string(open_file.get()),
                                  directory.path("link"));
  EXPECT_TRUE(write(directory.path("link"), "by a link").ok());
  EXPECT_EQ(directory.read("a"), "before text text by a link");
}

TEST(WholeFile, LinksToFiles) {
  const TemporaryDirectory directory;
  directory.write("other", "somebody's");
  std::filesystem::create_symlink("other", directory.path("link"));
  EXPECT_TRUE(write(directory.path("link"), "mine", {.follow_links = true}).ok());
  EXPECT_EQ(directory.read("other"), "mine");
  EXPECT_EQ(type_of(directory.path("link")), mode_t{S_IFLNK});
  EXPECT_TRUE(write(directory.path("link"), "own").ok());
  EXPECT_EQ(directory.read("other"), "mine");
  EXPECT_EQ(type_of(directory.path("link")), mode_t{S_IFREG});
  std::filesystem::create_symlink("round", directory.path("round"));
  EXPECT_THAT(write(directory.path("round"), "").text(), testing::HasSubstr("Too many levels"));
}

TEST(WholeFile, PermissionsOfAFileThatIsThereStay) {
  const TemporaryDirectory directory;
  directory.write("a", "");
  std::filesystem::permissions(directory.path("a"), std::filesystem::perms(0640));
  EXPECT_TRUE(write(directory.path("a"), "text").ok());
  EXPECT_EQ(std::filesystem::status(directory.path("a")).permissions(),
            std::filesystem::perms(0640));
  const mode_t before = ::umask(027);
  EXPECT_TRUE(write(directory.path("b"), "text", {.mode = 0666}).ok());
  ::umask(before);
  EXPECT_EQ(std::filesystem::status(directory.path("b")).permissions(),
            std::filesystem::perms(0640));
}

}  // namespace
}  // namespace fsccl
