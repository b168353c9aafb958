// Tests units on GPUs when something goes wrong: streams end, and the next call says what happened
// and on which rank.
#include <array>
#include <atomic>
#include <barrier>
#include <thread>

#include "on_gpu.h"

namespace fsccl::testing {
namespace {

class DeviceFailures : public OnGpus {};

// Checks a communicator that failed: its stream ends, and the next call returns the error.
void expect_drained(OnGpu& on, fsccl_unit_t unit, fsccl_status_t code,
                    std::initializer_list<const char*> words) {
  on.gpu.synchronize(on.stream);
  const fsccl_status_t status = fsccl_unit_unshard(unit, FSCCL_UNSHARD_READ, on.stream, nullptr);
  expect_error(status, code, words, __FILE__, __LINE__);
}

// Makes the pool grow by a first gather. All ranks must take part in that, so later gathers, which
// one rank makes alone in these tests, do not wait for it.
void warm_up(OnGpu& on, fsccl_unit_t unit) {
  ASSERT_OK(fsccl_unit_unshard(unit, FSCCL_UNSHARD_READ, on.stream, nullptr));
  ASSERT_OK(fsccl_unit_reshard(unit, on.stream));
}

void wait_until_failed(fsccl_comm_t comm) {
  fsccl_status_t state = FSCCL_OK;
  while (state == FSCCL_OK) {
    ASSERT_OK(fsccl_comm_async_error(comm, &state));
    std::this_thread::yield();
  }
}

TEST_F(DeviceFailures, AnotherOrderIsAMismatch) {
  run_ranks(2, [](Rank& self) {
    OnGpu on(self);
    std::array<fsccl_unit_t, 2> units{};
    for (size_t u = 0; u < 2; u++) {
      ASSERT_OK(make_unit(simple_unit({{64}}, u + 1), self.comm, on.pool.get(), &units[u]));
    }
    for (size_t u = 0; u < 2; u++)
      (void)fsccl_unit_unshard(units[u ^ static_cast<size_t>(self.rank)], FSCCL_UNSHARD_READ,
                               on.stream, nullptr);
    wait_until_failed(self.comm);
    on.gpu.synchronize(on.stream);
    fsccl_view_t view{};
    // The call that is checked is that of the rank that came first, because the other rank may have
    // been refused already.
    EXPECT_ERROR(fsccl_unit_param(units[static_cast<size_t>(self.rank)], 0, &view),
                 FSCCL_ERR_MISMATCH, "unshard of unit 'unit 1'", "unshard of unit 'unit 2'");
    for (fsccl_unit_t unit : units) EXPECT_OK(fsccl_unit_destroy(unit));
  });
}

TEST_F(DeviceFailures, AnotherModeIsAMismatch) {
  run_ranks(2, [](Rank& self) {
    OnGpu on(self);
    fsccl_unit_t unit = nullptr;
    ASSERT_OK(make_unit(simple_unit({{64}}, 1), self.comm, on.pool.get(), &unit));
    ASSERT_OK(fsccl_unit_unshard(unit, self.rank ? FSCCL_UNSHARD_WRITABLE : FSCCL_UNSHARD_READ,
                                 on.stream, nullptr));
    wait_until_failed(self.comm);
    (void)fsccl_unit_reshard(unit, on.stream);
    expect_drained(on, unit, FSCCL_ERR_MISMATCH, {"another mode"});
    EXPECT_OK(fsccl_unit_destroy(unit));
  });
}

TEST_F(DeviceFailures, WhoIsLateIsNamed) {
  std::atomic<bool> over{false};
  run_ranks(3,
            [&](Rank& self) {
              OnGpu on(self);
              fsccl_unit_t unit = nullptr;
              ASSERT_OK(make_unit(simple_unit({{64}}, 1), self.comm, on.pool.get(), &unit));
              warm_up(on, unit);
              if (self.rank != 1) {
                ASSERT_OK(fsccl_unit_unshard(unit, FSCCL_UNSHARD_READ, on.stream, nullptr));
                on.gpu.synchronize(on.stream);
                over = true;
                (void)fsccl_unit_reshard(unit, on.stream);
                expect_drained(
                    on, unit, FSCCL_ERR_TIMEOUT,
                    {"unshard of unit 'unit 1'", "still waits for rank(s) 1", "FSCCL_TIMEOUT_MS"});
              }
              while (!over) std::this_thread::yield();
              EXPECT_OK(fsccl_unit_destroy(unit));
            },
            {.timeout_ms = 5000});
}

TEST_F(DeviceFailures, AbortLetsStreamsGo) {
  std::barrier both(2);  // one of the test's own, because the communicator fails
  run_ranks(2,
            [&](Rank& self) {
              OnGpu on(self);
              fsccl_unit_t unit = nullptr;
              ASSERT_OK(make_unit(simple_unit({{64}}, 1), self.comm, on.pool.get(), &unit));
              warm_up(on, unit);
              both.arrive_and_wait();
              if (self.rank == 0) {
                ASSERT_OK(fsccl_unit_unshard(unit, FSCCL_UNSHARD_READ, on.stream, nullptr));
                EXPECT_FALSE(on.gpu.idle(on.stream)) << "it waits for rank 1";
                ASSERT_OK(fsccl_comm_abort(self.comm));
                on.gpu.synchronize(on.stream);
              } else {
                wait_until_failed(self.comm);
              }
              (void)fsccl_unit_reshard(unit, on.stream);
              expect_drained(on, unit, FSCCL_ERR_ABORTED, {});
              EXPECT_OK(fsccl_unit_destroy(unit));
            },
            {.abort_at_end = true});
}

TEST_F(DeviceFailures, WhatTheDriverRefusesEndsTheCommunicator) {
  const stand_in::Control& control = control_;
  if (!control.there()) GTEST_SKIP() << "failures are injected by the stand-in for CUDA's driver";
  std::barrier both(2);  // one of the test's own: the communicator fails meanwhile
  run_ranks(2, [&](Rank& self) {
    OnGpu on(self);
    fsccl_unit_t unit = nullptr;
    UnitCase c = simple_unit({{512, 512}}, 1);
    ASSERT_OK(make_unit(c, self.comm, on.pool.get(), &unit));
    warm_up(on, unit);
    both.arrive_and_wait();
    if (self.rank == 0) control.fail("cuMemcpyBatchAsync_v2", 1, 719);  // a launch failed
    both.arrive_and_wait();
    (void)fsccl_unit_unshard(unit, FSCCL_UNSHARD_READ, on.stream,
                             nullptr);  // on one of the ranks the driver refuses it
    wait_until_failed(self.comm);
    (void)fsccl_unit_reshard(unit, on.stream);
    expect_drained(on, unit, FSCCL_ERR_SYSTEM, {"cuMemcpyBatchAsync"});
    EXPECT_OK(fsccl_unit_destroy(unit));
  });
}

// If the device has no memory for the table of new shards or sharded gradients, the unit does not
// go on with the old table: gathers and reductions are errors until the program names that memory
// again.
TEST_F(DeviceFailures, TablesThatTheDeviceHadNoMemoryForAreMissed) {
  const stand_in::Control& control = control_;
  if (!control.there()) GTEST_SKIP() << "failures are injected by the stand-in for CUDA's driver";
  std::barrier both(2);
  run_ranks(2, [&](Rank& self) {
    OnGpu on(self);
    fsccl_unit_t unit = nullptr;
    ASSERT_OK(make_unit(simple_unit({{512, 512}}, 1), self.comm, on.pool.get(), &unit));
    warm_up(on, unit);
    fsccl_view_t shard{}, grad{};
    ASSERT_OK(fsccl_unit_shard(unit, 0, &shard));
    ASSERT_OK(fsccl_unit_sharded_grad(unit, 0, &grad));
    void* elsewhere = nullptr;
    ASSERT_OK(fsccl_pool_alloc(on.pool.get(), grad.count * 4, on.stream, &elsewhere));
    fsccl_reduce_config_t reduction = FSCCL_REDUCE_CONFIG_INIT;
    reduction.sharded_grads = &elsewhere;
    fsccl_view_t whole{};
    ASSERT_OK(fsccl_unit_grad(unit, 0, on.stream, &whole));
    both.arrive_and_wait();
    if (self.rank == 0) {
      control.fail("cuMemcpyAsync");  // out of memory
      EXPECT_ERROR(fsccl_unit_set_shards(unit, &shard.data), FSCCL_ERR_OUT_OF_MEMORY,
                   "cuMemcpyAsync");
      for (int i = 0; i < 2; i++)
        EXPECT_ERROR(fsccl_unit_unshard(unit, FSCCL_UNSHARD_READ, on.stream, nullptr),
                     FSCCL_ERR_OUT_OF_MEMORY, "name it again");
      control.fail("cuMemcpyAsync");  // out of memory
      EXPECT_ERROR(fsccl_unit_reduce_grads(unit, &reduction, on.stream, nullptr),
                   FSCCL_ERR_OUT_OF_MEMORY, "cuMemcpyAsync");
      reduction.sharded_grads = nullptr;
      EXPECT_ERROR(fsccl_unit_reduce_grads(unit, &reduction, on.stream, nullptr),
                   FSCCL_ERR_OUT_OF_MEMORY, "name it again");
      reduction.sharded_grads = &grad.data;  // names them again, so that the table is made
      ASSERT_OK(fsccl_unit_set_shards(unit, &shard.data));
    }
    both.arrive_and_wait();
    ASSERT_OK(fsccl_unit_reduce_grads(unit, &reduction, on.stream, nullptr));
    warm_up(on, unit);
    on.gpu.synchronize(on.stream);
    ASSERT_OK(fsccl_pool_free(on.pool.get(), elsewhere, on.stream));
    EXPECT_OK(fsccl_unit_destroy(unit));
  });
}

// The driver refuses a batch of copies with code 1 (a value is invalid) or 801 (not supported). The
// library then makes the copies one by one.
TEST_F(DeviceFailures, ABatchThatTheDriverDoesNotTakeIsCopiedOneByOne) {
  const stand_in::Control& control = control_;
  if (!control.there()) GTEST_SKIP() << "failures are injected by the stand-in for CUDA's driver";
  for (const int code : {1, 801}) {
    std::barrier both(2);
    run_ranks(2, [&](Rank& self) {
      OnGpu on(self);
      UnitCase c = simple_unit({{512, 512}, {3, 700}}, 1);
      c.wire = FSCCL_FLOAT32;
      TwinUnits twins(c, self, on.host.get(), on.pool.get(), on.gpu, on.stream);
      twins.write_shards(1);
      both.arrive_and_wait();
      if (self.rank == 0) control.fail("cuMemcpyBatchAsync_v2", 1, code);
      both.arrive_and_wait();
      for (int round = 0; round < 2; round++) {  // one batch is refused in the first round
        twins.unshard();
        twins.compare_params();
        twins.reshard();
      }
    });
  }
}

}  // namespace
}  // namespace fsccl::testing
