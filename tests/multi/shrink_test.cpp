// Tests going on after deaths, with real processes. Ranks are killed at rest, two at once, and
// while the others shrink. The survivors make communicators of themselves, on one host and between
// hosts, all of them the same, and compute with them.
#include <sys/resource.h>

#include <fsccl/fsccl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <set>
#include <sstream>
#include <string>
#include <thread>

#include "multi/processes.h"
#include "multi/tell.h"

namespace fsccl::testing::shrink_tests {
namespace {

constexpr int64_t kLimitMs = 100'000;

std::string text_of(const std::vector<int>& ranks) {
  std::ostringstream text;
  for (const int rank : ranks) text << rank << ' ';
  return text.str();
}

int number_of(const char* name, int otherwise) {
  const char* const text = std::getenv(name);
  return text ? std::atoi(text) : otherwise;
}

// Sets *ranks to the ranks in a communicator, by a gather that needs no slots, and checks a gather
// that needs slots by its sum.
fsccl_status_t look_around(fsccl_comm_t comm, int self, std::vector<int>* ranks) {
  constexpr size_t kCount = 30'000;
  int size = 0;
  fsccl_comm_size(comm, &size);
  ranks->assign(static_cast<size_t>(size), -1);
  fsccl_status_t status =
      fsccl_all_gather(&self, ranks->data(), 1, FSCCL_INT32, comm, nullptr, nullptr);
  if (status < 0) return status;
  std::vector<int> mine(kCount, self), all(kCount * static_cast<size_t>(size)), sum(kCount);
  status = fsccl_all_gather(mine.data(), all.data(), kCount, FSCCL_INT32, comm, nullptr, nullptr);
  if (status < 0) return status;
  for (size_t i = 0; i < all.size(); i++)
    if (all[i] != (*ranks)[i / kCount]) exit(20);
  status = fsccl_all_reduce(mine.data(), sum.data(), kCount, FSCCL_INT32, FSCCL_SUM, comm, nullptr,
                            nullptr);
  if (status < 0) return status;
  for (const int value : sum)
    if (value != std::accumulate(ranks->begin(), ranks->end(), 0)) exit(21);
  return status;
}

// After this call the process cannot make memory that it shares.
void allow_no_files() {
  const rlimit none{0, 0};
  signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &none);
}

// Shrinks whenever a rank has died, until TEST_LEFT ranks are left and have computed together. A
// rank that is TEST_LATE sees the first death and does nothing more; one that is TEST_CRAMPED
// cannot make the next communicator.
int survivor(const Child& self) {
  const int left = number_of("TEST_LEFT", self.ranks), late = number_of("TEST_LATE", -1),
            cramped = number_of("TEST_CRAMPED", -1), part = number_of("TEST_PART", 0);
  fsccl_comm_t comm = nullptr, whole = nullptr;
  if (fsccl_comm_create(nullptr, &comm) < 0) return tell("create", FSCCL_ERR_INTERNAL);
  if (part) {
    whole = comm;
    if (const fsccl_status_t status = fsccl_comm_split(whole, self.rank % part, 0, nullptr, &comm);
        status < 0)
      return tell("split", status);
  }
  std::vector<int> ranks;
  if (const fsccl_status_t status = look_around(comm, self.rank, &ranks); status < 0)
    return tell("first", status);
  puts("ready");
  std::string lives;
  while (true) {
    fsccl_status_t status = FSCCL_OK;
    while (status >= 0) status = look_around(comm, self.rank, &ranks), std::this_thread::yield();
    if (status != FSCCL_ERR_PEER_DEAD) return tell("look", status);
    printf("bereft %d\n", static_cast<int>(ranks.size()));
    while (self.rank == late) pause();
    fsccl_comm_t next = nullptr;
    if (self.rank == cramped) allow_no_files();
    status = fsccl_comm_shrink(comm, nullptr, &next);
    if (status < 0) return tell("shrink", status);
    if (fsccl_comm_destroy(comm) < 0) return tell("destroy", FSCCL_ERR_INTERNAL);
    comm = next;
    int size = 0;
    fsccl_comm_size(comm, &size);
    printf("shrunk %d\n", size);
    if (size > left) continue;
    status = look_around(comm, self.rank, &ranks);
    if (status < 0) return tell("last", status);
    printf("left: %s\n", text_of(ranks).c_str());
    if (fsccl_comm_destroy(comm) < 0 || (whole && fsccl_comm_destroy(whole) < 0))
      return tell("end", FSCCL_ERR_INTERNAL);
    return 0;
  }
}

class Job {
 public:
  Job(int ranks, int port, int left, int hosts, const Variables& more = {}) : ranks_(ranks) {
    for (int rank = 0; rank < ranks; rank++) {
      Variables variables = job(rank, ranks, port);
      variables.emplace_back("TEST_LEFT", std::to_string(left));
      if (hosts > 1) {
        variables.emplace_back("FSCCL_HOST_ID", "host " + std::to_string(rank * hosts / ranks));
        variables.emplace_back("FSCCL_INSECURE", "1");
        std::erase_if(variables, [](const auto& variable) {
          return variable.first == "LOCAL_WORLD_SIZE" || variable.first == "LOCAL_RANK";
        });
      }
      variables.insert(variables.end(), more.begin(), more.end());
      processes_.start("survivor", rank, ranks, variables);
    }
    everybody_says("ready");
  }
  void everybody_says(const std::string& text) {
    for (int rank = 0; rank < ranks_; rank++) {
      if (killed_.contains(rank)) continue;
      ASSERT_TRUE(processes_.wait_for_output(rank, text, kLimitMs)) << text << "\n"
                                                                    << processes_.report();
    }
  }
  void kill(std::initializer_list<int> victims) {
    for (const int victim : victims) processes_.kill(victim, SIGKILL), killed_.insert(victim);
  }
  // Expects that all ranks that were not killed are left, have the right results, and have seen the
  // same communicators on the way there.
  void ends_well(int part = 0) {
    processes_.finish(kLimitMs);
    std::vector<std::set<std::string>> ways(static_cast<size_t>(std::max(part, 1)));
    for (int rank = 0; rank < ranks_; rank++) {
      if (killed_.contains(rank)) continue;
      EXPECT_EQ(processes_.exit_code(rank), 0) << rank << processes_.report();
      std::vector<int> left;
      for (int other = 0; other < ranks_; other++)
        if (!killed_.contains(other) && (part == 0 || other % part == rank % part))
          left.push_back(other);
      const std::string& output = processes_.output(rank);
      EXPECT_THAT(output, ::testing::HasSubstr("left: " + text_of(left) + "\n"))
          << processes_.report();
      ways[static_cast<size_t>(part ? rank % part : 0)].insert(
          output.substr(std::min(output.find("bereft"), output.size())));
    }
    for (const auto& way : ways) EXPECT_EQ(way.size(), 1u) << processes_.report();
  }

 private:
  const int ranks_;
  Processes processes_;
  std::set<int> killed_;
};

class Shrink : public ::testing::TestWithParam<int> {
 protected:
  int hosts() const { return GetParam(); }
  int port() const { return 20000 + getpid() % 400 * 100 + 30 * (hosts() - 1); }
};

TEST_P(Shrink, AnyRankCanDie) {
  for (const int victim : {0, 2, 3}) {
    Job job(4, port() + victim, 3, hosts());
    job.kill({victim});
    job.ends_well();
  }
}

TEST_P(Shrink, TwoAtOnce) {
  Job first(12, port() + 10, 10, hosts());
  first.kill({0, 1});
  first.ends_well();
  Job other(12, port() + 11, 10, hosts());
  other.kill({1, 10});
  other.ends_well();
}

// Some killed ranks die together with their parents in the tree, so no living neighbour reports
// their deaths: the survivors must look for them.
TEST_P(Shrink, MostAtOnce) {
  Job first(12, port() + 26, 3, hosts());
  first.kill({0, 1, 2, 3, 4, 6, 7, 9, 10});
  first.ends_well();
  Job other(12, port() + 27, 3, hosts());
  other.kill({1, 2, 3, 5, 6, 7, 8, 10, 11});
  other.ends_well();
}

TEST_P(Shrink, AgainAndAgain) {
  Job job(6, port() + 12, 2, hosts());
  int left = 6;
  for (const int victim : {0, 5, 2, 1}) {
    job.kill({victim});
    if (--left > 2) job.everybody_says("shrunk " + std::to_string(left));
  }
  job.ends_well();
}

// A rank dies while the others have asked who is left and wait for its answer.
TEST_P(Shrink, WhoDiesMeanwhileIsLeftOut) {
  Job job(5, port() + 13, 3, hosts(), {{"TEST_LATE", "1"}});
  job.kill({4});
  job.everybody_says("bereft 5");
  job.kill({1});
  job.ends_well();
}

TEST_P(Shrink, DeathsAtAnyMoment) {
  for (int round = 0; round < 6; round++) {
    Job job(7, port() + 20 + round, 4, hosts());
    job.kill({round});
    // The next kills come at some moment while the survivors shrink.
    std::this_thread::sleep_for(std::chrono::microseconds(round * round * 900));
    job.kill({(round + 2) % 7});
    std::this_thread::sleep_for(std::chrono::microseconds(round * 1500));
    job.kill({(round + 5) % 7});
    job.ends_well();
  }
}

INSTANTIATE_TEST_SUITE_P(OnHosts, Shrink, ::testing::Values(1, 2, 3));

// A survivor cannot make the next communicator. All others read its error.
TEST(ShrinkWithAnError, IsToldToAllSurvivors) {
  Processes processes;
  const int ranks = 4, cramped = 1, port = 20470;
  for (int rank = 0; rank < ranks; rank++) {
    Variables variables = job(rank, ranks, port);
    variables.insert(variables.end(),
                     {{"TEST_LEFT", "3"}, {"TEST_CRAMPED", std::to_string(cramped)}});
    processes.start("survivor", rank, ranks, variables);
  }
  for (int rank = 0; rank < ranks; rank++)
    ASSERT_TRUE(processes.wait_for_output(rank, "ready", kLimitMs)) << processes.report();
  processes.kill(0, SIGKILL);
  processes.finish(kLimitMs);
  for (const int rank : {2, 3}) {
    EXPECT_NE(processes.output(rank).find("shrink"), std::string::npos) << processes.report();
    EXPECT_NE(processes.output(rank).find("rank 1 could not make the communicator"),
              std::string::npos)
        << processes.report();
  }
  printf("%s", processes.report().c_str());
}

// The communicator is split into two parts, and each part loses a rank and shrinks by itself.
TEST(ShrinkOfParts, OfASplit) {
  Job job(8, 20000 + getpid() % 400 * 100 + 90, 3, 1, {{"TEST_PART", "2"}});
  job.kill({0, 5});
  job.ends_well(2);
}

const AddRoles roles{{"survivor", survivor}};

}  // namespace
}  // namespace fsccl::testing::shrink_tests
