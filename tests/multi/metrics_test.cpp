// Tests metrics of processes in OpenMetrics form: through the call, and in FSCCL_METRICS_FILE.
#include <fsccl/fsccl.h>
#include <fsccl/insight.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "multi/open_metrics.h"
#include "multi/processes.h"
#include "multi/tell.h"

namespace fsccl::testing::metrics_tests {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kLimitMs = 60'000;
constexpr const char* kName = "a \"name\" with \\ and\na line \xff";  // the last byte is no UTF-8
constexpr const char* kShownName = "a \"name\" with \\ and\na line \xef\xbf\xbd";
constexpr size_t kElements = 1000;

class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "fsccl-metrics-XXXXXX").string();
    if (!mkdtemp(name.data())) ADD_FAILURE() << "mkdtemp " << name;
    path_ = name;
  }
  Folder(const Folder&) = delete;
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string path(const std::string& name) const { return (path_ / name).string(); }
  size_t files() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(path_), {}));
  }

 private:
  std::filesystem::path path_;
};

std::string content_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

fsccl_comm_t join() {
  fsccl_comm_config_t config = FSCCL_COMM_CONFIG_INIT;
  config.name = kName;
  fsccl_comm_t comm = nullptr;
  return good("join", fsccl_comm_create(&config, &comm)) ? comm : nullptr;
}

bool barriers(fsccl_comm_t comm, int count) {
  bool all = true;
  for (int i = 0; i < count; i++)
    all = all && good("barrier", fsccl_barrier(comm, nullptr, nullptr));
  return all;
}

// Makes three barriers, a gather and a block of a pool, and then asks for fsccl_metrics.
int asks(const Child&) {
  if (fsccl_metrics(nullptr, nullptr) != FSCCL_ERR_INVALID_ARGUMENT) return 2;
  fsccl_comm_t comm = join();
  int ranks = 0;
  if (!comm || !barriers(comm, 3) || !good("size", fsccl_comm_size(comm, &ranks))) return 3;
  std::vector<float> part(kElements, 1), whole(kElements * static_cast<size_t>(ranks));
  if (!good("gather", fsccl_all_gather(part.data(), whole.data(), kElements, FSCCL_FLOAT32, comm,
                                       nullptr, nullptr)))
    return 4;
  fsccl_pool_config_t memory = FSCCL_POOL_CONFIG_INIT;
  fsccl_pool_t pool = nullptr;
  void* block = nullptr;
  if (!good("pool", fsccl_pool_create(comm, &memory, &pool)) ||
      !good("block", fsccl_pool_alloc(pool, 100'000, nullptr, &block)))
    return 5;
  const auto print = [](void*, const char* text, size_t bytes) {
    printf("<%.*s>", static_cast<int>(bytes), text);
  };
  // No rank leaves before all have asked.
  if (!good("metrics", fsccl_metrics(print, nullptr)) || !barriers(comm, 1)) return 6;
  const bool ended = good("free", fsccl_pool_free(pool, block, nullptr)) &&
                     good("pool", fsccl_pool_destroy(pool)) &&
                     good("comm", fsccl_comm_destroy(comm));
  return ended ? 0 : 7;
}

int runs(const Child&) {
  fsccl_comm_t comm = join();
  return comm && barriers(comm, 5) && good("comm", fsccl_comm_destroy(comm)) ? 0 : 2;
}

int exits(const Child&) {
  fsccl_comm_t comm = join();
  if (!comm || !barriers(comm, 5)) return 2;
  std::exit(0);  // without destroying its communicator
}

int fails(const Child&) {
  fsccl_comm_t comm = join();
  return comm && barriers(comm, 1) && good("abort", fsccl_comm_abort(comm)) &&
                 good("comm", fsccl_comm_destroy(comm))
             ? 0
             : 2;
}

int runs_on(const Child&) {
  fsccl_comm_t comm = join();
  while (comm && barriers(comm, 1)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return 2;
}

void run_all(const char* role, int ranks, int port, const Variables& more) {
  Processes processes;
  for (int rank = 0; rank < ranks; rank++) {
    Variables variables = job(rank, ranks, port);
    variables.insert(variables.end(), more.begin(), more.end());
    processes.start(role, rank, ranks, variables);
  }
  EXPECT_TRUE(processes.finish(kLimitMs)) << processes.report();
}

TEST(Metrics, TellWhatWasDone) {
  Processes processes;
  for (int rank = 0; rank < 2; rank++) processes.start("asks", rank, 2, job(rank, 2, 20111));
  ASSERT_TRUE(processes.finish(kLimitMs)) << processes.report();
  for (int rank = 0; rank < 2; rank++) {
    const std::string& all = processes.output(rank);
    const OpenMetrics told(all.substr(all.find('<') + 1, all.rfind('>') - all.find('<') - 1));
    const OpenMetrics::Labels comm{
        {"comm", kShownName}, {"rank", std::to_string(rank)}, {"size", "2"}};
    const auto with = [](OpenMetrics::Labels labels, const char* name, const char* value) {
      labels[name] = value;
      return labels;
    };
    EXPECT_EQ(told.value("fsccl_operations", with(comm, "operation", "barrier")), 3);
    EXPECT_GE(told.value("fsccl_operations", with(comm, "operation", "all_gather")), 1);
    EXPECT_EQ(told.value("fsccl_operations_in_flight", comm), 0);
    EXPECT_GE(told.value("fsccl_written_bytes", comm), 2 * kElements * sizeof(float));
    EXPECT_EQ(told.value("fsccl_peers", with(comm, "state", "alive")), 1);
    EXPECT_EQ(told.value("fsccl_peers", with(comm, "state", "dead")), 0);
    EXPECT_EQ(told.value("fsccl_failed", comm), 0);
    EXPECT_EQ(told.value("fsccl_failures", {{"code", "peer_dead"}}), 0);
    EXPECT_EQ(told.value("fsccl_build", {{"version", "0.1.0"}}), 1);
    const OpenMetrics::Labels pool{{"rank", std::to_string(rank)}, {"pool", "pool"}};
    EXPECT_GE(told.value("fsccl_pool_live_bytes", pool), 100'000);
    EXPECT_GE(told.value("fsccl_pool_reserved_bytes", pool),
              told.value("fsccl_pool_live_bytes", pool));
    EXPECT_EQ(told.value("fsccl_pool_allocations", pool), 1);
    EXPECT_EQ(told.families().at("fsccl_pool_live_bytes").unit, "bytes");
    EXPECT_EQ(told.families().at("fsccl_operations").type, "counter");
  }
}

TEST(Metrics, AFileHoldsThemAtTheEnd) {
  // A rank that exits without destroying its communicator counts as dead for the others.
  for (const auto& [role, ranks] : {std::pair{"runs", 2}, {"exits", 1}}) {
    const Folder folder;
    run_all(role, ranks, 20112,
            {{"FSCCL_METRICS_FILE", folder.path("of-%r.txt")}, {"FSCCL_METRICS_MS", "86400000"}});
    EXPECT_EQ(folder.files(), static_cast<size_t>(ranks));
    for (int rank = 0; rank < ranks; rank++) {
      const std::string path = folder.path("of-" + std::to_string(rank) + ".txt");
      const OpenMetrics told(content_of(path));
      EXPECT_EQ(told.value("fsccl_operations",
                           {{"operation", "barrier"}, {"rank", std::to_string(rank)}}),
                5)
          << role;
      struct stat facts{};
      ASSERT_EQ(stat(path.c_str(), &facts), 0);
      EXPECT_EQ(facts.st_mode & 07777, 0600u);
    }
  }
}

TEST(Metrics, AFileHoldsThemAsTimeGoesBy) {
  const Folder folder;
  Processes processes;
  for (int rank = 0; rank < 2; rank++) {
    Variables variables = job(rank, 2, 20113);
    variables.insert(variables.end(),
                     {{"FSCCL_METRICS_FILE", folder.path("%p")}, {"FSCCL_METRICS_MS", "100"}});
    processes.start("runs_on", rank, 2, variables);
  }
  const std::string path = folder.path(std::to_string(processes.pid(1)));
  const auto barriers_told = [&]() -> double {
    const std::string text = content_of(path);
    return text.empty() ? 0
                        : OpenMetrics(text)
                              .value("fsccl_operations", {{"operation", "barrier"}})
                              .value_or(0);
  };
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(kLimitMs);
  const auto more_than = [&](double before) {
    double now = before;
    // The file is complete whenever it is read.
    while (now <= before && std::chrono::steady_clock::now() < end) now = barriers_told();
    return now;
  };
  const double first = more_than(0), second = more_than(first);
  EXPECT_GT(second, first);
  for (int rank = 0; rank < 2; rank++) processes.kill(rank, SIGKILL);
  processes.finish(kLimitMs);
  EXPECT_GE(barriers_told(), second);
}

TEST(Metrics, AFailureIsCounted) {
  const Folder folder;
  run_all("fails", 1, 20114, {{"FSCCL_METRICS_FILE", folder.path("file")}});
  const OpenMetrics told(content_of(folder.path("file")));
  EXPECT_EQ(told.value("fsccl_failures", {{"code", "aborted"}}), 1);
  EXPECT_EQ(told.value("fsccl_failed", {{"rank", "0"}}), 1);
}

// If the folder of the file is missing, the job goes on, and reports it once.
TEST(Metrics, AFolderThatIsNotThere) {
  const Folder folder;
  run_all(
      "runs", 1, 20115,
      {{"FSCCL_METRICS_FILE", folder.path("none/file")}, {"FSCCL_LOG_FILE", folder.path("log")}});
  const std::string log = content_of(folder.path("log"));
  EXPECT_THAT(log, HasSubstr("FSCCL_METRICS_FILE: '" + folder.path("none/file") +
                             "' cannot be written: No such file"));
  EXPECT_EQ(log.find("FSCCL_METRICS_FILE"), log.rfind("FSCCL_METRICS_FILE")) << log;
}

TEST(Metrics, ALinkInTheWayIsReplacedNotFollowed) {
  const Folder folder;
  std::ofstream(folder.path("other")) << "somebody's";
  std::filesystem::create_symlink(folder.path("other"), folder.path("file"));
  run_all("runs", 1, 20116, {{"FSCCL_METRICS_FILE", folder.path("file")}});
  EXPECT_EQ(content_of(folder.path("other")), "somebody's");
  EXPECT_FALSE(std::filesystem::is_symlink(folder.path("file")));
  EXPECT_EQ(OpenMetrics(content_of(folder.path("file"))).value("fsccl_build", {}), 1);
}

// The test's reader refuses texts that are not OpenMetrics.
TEST(OpenMetricsReader, IsStrict) {
  const std::string head = "# TYPE a counter\n# HELP a It.\n";
  EXPECT_EQ(OpenMetrics(head + "a_total{x=\"\\\\\\n\"} 1\n# EOF\n").value("a", {{"x", "\\\n"}}), 1);
  for (const char* wrong :
       {"", "a_total 1\n", "a_total 1\n# EOF", "a 1\n# EOF\n", "a_total 1\na_total 2\n# EOF\n",
        "a_total{x=\"1} 1\n# EOF\n", "a_total{x=\"1\",} 1\n# EOF\n",
        "a_total{x=\"\\t\"} 1\n# EOF\n", "a_total -1\n# EOF\n", "a_total 1\n# EOF\n# EOF\n",
        "# TYPE b gauge\n# HELP b It.\nb 1\na_total 1\n# EOF\n", "# UNIT a bytes\n# EOF\n",
        "\n# EOF\n"})
    EXPECT_THROW(OpenMetrics(head + wrong), std::runtime_error) << wrong;
}

const AddRoles roles{
    {"asks", asks}, {"runs", runs}, {"exits", exits}, {"fails", fails}, {"runs_on", runs_on}};

}  // namespace
}  // namespace fsccl::testing::metrics_tests
