// Tests the lifetimes of objects: any thread may call functions on an object while another thread
// destroys it. LIFETIME_MS says for how long each test makes such calls.
#include <fsccl/allocator.h>
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "collective_case.h"
#include "fsccl/insight.h"
#include "unit_case.h"

namespace fsccl::testing {
namespace {

using Clock = std::chrono::steady_clock;

std::chrono::milliseconds storm_time() {
  const char* const given = std::getenv("LIFETIME_MS");
  return std::chrono::milliseconds(given ? std::atoi(given) : 400);
}

// Objects of one rank that come and go while functions are called on them.
struct Objects {
  std::atomic<fsccl_comm_t> comm{nullptr};
  std::atomic<fsccl_pool_t> pool{nullptr};
  std::atomic<fsccl_unit_t> unit{nullptr};
  std::atomic<fsccl_work_t> work{nullptr};
  std::atomic<bool> stop{false};
  std::string folder;
};

void take_text(void*, const char*, size_t) {}
void visit_use(void*, const fsccl_pool_owner_t*) {}
void done(void* context, fsccl_status_t) { static_cast<std::atomic<int>*>(context)->fetch_add(1); }

std::atomic<int> callbacks{0};

fsccl_status_t call_comm(Objects& objects, unsigned which) {
  const fsccl_comm_t comm = objects.comm;
  char json[16384];
  int first = 0, second = 0;
  fsccl_status_t state = FSCCL_OK;
  fsccl_peer_state_t peer = FSCCL_PEER_ALIVE;
  fsccl_counters_t counters = FSCCL_COUNTERS_INIT;
  switch (which % 8) {
    case 0:
      return fsccl_explain(comm, "all_gather", 1 << 16, json, sizeof json);
    case 1:
      return fsccl_comm_rank(comm, &first);
    case 2:
      return fsccl_comm_size(comm, &first);
    case 3:
      return fsccl_comm_local_rank(comm, &first, &second);
    case 4:
      return fsccl_comm_async_error(comm, &state);
    case 5:
      return fsccl_comm_peer_state(comm, 0, &peer);
    case 6:
      return fsccl_comm_counters(comm, &counters);
    default:
      return fsccl_metrics(take_text, nullptr);
  }
}

fsccl_status_t call_work(Objects& objects, unsigned which) {
  const fsccl_work_t work = objects.work;
  int fd = -1;
  switch (which % 6) {
    case 0:
      return fsccl_work_test(work);
    case 1:
      return fsccl_work_wait(work, 10);
    case 2:
      return fsccl_work_error(work);
    case 3:
      return fsccl_work_release(work);
    case 4:
      return fsccl_work_callback(work, done, &callbacks);
    default: {
      const fsccl_status_t status = fsccl_work_event_fd(work, &fd);
      if (fd >= 0) close(fd);
      return status;
    }
  }
}

fsccl_status_t call_pool(Objects& objects, unsigned which) {
  const fsccl_pool_t pool = objects.pool;
  fsccl_pool_stats_t stats = FSCCL_POOL_STATS_INIT;
  uint64_t released = 0;
  void* block = nullptr;
  fsccl_allocator_t table = FSCCL_ALLOCATOR_INIT;
  fsccl_status_t status = FSCCL_OK;
  switch (which % 6) {
    case 0:
      return fsccl_pool_stats(pool, &stats);
    case 1:
      return fsccl_pool_owners(pool, visit_use, nullptr);
    case 2:
      return which % 48 ? FSCCL_OK
                        : fsccl_pool_snapshot(pool, (objects.folder + "/snapshot.json").c_str());
    case 3:
      return fsccl_pool_trim(pool, &released);
    case 4:
      status = fsccl_pool_allocator(pool, &table);
      if (status != FSCCL_OK) return status;
      status = table.allocate(table.context, 5000, 64, nullptr, &block);
      if (status == FSCCL_OK) {
        EXPECT_OK(table.deallocate(table.context, block, 5000, nullptr));
      }
      EXPECT_OK(table.destroy(table.context));
      return status;
    default:
      status = fsccl_pool_alloc(pool, 1000, nullptr, &block);
      if (status != FSCCL_OK) return status;
      EXPECT_OK(fsccl_pool_free(pool, block, nullptr));  // a pool with a block stays
      return FSCCL_OK;
  }
}

// Calls a function of the unit. fsccl.h marks no function of units as one for any thread, so the
// test calls one that reads values that do not change: threads race for the handle alone. A destroy
// waits for calls that have begun, and later calls find no unit.
fsccl_status_t call_unit(Objects& objects, unsigned) {
  fsccl_view_t view;
  return fsccl_unit_shard(objects.unit, 0, &view);
}

// Makes and destroys all objects as often as it can, while other threads make the `calls`.
int come_and_go(Objects& objects, bool aborts,
                const std::vector<fsccl_status_t (*)(Objects&, unsigned)>& calls) {
  std::vector<std::thread> threads;
  std::vector<std::map<fsccl_status_t, uint64_t>> seen(calls.size());
  for (size_t t = 0; t < calls.size(); t++)
    threads.emplace_back([&, t] {
      for (unsigned i = 0; !objects.stop; i++) seen[t][calls[t](objects, i)]++;
    });
  int cycles = 0;
  const Clock::time_point end = Clock::now() + storm_time();
  for (; Clock::now() < end || cycles < 5; cycles++) {
    fsccl_unique_id_t id;
    EXPECT_OK(fsccl_unique_id_create(&id));
    fsccl_comm_config_t config = FSCCL_COMM_CONFIG_INIT;
    config.unique_id = &id;
    config.rank = 0, config.ranks = 1;
    fsccl_comm_t comm = nullptr;
    EXPECT_OK(fsccl_comm_create(&config, &comm));
    objects.comm = comm;
    fsccl_work_t work = nullptr;
    EXPECT_GE(fsccl_barrier(comm, nullptr, &work), aborts ? FSCCL_ERR_ABORTED : FSCCL_OK);
    objects.work = work;
    fsccl_pool_config_t pool_config = FSCCL_POOL_CONFIG_INIT;
    pool_config.limit_bytes = 8 << 20;
    fsccl_pool_t pool = nullptr;
    if (fsccl_pool_create(comm, &pool_config, &pool) == FSCCL_OK) {
      objects.pool = pool;
      fsccl_unit_config_t unit_config = FSCCL_UNIT_CONFIG_INIT;
      unit_config.shard_comm = comm;
      unit_config.pool = pool;
      fsccl_param_t param = FSCCL_PARAM_INIT;
      param.dims = 1, param.shape[0] = 100;
      fsccl_unit_t unit = nullptr;
      if (fsccl_unit_create(&unit_config, &param, 1, &unit) == FSCCL_OK) {
        objects.unit = unit;
        fsccl_unit_unshard(unit, FSCCL_UNSHARD_READ, nullptr, nullptr);
        fsccl_unit_reshard(unit, nullptr);
        EXPECT_OK(fsccl_unit_destroy(unit));
      }
      // Another thread may still have a block of the pool.
      while (fsccl_pool_destroy(pool) == FSCCL_ERR_INVALID_STATE) std::this_thread::yield();
    }
    EXPECT_OK(fsccl_comm_destroy(comm));
  }
  objects.stop = true;
  for (std::thread& thread : threads) thread.join();
  const std::set<fsccl_status_t> allowed{FSCCL_OK, FSCCL_IN_PROGRESS, FSCCL_ERR_INVALID_HANDLE,
                                         FSCCL_ERR_INVALID_STATE, FSCCL_ERR_ABORTED};
  for (size_t t = 0; t < calls.size(); t++)
    for (const auto& [status, count] : seen[t])
      EXPECT_TRUE(allowed.count(status)) << fsccl_status_string(status) << ", " << count;
  return cycles;
}

TEST(Lifetimes, AnyThreadMayUseWhatAnotherOneDestroys) {
  Objects objects;
  objects.folder =
      std::filesystem::temp_directory_path() / ("fsccl-lifetimes-" + std::to_string(getpid()));
  std::filesystem::create_directory(objects.folder);
  const int cycles =
      come_and_go(objects, false, {call_comm, call_work, call_pool, call_pool, call_unit});
  printf("%d cycles, %d callbacks\n", cycles, callbacks.load());
  std::filesystem::remove_all(objects.folder);
}

TEST(Lifetimes, AnyThreadMayAbortWhatAnotherOneDestroys) {
  Objects objects;
  const auto abort = [](Objects& all, unsigned) { return fsccl_comm_abort(all.comm); };
  come_and_go(objects, true, {abort, call_comm, call_work});
}

TEST(Lifetimes, TwoThreadsMayDestroyTheSame) {
  for (int i = 0; i < 50; i++) {
    fsccl_unique_id_t id;
    ASSERT_OK(fsccl_unique_id_create(&id));
    fsccl_comm_config_t config = FSCCL_COMM_CONFIG_INIT;
    config.unique_id = &id;
    config.rank = 0, config.ranks = 1;
    fsccl_comm_t comm = nullptr;
    ASSERT_OK(fsccl_comm_create(&config, &comm));
    std::atomic<int> destroyed{0}, late{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; t++)
      threads.emplace_back([&] {
        const fsccl_status_t status = fsccl_comm_destroy(comm);
        (status == FSCCL_OK ? destroyed : late)++;
        EXPECT_TRUE(status == FSCCL_OK || status == FSCCL_ERR_INVALID_HANDLE) << explain(status);
      });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(destroyed, 1);
    EXPECT_EQ(late, 2);
  }
}

// A work belongs to its communicator for ever. A later communicator that takes the place of the
// destroyed one in the library's table is not taken for it.
TEST(Lifetimes, AWorkNamesNoLaterCommunicator) {
  fsccl_work_t first = nullptr;
  for (int i = 0; i < 1100; i++) {
    fsccl_unique_id_t id;
    ASSERT_OK(fsccl_unique_id_create(&id));
    fsccl_comm_config_t config = FSCCL_COMM_CONFIG_INIT;
    config.unique_id = &id;
    config.rank = 0, config.ranks = 1;
    fsccl_comm_t comm = nullptr;
    ASSERT_OK(fsccl_comm_create(&config, &comm));
    fsccl_work_t work = nullptr;
    ASSERT_OK(fsccl_barrier(comm, nullptr, &work));
    ASSERT_NE(work, first) << "after " << i << " others";
    if (!first) first = work;
    if (i > 0) {
      ASSERT_EQ(fsccl_work_test(first), FSCCL_ERR_INVALID_HANDLE) << "after " << i << " others";
    }
    ASSERT_OK(fsccl_comm_destroy(comm));
  }
}

// A function of the program, which the library calls for a pool, cannot end that pool.
TEST(Lifetimes, ACallbackCannotDestroyItsOwnObject) {
  run_ranks(2, [](Rank& self) {
    struct Seen {
      fsccl_pool_t pool = nullptr;
      fsccl_status_t status = FSCCL_OK;
    } seen;
    fsccl_pool_config_t config = FSCCL_POOL_CONFIG_INIT;
    config.limit_bytes = 4 << 20;
    config.on_pressure_context = &seen;
    config.on_pressure = [](void* context, fsccl_pool_t pool, uint64_t) -> uint64_t {
      static_cast<Seen*>(context)->status = fsccl_pool_destroy(pool);
      return 0;
    };
    ASSERT_OK(fsccl_pool_create(self.comm, &config, &seen.pool));
    void* block = nullptr;
    EXPECT_ERROR(fsccl_pool_alloc(seen.pool, 8 << 20, nullptr, &block), FSCCL_ERR_OUT_OF_MEMORY,
                 "limit");
    EXPECT_EQ(seen.status, FSCCL_ERR_INVALID_STATE);
    ASSERT_OK(fsccl_pool_alloc(seen.pool, 4096, nullptr, &block));
    ASSERT_OK(fsccl_pool_free(seen.pool, block, nullptr));
    seen.status = FSCCL_OK;
    const auto visit = [](void* context, const fsccl_pool_owner_t*) {
      auto& all = *static_cast<Seen*>(context);
      all.status = fsccl_pool_destroy(all.pool);
    };
    EXPECT_OK(fsccl_pool_owners(seen.pool, visit, &seen));
    EXPECT_EQ(seen.status, FSCCL_ERR_INVALID_STATE);
    EXPECT_OK(fsccl_pool_destroy(seen.pool));
  });
}

// A thread is in the middle of a reduction when another one aborts the communicator and destroys
// the unit. The unit stays until the step is over.
TEST(Lifetimes, AUnitOfAFailedCommunicatorWaitsForItsStep) {
  struct Told {
    std::atomic<bool> waits{false}, inside{false}, destroyed{false}, goes_on{false};
    std::atomic<bool> was_destroyed{true};
  };
  static Told told;
  run_ranks(2,
            [](Rank& self) {
              const PoolScope pool(self.comm);
              auto unit = std::make_unique<TestUnit>(simple_unit({{100}}), self.comm, pool.get());
              unit->write_grads(1, self.rank);
              if (self.rank == 1) {
                while (!told.waits) std::this_thread::yield();
                (void)fsccl_unit_reduce_grads(unit->get(), nullptr, nullptr, nullptr);
                while (!told.destroyed) std::this_thread::yield();
                return;
              }
              fsccl_reduce_config_t config = FSCCL_REDUCE_CONFIG_INIT;
              config.shard_ready = [](void*, fsccl_unit_t, size_t) {
                told.inside = true;
                while (!told.goes_on) std::this_thread::yield();
                for (int i = 0; i < 200'000; i++) std::this_thread::yield();
                told.was_destroyed = told.destroyed.load();
              };
              fsccl_work_t work = nullptr;
              ASSERT_EQ(fsccl_unit_reduce_grads(unit->get(), &config, nullptr, &work),
                        FSCCL_IN_PROGRESS);
              std::thread waits([&] { (void)fsccl_work_wait(work, -1); });
              told.waits = true;
              while (!told.inside) std::this_thread::yield();
              ASSERT_OK(fsccl_comm_abort(self.comm));
              told.goes_on = true;
              unit.reset();
              told.destroyed = true;
              waits.join();
              EXPECT_FALSE(told.was_destroyed);
            },
            {.abort_at_end = true});
}

// A thread waits for another rank in an operation. The communicator cannot be destroyed until it is
// aborted.
TEST(Lifetimes, ACommunicatorWithACallThatBlocksIsAbortedFirst) {
  run_ranks(2, [](Rank& self) {
    static std::atomic<int> over;
    if (self.rank == 0) over = 0;
    ASSERT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
    fsccl_comm_t comm = nullptr;
    ASSERT_OK(fsccl_comm_split(self.comm, 0, self.rank, nullptr, &comm));
    if (self.rank == 0) {
      std::atomic<bool> begun{false};
      std::thread blocked([&] {
        fsccl_work_t work = nullptr;
        EXPECT_EQ(fsccl_barrier(comm, nullptr, &work), FSCCL_IN_PROGRESS);
        begun = true;
        EXPECT_EQ(fsccl_work_wait(work, -1), FSCCL_ERR_ABORTED);
      });
      while (!begun) std::this_thread::yield();
      EXPECT_ERROR(fsccl_comm_destroy(comm), FSCCL_ERR_INVALID_STATE, "in flight", "abort");
      EXPECT_OK(fsccl_comm_abort(comm));
      EXPECT_OK(fsccl_comm_destroy(comm));  // waits until the thread has left its call
      blocked.join();
      over = 1;
    } else {
      while (!over) std::this_thread::yield();
      fsccl_comm_abort(comm);
      EXPECT_OK(fsccl_comm_destroy(comm));
    }
  });
}

// A thread waits in a call that is no operation. Destroying waits for that call, which ends at its
// own deadline.
TEST(Lifetimes, ADestroyWaitsForCallsUpToTheDeadline) {
  run_ranks(2, [](Rank& self) {
    fsccl_comm_config_t config = FSCCL_COMM_CONFIG_INIT;
    config.timeout_ms = 500;
    fsccl_comm_t comm = nullptr;
    ASSERT_OK(fsccl_comm_split(self.comm, 0, self.rank, &config, &comm));
    static std::atomic<int> over;
    if (self.rank == 0) {
      over = 0;
      std::atomic<bool> begun{false};
      std::thread blocked([&] {
        const int both[] = {0, 1};
        fsccl_comm_t part = nullptr;
        begun = true;
        // The other rank does not make this call.
        const fsccl_status_t status = fsccl_comm_subset(comm, both, 2, 7, nullptr, &part);
        EXPECT_TRUE(status == FSCCL_ERR_TIMEOUT || status == FSCCL_ERR_INVALID_HANDLE)
            << explain(status);
      });
      while (!begun) std::this_thread::yield();
      fsccl_status_t status = fsccl_comm_destroy(comm);
      while (status == FSCCL_ERR_INVALID_STATE) status = fsccl_comm_destroy(comm);
      EXPECT_OK(status);
      blocked.join();
    }
    ASSERT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
    if (self.rank == 1) {
      EXPECT_OK(fsccl_comm_destroy(comm));
    }
  });
}

// Memory that ends with its owner's scope.
class Mapped {
 public:
  explicit Mapped(size_t bytes)
      : bytes_(bytes),
        base_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0)) {}
  Mapped(const Mapped&) = delete;
  ~Mapped() { munmap(base_, bytes_); }
  void* get() const { return base_; }

 private:
  const size_t bytes_;
  void* const base_;
};

fsccl_status_t move_much(Kind kind, fsccl_comm_t comm, size_t count) {
  const Mapped send(count * sizeof(float)), recv(2 * count * sizeof(float));
  switch (kind) {
    case Kind::broadcast:
      return fsccl_broadcast(recv.get(), count, FSCCL_FLOAT32, 0, comm, nullptr, nullptr);
    case Kind::all_gather:
      return fsccl_all_gather(send.get(), recv.get(), count, FSCCL_FLOAT32, comm, nullptr, nullptr);
    case Kind::reduce_scatter:
      return fsccl_reduce_scatter(recv.get(), send.get(), count, FSCCL_FLOAT32, FSCCL_SUM, comm,
                                  nullptr, nullptr);
    default:
      return fsccl_all_reduce(send.get(), recv.get(), count, FSCCL_FLOAT32, FSCCL_SUM, comm,
                              nullptr, nullptr);
  }
}

// The ranks are threads, which touch each other's buffers directly. A call that has failed gives
// the buffers back: they may cease to exist as soon as it returns.
TEST(Lifetimes, BuffersMayEndWithTheCallThatFailed) {
  run_ranks(2, [](Rank& self) {
    int failed = 0;
    for (int round = 0; round < 40; round++) {
      constexpr Kind kKinds[] = {Kind::broadcast, Kind::all_gather, Kind::reduce_scatter,
                                 Kind::all_reduce};
      fsccl_comm_t part = nullptr;
      ASSERT_OK(fsccl_comm_split(self.comm, 0, self.rank, nullptr, &part));
      std::thread aborts([&] {
        for (int i = 0; self.rank == 1 && i < round * 10; i++) std::this_thread::yield();
        if (self.rank == 1) {
          EXPECT_OK(fsccl_comm_abort(part));
        }
      });
      failed += move_much(kKinds[round % 4], part, size_t{3} << 20) < 0;
      aborts.join();
      ASSERT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
      ASSERT_OK(fsccl_comm_destroy(part));
    }
    EXPECT_GT(failed, 0);
  });
}

}  // namespace
}  // namespace fsccl::testing
