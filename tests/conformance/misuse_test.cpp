// Tests bad input and disagreement. Every case is a clear error on the rank that made it, or on
// every rank when ranks disagree; nothing hangs and nothing is written.
#include <atomic>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

#include "support.h"

namespace fsccl::testing {
namespace {

fsccl_unit_t make_unit(fsccl_comm_t comm, fsccl_pool_t pool, int64_t rows = 8,
                       fsccl_status_t* status = nullptr) {
  fsccl_unit_config_t config = FSCCL_UNIT_CONFIG_INIT;
  config.shard_comm = comm;
  config.pool = pool;
  config.name = "layer";
  fsccl_param_t params[2] = {FSCCL_PARAM_INIT, FSCCL_PARAM_INIT};
  params[0].name = "weight";
  params[0].dims = 2, params[0].shape[0] = rows, params[0].shape[1] = 4;
  params[1].name = "scale";
  params[1].dims = 1, params[1].shape[0] = 3, params[1].flags = FSCCL_PARAM_FROZEN;
  fsccl_unit_t unit = nullptr;
  const fsccl_status_t code = fsccl_unit_create(&config, params, 2, &unit);
  if (status)
    *status = code;
  else
    EXPECT_OK(code);
  return unit;
}

// --- handles
// -------------------------------------------------------------------------------------------------

TEST(Misuse, NullForeignAndDestroyedHandles) {
  run_ranks(1, [](Rank& self) {
    PoolScope pool(self.comm);
    fsccl_comm_t gone = nullptr;
    ASSERT_OK(fsccl_comm_split(self.comm, 0, 0, nullptr, &gone));
    ASSERT_OK(fsccl_comm_destroy(gone));
    const auto as_comm = reinterpret_cast<fsccl_comm_t>(pool.get());
    const auto foreign = reinterpret_cast<fsccl_comm_t>(uintptr_t{0x12345678});
    int value = 0;
    void* pointer = nullptr;
    fsccl_view_t view;
    for (fsccl_comm_t bad : {static_cast<fsccl_comm_t>(nullptr), gone, as_comm, foreign}) {
      EXPECT_ERROR(fsccl_barrier(bad, nullptr, nullptr), FSCCL_ERR_INVALID_HANDLE, "communicator");
      EXPECT_ERROR(fsccl_all_gather(&value, &value, 1, FSCCL_INT32, bad, nullptr, nullptr),
                   FSCCL_ERR_INVALID_HANDLE, "communicator");
      EXPECT_ERROR(fsccl_comm_rank(bad, &value), FSCCL_ERR_INVALID_HANDLE, "communicator");
      EXPECT_ERROR(fsccl_comm_abort(bad), FSCCL_ERR_INVALID_HANDLE, "communicator");
      EXPECT_ERROR(fsccl_comm_destroy(bad), FSCCL_ERR_INVALID_HANDLE, "communicator");
      fsccl_pool_t none = nullptr;
      EXPECT_ERROR(fsccl_pool_create(bad, nullptr, &none), FSCCL_ERR_INVALID_HANDLE,
                   "communicator");
      const auto bad_pool = reinterpret_cast<fsccl_pool_t>(bad == as_comm ? self.comm : bad);
      EXPECT_ERROR(fsccl_pool_alloc(bad_pool, 8, nullptr, &pointer), FSCCL_ERR_INVALID_HANDLE,
                   "pool");
      EXPECT_ERROR(fsccl_pool_free(bad_pool, &value, nullptr), FSCCL_ERR_INVALID_HANDLE, "pool");
      EXPECT_ERROR(fsccl_pool_step(bad_pool), FSCCL_ERR_INVALID_HANDLE, "pool");
      const auto bad_unit = reinterpret_cast<fsccl_unit_t>(bad);
      EXPECT_ERROR(fsccl_unit_unshard(bad_unit, FSCCL_UNSHARD_READ, nullptr, nullptr),
                   FSCCL_ERR_INVALID_HANDLE, "unit");
      EXPECT_ERROR(fsccl_unit_param(bad_unit, 0, &view), FSCCL_ERR_INVALID_HANDLE, "unit");
      EXPECT_ERROR(fsccl_unit_destroy(bad_unit), FSCCL_ERR_INVALID_HANDLE, "unit");
      EXPECT_ERROR(fsccl_work_wait(reinterpret_cast<fsccl_work_t>(bad), 0),
                   FSCCL_ERR_INVALID_HANDLE, "work");
    }
    EXPECT_OK(fsccl_work_release(nullptr));
    EXPECT_OK(fsccl_barrier(self.comm, nullptr, nullptr));  // the communicator is as before
  });
}

TEST(Misuse, AWorkOfADestroyedCommunicator) {
  run_ranks(1, [](Rank& self) {
    fsccl_comm_t child = nullptr;
    ASSERT_OK(fsccl_comm_split(self.comm, 0, 0, nullptr, &child));
    fsccl_work_t work = nullptr;
    ASSERT_OK(fsccl_barrier(child, nullptr, &work));
    EXPECT_OK(fsccl_work_wait(work, -1));
    ASSERT_OK(fsccl_comm_destroy(child));
    EXPECT_ERROR(fsccl_work_test(work), FSCCL_ERR_INVALID_HANDLE, "destroyed");
  });
}

// --- arguments
// -------------------------------------------------------------------------------------------------

TEST(Misuse, ArgumentsOfCollectives) {
  run_ranks(2, [](Rank& self) {
    std::vector<float> in(64), out(128);
    const auto gather = [&](const void* send, void* recv, size_t count, int dtype) {
      return fsccl_all_gather(send, recv, count, wild<fsccl_dtype_t>(dtype), self.comm, nullptr,
                              nullptr);
    };
    EXPECT_ERROR(gather(in.data(), out.data(), 4, 15), FSCCL_ERR_INVALID_ARGUMENT, "dtype", "15");
    EXPECT_ERROR(gather(in.data(), out.data(), 4, -1), FSCCL_ERR_INVALID_ARGUMENT, "dtype");
    EXPECT_ERROR(gather(in.data(), out.data(), 4, 256 + FSCCL_FLOAT32), FSCCL_ERR_INVALID_ARGUMENT,
                 "dtype");
    EXPECT_ERROR(
        gather(in.data(), out.data(), std::numeric_limits<size_t>::max() / 2, FSCCL_FLOAT32),
        FSCCL_ERR_INVALID_ARGUMENT, "overflow");
    EXPECT_ERROR(gather(nullptr, out.data(), 4, FSCCL_FLOAT32), FSCCL_ERR_INVALID_ARGUMENT, "NULL");
    EXPECT_ERROR(gather(in.data(), nullptr, 4, FSCCL_FLOAT32), FSCCL_ERR_INVALID_ARGUMENT, "NULL");
    EXPECT_ERROR(gather(out.data() + 1, out.data(), 4, FSCCL_FLOAT32), FSCCL_ERR_INVALID_ARGUMENT,
                 "overlap");
    fsccl_op_t odd = FSCCL_SUM;
    odd.kind = 99;
    EXPECT_ERROR(
        fsccl_all_reduce(in.data(), out.data(), 4, FSCCL_FLOAT32, odd, self.comm, nullptr, nullptr),
        FSCCL_ERR_INVALID_ARGUMENT, "operator", "99");
    EXPECT_ERROR(fsccl_all_reduce(in.data(), out.data(), 4, FSCCL_FLOAT8_E4M3, FSCCL_SUM, self.comm,
                                  nullptr, nullptr),
                 FSCCL_ERR_INVALID_ARGUMENT, "fp8");
    EXPECT_ERROR(fsccl_all_reduce(in.data(), out.data(), 4, FSCCL_INT32, fsccl_premul_sum(2),
                                  self.comm, nullptr, nullptr),
                 FSCCL_ERR_INVALID_ARGUMENT, "operator");
    EXPECT_ERROR(fsccl_all_reduce(in.data(), in.data() + 2, 4, FSCCL_FLOAT32, FSCCL_SUM, self.comm,
                                  nullptr, nullptr),
                 FSCCL_ERR_INVALID_ARGUMENT, "overlap");
    EXPECT_ERROR(fsccl_broadcast(in.data(), 4, FSCCL_FLOAT32, 2, self.comm, nullptr, nullptr),
                 FSCCL_ERR_INVALID_ARGUMENT, "root 2");
    EXPECT_ERROR(fsccl_broadcast(in.data(), 4, FSCCL_FLOAT32, -1, self.comm, nullptr, nullptr),
                 FSCCL_ERR_INVALID_ARGUMENT, "root -1");
    EXPECT_ERROR(fsccl_barrier(self.comm, &in, nullptr), FSCCL_ERR_NOT_AVAILABLE, "stream");
    EXPECT_OK(gather(nullptr, nullptr, 0, FSCCL_FLOAT32));
    EXPECT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
  });
}

TEST(Misuse, ArgumentsOfPoolsAndUnits) {
  run_ranks(2, [](Rank& self) {
    PoolScope pool(self.comm);
    void* block = nullptr;
    ASSERT_OK(fsccl_pool_alloc(pool.get(), 1000, nullptr, &block));
    EXPECT_ERROR(fsccl_pool_free(pool.get(), static_cast<char*>(block) + 64, nullptr),
                 FSCCL_ERR_INVALID_ARGUMENT, "not a block");
    int local = 0;
    EXPECT_ERROR(fsccl_pool_free(pool.get(), &local, nullptr), FSCCL_ERR_INVALID_ARGUMENT,
                 "not a block");
    EXPECT_ERROR(fsccl_pool_destroy(pool.get()), FSCCL_ERR_INVALID_STATE, "1 block");
    EXPECT_OK(fsccl_pool_free(pool.get(), block, nullptr));
    EXPECT_ERROR(fsccl_pool_free(pool.get(), block, nullptr), FSCCL_ERR_INVALID_ARGUMENT,
                 "freed before");
    EXPECT_ERROR(fsccl_pool_alloc(pool.get(), size_t{1} << 50, nullptr, &block),
                 FSCCL_ERR_INVALID_ARGUMENT, "bytes");

    fsccl_unit_t unit = make_unit(self.comm, pool.get());
    fsccl_view_t view;
    EXPECT_ERROR(fsccl_unit_param(unit, 0, &view), FSCCL_ERR_INVALID_STATE, "layer", "unshard");
    EXPECT_ERROR(fsccl_unit_reshard(unit, nullptr), FSCCL_ERR_INVALID_STATE, "not unsharded");
    EXPECT_ERROR(fsccl_unit_reduce_grads(unit, nullptr, nullptr, nullptr), FSCCL_ERR_INVALID_STATE,
                 "no gradients");
    EXPECT_ERROR(fsccl_unit_shard(unit, 2, &view), FSCCL_ERR_INVALID_ARGUMENT, "2 parameters");
    EXPECT_ERROR(fsccl_unit_grad(unit, 1, nullptr, &view), FSCCL_ERR_INVALID_ARGUMENT, "frozen",
                 "scale");
    EXPECT_ERROR(fsccl_unit_broadcast_state(unit, 0, nullptr, nullptr), FSCCL_ERR_INVALID_STATE,
                 "replicate_comm");
    EXPECT_ERROR(fsccl_unit_unshard(unit, wild<fsccl_unshard_mode_t>(7), nullptr, nullptr),
                 FSCCL_ERR_INVALID_ARGUMENT, "7");
    ASSERT_OK(fsccl_unit_unshard(unit, FSCCL_UNSHARD_READ, nullptr, nullptr));
    EXPECT_ERROR(fsccl_unit_unshard(unit, FSCCL_UNSHARD_READ, nullptr, nullptr),
                 FSCCL_ERR_INVALID_STATE, "reshard");
    ASSERT_OK(fsccl_unit_reshard(unit, nullptr));
    EXPECT_ERROR(fsccl_unit_reshard(unit, nullptr), FSCCL_ERR_INVALID_STATE, "not unsharded");
    EXPECT_ERROR(fsccl_pool_destroy(pool.get()), FSCCL_ERR_INVALID_STATE, "1 unit");
    EXPECT_ERROR(fsccl_comm_destroy(self.comm), FSCCL_ERR_INVALID_STATE, "destroy them first");
    ASSERT_OK(fsccl_unit_destroy(unit));
    EXPECT_ERROR(fsccl_unit_destroy(unit), FSCCL_ERR_INVALID_HANDLE, "unit");
  });
}

TEST(Misuse, DefinitionsOfUnits) {
  run_ranks(1, [](Rank& self) {
    PoolScope pool(self.comm);
    fsccl_unit_config_t config = FSCCL_UNIT_CONFIG_INIT;
    fsccl_param_t param = FSCCL_PARAM_INIT;
    param.dims = 1, param.shape[0] = 4;
    fsccl_unit_t unit = nullptr;
    EXPECT_ERROR(fsccl_unit_create(nullptr, &param, 1, &unit), FSCCL_ERR_INVALID_ARGUMENT,
                 "config");
    EXPECT_ERROR(fsccl_unit_create(&config, &param, 1, &unit), FSCCL_ERR_INVALID_HANDLE,
                 "communicator");
    config.shard_comm = self.comm;
    EXPECT_ERROR(fsccl_unit_create(&config, &param, 1, &unit), FSCCL_ERR_INVALID_HANDLE, "pool");
    config.pool = pool.get();
    EXPECT_ERROR(fsccl_unit_create(&config, &param, 0, &unit), FSCCL_ERR_INVALID_ARGUMENT,
                 "parameters");
    const auto refuse = [&](auto change, fsccl_status_t code, const char* word) {
      fsccl_unit_config_t changed = config;
      fsccl_param_t one = param;
      change(changed, one);
      EXPECT_ERROR(fsccl_unit_create(&changed, &one, 1, &unit), code, word);
    };
    using C = fsccl_unit_config_t&;
    using P = fsccl_param_t&;
    refuse([](C, P p) { p.dims = 9; }, FSCCL_ERR_INVALID_ARGUMENT, "dims");
    refuse([](C, P p) { p.shape[0] = -1; }, FSCCL_ERR_INVALID_ARGUMENT, "-1");
    refuse([](C, P p) { p.dtype = wild<fsccl_dtype_t>(77); }, FSCCL_ERR_INVALID_ARGUMENT, "77");
    refuse([](C, P p) { p.dtype = FSCCL_INT32; }, FSCCL_ERR_INVALID_ARGUMENT, "FROZEN");
    refuse([](C, P p) { p.flags = 64; }, FSCCL_ERR_INVALID_ARGUMENT, "flags");
    refuse([](C, P p) { p.tied_to = 3; }, FSCCL_ERR_INVALID_ARGUMENT, "3");
    {
      fsccl_param_t tied[2] = {param, param};
      tied[1].tied_to = 0;
      tied[1].dtype = FSCCL_FLOAT64;
      EXPECT_ERROR(fsccl_unit_create(&config, tied, 2, &unit), FSCCL_ERR_INVALID_ARGUMENT,
                   "float64", "tied", "float32");
    }
    refuse([](C c, P) { c.layout = wild<fsccl_layout_t>(3); }, FSCCL_ERR_INVALID_ARGUMENT,
           "layout 3");
    refuse([](C, P p) { p.block_columns = 2; }, FSCCL_ERR_INVALID_ARGUMENT, "FSCCL_LAYOUT_RAGGED");
    refuse([](C c, P) { c.reduce_dtype = FSCCL_INT8; }, FSCCL_ERR_INVALID_ARGUMENT, "reduce_dtype");
    refuse([](C c, P) { c.keep = wild<fsccl_keep_t>(5); }, FSCCL_ERR_INVALID_ARGUMENT, "keep");
    refuse([](C c, P) { c.size = 3; }, FSCCL_ERR_INVALID_ARGUMENT, "INIT");
  });
}

// The unit is as before the refused calls.
TEST(Misuse, StreamsOfUnitsInHostMemory) {
  run_ranks(1, [](Rank& self) {
    const PoolScope pool(self.comm);
    fsccl_unit_config_t config = FSCCL_UNIT_CONFIG_INIT;
    config.shard_comm = self.comm, config.pool = pool.get(), config.by_parameter = 1;
    fsccl_param_t param = FSCCL_PARAM_INIT;
    param.dims = 1, param.shape[0] = 8;
    fsccl_unit_t unit = nullptr;
    ASSERT_OK(fsccl_unit_create(&config, &param, 1, &unit));
    int place = 0;
    void* const stream = &place;
    const auto refused = [](fsccl_status_t status) {
      EXPECT_ERROR(status, FSCCL_ERR_INVALID_ARGUMENT, "stream is", "host memory", "give NULL");
    };
    fsccl_view_t view{};
    refused(fsccl_unit_unshard(unit, FSCCL_UNSHARD_READ, stream, nullptr));
    ASSERT_OK(fsccl_unit_unshard(unit, FSCCL_UNSHARD_READ, nullptr, nullptr));
    refused(fsccl_unit_release(unit, 0, stream));
    ASSERT_OK(fsccl_unit_release(unit, 0, nullptr));
    refused(fsccl_unit_reshard(unit, stream));
    ASSERT_OK(fsccl_unit_reshard(unit, nullptr));
    refused(fsccl_unit_grad(unit, 0, stream, &view));
    ASSERT_OK(fsccl_unit_grad(unit, 0, nullptr, &view));
    refused(fsccl_unit_reduce_grads(unit, nullptr, stream, nullptr));
    ASSERT_OK(fsccl_unit_reduce_grads(unit, nullptr, nullptr, nullptr));
    EXPECT_OK(fsccl_unit_destroy(unit));
  });
}

TEST(Misuse, OnlyWhatHasFailedIsShrunk) {
  run_ranks(1, [](Rank& self) {
    fsccl_comm_t made = nullptr;
    EXPECT_ERROR(fsccl_comm_shrink(self.comm, nullptr, &made), FSCCL_ERR_INVALID_STATE,
                 "has not failed", "fsccl_comm_abort");
    EXPECT_ERROR(fsccl_comm_shrink(self.comm, nullptr, nullptr), FSCCL_ERR_INVALID_ARGUMENT,
                 "result");
    EXPECT_ERROR(fsccl_comm_shrink(nullptr, nullptr, &made), FSCCL_ERR_INVALID_HANDLE, "NULL");
    EXPECT_EQ(made, nullptr);
  });
}

// --- ranks that disagree
// -------------------------------------------------------------------------------------------------

// Each rank calls `call`. All ranks must get a mismatch that names both ranks and holds `word`.
// Nothing may be written but the result of the call, which is undefined.
void expect_mismatch(const std::function<fsccl_status_t(const Rank&, const std::vector<float>&,
                                                        std::vector<float>&)>& call,
                     const char* word) {
  run_ranks(3, [&](Rank& self) {
    const std::vector<float> in(4096, 1);
    std::vector<float> out(4 * 4096, -7);
    EXPECT_ERROR(call(self, in, out), FSCCL_ERR_MISMATCH, "rank", word);
    for (size_t i = 3 * 4096; i < out.size(); i++)
      ASSERT_EQ(out[i], -7) << "a refused operation wrote behind its result";
    for (const float x : in) ASSERT_EQ(x, 1);
    EXPECT_LT(fsccl_barrier(self.comm, nullptr, nullptr), 0);  // the communicator has failed
    fsccl_status_t state;
    EXPECT_OK(fsccl_comm_async_error(self.comm, &state));
    EXPECT_EQ(state, FSCCL_ERR_MISMATCH);
  });
}

TEST(Mismatch, Operation) {
  expect_mismatch(
      [](const Rank& self, const auto& in, auto& out) {
        if (self.rank == 2)
          return fsccl_all_reduce(in.data(), out.data(), 1000, FSCCL_FLOAT32, FSCCL_SUM, self.comm,
                                  nullptr, nullptr);
        return fsccl_all_gather(in.data(), out.data(), 1000, FSCCL_FLOAT32, self.comm, nullptr,
                                nullptr);
      },
      "all_reduce");
}
TEST(Mismatch, Count) {
  for (const size_t count : {size_t{1}, size_t{1000}})
    expect_mismatch(
        [&](const Rank& self, const auto& in, auto& out) {
          return fsccl_all_gather(in.data(), out.data(), self.rank == 1 ? count + 1 : count,
                                  FSCCL_FLOAT32, self.comm, nullptr, nullptr);
        },
        "count");
}
TEST(Mismatch, Dtype) {
  expect_mismatch(
      [](const Rank& self, const auto& in, auto& out) {
        return fsccl_all_gather(in.data(), out.data(), 1000,
                                self.rank ? FSCCL_FLOAT32 : FSCCL_INT32, self.comm, nullptr,
                                nullptr);
      },
      "int32");
}
TEST(Mismatch, Operator) {
  expect_mismatch(
      [](const Rank& self, const auto& in, auto& out) {
        return fsccl_all_reduce(in.data(), out.data(), 1000, FSCCL_FLOAT32,
                                self.rank ? FSCCL_MAX : FSCCL_SUM, self.comm, nullptr, nullptr);
      },
      "max");
}
TEST(Mismatch, Scale) {
  expect_mismatch(
      [](const Rank& self, const auto& in, auto& out) {
        return fsccl_all_reduce(in.data(), out.data(), 1000, FSCCL_FLOAT32,
                                fsccl_premul_sum(self.rank == 1 ? 0.5 : 0.25), self.comm, nullptr,
                                nullptr);
      },
      "scale");
}
// A small broadcast is complete at its root when it has been sent. Ranks that come later report the
// disagreement.
TEST(Mismatch, Root) {
  for (const size_t count : {size_t{4}, size_t{400}, size_t{4000}})
    expect_mismatch(
        [&](const Rank& self, const auto&, auto& out) {
          const fsccl_status_t status =
              fsccl_broadcast(out.data(), count, FSCCL_FLOAT32, self.rank == 0 ? 0 : 1, self.comm,
                              nullptr, nullptr);
          return status == FSCCL_OK ? fsccl_barrier(self.comm, nullptr, nullptr) : status;
        },
        "root");
}

TEST(Mismatch, OrderOfUnits) {
  run_ranks(2, [](Rank& self) {
    PoolScope pool(self.comm);
    fsccl_unit_t a = make_unit(self.comm, pool.get(), 8), b = make_unit(self.comm, pool.get(), 8);
    EXPECT_ERROR(fsccl_unit_unshard(self.rank ? a : b, FSCCL_UNSHARD_READ, nullptr, nullptr),
                 FSCCL_ERR_MISMATCH, "history");
    EXPECT_OK(fsccl_unit_destroy(a));
    EXPECT_OK(fsccl_unit_destroy(b));
  });
}

TEST(Mismatch, DefinitionOfAUnitNamesTheParameter) {
  run_ranks(3, [](Rank& self) {
    PoolScope pool(self.comm);
    fsccl_status_t status;
    fsccl_unit_t unit = make_unit(self.comm, pool.get(), self.rank == 1 ? 9 : 8, &status);
    EXPECT_ERROR(status, FSCCL_ERR_MISMATCH, "layer", "weight");
    EXPECT_EQ(unit, nullptr);
    unit = make_unit(self.comm, pool.get());  // the communicator goes on
    EXPECT_OK(fsccl_unit_destroy(unit));
  });
}

TEST(Mismatch, BlocksOfAParameter) {
  run_ranks(3, [](Rank& self) {
    PoolScope pool(self.comm);
    fsccl_unit_config_t config = FSCCL_UNIT_CONFIG_INIT;
    config.shard_comm = self.comm;
    config.pool = pool.get();
    config.layout = FSCCL_LAYOUT_RAGGED;
    fsccl_param_t param = FSCCL_PARAM_INIT;
    param.dims = 2, param.shape[0] = param.shape[1] = 8;
    param.block_rows = 4, param.block_columns = self.rank == 1 ? 4 : 2;
    fsccl_unit_t unit = nullptr;
    EXPECT_ERROR(fsccl_unit_create(&config, &param, 1, &unit), FSCCL_ERR_MISMATCH, "parameter 0",
                 "block");
  });
}

TEST(Mismatch, Schedule) {
  run_ranks(2, [](Rank& self) {
    PoolScope pool(self.comm);
    fsccl_unit_t a = make_unit(self.comm, pool.get()), b = make_unit(self.comm, pool.get());
    const fsccl_event_t events[] = {{FSCCL_EVENT_UNSHARD, self.rank ? a : b, 0, 0},
                                    {FSCCL_EVENT_RESHARD, self.rank ? a : b, 0, 0}};
    EXPECT_ERROR(fsccl_pool_schedule(pool.get(), events, 2), FSCCL_ERR_MISMATCH, "schedule");
    EXPECT_OK(fsccl_unit_destroy(a));
    EXPECT_OK(fsccl_unit_destroy(b));
  });
}

// --- waits that end
// -------------------------------------------------------------------------------------------------

TEST(Waits, ADeadlineNamesWhoIsMissing) {
  std::atomic<int> over{0};
  run_ranks(3,
            [&](Rank& self) {
              if (self.rank != 1) {
                EXPECT_ERROR(fsccl_barrier(self.comm, nullptr, nullptr), FSCCL_ERR_TIMEOUT,
                             "barrier", "rank(s) 1:");
                over++;
              }
              while (over < 2) std::this_thread::yield();  // rank 1 lives, but never calls
            },
            {.timeout_ms = 200});
}

TEST(Waits, AnAbortEndsThemAll) {
  std::atomic<int> waiting{0};
  run_ranks(3, [&](Rank& self) {
    if (self.rank == 0) {
      while (waiting < 2) std::this_thread::yield();
      EXPECT_OK(fsccl_comm_abort(self.comm));
    } else {
      waiting++;
      EXPECT_ERROR(fsccl_barrier(self.comm, nullptr, nullptr), FSCCL_ERR_ABORTED, "aborted",
                   "rank 0");
    }
    EXPECT_ERROR(fsccl_barrier(self.comm, nullptr, nullptr), FSCCL_ERR_ABORTED, "aborted");
  });
}

TEST(Waits, ARankThatLeft) {
  run_ranks(2, [](Rank& self) {
    fsccl_comm_t child = nullptr;
    ASSERT_OK(fsccl_comm_split(self.comm, 0, self.rank, nullptr, &child));
    if (self.rank == 1) {
      EXPECT_OK(fsccl_comm_destroy(child));
      EXPECT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
      return;
    }
    EXPECT_ERROR(fsccl_barrier(child, nullptr, nullptr), FSCCL_ERR_PEER_DEAD, "rank 1", "left");
    EXPECT_OK(fsccl_comm_destroy(child));
    EXPECT_OK(fsccl_barrier(self.comm, nullptr, nullptr));  // the parent is unhurt
  });
}

TEST(Waits, WorkInFlightKeepsTheCommunicator) {
  std::atomic<bool> go{false};
  run_ranks(2, [&](Rank& self) {
    if (self.rank == 1) {
      while (!go) std::this_thread::yield();
      EXPECT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
      return;
    }
    fsccl_work_t work = nullptr;
    EXPECT_EQ(fsccl_barrier(self.comm, nullptr, &work), FSCCL_IN_PROGRESS);
    EXPECT_ERROR(fsccl_comm_destroy(self.comm), FSCCL_ERR_INVALID_STATE, "in flight");
    EXPECT_EQ(fsccl_work_wait(work, 0), FSCCL_IN_PROGRESS);
    go = true;
    EXPECT_OK(fsccl_work_wait(work, -1));
  });
}

}  // namespace
}  // namespace fsccl::testing
