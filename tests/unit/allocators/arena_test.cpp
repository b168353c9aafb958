#include "allocators/host/arena.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <functional>

namespace fsccl {
namespace {

constexpr uint64_t kRegion = uint64_t{1} << 30;

HostArena make(int ranks, uint64_t control, uint64_t region) {
  Result<HostArena> arena = HostArena::create(ranks, control, region);
  EXPECT_TRUE(arena.ok()) << arena.status().text();
  return arena.take();
}

void expect_ok(const Status& status) { EXPECT_TRUE(status.ok()) << status.text(); }

uint64_t bytes_on_disk(int fd) {
  struct stat state{};
  EXPECT_EQ(fstat(fd, &state), 0);
  return static_cast<uint64_t>(state.st_blocks) * 512;
}

// Runs `body` in a child process, which exits with the result of `body`, and returns that result.
int exit_code_of(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "ended by signal " << WTERMSIG(status);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(HostArena, TwoMappingsSeeTheSameBytes) {
  HostArena first = make(3, 100, kRegion);
  Result<HostArena> opened = HostArena::open(Fd(dup(first.fd())), 3, 100, kRegion);
  ASSERT_TRUE(opened.ok()) << opened.status().text();
  HostArena second = opened.take();
  expect_ok(first.reserve(1, 5000, 100'000, true));
  expect_ok(second.populate(1, 5000, 100'000));
  std::memset(first.region(1) + 5000, 0x5a, 100'000);
  EXPECT_EQ(std::memcmp(first.region(1) + 5000, second.region(1) + 5000, 100'000), 0);
  second.control()[3] = std::byte{9};
  EXPECT_EQ(first.control()[3], std::byte{9});
  EXPECT_NE(first.control(), second.control());
}

// An arena is adopted from a range of a source's file. Memory is reserved and given back in that
// range, and other arenas over the same file map it.
TEST(HostArena, AdoptsARangeOfAFile) {
  constexpr uint64_t kBefore = 1 << 20, kControl = 4096, kBytes = 4 << 20;
  const Fd file(memfd_create("source", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(file.get(), kBefore + kControl + 2 * kBytes), 0);
  HostArena first = HostArena::adopt(Fd(dup(file.get())), kBefore, 2, kControl, kBytes).take();
  HostArena second = HostArena::adopt(Fd(dup(file.get())), kBefore, 2, kControl, kBytes).take();
  EXPECT_EQ(bytes_on_disk(file.get()), kControl);
  expect_ok(first.reserve(1, 8192, 100'000, false));
  EXPECT_EQ(bytes_on_disk(file.get()), kControl + 25 * 4096);
  std::memset(first.region(1) + 8192, 7, 100'000);
  EXPECT_EQ(second.region(1)[8192 + 99'999], std::byte{7});
  const uint64_t offset = first.file_offset(first.region(1) + 8192).value();
  EXPECT_EQ(offset, kBefore + kControl + kBytes + 8192);
  char byte = 0;
  EXPECT_EQ(pread(file.get(), &byte, 1, static_cast<off_t>(offset)), 1);
  EXPECT_EQ(byte, 7);
  first.release(1, 8192, 25 * 4096);
  EXPECT_EQ(bytes_on_disk(file.get()), kControl);
  EXPECT_FALSE(HostArena::adopt(Fd(dup(file.get())), kBefore + 4096, 2, kControl, kBytes).ok())
      << "the file is too short";
  EXPECT_FALSE(HostArena::adopt(Fd(dup(file.get())), UINT64_MAX - 4095, 2, kControl, kBytes).ok());
  EXPECT_FALSE(HostArena::adopt(Fd(), 0, 2, kControl, kBytes).ok());
}

TEST(HostArena, RefusesAFileOfPagesThatAreTooLarge) {
  constexpr uint64_t kPage = uint64_t{1} << 30;
  constexpr unsigned kHugetlb = 4, kOf1GiB = 30u << 26;  // MFD_HUGETLB | MFD_HUGE_1GB
  const Fd file(memfd_create("source", MFD_CLOEXEC | kHugetlb | kOf1GiB));
  if (!file.valid()) GTEST_SKIP() << "this system has no huge pages of 1 GiB";
  ASSERT_EQ(ftruncate(file.get(), 2 * kPage), 0);
  const Result<HostArena> arena = HostArena::adopt(Fd(dup(file.get())), 0, 1, 0, kPage);
  EXPECT_EQ(arena.status().code(), FSCCL_ERR_INVALID_ARGUMENT);
  EXPECT_NE(arena.status().text().find("huge pages of 1073741824 bytes"), std::string::npos)
      << arena.status().text();
}

TEST(HostArena, OverMemoryWithoutAFile) {
  constexpr uint64_t kBytes = 1 << 20;
  void* const memory =
      mmap(nullptr, 4096 + kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  {
    HostArena arena = HostArena::over(static_cast<std::byte*>(memory), 100, kBytes).take();
    EXPECT_EQ(arena.fd(), -1);
    EXPECT_EQ(arena.control(), memory);
    expect_ok(arena.reserve(0, 0, kBytes, true));
    EXPECT_EQ(arena.reserved_bytes(), kBytes);
    EXPECT_FALSE(arena.reserve(0, 0, kBytes + 1, false).ok());
    std::memset(arena.region(0), 1, kBytes);
    arena.release(0, 0, kBytes);
    EXPECT_EQ(arena.file_offset(arena.region(0)).status().code(), FSCCL_ERR_NOT_AVAILABLE);
    int rank = -1;
    uint64_t offset = 0;
    EXPECT_TRUE(arena.locate(arena.region(0) + 5, &rank, &offset) && rank == 0 && offset == 5);
  }
  static_cast<char*>(memory)[4096 + kBytes - 1] = 2;  // still mapped: it is not the arena's
  EXPECT_EQ(munmap(memory, 4096 + kBytes), 0);
}

TEST(HostArena, AnotherProcessMapsThePassedDescriptor) {
  HostArena arena = make(2, 4096, kRegion);
  expect_ok(arena.reserve(0, 0, 4096, false));
  expect_ok(arena.reserve(1, 0, 4096, false));
  arena.region(0)[7] = std::byte{42};
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  const int code = exit_code_of([&] {
    unsigned char control[CMSG_SPACE(sizeof(int))];
    char byte = 0;
    iovec data{&byte, 1};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    // The descriptor is sent and received in this process, and arrives as it does between unrelated
    // processes.
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    const int sent = arena.fd();
    std::memcpy(CMSG_DATA(header), &sent, sizeof sent);
    if (sendmsg(pair[0], &message, 0) != 1) return 1;
    if (recvmsg(pair[1], &message, MSG_CMSG_CLOEXEC) != 1) return 2;
    int received = -1;
    std::memcpy(&received, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof received);
    Result<HostArena> mine = HostArena::open(Fd(received), 2, 4096, kRegion);
    if (!mine.ok()) return 3;
    if (mine.value().region(0)[7] != std::byte{42}) return 4;
    mine.value().region(1)[8] = std::byte{43};
    return 0;
  });
  EXPECT_EQ(code, 0);
  EXPECT_EQ(arena.region(1)[8], std::byte{43});
  close(pair[0]);
  close(pair[1]);
}

TEST(HostArena, AChildOfForkDoesNotHaveTheMapping) {
  HostArena arena = make(1, 4096, kRegion);
  unsigned char resident = 0;
  ASSERT_EQ(mincore(arena.control(), 4096, &resident), 0);
  EXPECT_EQ(exit_code_of([&] {
              return mincore(arena.control(), 4096, &resident) == -1 && errno == ENOMEM ? 0 : 1;
            }),
            0);
}

TEST(HostArena, IsSealedAndClosesOnExec) {
  HostArena arena = make(1, 4096, kRegion);
  const int seals = fcntl(arena.fd(), F_GET_SEALS);
  EXPECT_EQ(seals & (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL),
            F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  EXPECT_EQ(ftruncate(arena.fd(), 0), -1);
  EXPECT_EQ(ftruncate(arena.fd(), static_cast<off_t>(4 * kRegion)), -1);
  EXPECT_EQ(fcntl(arena.fd(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
}

TEST(HostArena, OpenRefusesWhatIsNotTheArena) {
  HostArena arena = make(2, 4096, kRegion);
  const auto code_of = [&](int fd, int ranks, uint64_t region) {
    Result<HostArena> opened = HostArena::open(Fd(dup(fd)), ranks, 4096, region);
    return opened.ok() ? FSCCL_OK : opened.status().code();
  };
  EXPECT_EQ(code_of(arena.fd(), 2, kRegion), FSCCL_OK);
  EXPECT_EQ(code_of(arena.fd(), 3, kRegion), FSCCL_ERR_PROTOCOL);
  EXPECT_EQ(code_of(arena.fd(), 2, kRegion * 2), FSCCL_ERR_PROTOCOL);
  const Fd unsealed(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), static_cast<off_t>(4096 + 2 * kRegion)), 0);
  EXPECT_EQ(code_of(unsealed.get(), 2, kRegion), FSCCL_ERR_PROTOCOL);
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const Fd reader(ends[0]), writer(ends[1]);
  EXPECT_EQ(code_of(reader.get(), 2, kRegion), FSCCL_ERR_PROTOCOL);
  EXPECT_FALSE(HostArena::open(Fd(), 2, 4096, kRegion).ok());
}

TEST(HostArena, SizesThatMakeNoSenseAreErrors) {
  EXPECT_EQ(HostArena::create(0, 4096, kRegion).status().code(), FSCCL_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(HostArena::create(-1, 4096, kRegion).status().code(), FSCCL_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(HostArena::create(1, 0, 0).status().code(), FSCCL_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(HostArena::create(1, UINT64_MAX, 0).status().code(), FSCCL_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(HostArena::create(1 << 30, 4096, uint64_t{1} << 40).status().code(),
            FSCCL_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(HostArena::create(1, 4096, uint64_t{1} << 60).status().code(), FSCCL_ERR_LIMIT);
}

TEST(HostArena, LocateIsTheInverseOfRegion) {
  HostArena arena = make(4, 5000, 10'000);
  EXPECT_EQ(arena.region_bytes(), 12'288U);
  int rank = -1;
  uint64_t offset = 0;
  for (int r = 0; r < 4; ++r) {
    for (const uint64_t at : {uint64_t{0}, uint64_t{1}, uint64_t{12'287}}) {
      ASSERT_TRUE(arena.locate(arena.region(r) + at, &rank, &offset));
      EXPECT_EQ(rank, r);
      EXPECT_EQ(offset, at);
    }
  }
  EXPECT_FALSE(arena.locate(arena.control(), &rank, &offset));
  EXPECT_FALSE(arena.locate(arena.region(0) - 1, &rank, &offset));
  EXPECT_FALSE(arena.locate(arena.region(3) + 12'288, &rank, &offset));
  EXPECT_FALSE(arena.locate(nullptr, &rank, &offset));
  EXPECT_FALSE(arena.locate(&rank, &rank, &offset));
}

TEST(HostArena, ReserveAndReleaseCountPages) {
  const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  HostArena arena = make(2, page, 64 * page);
  const uint64_t base = bytes_on_disk(arena.fd());
  EXPECT_EQ(base, page);  // the control page
  expect_ok(arena.reserve(0, page + 1, 2 * page, false));
  EXPECT_EQ(arena.reserved_bytes(), 3 * page);
  expect_ok(arena.reserve(0, 0, 6 * page, false));
  EXPECT_EQ(arena.reserved_bytes(), 6 * page);
  expect_ok(arena.reserve(0, 8 * page, 2 * page, true));
  expect_ok(arena.reserve(1, 0, 0, false));
  EXPECT_EQ(arena.reserved_bytes(), 8 * page);
  EXPECT_EQ(bytes_on_disk(arena.fd()) - base, 8 * page);
  arena.region(0)[8 * page] = std::byte{1};
  arena.release(0, 5 * page + 1, 4 * page);  // whole pages inside: 6, 7 and 8
  EXPECT_EQ(arena.reserved_bytes(), 7 * page);
  EXPECT_EQ(bytes_on_disk(arena.fd()) - base, 7 * page);
  EXPECT_EQ(arena.region(0)[8 * page], std::byte{0});
  arena.release(0, 0, 64 * page);
  EXPECT_EQ(arena.reserved_bytes(), 0U);
  arena.release(1, 0, 65 * page);  // outside: nothing happens
  EXPECT_EQ(arena.reserve(2, 0, 1, false).code(), FSCCL_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(arena.reserve(-1, 0, 1, false).code(), FSCCL_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(arena.reserve(0, 1, 64 * page, false).code(), FSCCL_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(arena.reserve(0, UINT64_MAX, 2, false).code(), FSCCL_ERR_INVALID_ARGUMENT);
}

TEST(HostArena, PopulateKeepsContentsWithAndWithoutHugePages) {
  for (const bool huge_pages : {false, true}) {
    HostArena arena = make(1, 4096, uint64_t{16} << 20);
    arena.set_huge_pages(huge_pages);
    expect_ok(arena.reserve(0, 0, uint64_t{8} << 20, false));
    std::memset(arena.region(0), 0x33, uint64_t{8} << 20);
    expect_ok(arena.populate(0, 0, uint64_t{8} << 20));
    for (uint64_t at = 0; at < uint64_t{8} << 20; at += 4096)
      ASSERT_EQ(arena.region(0)[at], std::byte{0x33});
  }
}

TEST(HostArena, MoreThanTheMemoryIsAnErrorThatChangesNothing) {
#ifdef __SANITIZE_THREAD__
  // A program has less address space under this sanitizer.
  constexpr uint64_t kHuge = uint64_t{1} << 39;
#else
  constexpr uint64_t kHuge = uint64_t{1} << 45;
#endif
  HostArena arena = make(1, 4096, kHuge);
  expect_ok(arena.reserve(0, 0, 4096, false));
  const uint64_t before = bytes_on_disk(arena.fd());
  const Status status = arena.reserve(0, 0, kHuge, false);
  ASSERT_EQ(status.code(), FSCCL_ERR_OUT_OF_MEMORY);
  EXPECT_NE(status.text().find(fmt::format("wanted {} more bytes", kHuge - 4096)),
            std::string::npos)
      << status.text();
  EXPECT_NE(status.text().find("available"), std::string::npos) << status.text();
  EXPECT_EQ(bytes_on_disk(arena.fd()), before);
  EXPECT_EQ(arena.reserved_bytes(), 4096U);
  expect_ok(arena.reserve(0, 4096, 4096, true));
}

TEST(HostArena, LimitsAreNamed) {
  const auto with_limit = [](decltype(RLIMIT_AS) resource, rlim_t value, const char* name) {
    return exit_code_of([=] {
      const rlimit limit{value, value};
      if (setrlimit(resource, &limit) != 0) return 1;
      Result<HostArena> arena = HostArena::create(4, 4096, uint64_t{1} << 40);
      if (arena.ok()) return 2;
      if (arena.status().code() != FSCCL_ERR_LIMIT) return 3;
      if (arena.status().text().find(name) == std::string::npos) return 4;
      // Not every arena is that of a pool, whose limit could be lowered.
      return arena.status().text().find("a smaller block, or a lower limit") != std::string::npos
                 ? 0
                 : 5;
    });
  };
  EXPECT_EQ(with_limit(RLIMIT_FSIZE, uint64_t{1} << 30, "RLIMIT_FSIZE"), 0);
#if !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)  // their shadow memory is larger than any such limit
  EXPECT_EQ(with_limit(RLIMIT_AS, uint64_t{1} << 34, "RLIMIT_AS"), 0);
#endif
}

TEST(HostArena, MovingKeepsTheMapping) {
  HostArena first = make(1, 4096, kRegion);
  expect_ok(first.reserve(0, 0, 4096, false));
  std::byte* const address = first.region(0);
  address[1] = std::byte{5};
  HostArena second = std::move(first);
  EXPECT_EQ(second.region(0), address);
  EXPECT_EQ(second.reserved_bytes(), 4096U);
  second = make(1, 4096, kRegion);
  EXPECT_EQ(second.reserved_bytes(), 0U);
}

}  // namespace
}  // namespace fsccl
