// Tests the table of beats that the processes of a host share, and which descriptors are refused in
// its place.
#include "bootstrap/beat_table.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <future>
#include <thread>

#include "bootstrap/member_info.h"

namespace fsccl {
namespace {

TEST(BeatTable, OneSeesTheBeatsOfAnother) {
  const Result<Fd> fd = BeatTable::create(7, 3);
  ASSERT_TRUE(fd.ok()) << fd.status().text();
  const auto mine = BeatTable::map(fd.value(), 7, 3), theirs = BeatTable::map(fd.value(), 7, 3);
  ASSERT_TRUE(mine.ok() && theirs.ok());
  EXPECT_EQ(theirs.value()->last(2), 0);
  mine.value()->beat(2, 123, 45);
  EXPECT_EQ(theirs.value()->last(2), 123);
  EXPECT_EQ(theirs.value()->thread(2), 45);
  EXPECT_EQ(theirs.value()->last(1), 0);
  EXPECT_FALSE(theirs.value()->has_left(2));
  mine.value()->leave(2);
  EXPECT_TRUE(theirs.value()->has_left(2));
}

TEST(BeatTable, AnAgeIsOneThatCanBe) {
  const Result<Fd> fd = BeatTable::create(7, 1);
  ASSERT_TRUE(fd.ok()) << fd.status().text();
  const auto table = BeatTable::map(fd.value(), 7, 1);
  ASSERT_TRUE(table.ok());
  table.value()->beat(0, 300, 45);
  EXPECT_EQ(table.value()->age_ns(0, 1000), 700);
  for (const int64_t wrong : {INT64_MIN + 1, int64_t{-2}, int64_t{1001}, INT64_MAX}) {
    table.value()->beat(0, wrong, 45);
    EXPECT_EQ(table.value()->age_ns(0, 1000), 0) << wrong;
  }
}

TEST(BeatTable, OnlyThatOfTheJobIsTaken) {
  const Result<Fd> fd = BeatTable::create(7, 3);
  ASSERT_TRUE(fd.ok()) << fd.status().text();
  EXPECT_FALSE(BeatTable::map(fd.value(), 8, 3).ok());
  EXPECT_FALSE(BeatTable::map(fd.value(), 7, 4).ok());
  const Fd open(memfd_create("beats", MFD_CLOEXEC));  // not sealed, so its holder could shrink it
  char bytes[4096] = {};
  ASSERT_EQ(pread(fd.value().get(), bytes, sizeof bytes, 0),
            pwrite(open.get(), bytes, 64 + 3 * 16, 0));
  const auto refused = BeatTable::map(open, 7, 3);
  EXPECT_FALSE(refused.ok());
}

TEST(BeatTable, AThreadIsAskedForUnderItsProcess) {
  const uint64_t start = start_time_of(getpid());
  ASSERT_NE(start, 0u);
  EXPECT_EQ(state_of(getpid(), start, getpid()), 'R');
  EXPECT_EQ(state_of(getpid(), start + 1, getpid()), 'X');
  EXPECT_EQ(state_of(getpid(), start, 0), 0);
  EXPECT_EQ(state_of(getpid(), start, INT32_MAX), 0);
}

// A process without descriptors sees nothing of others, which are not dead for that.
TEST(BeatTable, WithoutDescriptorsTheStateIsNotKnown) {
  const uint64_t start = start_time_of(getpid());
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const char state = state_of(getpid(), start, getpid());
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(state, 0);
  EXPECT_EQ(state_of(INT32_MAX, start, INT32_MAX), 'X');
}

TEST(BeatTable, TheEndOfAThreadIsSeen) {
  const uint64_t start = start_time_of(getpid());
  std::promise<int32_t> number;
  std::promise<void> end;
  std::thread thread([&] {
    number.set_value(gettid());
    end.get_future().wait();
  });
  const int32_t id = number.get_future().get();
  const Fd watched = end_of_thread(getpid(), start, id);
  const Fd unseen = end_of_thread(getpid(), start + 1, id),
           missing = end_of_thread(getpid(), start, INT32_MAX);
  const auto readable = [&](int timeout_ms) {
    pollfd polled{watched.get(), POLLIN, 0};
    return poll(&polled, 1, timeout_ms) == 1;
  };
  const bool early = watched.valid() && readable(20);
  end.set_value();
  const bool late = watched.valid() && readable(10'000);
  thread.join();
  EXPECT_FALSE(unseen.valid());
  EXPECT_FALSE(missing.valid());
  if (!watched.valid()) GTEST_SKIP() << "the end of a thread can be seen from Linux 6.9 on";
  EXPECT_FALSE(early);
  EXPECT_TRUE(late);
}

}  // namespace
}  // namespace fsccl
