// Tests jobs that stand still or fail, and what `fsccl-trace hang` finds in the recordings of their
// ranks: which rank caused it, how, and in which operation. The program's path is in TRACE_PROGRAM.
#include <fsccl/fsccl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <vector>

#include "multi/processes.h"

namespace fsccl::testing::hang_tests {
namespace {

using Json = nlohmann::json;
constexpr int64_t kLimitMs = 60'000;
constexpr int kRanks = 4;

// Joins, and goes on when the test says so, after all ranks have joined.
fsccl_comm_t join() {
  sigset_t go;
  sigemptyset(&go);
  sigaddset(&go, SIGUSR1);
  sigprocmask(SIG_BLOCK, &go, nullptr);
  fsccl_comm_t comm = nullptr;
  if (fsccl_comm_create(nullptr, &comm) != FSCCL_OK ||
      fsccl_barrier(comm, nullptr, nullptr) != FSCCL_OK)
    exit(3);
  puts("ready");
  int signal = 0;
  sigwait(&go, &signal);
  return comm;
}

int gather(fsccl_comm_t comm, size_t count) {
  std::vector<float> mine(count, 1), all(count * kRanks);
  return fsccl_all_gather(mine.data(), all.data(), count, FSCCL_FLOAT32, comm, nullptr, nullptr);
}

// Gathers; rank 2 is killed before it does.
int killed(const Child& self) {
  fsccl_comm_t comm = join();
  if (self.rank == 2) raise(SIGKILL);
  return gather(comm, 100) == FSCCL_ERR_PEER_DEAD ? 0 : 4;
}

// Gathers; rank 1 never does.
int absent(const Child& self) {
  fsccl_comm_t comm = join();
  while (self.rank == 1) pause();
  return gather(comm, 100) == FSCCL_OK ? 0 : 4;
}

// Rank 3 gathers a different amount than the others.
int disagreeing(const Child& self) {
  fsccl_comm_t comm = join();
  return gather(comm, self.rank == 3 ? 50 : 100) == FSCCL_ERR_MISMATCH ? 0 : 4;
}

// There are two communicators of all ranks, and rank 0 uses them in the opposite order.
int crossed(const Child& self) {
  fsccl_comm_t first = join(), second = nullptr;
  if (fsccl_comm_split(first, 0, self.rank, nullptr, &second) != FSCCL_OK) return 5;
  if (self.rank == 0) std::swap(first, second);
  return fsccl_barrier(first, nullptr, nullptr) == FSCCL_OK &&
                 fsccl_barrier(second, nullptr, nullptr) == FSCCL_OK
             ? 0
             : 4;
}

// Rank 0 holds the whole parameter and does not return from the middle of its reduction, so rank 1
// waits for its gradient slot.
int holding(const Child& self) {
  fsccl_unit_config_t config = FSCCL_UNIT_CONFIG_INIT;
  fsccl_pool_config_t memory = FSCCL_POOL_CONFIG_INIT;
  fsccl_reduce_config_t held = FSCCL_REDUCE_CONFIG_INIT;
  fsccl_param_t param = FSCCL_PARAM_INIT;
  fsccl_unit_t unit = nullptr;
  fsccl_view_t view;
  param.dims = 2, param.shape[0] = 1, param.shape[1] = 1000;
  config.layout = FSCCL_LAYOUT_PER_PARAM;
  config.shard_comm = join();
  held.shard_ready = [](void*, fsccl_unit_t, size_t) { pause(); };
  if (fsccl_pool_create(config.shard_comm, &memory, &config.pool) != FSCCL_OK) return 5;
  if (fsccl_unit_create(&config, &param, 1, &unit) != FSCCL_OK) return 6;
  for (int round = 0; round < 4; round++) {
    if (fsccl_unit_grad(unit, 0, nullptr, &view) != FSCCL_OK) return 7;
    const bool last = self.rank == 0 && round == 2;
    if (fsccl_unit_reduce_grads(unit, last ? &held : nullptr, nullptr, nullptr) != FSCCL_OK)
      return 8;
  }
  return 0;
}

int well(const Child&) {
  fsccl_comm_t comm = join();
  const fsccl_status_t status = fsccl_barrier(comm, nullptr, nullptr);
  return status == FSCCL_OK && fsccl_comm_destroy(comm) == FSCCL_OK ? 0 : 4;
}

std::string output_of(const std::string& command) {
  std::string text;
  FILE* pipe = popen(command.c_str(), "r");
  if (!pipe) return text;
  std::array<char, 4096> part;
  while (const size_t bytes = fread(part.data(), 1, part.size(), pipe))
    text.append(part.data(), bytes);
  pclose(pipe);
  return text;
}

class Hang : public ::testing::Test {
 protected:
  Hang() {
    std::string name = ::testing::TempDir() + "hangXXXXXX";
    folder_ = mkdtemp(name.data());
  }
  ~Hang() override { std::filesystem::remove_all(folder_); }

  void start(const char* role, int port) {
    for (int rank = 0; rank < kRanks; ++rank) {
      Variables variables = job(rank, kRanks, port);
      variables.emplace_back("FSCCL_TRACE_DIR", folder_);
      processes_.start(role, rank, kRanks, variables);
    }
    for (int rank = 0; rank < kRanks; ++rank)
      EXPECT_TRUE(processes_.wait_for_output(rank, "ready", kLimitMs)) << processes_.report();
    for (int rank = 0; rank < kRanks; ++rank) processes_.kill(rank, SIGUSR1);
  }

  Json verdict() const {
    const std::string text = output_of(std::string("'") + getenv("TRACE_PROGRAM") +
                                       "' hang --json '" + folder_ + "' 2>&1");
    const Json json = Json::parse(text, nullptr, false);
    EXPECT_TRUE(json.is_object()) << text;
    return json.is_object() ? json : Json{{"cause", "unreadable"}};
  }

  // Asks for verdicts while the job goes on, and returns the first one for which `come` is true, or
  // the last one when the time is over.
  template <typename Come>
  Json verdict_once(Come&& come) {
    const int64_t end = time(nullptr) + kLimitMs / 1000;
    Json found = verdict();
    while (!come(found) && time(nullptr) < end) found = verdict();
    return found;
  }

  // Returns the first verdict with this cause after which nothing changes any more: every rank but
  // `last` waits for `last`. An earlier verdict may name another rank, which is still on its way.
  Json verdict_when_all_wait_for(int last, const std::string& cause,
                                 const std::string& operation = "") {
    const std::string waits = "waits for rank " + std::to_string(last);
    return verdict_once([&](const Json& found) {
      if (found["cause"] != cause || found["ranks"].size() != kRanks ||
          found["operation"].get<std::string>().find(operation) == std::string::npos)
        return false;
      for (int rank = 0; rank < kRanks; rank++)
        if (rank != last &&
            found["ranks"][rank].get<std::string>().find(waits) == std::string::npos)
          return false;
      return true;
    });
  }

  std::string folder_;
  Processes processes_;
};

TEST_F(Hang, AKilledRank) {
  start("killed", 20600);
  processes_.finish(kLimitMs);
  EXPECT_EQ(processes_.exit_code(0), 0) << processes_.report();
  const Json found = verdict();
  EXPECT_EQ(found["cause"], "died") << found;
  EXPECT_EQ(found["guilty"], Json::array({2})) << found;
  EXPECT_EQ(found["ranks"].size(), 4u);  // the recording of the dead rank is there, too
}

TEST_F(Hang, AWaitOutsideOfOperations) {
  start("holding", 20609);
  // Before the job stands still, all ranks, also rank 0, wait for other ranks now and then, in
  // operations. The verdict that counts is one in which rank 0 waits outside of an operation.
  const Json found = verdict_when_all_wait_for(0, "stuck", "release a slot");
  EXPECT_EQ(found["cause"], "stuck") << found;
  EXPECT_EQ(found["guilty"], Json::array({0})) << found;
  EXPECT_THAT(found["operation"].get<std::string>(), ::testing::HasSubstr("release a slot"))
      << found;
}

TEST_F(Hang, ARankThatDoesNotCome) {
  start("absent", 20601);
  const Json found = verdict_when_all_wait_for(1, "absent");
  EXPECT_EQ(found["cause"], "absent") << found;
  EXPECT_EQ(found["guilty"], Json::array({1})) << found;
  EXPECT_THAT(found["operation"].get<std::string>(),
              ::testing::HasSubstr("all_gather of 100 float32"))
      << found;
}

// While a job stands still, nothing is recorded any more. The verdict says for how long it has
// stood nevertheless: at least a second in the end, and never longer than the test has taken.
TEST_F(Hang, TheTimeForWhichAJobStands) {
  const auto begin = std::chrono::steady_clock::now();
  start("absent", 20606);
  const std::regex waiting("for (\\d+\\.\\d+) s, waits for rank 1");
  double told_s = 0, passed_s = 0;
  while (told_s < 1 && passed_s < kLimitMs / 1e3) {
    const std::string line = verdict()["ranks"][0].get<std::string>();
    passed_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    std::smatch found;
    if (std::regex_search(line, found, waiting)) told_s = std::stod(found[1].str());
    EXPECT_LE(told_s, passed_s);
  }
  EXPECT_GE(told_s, 1);
}

TEST_F(Hang, ARankThatIsStopped) {
  start("absent", 20605);
  processes_.kill(1, SIGSTOP);
  Json found = verdict_when_all_wait_for(1, "suspect");
  EXPECT_EQ(found["cause"], "suspect") << found;
  EXPECT_EQ(found["guilty"], Json::array({1})) << found;
  EXPECT_THAT(found["text"].get<std::string>(), ::testing::HasSubstr("suspect: stopped")) << found;
  processes_.kill(1, SIGCONT);
  found = verdict_when_all_wait_for(1, "absent");
  EXPECT_EQ(found["cause"], "absent") << found;
}

TEST_F(Hang, ARankThatCallsSomethingElse) {
  start("disagreeing", 20602);
  EXPECT_TRUE(processes_.finish(kLimitMs)) << processes_.report();
  const Json found = verdict();
  EXPECT_EQ(found["cause"], "disagree") << found;
  // Rank 3 alone gathered this amount, so it must be among the guilty ranks.
  EXPECT_THAT(found["guilty"].get<std::vector<int>>(), ::testing::Contains(3)) << found;
  EXPECT_THAT(
      found["text"].get<std::string>(),
      ::testing::AllOf(::testing::HasSubstr("100 float32"), ::testing::HasSubstr("50 float32")));
}

TEST_F(Hang, CommunicatorsInDifferentOrders) {
  start("crossed", 20603);
  const Json found = verdict_once([](const Json& json) { return json["cause"] == "cycle"; });
  EXPECT_EQ(found["cause"], "cycle") << found;
  EXPECT_THAT(found["guilty"].get<std::vector<int>>(), ::testing::Contains(0)) << found;
}

TEST_F(Hang, NothingToFind) {
  start("well", 20604);
  EXPECT_TRUE(processes_.finish(kLimitMs)) << processes_.report();
  EXPECT_EQ(verdict()["cause"], "none");
}

const AddRoles roles{{"killed", killed},   {"absent", absent},   {"disagreeing", disagreeing},
                     {"crossed", crossed}, {"holding", holding}, {"well", well}};

}  // namespace
}  // namespace fsccl::testing::hang_tests
