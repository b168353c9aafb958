// Tests that a unit's program gives copies to the driver in batches of bounded size, or one by one.
#include "unit/device/stream_program.h"

#include "tests/unit/pool/device/pool_ranks.h"

namespace fsccl::testing {
namespace {

constexpr uint64_t kProgramMb = 1 << 20, kBytes = 64;
constexpr size_t kCopies = 1100;

class Programs : public OnDevice {
 protected:
  // Copies the first half of a slot to the second, piece by piece, and checks the driver's calls.
  void copy(uint64_t batches, uint64_t single) {
    NEEDS_STAND_IN();
    if (const auto kernels = cuda::DeviceKernels::of(gpu()); !kernels.ok())
      GTEST_SKIP() << kernels.status().text();
    run_pools(1, [&](const PoolRank& rank) {
      StreamPlan plan;
      plan.actions.push_back({.kind = StreamAction::Kind::copy});
      for (size_t i = 0; i < kCopies; i++)
        plan.actions[0].copies.push_back({.peer = 0,
                                          .from = i * kBytes,
                                          .to = kProgramMb + i * kBytes,
                                          .count = kBytes,
                                          .dtype = FSCCL_UINT8});
      auto program = StreamProgram::make(gpu(), plan, {rank.pool.slots(0)});
      auto channel = InboxChannel::open(rank.comm, rank.comm, gpu(), "unit");
      ASSERT_TRUE(program.ok() && channel.ok());
      Track track(rank.comm, channel.take(), Track::Kind::parameters);
      const HostPage page;
      const uint64_t offset = rank.take(1, 2 * kProgramMb);
      rank.stream.fill(rank.slot(offset), 7, kProgramMb);
      const uint64_t batches_before = control.calls("cuMemcpyBatchAsync_v2"),
                     single_before = control.calls("cuMemcpyAsync");
      EXPECT_GOOD(track.begin(rank.stream));
      track.enter(OpCode::unshard, 0, 1);
      EXPECT_GOOD(program.value()->run(track, offset, rank.stream));
      EXPECT_GOOD(track.end(rank.stream, false));
      EXPECT_EQ(control.calls("cuMemcpyBatchAsync_v2") - batches_before, batches);
      EXPECT_EQ(control.calls("cuMemcpyAsync") - single_before, single);
      for (const uint64_t at : {uint64_t{0}, (kCopies - 1) * kBytes})
        EXPECT_EQ(byte_at(rank.slot(offset) + kProgramMb + at, rank.stream, page), 7);
      rank.give(1);
    });
    expect_what_is_left();  // tables and host memory are kept for later programs
  }
};

TEST_F(Programs, ManyCopiesAreBatchesOf512) { copy(3, 0); }

TEST_F(Programs, BatchesCanBeTurnedOff) {
  const Settings settings{{"FSCCL_DEVICE_BATCHES", "0"}};
  copy(0, kCopies);
}

}  // namespace
}  // namespace fsccl::testing
