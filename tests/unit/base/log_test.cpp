// Tests the lines of messages, their levels, files, rates and ranks.
#include "base/log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <thread>
#include <vector>

#include "base/fd.h"
#include "temporary_directory.h"

namespace fsccl {
namespace {

// Messages of a test go to a file of its own.
class LogTest : public testing::Test {
 protected:
  void start(LogLevel level) { ASSERT_TRUE(configure_log(level, directory_.path("log")).ok()); }
  void TearDown() override { ASSERT_TRUE(configure_log(LogLevel::kWarn, "").ok()); }
  std::string text() const { return directory_.read("log"); }

  TemporaryDirectory directory_;
};

TEST_F(LogTest, OneLineAMessage) {
  EXPECT_EQ(format_log_line(LogLevel::kError, 3, "text"), "fsccl[3] error: text\n");
  EXPECT_EQ(format_log_line(LogLevel::kTrace, -1, "a\nfsccl[0] error: forged\r\x1b"),
            "fsccl[-] trace: a fsccl[0] error: forged  \n");
}

TEST_F(LogTest, LevelsBelowAreNotEvaluated) {
  start(LogLevel::kInfo);
  int evaluated = 0;
  FSCCL_LOG(kInfo, "info {}", ++evaluated);
  FSCCL_LOG(kDebug, "debug {}", ++evaluated);
  FSCCL_LOG(kError, "error {}", ++evaluated);
  EXPECT_EQ(evaluated, 2);
  EXPECT_EQ(text(), "fsccl[-] info: info 1\nfsccl[-] error: error 2\n");
}

TEST_F(LogTest, OnceAndRateLimited) {
  start(LogLevel::kWarn);
  for (int i = 0; i < 3; ++i) FSCCL_LOG_ONCE(kWarn, "once {}", i);
  for (int i = 0; i < 3; ++i) FSCCL_LOG_EVERY_MS(1'000'000'000, kWarn, "often {}", i);
  EXPECT_EQ(text(), "fsccl[-] warn: once 0\nfsccl[-] warn: often 0\n");
}

TEST_F(LogTest, RateLimitCountsWhatItHeldBack) {
  RateLimit limit(1000);
  constexpr int64_t kSecond = 1'000'000'000;
  uint64_t held = 99;
  EXPECT_TRUE(limit.allow(5, &held));
  EXPECT_EQ(held, 0u);
  EXPECT_FALSE(limit.allow(6, &held));
  EXPECT_FALSE(limit.allow(kSecond + 4, &held));
  EXPECT_TRUE(limit.allow(kSecond + 5, &held));
  EXPECT_EQ(held, 2u);
}

TEST_F(LogTest, StandardErrorAndFilesChange) {
  start(LogLevel::kWarn);
  FSCCL_LOG(kWarn, "first");
  const TemporaryDirectory other;
  ASSERT_TRUE(configure_log(LogLevel::kWarn, other.path("second")).ok());
  FSCCL_LOG(kWarn, "second");
  ASSERT_TRUE(configure_log(LogLevel::kWarn, "").ok());
  testing::internal::CaptureStderr();
  FSCCL_LOG(kWarn, "third");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "fsccl[-] warn: third\n");
  EXPECT_EQ(text(), "fsccl[-] warn: first\n");
  EXPECT_EQ(other.read("second"), "fsccl[-] warn: second\n");
  EXPECT_EQ(configure_log(LogLevel::kWarn, other.path("no/such")).code(), FSCCL_ERR_CONFIG);
}

// A message never stops the program, not even if the log is a FIFO that nobody reads, or a full
// file.
TEST_F(LogTest, FilesThatTakeNothing) {
  const TemporaryDirectory other;
  const std::string fifo = other.path("fifo");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const Status nobody = configure_log(LogLevel::kWarn, fifo);
  EXPECT_EQ(nobody.code(), FSCCL_ERR_CONFIG);
  EXPECT_THAT(nobody.text(), testing::HasSubstr("start its reader first"));
  {
    const Fd reader =
        make_fd([&] { return ::open(fifo.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC); });
    ASSERT_TRUE(configure_log(LogLevel::kWarn, fifo).ok());
    // The lines are more than the FIFO holds.
    for (int i = 0; i < 2000; i++) FSCCL_LOG(kWarn, "{}", std::string(100, 'x'));
    char text[22] = {};
    EXPECT_EQ(::read(reader.get(), text, sizeof text - 1), 21);
    EXPECT_STREQ(text, "fsccl[-] warn: xxxxxx");
  }
  FSCCL_LOG(kWarn, "nobody reads any more");
  ASSERT_TRUE(configure_log(LogLevel::kWarn, "/dev/full").ok());
  FSCCL_LOG(kWarn, "no room");
}

TEST_F(LogTest, LinesOfThreadsStayWhole) {
  start(LogLevel::kWarn);
  constexpr int kThreads = 4, kLines = 200;
  const std::string body(300, 'x');
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kLines; ++i) FSCCL_LOG(kWarn, "{}", body);
    });
  }
  for (auto& thread : threads) thread.join();
  std::string expected;
  for (int i = 0; i < kThreads * kLines; ++i) expected += "fsccl[-] warn: " + body + "\n";
  EXPECT_EQ(text(), expected);
}

// The test runs in a child because ranks are remembered for the life of the process.
TEST_F(LogTest, RankOfThreadAndProcessDeathTest) {
  start(LogLevel::kWarn);
  EXPECT_EXIT(
      {
        set_log_rank(4);
        FSCCL_LOG(kWarn, "own");
        std::thread([] { FSCCL_LOG(kWarn, "service"); }).join();
        std::thread([] {
          set_log_rank(5);
          FSCCL_LOG(kWarn, "second rank");
        }).join();
        std::thread([] { FSCCL_LOG(kWarn, "service of both"); }).join();
        FSCCL_LOG(kWarn, "own");
        std::exit(0);
      },
      testing::ExitedWithCode(0), "");
  EXPECT_EQ(text(),
            "fsccl[4] warn: own\nfsccl[4] warn: service\nfsccl[5] warn: second rank\nfsccl[-] "
            "warn: service of both\nfsccl[4] "
            "warn: own\n");
}

}  // namespace
}  // namespace fsccl
