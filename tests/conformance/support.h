// The frame of every test of the public API: ranks as threads of this process, checks that print
// the library's own explanation, and a limit on the time of each test. It uses fsccl.h alone, so
// the same tests hold for any transport.
#pragma once
#include <fsccl/fsccl.h>
#include <fsccl/insight.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

namespace fsccl::testing {

fsccl_error_info_t last_error();

// Returns "FSCCL_ERR_...: " and the text of the last error of this thread.
std::string explain(fsccl_status_t status);

::testing::AssertionResult succeeded(fsccl_status_t status);
#define EXPECT_OK(call) EXPECT_TRUE(::fsccl::testing::succeeded(call))
#define ASSERT_OK(call) ASSERT_TRUE(::fsccl::testing::succeeded(call))

// Expects that the status is `code`, and that the text of the last error holds every one of
// `words`.
void expect_error(fsccl_status_t status, fsccl_status_t code,
                  std::initializer_list<const char*> words, const char* file, int line);
#define EXPECT_ERROR(call, code, ...) \
  ::fsccl::testing::expect_error((call), code, {__VA_ARGS__}, __FILE__, __LINE__)

// Returns the seconds after which a test counts as hung: TEST_SECONDS, or 120.
unsigned seconds_of_a_test();
// The deadline of communicators in tests in which no call is meant to time out. It is half of a
// test's time, so that a call that hangs fails and says why before the test ends.
inline const int64_t kPatienceMs = 500 * int64_t{seconds_of_a_test()};

// Lets ranks that are threads or processes wait for each other.
class Meeting {
 public:
  explicit Meeting(unsigned ranks);
  void wait();  // at most half of a test's time

 private:
  const unsigned ranks_;
  unsigned here_ = 0, round_ = 0;
  pthread_mutex_t mutex_;
  pthread_cond_t all_;
};

struct Rank {
  int rank = 0;
  int ranks = 1;
  fsccl_comm_t comm = nullptr;  // run_ranks() destroys it, unless the body has set it to null
  Meeting* meeting = nullptr;

  // Waits until all ranks have called it. A rank that makes the communicator fail calls it before,
  // because a barrier of the communicator may fail in a rank that is still in it.
  void meet() const { meeting->wait(); }
};

// Returns the calling rank of `comm`, with no meeting.
Rank rank_in(fsccl_comm_t comm);

struct RanksOptions {
  int64_t timeout_ms = kPatienceMs;
  const char* name = nullptr;
  bool abort_at_end = false;  // operations may be in flight when a body returns
  // The host of each rank. If empty, ranks fill host after host, as evenly as possible.
  std::vector<int> hosts;
};

// Runs body on `ranks` threads that are the ranks of one communicator; returns when all have ended.
void run_ranks(int ranks, const std::function<void(Rank&)>& body, const RanksOptions& options = {});

// If several hosts are given, run_ranks() runs the ranks as processes on them, by
// run_ranks_on_hosts() (host_ranks.cpp).
size_t number_of_hosts();  // 0: none are given
inline bool hosts_given() { return number_of_hosts() > 0; }
void run_ranks_on_hosts(int ranks, std::vector<int> hosts,
                        const std::function<void(fsccl_unique_id_t*, int)>& run);
// Return the host of each rank, and the host of this rank. If ranks are not on several hosts, they
// return an empty list, and 0.
const std::vector<int>& host_of_ranks();
int own_host();
// Returns the bytes that the host of this rank has sent to others, or -1 if nothing counts them.
int64_t bytes_sent();

// Sets variables for the communicators that are created while the object lives.
class Settings {
 public:
  Settings(std::initializer_list<std::pair<const char*, const char*>> values);
  ~Settings();
  Settings(const Settings&) = delete;

 private:
  std::vector<std::pair<std::string, std::string>> before_;
};

inline constexpr size_t kPage = 4096;  // blocks and slots of pools have whole pages

// A generator with the same numbers on every machine (splitmix64).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t x = state_ += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }
  uint64_t below(uint64_t bound) { return next() % bound; }

 private:
  uint64_t state_;
};
inline uint64_t mix(uint64_t a, uint64_t b) { return Random(a * 0x100000001b3u ^ b).next(); }

// Returns a value that the enum does not have, as a C program may pass it.
template <class Enum>
Enum wild(int value) {
  Enum result;
  static_assert(sizeof result == sizeof value);
  std::memcpy(&result, &value, sizeof value);
  return result;
}

// Spends a little time that the generator chooses: nothing, a computation, or a sleep of some
// microseconds.
void dawdle(Random& random);

// The pool of a communicator, for as long as the scope lives.
class PoolScope {
 public:
  explicit PoolScope(fsccl_comm_t comm, uint64_t limit_bytes = 0, bool record = true);
  ~PoolScope();
  PoolScope(const PoolScope&) = delete;
  fsccl_pool_t get() const { return pool_; }
  fsccl_pool_stats_t stats() const;

 private:
  fsccl_pool_t pool_ = nullptr;
};

}  // namespace fsccl::testing
