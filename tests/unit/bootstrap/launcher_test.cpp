// Tests what the variables of launchers mean. The variables are those that each launcher was seen
// to set.
#include "bootstrap/launcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <map>

namespace fsccl {
namespace {

using ::testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

Result<PmixJob> four_ranks() { return PmixJob{4, 4, 1, "n1"}; }

Result<LaunchEnvironment> read(const Variables& variables, const AskPmix& ask = four_ranks,
                               LauncherChoice choice = LauncherChoice::kAuto) {
  return read_environment(
      [&](const char* name) -> const char* {
        const auto found = variables.find(name);
        return found == variables.end() ? nullptr : found->second.c_str();
      },
      choice, ask);
}

const Variables kTorch = {{"RANK", "3"},
                          {"WORLD_SIZE", "8"},
                          {"LOCAL_RANK", "3"},
                          {"LOCAL_WORLD_SIZE", "8"},
                          {"MASTER_ADDR", "node7"},
                          {"MASTER_PORT", "29500"},
                          {"TORCHELASTIC_RUN_ID", "run"},
                          {"TORCHELASTIC_RESTART_COUNT", "0"}};
const Variables kMpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                        {"OMPI_COMM_WORLD_SIZE", "4"},
                        {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                        {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                        {"PMIX_RANK", "1"},
                        {"PMIX_NAMESPACE", "prterun-x-1@1"}};
const Variables kMpich = {{"PMI_RANK", "1"},
                          {"PMI_SIZE", "4"},
                          {"PMI_FD", "none"},
                          {"MPI_LOCALRANKID", "1"},
                          {"MPI_LOCALNRANKS", "4"}};
const Variables kPmix = {
    {"PMIX_RANK", "1"}, {"PMIX_NAMESPACE", "prterun-x-2@1"}, {"PMIX_HOSTNAME", "n1"}};
const Variables kSlurm = {{"SLURM_PROCID", "2"},
                          {"SLURM_LOCALID", "0"},
                          {"SLURM_NODEID", "1"},
                          {"SLURM_NTASKS", "5"},
                          {"SLURM_CLUSTER_NAME", "c"},
                          {"SLURM_JOB_ID", "17"},
                          {"SLURM_STEP_ID", "0"},
                          {"SLURM_STEP_NUM_TASKS", "3"},
                          {"SLURM_STEP_NUM_NODES", "2"},
                          {"SLURM_STEP_TASKS_PER_NODE", "2,1"},
                          {"SLURM_STEP_NODELIST", "rack[1-2]n[07-09]"}};
const Variables kBatch = {
    {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "5"}, {"SLURM_JOB_ID", "17"}, {"SLURM_NODELIST", "n1"}};

Variables with(Variables variables, const std::string& name, const std::string& value) {
  variables[name] = value;
  return variables;
}

Variables both(Variables variables, const Variables& more) {
  variables.insert(more.begin(), more.end());
  return variables;
}

std::string refusal(const Variables& variables) {
  const Result<LaunchEnvironment> launch = read(variables);
  EXPECT_EQ(launch.status().code(), FSCCL_ERR_CONFIG);
  return launch.ok() ? std::string() : launch.status().text();
}

TEST(Launcher, Torchrun) {
  const Result<LaunchEnvironment> launch = read(kTorch);
  ASSERT_TRUE(launch.ok()) << launch.status().text();
  EXPECT_EQ(launch.value().rank, 3);
  EXPECT_EQ(launch.value().ranks, 8);
  EXPECT_EQ(launch.value().local_rank, 3);
  EXPECT_TRUE(launch.value().one_host);
  EXPECT_EQ(launch.value().master_address, "node7");
  EXPECT_EQ(launch.value().master_port, 29500);
}

TEST(Launcher, TheNameTellsJobsApart) {
  const std::string name = read(kTorch).value().job;
  EXPECT_EQ(read(with(kTorch, "RANK", "0")).value().job, name);
  for (const char* variable : {"MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"})
    EXPECT_NE(read(with(kTorch, variable, "7")).value().job, name) << variable;
  EXPECT_NE(read(with(kMpi, "PMIX_NAMESPACE", "other")).value().job, read(kMpi).value().job);
  EXPECT_NE(read(with(kPmix, "PMIX_NAMESPACE", "other")).value().job, read(kPmix).value().job);
  for (const char* variable :
       {"SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"})
    EXPECT_NE(read(with(kSlurm, variable, "7")).value().job, read(kSlurm).value().job) << variable;
  EXPECT_EQ(read(with(with(kSlurm, "SLURM_PROCID", "0"), "SLURM_NODEID", "0")).value().job,
            read(kSlurm).value().job);
}

// Ranks of one job may spell the address of rank 0 in different ways.
TEST(Launcher, TheNameDoesNotDependOnTheAddress) {
  const Variables mpich = with(with(kMpich, "PMI_FD", "none"), "MASTER_PORT", "29500");
  for (const Variables& variables : {kTorch, mpich, kMpi, kPmix, kSlurm}) {
    const std::string name = read(with(variables, "MASTER_ADDR", "node7")).value().job;
    for (const char* address :
         {"localhost", "node7.", "NODE7", "127.0.0.1", "0.0.0.0", "::", "::1", "[::1]", "fd77::1",
          "fd77:0:0::1", "fe80::1%eth0", "fe80::1%2", "::ffff:10.0.0.1"})
      EXPECT_EQ(read(with(variables, "MASTER_ADDR", address)).value().job, name) << address;
  }
}

// No variable says which ranks share a host. If the address of rank 0 spells localhost, all ranks
// are taken to share one.
TEST(Launcher, LocalhostHasManySpellings) {
  const Variables by_hand = {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "1"}};
  for (const char* address :
       {"localhost", "LocalHost", "localhost.", "127.0.0.1", "127.1", "127.0.1.1", "::1", "[::1]",
        "0:0:0:0:0:0:0:1", "0.0.0.0", "::", "::ffff:127.0.0.1"}) {
    const LaunchEnvironment launch = read(with(by_hand, "MASTER_ADDR", address)).take();
    EXPECT_TRUE(launch.one_host && launch.hosts_unknown) << address;
    EXPECT_EQ(launch.local_ranks, 2) << address;
  }
  for (const char* address : {"node7", "localhost7", "10.0.0.1", "128.0.0.1", "::2", "fe80::1%eth0",
                              "::ffff:10.0.0.1", "[", "]"}) {
    const LaunchEnvironment launch = read(with(by_hand, "MASTER_ADDR", address)).take();
    EXPECT_TRUE(!launch.one_host && launch.hosts_unknown) << address;
  }
  const Variables counted = with(with(by_hand, "LOCAL_WORLD_SIZE", "2"), "MASTER_ADDR", "node7");
  EXPECT_TRUE(read(counted).value().one_host);
  EXPECT_FALSE(read(counted).value().hosts_unknown);
  EXPECT_EQ(read(counted).value().local_ranks_said, "LOCAL_WORLD_SIZE=2");
}

TEST(Launcher, SeveralHosts) {
  EXPECT_FALSE(read(with(kTorch, "LOCAL_WORLD_SIZE", "4")).value().one_host);
  EXPECT_FALSE(read(with(kMpi, "OMPI_COMM_WORLD_LOCAL_SIZE", "2")).value().one_host);
  // Without a count of local ranks the address decides.
  EXPECT_TRUE(
      read({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "1"}})
          .value()
          .one_host);
  EXPECT_FALSE(
      read({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "1"}})
          .value()
          .one_host);
}

TEST(Launcher, OpenMpi) {
  const Result<LaunchEnvironment> launch = read(kMpi);
  ASSERT_TRUE(launch.ok()) << launch.status().text();
  EXPECT_EQ(launch.value().rank, 1);
  EXPECT_EQ(launch.value().ranks, 4);
  EXPECT_TRUE(launch.value().one_host);
  Variables old = kMpi;
  old.erase("PMIX_NAMESPACE");
  EXPECT_EQ(read(old).status().code(), FSCCL_ERR_CONFIG);
  EXPECT_TRUE(read(with(old, "OMPI_MCA_orte_hnp_uri", "1.0;tcp://h:1")).ok());
}

// MPICH's process manager is known by the socket that it has made for each of its ranks.
TEST(Launcher, MpichIsNamedByTheMakerOfItsSocket) {
  int sockets[2], others[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, others), 0);
  const Result<LaunchEnvironment> launch = read(with(kMpich, "PMI_FD", std::to_string(sockets[0])));
  ASSERT_TRUE(launch.ok()) << launch.status().text();
  EXPECT_EQ(launch.value().rank, 1);
  EXPECT_EQ(launch.value().ranks, 4);
  EXPECT_TRUE(launch.value().one_host);
  EXPECT_THAT(launch.value().job, HasSubstr("process " + std::to_string(getpid())));
  EXPECT_EQ(read(with(kMpich, "PMI_FD", std::to_string(others[0]))).value().job,
            launch.value().job);
  for (const int fd : {sockets[0], sockets[1], others[0], others[1]}) close(fd);
}

TEST(Launcher, MpichWithoutASocketWantsANameOfTheJob) {
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  for (const std::string& fd : {std::string("none"), std::string("-1"), std::string("1000000"),
                                std::to_string(pipe_ends[0])})
    EXPECT_THAT(refusal(with(kMpich, "PMI_FD", fd)), HasSubstr("MASTER_PORT")) << fd;
  for (const int fd : pipe_ends) close(fd);
  const Variables named = with(with(kMpich, "MASTER_ADDR", "n1"), "MASTER_PORT", "29500");
  EXPECT_TRUE(read(named).value().one_host);
  EXPECT_NE(read(with(named, "MASTER_PORT", "29501")).value().job, read(named).value().job);
  EXPECT_FALSE(read(with(named, "MPI_LOCALNRANKS", "2")).value().one_host);
  EXPECT_THAT(refusal(with(kMpich, "MPI_LOCALNRANKS", "2")), HasSubstr("on several hosts"));
  EXPECT_THAT(refusal({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}}), HasSubstr("MPI_LOCALNRANKS"));
}

TEST(Launcher, PmixAsksItsLibrary) {
  const Result<LaunchEnvironment> launch = read(kPmix);
  ASSERT_TRUE(launch.ok()) << launch.status().text();
  EXPECT_EQ(launch.value().rank, 1);
  EXPECT_EQ(launch.value().ranks, 4);
  EXPECT_TRUE(launch.value().one_host);
  const auto two_hosts = [] { return Result<PmixJob>(PmixJob{4, 2, 1, "n1"}); };
  EXPECT_FALSE(read(kPmix, two_hosts).value().one_host);
  EXPECT_EQ(read(kPmix, two_hosts).value().master_address, "n1");
  const auto none = [] { return Result<PmixJob>(fail(FSCCL_ERR_NOT_AVAILABLE, "no such file")); };
  EXPECT_THAT(read(kPmix, none).status().text(),
              HasSubstr("failed (no such file): install libpmix.so.2"));
  for (const PmixJob& wrong : {PmixJob{0, 1, 0, ""}, PmixJob{4, 0, 0, ""}, PmixJob{4, 5, 0, ""},
                               PmixJob{4, 4, 4, ""}, PmixJob{1u << 31, 1, 0, ""}})
    EXPECT_EQ(read(kPmix, [&] { return Result<PmixJob>(wrong); }).status().code(), FSCCL_ERR_CONFIG)
        << wrong.ranks;
  EXPECT_THAT(refusal(with(kPmix, "PMIX_RANK", "4")), HasSubstr("PMIX_RANK=4"));
}

TEST(Launcher, Slurm) {
  const Result<LaunchEnvironment> launch = read(kSlurm);
  ASSERT_TRUE(launch.ok()) << launch.status().text();
  EXPECT_EQ(launch.value().rank, 2);
  EXPECT_EQ(launch.value().ranks, 3);  // the ranks of the step, not of the job
  EXPECT_EQ(launch.value().local_ranks, 1);
  EXPECT_FALSE(launch.value().one_host);
  EXPECT_EQ(launch.value().master_address, "rack1n07");
  EXPECT_GE(launch.value().master_port, 10000);
  EXPECT_LT(launch.value().master_port, 30000);
  EXPECT_EQ(read(with(kSlurm, "MASTER_ADDR", "10.0.0.1")).value().master_address, "10.0.0.1");
  EXPECT_EQ(read(with(kSlurm, "MASTER_PORT", "29500")).value().master_port, 29500);
  const Variables one =
      with(with(kSlurm, "SLURM_STEP_NUM_NODES", "1"), "SLURM_STEP_TASKS_PER_NODE", "3");
  EXPECT_TRUE(read(one).value().one_host);
  EXPECT_EQ(read(one).value().local_ranks, 3);
  EXPECT_EQ(read(one).value().master_address, "127.0.0.1");
}

TEST(Launcher, SlurmWhatIsWrongIsNamed) {
  EXPECT_THAT(refusal(with(kSlurm, "SLURM_PROCID", "3")),
              HasSubstr("SLURM_PROCID=3: not a number from 0 to 2"));
  EXPECT_THAT(refusal(with(kSlurm, "SLURM_STEP_NUM_NODES", "4")),
              HasSubstr("SLURM_STEP_NUM_NODES=4"));
  EXPECT_THAT(refusal(with(kSlurm, "SLURM_NODEID", "2")), HasSubstr("SLURM_NODEID=2"));
  EXPECT_THAT(refusal(with(kSlurm, "SLURM_STEP_TASKS_PER_NODE", "2(y)")),
              HasSubstr("SLURM_STEP_TASKS_PER_NODE=\"2(y)\""));
  EXPECT_THAT(refusal(with(kSlurm, "SLURM_STEP_NODELIST", "n[1")), HasSubstr("set MASTER_ADDR"));
  EXPECT_THAT(refusal(with(kSlurm, "SLURM_JOB_ID", "")), HasSubstr("SLURM_JOB_ID is not set"));
  EXPECT_THAT(refusal(kBatch), HasSubstr("no task of srun's"));
}

TEST(Launcher, TheInnermostCounts) {
  const auto launcher = [](const Variables& variables) {
    const Result<LaunchEnvironment> launch = read(variables);
    EXPECT_TRUE(launch.ok()) << launch.status().text();
    return launch.ok() ? name_of(launch.value().launcher) : "none";
  };
  const Variables mpich = with(with(kMpich, "MASTER_ADDR", "127.0.0.1"), "MASTER_PORT", "29500");
  for (const Variables& outer : {kSlurm, kBatch, kPmix, mpich, kMpi})
    EXPECT_STREQ(launcher(both(kTorch, outer)), "torchrun");
  for (const Variables& outer : {kSlurm, kBatch}) {
    EXPECT_STREQ(launcher(both(kMpi, outer)), "Open MPI");
    EXPECT_STREQ(launcher(both(mpich, outer)), "MPICH");
    EXPECT_STREQ(launcher(both(kPmix, outer)), "PMIx");
  }
  // Variables that Slurm's own plugins for PMI and PMIx add are Slurm's.
  EXPECT_STREQ(
      launcher(both(
          kSlurm, {{"PMI_RANK", "2"}, {"PMI_SIZE", "3"}, {"PMI_FD", "11"}, {"PMI_JOBID", "17.0"}})),
      "Slurm");
  EXPECT_STREQ(launcher(both(kSlurm, {{"PMIX_RANK", "2"}, {"PMIX_NAMESPACE", "slurm.pmix.17.0"}})),
               "Slurm");
  EXPECT_EQ(find_launcher([](const char*) { return nullptr; }), Launcher::kNone);
}

// Scripts of Slurm jobs export WORLD_SIZE, and srun tells each process its rank.
TEST(Launcher, AWorldSizeWithoutARankHasToAgree) {
  EXPECT_EQ(read(with(kSlurm, "WORLD_SIZE", "3")).value().rank, 2);
  EXPECT_THAT(refusal(with(kSlurm, "WORLD_SIZE", "5")),
              HasSubstr("WORLD_SIZE=5, but Slurm has started 3 ranks"));
  EXPECT_THAT(refusal(with(kMpi, "WORLD_SIZE", "5x")), HasSubstr("WORLD_SIZE=5x"));
}

// If RANK=0 and WORLD_SIZE=1 of a container counted below mpirun or srun, each rank would make a
// job of its own without an error.
TEST(Launcher, ARankByHandHasToAgree) {
  const Variables mpich = with(with(kMpich, "MASTER_ADDR", "127.0.0.1"), "MASTER_PORT", "29500");
  const Variables pod = {
      {"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "n1"}, {"MASTER_PORT", "29500"}};
  const struct {
    Variables variables;
    const char *started, *said, *setting;
  } cases[] = {
      {kMpi, "Open MPI has started 4 ranks, this process as rank 1",
       "OMPI_COMM_WORLD_RANK=1, OMPI_COMM_WORLD_SIZE=4", "open-mpi"},
      {mpich, "MPICH has started 4 ranks, this process as rank 1", "PMI_RANK=1, PMI_SIZE=4",
       "mpich"},
      {kPmix, "PMIx has started 4 ranks, this process as rank 1", "PMIX_RANK=1", "pmix"},
      {kSlurm, "Slurm has started 3 ranks, this process as rank 2",
       "SLURM_PROCID=2, SLURM_STEP_NUM_TASKS=3", "slurm"},
  };
  for (const auto& [variables, started, said, setting] : cases) {
    const std::string text = refusal(both(pod, variables));
    for (const std::string& words :
         {std::string("RANK=0, WORLD_SIZE=1, but "), std::string(started), std::string(said),
          std::string("FSCCL_LAUNCHER=") + setting, std::string("FSCCL_LAUNCHER=torchrun")})
      EXPECT_THAT(text, HasSubstr(words));
    // The rank agrees and the number of ranks does not, then the other way round, then each is set
    // alone.
    const LaunchEnvironment right = read(variables).take();
    const std::string rank = std::to_string(right.rank), ranks = std::to_string(right.ranks);
    EXPECT_THAT(refusal(both({{"RANK", rank}, {"WORLD_SIZE", "7"}}, variables)),
                HasSubstr("WORLD_SIZE=7"));
    EXPECT_THAT(refusal(both({{"RANK", "0"}, {"WORLD_SIZE", ranks}}, variables)),
                HasSubstr("RANK=0"));
    EXPECT_THAT(refusal(with(variables, "RANK", "0")), HasSubstr("RANK=0, but"));
    EXPECT_EQ(read(with(variables, "RANK", rank)).value().launcher, right.launcher);
    // A second launcher that gives the same numbers is accepted.
    EXPECT_EQ(
        read(both(with(with(pod, "RANK", rank), "WORLD_SIZE", ranks), variables)).value().launcher,
        Launcher::kTorchrun);
    // A torchrun that was started below the launcher has its own numbers.
    for (const char* name :
         {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"})
      EXPECT_EQ(read(both(with(pod, name, "1"), variables)).value().ranks, 1) << name;
  }
}

TEST(Launcher, TheSettingDecides) {
  const Variables pod = both(kMpi, {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "n1"}});
  EXPECT_EQ(read(pod, four_ranks, LauncherChoice::kOpenMpi).value().rank, 1);
  EXPECT_EQ(read(pod, four_ranks, LauncherChoice::kTorchrun).value().ranks, 1);
  EXPECT_EQ(read(both(kTorch, kSlurm), four_ranks, LauncherChoice::kSlurm).value().ranks, 3);
  EXPECT_THAT(read(pod, four_ranks, LauncherChoice::kSlurm).status().text(),
              HasSubstr("SLURM_STEP_NUM_TASKS is not set"));
  EXPECT_THAT(read({}, four_ranks, LauncherChoice::kTorchrun).status().text(),
              HasSubstr("FSCCL_LAUNCHER names it"));
}

// A shell of salloc, or a program that starts ranks itself, may be the one task of a step.
TEST(Launcher, ASingleTaskMayStartRanks) {
  const Variables shell =
      with(with(with(with(kSlurm, "SLURM_STEP_NUM_TASKS", "1"), "SLURM_PROCID", "0"),
                "SLURM_STEP_NUM_NODES", "1"),
           "SLURM_NODEID", "0");
  const Variables by_hand = {
      {"RANK", "1"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29500"}};
  EXPECT_EQ(read(both(by_hand, shell)).value().ranks, 4);
  EXPECT_EQ(read(both(by_hand, kBatch)).value().ranks, 4);
  EXPECT_EQ(read(both(by_hand,
                      with(with(kMpi, "OMPI_COMM_WORLD_RANK", "0"), "OMPI_COMM_WORLD_SIZE", "1")))
                .value()
                .ranks,
            4);
}

TEST(Launcher, WhatIsWrongIsNamed) {
  EXPECT_THAT(refusal({}), HasSubstr("torchrun"));
  EXPECT_THAT(refusal({{"RANK", "0"}}), HasSubstr("WORLD_SIZE is not set"));
  EXPECT_THAT(refusal({{"WORLD_SIZE", "2"}}), HasSubstr("RANK is not set"));
  EXPECT_THAT(refusal({{"RANK", "0"}, {"WORLD_SIZE", "2"}}), HasSubstr("MASTER_ADDR"));
  EXPECT_THAT(refusal(with(kTorch, "RANK", "8")), HasSubstr("RANK=8: not a number from 0 to 7"));
  EXPECT_THAT(refusal(with(kTorch, "RANK", "-1")), HasSubstr("RANK=-1"));
  EXPECT_THAT(refusal(with(kTorch, "RANK", "3x")), HasSubstr("RANK=3x"));
  EXPECT_THAT(refusal(with(kTorch, "WORLD_SIZE", "99999999999")),
              HasSubstr("WORLD_SIZE=99999999999"));
  EXPECT_THAT(refusal(with(kTorch, "MASTER_PORT", "70000")), HasSubstr("MASTER_PORT=70000"));
  EXPECT_THAT(refusal(with(kTorch, "LOCAL_WORLD_SIZE", "9")),
              HasSubstr("LOCAL_WORLD_SIZE=9, but WORLD_SIZE=8"));
  EXPECT_THAT(refusal(with(kTorch, "LOCAL_WORLD_SIZE", "0")), HasSubstr("LOCAL_WORLD_SIZE=0"));
  EXPECT_THAT(refusal(with(kTorch, "LOCAL_RANK", "8")), HasSubstr("LOCAL_RANK=8"));
}

}  // namespace
}  // namespace fsccl
