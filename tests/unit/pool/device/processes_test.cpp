// Tests pools on GPUs of several processes: they map each other's slots, and a process that is
// killed leaves nothing behind and is named to the others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "api/objects.h"
#include "multi/processes.h"
#include "pool/device/device_pool.h"
#include "tests/unit/on_device.h"

namespace fsccl::testing {
namespace {

const int64_t kLimitMs = limit_ms(100'000);
constexpr uint64_t kBytes = 3u << 20;

int tell(const char* what, const Status& status) {
  if (!status.ok()) printf("%s: %d %s\n", what, status.code(), status.text().c_str());
  return !status.ok();
}

int member(const Child& self) {
  fsccl_comm_t handle = nullptr;
  if (fsccl_comm_create(nullptr, &handle) != FSCCL_OK) return 2;
  Communicator& comm = *live_comm(handle);
  fsccl_pool_config_t config = FSCCL_POOL_CONFIG_INIT;
  config.memory = FSCCL_MEMORY_CUDA;
  std::string why;
  config.device = self.rank % std::clamp(cuda::device_count(&why), 1, 2);
  config.limit_bytes = 64u << 20;
  int result = 0;
  {
    Result<std::unique_ptr<DevicePool>> made = DevicePool::create(comm, config);
    if (tell("pool", made.status())) return 3;
    DevicePool& pool = *made.value();
    HostPage page(pool.device());
    TestStream stream(pool.device());
    Result<uint64_t> offset = pool.take(1, kBytes, true, stream);
    if (tell("take", offset.status())) return 4;
    stream.fill(pool.slots(self.rank) + offset.value(), static_cast<uint8_t>(self.rank + 1),
                kBytes);
    stream.finish();
    if (fsccl_barrier(handle, nullptr, nullptr) != FSCCL_OK) return 5;
    int wrong = 0;
    for (int peer = 0; peer < self.ranks; peer++)
      wrong += byte_at(pool.slots(peer) + offset.value() + kBytes - 1, stream, page) != peer + 1;
    printf("wrong: %d\n", wrong);
    if (self.role == "victim" && self.rank == 1) {
      puts("ready");
      pause();
    }
    if (self.role == "victim") {
      // The slot is taken while or after the other process is killed.
      const Result<uint64_t> more = pool.take(2, 10 * kBytes, true, stream);
      printf("then: %d %s\n", more.status().code(), more.ok() ? "" : more.status().text().c_str());
      // The slot is mapped in this process, too.
      wrong += byte_at(pool.slots(1) + offset.value(), stream, page) != 2;
    } else if (fsccl_barrier(handle, nullptr, nullptr) != FSCCL_OK) {
      return 6;
    }
    result = wrong ? 7 : tell("give back", pool.give_back(1, stream, {}));
  }
  if (self.role == "victim") fsccl_comm_abort(handle);
  if (fsccl_comm_destroy(handle) != FSCCL_OK) return 8;
  printf("left: '%s' broken: '%s'\n", stand_in::Control().leaks().c_str(),
         stand_in::Control().broken_rules().c_str());
  return result;
}

TEST(DeviceProcesses, MapEachOthersSlots) {
  Processes processes;
  for (int rank = 0; rank < 3; rank++) processes.start("member", rank, 3, job(rank, 3, 20470));
  EXPECT_TRUE(processes.finish(kLimitMs)) << processes.report();
  for (int rank = 0; rank < 3; rank++) {
    EXPECT_THAT(processes.output(rank), ::testing::HasSubstr("wrong: 0")) << processes.report();
    EXPECT_THAT(processes.output(rank), ::testing::HasSubstr("left: '' broken: ''"))
        << processes.report();
  }
}

TEST(DeviceProcesses, OneThatIsKilledIsNamedAndLeavesNothing) {
  Processes processes;
  for (int rank = 0; rank < 2; rank++) processes.start("victim", rank, 2, job(rank, 2, 20471));
  for (int rank = 0; rank < 2; rank++)  // both ranks have passed the barrier
    ASSERT_TRUE(processes.wait_for_output(rank, rank ? "ready" : "wrong: ", kLimitMs))
        << processes.report();
  processes.kill(1, SIGKILL);
  processes.finish(kLimitMs);
  EXPECT_EQ(processes.exit_code(0), 0) << processes.report();
  EXPECT_THAT(processes.output(0),
              ::testing::HasSubstr(fmt::format("then: {} ", static_cast<int>(FSCCL_ERR_PEER_DEAD))))
      << processes.report();
  EXPECT_THAT(processes.output(0), ::testing::HasSubstr("rank 1")) << processes.report();
  EXPECT_THAT(processes.output(0), ::testing::HasSubstr("left: '' broken: ''"))
      << processes.report();
}

}  // namespace
}  // namespace fsccl::testing

int main(int argc, char** argv) {
  using namespace fsccl::testing;
  if (const auto code = run_role(argc, argv, {{"member", member}, {"victim", member}}))
    return *code;
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
