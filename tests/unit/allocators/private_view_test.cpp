#include "allocators/host/private_view.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "allocators/host/arena.h"

namespace fsccl {
namespace {

constexpr uint64_t kPrivatePage = 4096, kBytes = 64 * kPrivatePage;

struct Viewed {
  HostArena arena = HostArena::create(1, kPrivatePage, 2 * kBytes).take();
  // The view shows the second half of the region.
  PrivateView view = PrivateView::create(arena.fd(), kPrivatePage + kBytes, kBytes).take();
  std::byte* shared = arena.region(0) + kBytes;
  Viewed() {
    EXPECT_TRUE(arena.reserve(0, 0, 2 * kBytes, false).ok());
    fill('a');
  }
  void fill(char value) { std::memset(shared, value, kBytes); }
  char at(uint64_t offset) const { return static_cast<char>(view.base()[offset]); }
};

TEST(PrivateView, ShowsTheFileAndKeepsWritesToItself) {
  Viewed v;
  EXPECT_EQ(v.at(0), 'a');
  EXPECT_EQ(v.at(kBytes - 1), 'a');
  v.view.base()[5 * kPrivatePage + 7] = std::byte{'x'};
  EXPECT_EQ(static_cast<char>(v.shared[5 * kPrivatePage + 7]), 'a');
  v.fill('b');
  EXPECT_EQ(v.at(4 * kPrivatePage), 'b');  // seen though the page was read before
  EXPECT_EQ(v.at(5 * kPrivatePage), 'a');  // hidden behind the page written
  EXPECT_EQ(v.at(5 * kPrivatePage + 7), 'x');
}

TEST(PrivateView, DropsWhatWasWrittenInTheRange) {
  Viewed v;
  for (const uint64_t page : {3, 4, 5, 9, 63})
    v.view.base()[page * kPrivatePage + 1] = std::byte{'x'};
  v.fill('b');
  EXPECT_EQ(v.view.drop_writes(4 * kPrivatePage + 100, 2 * kPrivatePage),
            2 * kPrivatePage);  // pages 4, 5 (and 6, which nobody wrote)
  EXPECT_EQ(v.at(3 * kPrivatePage + 1), 'x');
  EXPECT_EQ(v.at(4 * kPrivatePage + 1), 'b');
  EXPECT_EQ(v.at(5 * kPrivatePage + 1), 'b');
  EXPECT_EQ(v.view.drop_writes(0, kBytes), 3 * kPrivatePage);
  for (uint64_t page = 0; page < 64; page++) EXPECT_EQ(v.at(page * kPrivatePage + 1), 'b');
  EXPECT_EQ(v.view.drop_writes(0, kBytes), 0u);  // reading is not writing
}

TEST(PrivateView, DropsAlsoWithoutAPagemap) {
  Viewed v;
  const std::byte* const base = v.view.base();
  v.view.base()[0] = v.view.base()[9 * kPrivatePage] = std::byte{'x'};
  for (int fd = 3; fd < 64; fd++) {  // as if /proc were not mounted
    char path[64], target[64] = "";
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (readlink(path, target, sizeof target - 1) > 0 && std::strstr(target, "pagemap")) close(fd);
  }
  EXPECT_EQ(v.view.drop_writes(0, 16 * kPrivatePage), 16 * kPrivatePage);
  EXPECT_EQ(v.view.base(), base);
  EXPECT_EQ(v.at(0), 'a');
  EXPECT_EQ(v.at(9 * kPrivatePage), 'a');
}

TEST(PrivateView, IsNotInAChild) {
  Viewed v;
  const pid_t child = fork();
  if (child == 0) {
    unsigned char resident = 0;
    _exit(mincore(v.view.base(), kPrivatePage, &resident) != 0 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace fsccl
