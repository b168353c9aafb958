// Tests programs that change their own process beside a job: closed standard streams, a limit of
// file sizes, an end of main() that is not the end of the process, and outputs that are no files.
#include <fcntl.h>
#include <fsccl/fsccl.h>
#include <fsccl/insight.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "devices.h"
#include "multi/processes.h"
#include "multi/tell.h"

namespace fsccl::testing::habits_tests {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kLimitMs = 60'000;
constexpr size_t kElements = 200'000;

class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "fsccl-habits-XXXXXX").string();
    if (!mkdtemp(name.data())) ADD_FAILURE() << "mkdtemp " << name;
    path_ = name;
  }
  Folder(const Folder&) = delete;
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string path(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

std::string content_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

fsccl_comm_t join() {
  fsccl_comm_t comm = nullptr;
  return good("join", fsccl_comm_create(nullptr, &comm)) ? comm : nullptr;
}

int number_of(const char* variable) {
  const char* const text = std::getenv(variable);
  return text ? std::atoi(text) : 0;
}

// ---- closed standard streams

void close_streams() {
  for (int fd = 0; fd < 3; fd++)
    if (number_of("CLOSED") & (1 << fd)) close(fd);
}

// Returns true if nothing can be written to the closed streams. The number of a closed stream is
// free, or a placeholder has it while a thread of the library makes a descriptor.
bool streams_as_before() {
  for (int fd = 0; fd < 3; fd++) {
    const int flags = fcntl(fd, F_GETFL);
    const bool takes_nothing = flags < 0 || (flags & O_PATH);
    if (takes_nothing != static_cast<bool>(number_of("CLOSED") & (1 << fd))) return false;
  }
  return true;
}

bool sums(fsccl_comm_t comm, int ranks) {
  std::vector<float> data(kElements, 1);
  if (fsccl_all_reduce(data.data(), data.data(), kElements, FSCCL_FLOAT32, FSCCL_SUM, comm, nullptr,
                       nullptr) < 0)
    return false;
  return std::all_of(data.begin(), data.end(),
                     [&](float value) { return value == static_cast<float>(ranks); });
}

// Gathers a unit whose parameters all are `value`, in shared memory of the pool.
bool gathers(fsccl_comm_t comm, float value) {
  fsccl_pool_config_t memory = FSCCL_POOL_CONFIG_INIT;
  fsccl_unit_config_t config = FSCCL_UNIT_CONFIG_INIT;
  fsccl_param_t param = FSCCL_PARAM_INIT;
  fsccl_pool_t pool = nullptr;
  fsccl_unit_t unit = nullptr;
  fsccl_view_t view;
  memory.limit_bytes = 64u << 20;
  param.dims = 2;
  param.shape[0] = 1000;
  param.shape[1] = 100;
  param.dtype = config.wire_dtype = config.reduce_dtype = FSCCL_FLOAT32;
  config.shard_comm = comm;
  if (fsccl_pool_create(comm, &memory, &pool) < 0) return false;
  config.pool = pool;
  if (fsccl_unit_create(&config, &param, 1, &unit) < 0 || fsccl_unit_shard(unit, 0, &view) < 0)
    return false;
  std::fill_n(static_cast<float*>(view.data), view.count, value);
  if (fsccl_unit_mark_changed(unit) < 0 ||
      fsccl_unit_unshard(unit, FSCCL_UNSHARD_READ, nullptr, nullptr) < 0)
    return false;
  if (fsccl_unit_param(unit, 0, &view) < 0) return false;
  const auto* const first = static_cast<const float*>(view.data);
  const bool right = view.count == 100'000 && std::all_of(first, first + view.count,
                                                          [&](float one) { return one == value; });
  return right && fsccl_unit_reshard(unit, nullptr) >= 0 && fsccl_unit_destroy(unit) >= 0 &&
         fsccl_pool_destroy(pool) >= 0;
}

// Runs a job while the streams are closed, either before it begins or once it has joined, and
// writes a line of the log at each step. Its exit code says where it failed, because it cannot
// print.
int runs_without_streams(const Child& self) {
  if (!number_of("LATER")) close_streams();
  fsccl_comm_t comm = join();
  if (!comm) return 2;
  if (number_of("LATER")) close_streams();
  for (int i = 0; i < 3; i++) {
    fsccl_comm_t half = nullptr;
    if (!sums(comm, self.ranks)) return 3;
    if (fsccl_comm_split(comm, 0, self.rank, nullptr, &half) < 0) return 4;
    if (!gathers(half, static_cast<float>(7 + i))) return 5;
    if (!sums(half, self.ranks) || fsccl_comm_destroy(half) < 0) return 6;
    if (!streams_as_before()) return 7;
  }
  if (fsccl_barrier(comm, nullptr, nullptr) < 0 || fsccl_comm_destroy(comm) < 0) return 8;
  // The numbers of the closed streams are free again, unless another library has taken them: UCX
  // does.
  for (int fd = 0; fd < 3 && std::string(std::getenv("FSCCL_TRANSPORT")) != "ucx"; fd++)
    if ((number_of("CLOSED") & (1 << fd)) && fcntl(fd, F_GETFD) >= 0) return 9;
  return 0;
}

bool has_ucx() {
  bool available = false;
  const auto look = [](void* is, const fsccl_transport_info_t* info) {
    if (std::string(info->name) == "ucx") *static_cast<bool*>(is) = info->available != 0;
  };
  return fsccl_transport_list(look, &available) == FSCCL_OK && available;
}

void run_without_streams(int closed, const char* transport, const char* later, int port) {
  Processes processes;
  for (int rank = 0; rank < 2; rank++)
    processes.start("runs_without_streams", rank, 2,
                    with(job(rank, 2, port), {{"CLOSED", std::to_string(closed)},
                                              {"LATER", later},
                                              {"FSCCL_TRANSPORT", transport},
                                              {"FSCCL_LOG_LEVEL", "trace"},
                                              {"FSCCL_TIMEOUT_MS", "20000"}}));
  EXPECT_TRUE(processes.finish(kLimitMs)) << "closed: " << closed << " over " << transport << "\n"
                                          << processes.report();
}

TEST(ClosedStreams, EachSubset) {
  for (int closed = 1; closed < 8; closed++)
    run_without_streams(closed, "auto", closed % 2 ? "0" : "1", 20140 + closed);
}
TEST(ClosedStreams, ClosedWhileTheJobRuns) { run_without_streams(4, "auto", "1", 20148); }
TEST(ClosedStreams, OverTcp) { run_without_streams(7, "tcp", "0", 20149); }
TEST(ClosedStreams, OverUcx) {
  if (!has_ucx()) GTEST_SKIP() << "no UCX";
  run_without_streams(7, "ucx", "0", 20150);
}

// ---- a limit of file sizes

// Prints the error of the first call that fails.
int within_the_limit(const Child&) {
  const rlim_t bytes = static_cast<rlim_t>(number_of("BYTES"));
  const rlimit limit{bytes, bytes};
  if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 9;
  fsccl_comm_t comm = join();
  if (!comm) return 3;
  fsccl_pool_config_t memory = FSCCL_POOL_CONFIG_INIT;
  memory.limit_bytes = 64u << 20;
  fsccl_pool_t pool = nullptr;
  return good("pool", fsccl_pool_create(comm, &memory, &pool)) ? 0 : 4;
}

TEST(FileSizeLimit, IsAnErrorThatNamesIt) {
  int port = 20180;
  for (const int ranks : {1, 2})
    for (const char* bytes : {"0", "512", "1024", "65536", "16777216"}) {
      Processes processes;
      port++;
      for (int rank = 0; rank < ranks; rank++)
        processes.start("within_the_limit", rank, ranks,
                        with(job(rank, ranks, port), {{"BYTES", bytes}}));
      EXPECT_FALSE(processes.finish(kLimitMs));
      for (int rank = 0; rank < ranks; rank++) {
        EXPECT_THAT(processes.exit_code(rank), ::testing::AnyOf(3, 4)) << bytes << "\n"
                                                                       << processes.report();
      }
      // The other ranks may hear only that the rank which makes the shared memory has ended.
      EXPECT_THAT(processes.output(0), HasSubstr("ulimit -f")) << bytes << "\n"
                                                               << processes.report();
    }
}

// UCX makes files of shared memory, too.
TEST(FileSizeLimit, OverUcx) {
  if (!has_ucx()) GTEST_SKIP() << "no UCX";
  Processes processes;
  processes.start("within_the_limit", 0, 1,
                  with(job(0, 1, 20195), {{"BYTES", "0"}, {"FSCCL_TRANSPORT", "ucx"}}));
  EXPECT_FALSE(processes.finish(kLimitMs));
  EXPECT_THAT(processes.exit_code(0), ::testing::AnyOf(3, 4)) << processes.report();
  EXPECT_THAT(processes.output(0), HasSubstr("ulimit -f")) << processes.report();
}

// ---- the end of main()

// Ends main() as a thread ends, by pthread_exit(), once the job runs. A thread of the program may
// go on.
int ends_main(const Child&) {
  fsccl_comm_t comm = join();
  if (!comm || !good("barrier", fsccl_barrier(comm, nullptr, nullptr))) return 2;
  std::atexit([] { puts("at exit"); });
  if (number_of("THREAD_MS"))
    std::thread([] {
      std::this_thread::sleep_for(std::chrono::milliseconds(number_of("THREAD_MS")));
      puts("thread over");
    }).detach();
  puts("main over");
  pthread_exit(nullptr);
}

int start_ending(Processes& processes, int port, const char* thread_ms) {
  return processes.start("ends_main", 0, 1, with(job(0, 1, port), {{"THREAD_MS", thread_ms}}));
}

TEST(EndOfMain, EndsTheProcess) {
  Processes processes;
  start_ending(processes, 20161, "0");
  EXPECT_TRUE(processes.finish(kLimitMs)) << processes.report();
  EXPECT_THAT(processes.output(0), HasSubstr("main over\nat exit"));
}

TEST(EndOfMain, NotBeforeTheLastThreadOfTheProgram) {
  Processes processes;
  start_ending(processes, 20162, "3000");
  EXPECT_TRUE(processes.finish(kLimitMs)) << processes.report();
  EXPECT_THAT(processes.output(0), HasSubstr("thread over\nat exit"));
}

TEST(EndOfMain, ASignalEndsIt) {
  for (const char* thread_ms : {"0", "1000000"}) {
    Processes processes;
    start_ending(processes, 20163, thread_ms);
    ASSERT_TRUE(processes.wait_for_output(0, "main over", kLimitMs));
    processes.kill(0, SIGTERM);
    processes.finish(kLimitMs);
    // A process without a thread of its own left may have ended by itself before the signal came.
    EXPECT_THAT(processes.exit_code(0),
                ::testing::AnyOf(128 + SIGTERM, *thread_ms == '0' ? 0 : 128 + SIGTERM))
        << processes.report();
  }
}

// ---- outputs that are no files

int writes_outputs(const Child&) {
  fsccl_comm_t comm = join();
  fsccl_pool_config_t memory = FSCCL_POOL_CONFIG_INIT;
  fsccl_pool_t pool = nullptr;
  void* block = nullptr;
  if (!comm || !good("pool", fsccl_pool_create(comm, &memory, &pool))) return 2;
  if (!good("alloc", fsccl_pool_alloc(pool, 4096, nullptr, &block)) ||
      !good("free", fsccl_pool_free(pool, block, nullptr)))
    return 3;
  if (const char* const path = std::getenv("SNAPSHOT"))
    tell("snapshot", fsccl_pool_snapshot(pool, path));
  return good("destroy", fsccl_pool_destroy(pool)) && good("comm", fsccl_comm_destroy(comm)) ? 0
                                                                                             : 4;
}

std::string run_outputs(int port, const Variables& more, int expected) {
  Processes processes;
  processes.start("writes_outputs", 0, 1, with(job(0, 1, port), more));
  processes.finish(kLimitMs);
  EXPECT_EQ(processes.exit_code(0), expected) << processes.report();
  return processes.output(0);
}

mode_t type_of(const std::string& path) {
  struct stat facts{};
  return lstat(path.c_str(), &facts) == 0 ? facts.st_mode & S_IFMT : 0;
}

TEST(Outputs, DevicesAreWrittenInPlace) {
  const Folder folder;
  const std::string null = device_like("null", 3, folder.path(""));
  if (null.empty())
    GTEST_SKIP() << "no device of the test's own: mknod, or a temporary folder without nodev";
  std::filesystem::create_symlink(null, folder.path("link"));
  for (const std::string& path : {null, folder.path("link")}) {
    run_outputs(20171,
                {{"FSCCL_METRICS_FILE", path},
                 {"FSCCL_POOL_LOG", path},
                 {"SNAPSHOT", path},
                 {"FSCCL_LOG_FILE", path}},
                0);
    EXPECT_EQ(type_of(null), mode_t{S_IFCHR});
  }
  EXPECT_EQ(type_of(folder.path("link")), mode_t{S_IFLNK});
}

TEST(Outputs, TheStandardOutputByItsName) {
  const Folder folder;
  const std::string link = folder.path("stdout");  // as /dev/stdout is
  std::filesystem::create_symlink("/proc/self/fd/1", link);
  const std::string said =
      run_outputs(20172, {{"FSCCL_METRICS_FILE", link}, {"FSCCL_POOL_LOG", link}}, 0);
  EXPECT_THAT(said, HasSubstr("fsccl_build"));
  EXPECT_THAT(said, HasSubstr("Thread,Time,Action,Pointer,Size,Stream"));
  EXPECT_THAT(said, HasSubstr("allocate,"));
  EXPECT_EQ(type_of(link), mode_t{S_IFLNK});
}

// The FIFO has no reader. A call that can return an error returns one, otherwise there is a
// warning, and the process goes on.
TEST(Outputs, AFifoWithoutAReader) {
  const Folder folder;
  const std::string fifo = folder.path("fifo");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(run_outputs(20173, {{"SNAPSHOT", fifo}}, 0), HasSubstr("start its reader first"));
  EXPECT_THAT(run_outputs(20174, {{"FSCCL_POOL_LOG", fifo}}, 2),
              HasSubstr("start its reader first"));
  EXPECT_THAT(run_outputs(20175, {{"FSCCL_LOG_FILE", fifo}}, 2),
              HasSubstr("start its reader first"));
  run_outputs(20176, {{"FSCCL_METRICS_FILE", fifo}, {"FSCCL_LOG_FILE", folder.path("log")}}, 0);
  EXPECT_THAT(content_of(folder.path("log")), HasSubstr("start its reader first"));
  EXPECT_EQ(type_of(fifo), mode_t{S_IFIFO});
}

TEST(Outputs, AFolder) {
  const Folder folder;
  EXPECT_THAT(run_outputs(20177, {{"SNAPSHOT", folder.path("")}}, 0),
              HasSubstr("it is a directory"));
  EXPECT_THAT(run_outputs(20178, {{"FSCCL_POOL_LOG", folder.path("")}}, 2),
              HasSubstr("it is a directory"));
}

const AddRoles roles{{"runs_without_streams", runs_without_streams},
                     {"within_the_limit", within_the_limit},
                     {"ends_main", ends_main},
                     {"writes_outputs", writes_outputs}};

}  // namespace
}  // namespace fsccl::testing::habits_tests
