// Tests ranks, each a process, that another maker's transport connects
// (examples/transport_plugin.c). One rank is killed; and errors are checked if the ranks do not all
// have the same plug-in, or have one that cannot be used.
#include <fsccl/fsccl.h>
#include <fsccl/insight.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

#include "multi/processes.h"
#include "multi/tell.h"

namespace fsccl::testing::plugin_tests {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kLimitMs = 60'000;
constexpr int kRanks = 4;

std::string from_environment(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

// A rank that passes the data of all ranks once around a ring, and then calls a barrier in which
// one rank is missing.
int worker(const Child& self) {
  constexpr size_t kCount = 300'000;  // elements for several slots
  fsccl_comm_t comm = nullptr;
  if (tell("create", fsccl_comm_create(nullptr, &comm))) return 3;
  std::vector<int32_t> mine(kCount), all(kCount * static_cast<size_t>(self.ranks)), got(kCount);
  std::iota(mine.begin(), mine.end(), self.rank);
  if (tell("gather",
           fsccl_all_gather(mine.data(), all.data(), kCount, FSCCL_INT32, comm, nullptr, nullptr)))
    return 4;
  for (size_t i = 0; i < all.size(); i++)
    if (all[i] != static_cast<int32_t>(i / kCount + i % kCount)) return 5;
  const int next = (self.rank + 1) % self.ranks,
            previous = (self.rank + self.ranks - 1) % self.ranks;
  fsccl_work_t sent = nullptr;
  if (tell("send", fsccl_send(mine.data(), kCount, FSCCL_INT32, next, 0, comm, nullptr, &sent)))
    return 6;
  if (tell("receive",
           fsccl_recv(got.data(), kCount, FSCCL_INT32, previous, 0, comm, nullptr, nullptr)))
    return 7;
  if (tell("sent", fsccl_work_wait(sent, -1)) || tell("release", fsccl_work_release(sent)))
    return 8;
  for (size_t i = 0; i < kCount; i++)
    if (got[i] != static_cast<int32_t>(i) + previous) return 9;
  puts("ready");
  const std::string killed = from_environment("KILLED");
  if (killed.empty()) return tell("destroy", fsccl_comm_destroy(comm));
  while (killed == std::to_string(self.rank)) pause();
  const fsccl_status_t status = fsccl_barrier(comm, nullptr, nullptr);
  tell("barrier", status);
  return status == FSCCL_ERR_PEER_DEAD && fsccl_comm_destroy(comm) == FSCCL_OK ? 0 : 10;
}

// A rank that exchanges little with all others.
int exchanger(const Child& self) {
  constexpr size_t kCount = 100;
  fsccl_comm_t comm = nullptr;
  if (tell("create", fsccl_comm_create(nullptr, &comm))) return 3;
  if (tell("barrier", fsccl_barrier(comm, nullptr, nullptr))) return 4;
  const std::vector<int32_t> mine(kCount, self.rank);
  std::vector<int32_t> all(kCount * static_cast<size_t>(self.ranks), -1);
  if (tell("gather",
           fsccl_all_gather(mine.data(), all.data(), kCount, FSCCL_INT32, comm, nullptr, nullptr)))
    return 5;
  for (size_t i = 0; i < all.size(); i++)
    if (all[i] != static_cast<int32_t>(i / kCount)) return 6;
  return tell("destroy", fsccl_comm_destroy(comm));
}

// Asks for the plans of ranks on several hosts that need not exist.
int imaginer(const Child&) {
  fsccl_explain_config_t config = FSCCL_EXPLAIN_CONFIG_INIT;
  config.hosts = 5;
  config.ranks_per_host = 1;
  const auto take = [](void*, const char* json, size_t) { puts(json); };
  return tell("explain", fsccl_explain_for(&config, "all_gather", 500, take, nullptr));
}

// Tries to make a communicator, which must fail.
int stranger(const Child&) {
  fsccl_comm_t comm = nullptr;
  return tell("create", fsccl_comm_create(nullptr, &comm)) && !comm ? 0 : 4;
}

Variables by_plugin() {
  return {{"FSCCL_TRANSPORT", "plugin"}, {"FSCCL_TRANSPORT_PLUGIN", from_environment("PLUGIN")}};
}

TEST(Plugin, JoinsProcesses) {
  Processes processes;
  for (int rank = 0; rank < kRanks; rank++)
    processes.start("worker", rank, kRanks, with(job(rank, kRanks, 21900), by_plugin()));
  EXPECT_TRUE(processes.finish(kLimitMs)) << processes.report();
}

TEST(Plugin, AKilledRankIsNamed) {
  for (const int victim : {0, 2}) {
    Processes processes;
    const std::string number = std::to_string(victim);
    for (int rank = 0; rank < kRanks; rank++)
      processes.start(
          "worker", rank, kRanks,
          with(job(rank, kRanks, 21910 + victim), with(by_plugin(), {{"KILLED", number}})));
    for (int rank = 0; rank < kRanks; rank++)
      ASSERT_TRUE(processes.wait_for_output(rank, "ready", kLimitMs)) << processes.report();
    processes.kill(victim, SIGKILL);
    processes.finish(kLimitMs / 3);
    for (int rank = 0; rank < kRanks; rank++) {
      if (rank == victim) continue;
      EXPECT_EQ(processes.exit_code(rank), 0) << processes.report();
      EXPECT_THAT(processes.output(rank), HasSubstr("peer " + number)) << processes.report();
    }
  }
}

// Plans in steps, in which ranks pass on bytes that they have received, need signals for single
// peers. A plug-in without such signals never gets one.
TEST(Plugin, NoPlanIsInStepsWithoutSignalsForOnePeer) {
  constexpr int kMany = 5;
  Processes processes;
  const Variables plugin = {{"FSCCL_TRANSPORT", "plugin"},
                            {"FSCCL_TRANSPORT_PLUGIN", from_environment("WRONG_PLUGIN")},
                            {"WRONG", "signal_to"},
                            {"FSCCL_PLAN", "all_gather=2_steps"}};
  for (int rank = 0; rank < kMany; rank++)
    processes.start("exchanger", rank, kMany, with(job(rank, kMany, 21918), plugin));
  EXPECT_TRUE(processes.finish(kLimitMs)) << processes.report();
}

TEST(Plugin, NoneIsExplainedEither) {
  Processes processes;
  for (const char* const lacks : {"", "signal_to"})
    processes.start("imaginer", 0, 1,
                    {{"FSCCL_TRANSPORT", "plugin"},
                     {"FSCCL_TRANSPORT_PLUGIN", from_environment("WRONG_PLUGIN")},
                     {"WRONG", lacks}});
  EXPECT_TRUE(processes.finish(kLimitMs)) << processes.report();
  EXPECT_THAT(processes.output(0), HasSubstr("_steps")) << processes.report();
  EXPECT_THAT(processes.output(1), Not(HasSubstr("_steps"))) << processes.report();
}

struct Mistake {
  const char* name;
  Variables of_all, of_rank_1;
  std::vector<std::string> words;  // words that the error of every rank contains
};

TEST(Plugin, MistakesAreToldToEveryRank) {
  const Variables both = by_plugin(), asked{both[0]}, set{both[1]};
  const std::string none = "FSCCL_ERR_NOT_AVAILABLE", differ = "FSCCL_ERR_MISMATCH";
  const std::string alike = " set differently: set it alike on all ranks";
  const auto path = [](const std::string& value) {
    return Variables{{"FSCCL_TRANSPORT_PLUGIN", value}};
  };
  const auto wrong = [&](const char* what) {
    return with(path(from_environment("WRONG_PLUGIN")), {{"WRONG", what}});
  };
  const std::vector<Mistake> mistakes{
      {"set on one rank", {}, set, {differ, "FSCCL_TRANSPORT_PLUGIN" + alike}},
      {"asked for on one rank", set, asked, {differ, "FSCCL_TRANSPORT" + alike}},
      {"two plug-ins",
       both,
       wrong("name"),
       {differ, "of rank 1", "memfd", "other", "give all ranks the same"}},
      {"no plug-in",
       asked,
       {},
       {none, "rank 0 cannot use", "FSCCL_TRANSPORT_PLUGIN names none", "set it to"}},
      {"no file",
       both,
       path("/nowhere/x.so"),
       {none, "rank 1 cannot use", "/nowhere/x.so", "No such file"}},
      {"no transport",
       both,
       path("libm.so.6"),
       {none, "rank 1 cannot use", "libm.so.6", "exports no"}},
      {"no such version",
       both,
       wrong("version"),
       {none, "rank 1 cannot use", "no table of version 1"}},
      {"a part is missing", both, wrong("table"), {none, "rank 1 cannot use", "has no put()"}},
      {"not on this machine",
       both,
       wrong("machine"),
       {none, "rank 1 cannot use", "its card is unplugged"}},
      {"no joining", both, wrong("join"), {none, "rank 1 cannot use", "its cable is cut"}},
      {"no node", both, wrong("node"), {none, "rank 1 cannot use", "made no node"}},
      {"a card too large",
       both,
       wrong("card"),
       {none, "rank 1 cannot use", "an endpoint address of more than"}},
      {"no connecting", with(both, wrong("connect")), {}, {"FSCCL_ERR_LINK", "its switch is off"}},
      {"slots of two sizes",
       both,
       {{"FSCCL_SLOT_BYTES", "128K"}},
       {differ, "FSCCL_SLOT_BYTES", "alike on all ranks"}},
      {"rings of two sizes",
       both,
       wrong("ring"),
       {differ, "rings of another transport or version", "alike on all ranks"}},
      {"slots too large",
       with(both, wrong("large slots")),
       {},
       {none, "both must be multiples of 64, and a ring holds 10 slots at least"}},
      {"neither a channel nor an error", with(both, wrong("open")), {}, {"create: -"}},
      {"what it cannot do",
       with(both, {{"FSCCL_CHECKSUM", "1"}}),
       {},
       {none, "rank 0 cannot use", "unset FSCCL_CHECKSUM"}},
  };
  int port = 21920;
  for (const Mistake& mistake : mistakes) {
    SCOPED_TRACE(mistake.name);
    Processes processes;
    for (int rank = 0; rank < kRanks; rank++) {
      const Variables variables = with(job(rank, kRanks, port), mistake.of_all);
      processes.start("plugin_stranger", rank, kRanks,
                      rank == 1 ? with(variables, mistake.of_rank_1) : variables);
    }
    EXPECT_TRUE(processes.finish(kLimitMs)) << processes.report();
    for (int rank = 0; rank < kRanks; rank++)
      for (const std::string& word : mistake.words)
        EXPECT_THAT(processes.output(rank), HasSubstr(word));
    port++;
  }
}

// This plug-in connects ranks of one host only, and the error says so.
TEST(Plugin, RanksOfSeveralHosts) {
  Processes processes;
  for (int rank = 0; rank < kRanks; rank++) {
    const std::string host = "host " + std::to_string(rank / 2);
    Variables variables = with(job(rank, kRanks, 21940),
                               {by_plugin()[1], {"FSCCL_HOST_ID", host}, {"FSCCL_INSECURE", "1"}});
    std::erase_if(variables, [](const auto& one) {
      return one.first == "LOCAL_WORLD_SIZE" || one.first == "LOCAL_RANK";
    });
    processes.start("plugin_stranger", rank, kRanks, variables);
  }
  EXPECT_TRUE(processes.finish(kLimitMs)) << processes.report();
  for (int rank = 0; rank < kRanks; rank++)
    EXPECT_THAT(processes.output(rank), HasSubstr("ranks 0 and 2 are on different hosts"))
        << processes.report();
}

const AddRoles roles{{"worker", worker},
                     {"exchanger", exchanger},
                     {"imaginer", imaginer},
                     {"plugin_stranger", stranger}};

}  // namespace
}  // namespace fsccl::testing::plugin_tests
