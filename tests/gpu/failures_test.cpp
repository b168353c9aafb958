// Tests the death of a rank while others have work on their streams that waits for it: the streams
// end, and the next call says which rank died.
#include <gmock/gmock.h>

#include "gpu/support.h"

namespace fsccl::testing {
namespace {

// Joins and gathers once. Rank 1 then prints that it is ready, and waits to be killed. Rank 0
// gathers again, which cannot end.
int gather(const Child& child) {
  Place place;
  if (const int code = place.make()) return code;
  fsccl_unit_config_t config = FSCCL_UNIT_CONFIG_INIT;
  config.shard_comm = place.comm, config.pool = place.pool;
  fsccl_param_t param = FSCCL_PARAM_INIT;
  param.dims = 2, param.shape[0] = 1024, param.shape[1] = 512;
  fsccl_unit_t unit = nullptr;
  if (const int code = outcome("unit", fsccl_unit_create(&config, &param, 1, &unit))) return code;
  void* stream = place.gpu->make_stream();
  MUST(fsccl_unit_unshard(unit, FSCCL_UNSHARD_READ, stream, nullptr) == FSCCL_OK &&
       place.gpu->wait(stream));
  MUST(fsccl_unit_reshard(unit, stream) == FSCCL_OK && fsccl_unit_mark_changed(unit) == FSCCL_OK &&
       place.gpu->wait(stream));
  if (child.rank == 1) {
    std::printf("ready\n");
    for (;;) pause();
  }
  MUST(fsccl_unit_unshard(unit, FSCCL_UNSHARD_READ, stream, nullptr) == FSCCL_OK);
  std::printf("put on the stream\n");
  MUST(place.gpu->wait(stream));
  fsccl_status_t state = FSCCL_OK;
  MUST(fsccl_comm_async_error(place.comm, &state) == FSCCL_OK && state == FSCCL_ERR_PEER_DEAD);
  fsccl_unit_reshard(unit, stream);
  const fsccl_status_t next = fsccl_unit_unshard(unit, FSCCL_UNSHARD_READ, stream, nullptr);
  MUST(next < 0 && last_error().find("rank 1") != std::string::npos);
  MUST(fsccl_unit_destroy(unit) == FSCCL_OK);
  return place.end() ? 0 : 1;
}

void kill_one(int port, const std::vector<Variables>& more) {
  Processes processes;
  for (int rank = 0; rank < 2; rank++) {
    Variables variables = job(rank, 2, port);
    const Variables& own = more[static_cast<size_t>(rank)];
    variables.insert(variables.end(), own.begin(), own.end());
    processes.start("gather", rank, 2, variables);
  }
  const bool ready = processes.wait_for_output(1, "ready", limit_ms(120'000));
  if (!ready) {
    processes.finish(limit_ms(120'000));
    if (const std::string missing = what_is_missing(processes); !missing.empty())
      GTEST_SKIP() << missing;
    FAIL() << processes.report();
  }
  EXPECT_TRUE(processes.wait_for_output(0, "put on the stream", limit_ms(120'000)))
      << processes.report();
  processes.kill(1, SIGKILL);
  processes.finish(limit_ms(120'000));
  EXPECT_EQ(processes.exit_code(0), 0) << processes.report();
}

TEST(GpuFailures, AKilledRankLetsTheStreamsOfOthersGo) { kill_one(20340, {{}, {}}); }

// The unit uses NCCL's collectives, between ranks that NCCL takes for ranks of two hosts.
TEST(GpuFailures, AKilledRankLetsTheStreamsOfOthersGoByNccl) {
  std::vector<Variables> more;
  for (const char* const host : {"host0", "host1"}) {
    more.push_back(nccl_host(host));
    more.back().emplace_back("FSCCL_DEVICE_TRANSPORT", "nccl");
  }
  kill_one(20350, more);
}

// TEST_SECONDS sets the time limit of a test, from which the time follows for which its ranks wait.
TEST(GpuFailures, WaitsEndBeforeTheirTest) {
  const char* const given = std::getenv("TEST_SECONDS");
  const std::string before = given ? given : "";
  setenv("TEST_SECONDS", "40", 1);
  EXPECT_EQ(limit_ms(120'000), 40'000);
  EXPECT_EQ(limit_ms(30'000), 30'000);
  EXPECT_EQ(patience_ms(50'000), 20'000);
  EXPECT_EQ(patience_ms(8'000), 8'000);
  EXPECT_THAT(job(0, 1, 1), ::testing::Contains(::testing::Pair("FSCCL_TIMEOUT_MS", "20000")));
  unsetenv("TEST_SECONDS");
  EXPECT_EQ(patience_ms(50'000), 50'000);
  if (given) setenv("TEST_SECONDS", before.c_str(), 1);
}

}  // namespace
}  // namespace fsccl::testing

int main(int argc, char** argv) {
  using namespace fsccl::testing;
  if (const auto code = run_role(argc, argv, {{"gather", gather}})) return *code;
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
