#include "support.h"

#include <sys/mman.h>

#include <cstdlib>
#include <ctime>
#include <thread>

#include "fsccl/insight.h"

namespace fsccl::testing {

fsccl_error_info_t last_error() {
  fsccl_error_info_t info = FSCCL_ERROR_INFO_INIT;
  fsccl_last_error(&info);
  return info;
}

std::string explain(fsccl_status_t status) {
  const fsccl_error_info_t info = last_error();
  return std::string(fsccl_status_string(status)) + "; last error of " + info.operation + ": " +
         info.text;
}

::testing::AssertionResult succeeded(fsccl_status_t status) {
  return status == FSCCL_OK ? ::testing::AssertionSuccess()
                            : ::testing::AssertionFailure() << explain(status);
}

void expect_error(fsccl_status_t status, fsccl_status_t code,
                  std::initializer_list<const char*> words, const char* file, int line) {
  const ::testing::ScopedTrace trace(file, line, "");
  EXPECT_EQ(status, code) << explain(status);
  if (status >= 0) return;
  const fsccl_error_info_t info = last_error();
  EXPECT_EQ(info.code, status);
  EXPECT_STRNE(info.operation, "") << info.text;
  EXPECT_STRNE(info.text, "");
  for (const char* word : words) EXPECT_THAT(info.text, ::testing::HasSubstr(word));
}

namespace {

// Memory that the processes which this one forks share with it.
class SharedMeeting {
 public:
  explicit SharedMeeting(unsigned ranks) {
    EXPECT_NE(memory_, MAP_FAILED);
    new (memory_) Meeting(ranks);
  }
  ~SharedMeeting() { munmap(memory_, sizeof(Meeting)); }
  SharedMeeting(const SharedMeeting&) = delete;
  Meeting* get() const { return static_cast<Meeting*>(memory_); }

 private:
  void* const memory_ =
      mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
};

}  // namespace

Meeting::Meeting(unsigned ranks) : ranks_(ranks) {
  pthread_mutexattr_t of_mutex;
  pthread_mutexattr_init(&of_mutex);
  pthread_mutexattr_setpshared(&of_mutex, PTHREAD_PROCESS_SHARED);
  EXPECT_EQ(pthread_mutex_init(&mutex_, &of_mutex), 0);
  pthread_mutexattr_destroy(&of_mutex);
  pthread_condattr_t of_all;
  pthread_condattr_init(&of_all);
  pthread_condattr_setpshared(&of_all, PTHREAD_PROCESS_SHARED);
  EXPECT_EQ(pthread_cond_init(&all_, &of_all), 0);
  pthread_condattr_destroy(&of_all);
}

void Meeting::wait() {
  timespec limit{};
  clock_gettime(CLOCK_REALTIME, &limit);
  limit.tv_sec += seconds_of_a_test() / 2;
  pthread_mutex_lock(&mutex_);
  const unsigned round = round_;
  if (++here_ == ranks_) {
    here_ = 0;
    round_++;
    pthread_cond_broadcast(&all_);
  }
  int status = 0;
  while (round_ == round && status == 0) status = pthread_cond_timedwait(&all_, &mutex_, &limit);
  EXPECT_NE(round_, round) << "some rank did not come to meet()";
  pthread_mutex_unlock(&mutex_);
}

Rank rank_in(fsccl_comm_t comm) {
  Rank self{0, 1, comm};
  EXPECT_OK(fsccl_comm_rank(comm, &self.rank));
  EXPECT_OK(fsccl_comm_size(comm, &self.ranks));
  return self;
}

void run_ranks(int ranks, const std::function<void(Rank&)>& body, const RanksOptions& options) {
  const SharedMeeting meeting(static_cast<unsigned>(ranks));
  const auto run = [&](const fsccl_unique_id_t* id, int rank) {
    fsccl_comm_config_t config = FSCCL_COMM_CONFIG_INIT;
    config.unique_id = id;
    config.rank = rank;
    config.ranks = ranks;
    config.timeout_ms = options.timeout_ms;
    config.name = options.name;
    Rank self{rank, ranks, nullptr, meeting.get()};
    ASSERT_OK(fsccl_comm_create(&config, &self.comm));
    body(self);
    if (!self.comm) return;
    if (::testing::Test::HasFailure() || options.abort_at_end) fsccl_comm_abort(self.comm);
    EXPECT_OK(fsccl_comm_destroy(self.comm));
  };
  if (hosts_given()) return run_ranks_on_hosts(ranks, options.hosts, run);
  fsccl_unique_id_t id;
  ASSERT_OK(fsccl_unique_id_create(&id));
  std::vector<std::thread> threads;
  for (int rank = 1; rank < ranks; ++rank) threads.emplace_back(run, &id, rank);
  run(&id, 0);
  for (std::thread& thread : threads) thread.join();
}

unsigned seconds_of_a_test() {
  const char* const given = std::getenv("TEST_SECONDS");
  return given ? static_cast<unsigned>(std::atoi(given)) : 120;
}

Settings::Settings(std::initializer_list<std::pair<const char*, const char*>> values) {
  for (const auto& [name, value] : values) {
    char before[4096];
    EXPECT_OK(fsccl_config_get(name, before, sizeof before));
    before_.emplace_back(name, before);
    EXPECT_OK(fsccl_config_set(name, value));
  }
}
Settings::~Settings() {
  for (const auto& [name, value] : before_)
    EXPECT_OK(fsccl_config_set(name.c_str(), value.c_str()));
}

void dawdle(Random& random) {
  const uint64_t choice = random.below(8);
  if (choice < 4) return;
  if (choice < 7) {
    volatile uint64_t sink = 0;
    for (uint64_t i = random.below(20'000); i > 0; --i) sink = sink + i;
    return;
  }
  const timespec pause{0, static_cast<long>(random.below(200'000))};
  nanosleep(&pause, nullptr);
}

PoolScope::PoolScope(fsccl_comm_t comm, uint64_t limit_bytes, bool record) {
  fsccl_pool_config_t config = FSCCL_POOL_CONFIG_INIT;
  config.limit_bytes = limit_bytes;
  config.record = record;
  EXPECT_OK(fsccl_pool_create(comm, &config, &pool_));
}
PoolScope::~PoolScope() {
  if (pool_) {
    EXPECT_OK(fsccl_pool_destroy(pool_));
  }
}
fsccl_pool_stats_t PoolScope::stats() const {
  fsccl_pool_stats_t stats = FSCCL_POOL_STATS_INIT;
  EXPECT_OK(fsccl_pool_stats(pool_, &stats));
  return stats;
}

}  // namespace fsccl::testing
