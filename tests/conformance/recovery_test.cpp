// Tests failures in the middle of calls: all waits end, all objects can be destroyed, and
// everything that did not fail goes on.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <deque>
#include <future>
#include <memory>
#include <mutex>
#include <thread>

#include "collective_case.h"
#include "fsccl/insight.h"
#include "unit_case.h"

namespace fsccl::testing {
namespace {

// Operations of all kinds run on a child communicator until some thread aborts it, and then it is
// destroyed. The parent and its pool, in which the child's units lived, work as before.
TEST(Recovery, AbortAtAnyMoment) {
  run_ranks(3, [](Rank& self) {
    const PoolScope whole(self.comm);
    Random random(31), own(static_cast<uint64_t>(self.rank));
    for (int round = 0; round < 40 && !HasFailure(); ++round) {
      const PoolScope pool(self.comm);
      fsccl_comm_t child = nullptr;
      ASSERT_OK(fsccl_comm_split(self.comm, 0, 0, nullptr, &child));
      const Rank inside{self.rank, self.ranks, child};
      const bool aborts = random.below(3) == static_cast<uint64_t>(self.rank);
      // The buffers outlive the communicator, because peers may be reading them.
      std::vector<std::unique_ptr<Collective>> collectives;
      {
        UnitCase c = simple_unit({{64, 16}});
        c.sharing = round % 2 ? FSCCL_SHARING_PRIVATE : FSCCL_SHARING_READ_ONLY;
        std::deque<TestUnit> units;
        for (uint64_t u = 0; u < 2; ++u) {
          c.seed = u;
          units.emplace_back(c, child, pool.get());
        }
        std::thread aborter;
        const uint64_t delay = own.below(300);
        if (aborts)
          aborter = std::thread([child, delay] {
            for (uint64_t i = 0; i < delay; ++i) std::this_thread::yield();
            EXPECT_OK(fsccl_comm_abort(child));
          });
        fsccl_status_t status = FSCCL_OK;
        for (uint64_t i = 0; status >= 0; ++i) {
          fsccl_work_t work = nullptr;
          TestUnit& unit = units[i / 3 % 2];
          fsccl_view_t view{};
          switch (i % 3) {
            case 0:
              status = fsccl_unit_unshard(unit.get(), FSCCL_UNSHARD_READ, nullptr,
                                          i % 2 ? &work : nullptr);
              break;
            case 1:
              collectives.push_back(std::make_unique<Collective>(
                  CollectiveCase{Kind::all_reduce, FSCCL_INT32, FSCCL_SUM, i * 7 % 6000,
                                 Memory::caller, false, 0, i},
                  inside, pool.get()));
              status = collectives.back()->start(i % 4 ? &work : nullptr);
              break;
            default:
              status = fsccl_unit_reshard(unit.get(), nullptr);
              if (status >= 0) status = fsccl_unit_grad(unit.get(), 0, nullptr, &view);
              if (status >= 0)
                status =
                    fsccl_unit_reduce_grads(unit.get(), nullptr, nullptr, i % 2 ? &work : nullptr);
          }
        }
        EXPECT_EQ(status, FSCCL_ERR_ABORTED) << explain(status);
        fsccl_status_t state = FSCCL_OK;
        EXPECT_OK(fsccl_comm_async_error(child, &state));
        EXPECT_EQ(state, FSCCL_ERR_ABORTED);
        if (aborter.joinable()) aborter.join();
      }
      ASSERT_OK(fsccl_barrier(self.comm, nullptr, nullptr));  // nobody reads the buffers any more
      EXPECT_OK(fsccl_comm_destroy(child));
      collectives.clear();
      run_collective(random_case(random, 3, 20'000), self, pool.get());
      TestUnit unit(simple_unit({{100, 3}}), self.comm, whole.get());
      unit.write_shards(1);
      unit.unshard();
      unit.check_params(1);
      unit.write_grads(1, self.rank);
      unit.reshard();
      unit.reduce(nullptr);
      unit.check_sharded_grads({{1}});
      EXPECT_EQ(pool.stats().live_bytes, 0u);
    }
  });
}

// The service thread waits for a slot when the communicator is aborted and the pool is destroyed.
TEST(Recovery, PoolDestroyedWhileTheLibraryWaitedInIt) {
  run_ranks(2, [](Rank& self) {
    static std::atomic<int> turn;
    for (int round = 0; round < 30 && !HasFailure(); ++round) {
      if (self.rank == 0) turn = 0;
      fsccl_comm_t child = nullptr;
      ASSERT_OK(fsccl_comm_split(self.comm, 0, 0, nullptr, &child));
      {
        const PoolScope pool(child);
        UnitCase c = simple_unit({{64}});
        TestUnit first(c, child, pool.get());
        c.seed = 2;
        TestUnit second(c, child, pool.get());
        first.unshard();
        if (self.rank == 0) {
          first.reshard();
          fsccl_work_t work = nullptr;
          // Rank 1 holds the slot.
          EXPECT_EQ(fsccl_unit_unshard(second.get(), FSCCL_UNSHARD_READ, nullptr, &work),
                    FSCCL_IN_PROGRESS);
          for (int i = 0; i < 100 * round; ++i) std::this_thread::yield();
          EXPECT_OK(fsccl_comm_abort(child));
          EXPECT_ERROR(fsccl_work_wait(work, -1), FSCCL_ERR_ABORTED, "aborted");
          EXPECT_ERROR(fsccl_work_error(work), FSCCL_ERR_ABORTED, "aborted");
          turn = 1;
        } else {
          while (turn.load() == 0) std::this_thread::yield();
        }
      }
      EXPECT_OK(fsccl_comm_destroy(child));
      ASSERT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
    }
  });
}

TEST(Recovery, ASlotThatIsNotGivenBackIsADeadlineThatNamesTheHolder) {
  run_ranks(2,
            [](Rank& self) {
              static std::atomic<bool> done;
              if (self.rank == 0) done = false;
              const PoolScope pool(self.comm);
              UnitCase c = simple_unit({{64}});
              TestUnit first(c, self.comm, pool.get());
              c.seed = 2;
              TestUnit second(c, self.comm, pool.get());
              first.unshard();
              if (self.rank == 0) {
                first.reshard();
                EXPECT_ERROR(fsccl_unit_unshard(second.get(), FSCCL_UNSHARD_READ, nullptr, nullptr),
                             FSCCL_ERR_TIMEOUT, "rank(s) 1", "slot", "reshard");
                EXPECT_EQ(last_error().peer, 1);
                done = true;
              } else {
                while (!done.load()) std::this_thread::yield();
                first.reshard();
                EXPECT_LT(fsccl_barrier(self.comm, nullptr, nullptr), 0);
              }
            },
            {.timeout_ms = 300, .abort_at_end = true});
}

// If several ranks are missing, all are named, and the others' errors have the same text.
TEST(Recovery, ADeadlineNamesAllWhoAreMissing) {
  std::atomic<int> waiting{2};
  run_ranks(4,
            [&](Rank& self) {
              if (self.rank % 2) {
                while (waiting.load() > 0) std::this_thread::yield();
                fsccl_status_t state = FSCCL_OK;
                EXPECT_OK(fsccl_comm_async_error(self.comm, &state));
                EXPECT_EQ(state, FSCCL_ERR_TIMEOUT);
              } else {
                EXPECT_ERROR(fsccl_barrier(self.comm, nullptr, nullptr), FSCCL_ERR_TIMEOUT,
                             "barrier", "1, 3", "FSCCL_TIMEOUT_MS");
                EXPECT_EQ(last_error().peer % 2, 1);
                waiting--;
              }
            },
            {.timeout_ms = 300, .name = "the job"});
}

// If one rank never comes, creation fails on all, and the error says how many came.
TEST(Recovery, CreationHasADeadline) {
  fsccl_unique_id_t id;
  ASSERT_OK(fsccl_unique_id_create(&id));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&id, rank] {
      fsccl_comm_config_t config = FSCCL_COMM_CONFIG_INIT;
      config.unique_id = &id;
      config.rank = rank;
      config.ranks = 3;
      config.timeout_ms = 400;
      fsccl_comm_t comm = nullptr;
      EXPECT_ERROR(fsccl_comm_create(&config, &comm), FSCCL_ERR_TIMEOUT, "2 of 3");
      EXPECT_EQ(comm, nullptr);
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(Recovery, NonblockingCreation) {
  fsccl_unique_id_t id;
  ASSERT_OK(fsccl_unique_id_create(&id));
  fsccl_comm_t comms[2] = {};
  for (int rank = 0; rank < 2; ++rank) {
    fsccl_comm_config_t config = FSCCL_COMM_CONFIG_INIT;
    config.unique_id = &id;
    config.rank = rank;
    config.ranks = 2;
    config.nonblocking = 1;
    EXPECT_EQ(fsccl_comm_create(&config, &comms[rank]), FSCCL_IN_PROGRESS);
    if (rank == 0) {
      EXPECT_ERROR(fsccl_barrier(comms[0], nullptr, nullptr), FSCCL_ERR_INVALID_STATE,
                   "still being created");
    }
  }
  for (const fsccl_comm_t comm : comms)
    for (fsccl_status_t state = FSCCL_IN_PROGRESS; state != FSCCL_OK;) {
      ASSERT_OK(fsccl_comm_async_error(comm, &state));
      ASSERT_GE(state, 0) << explain(state);
      std::this_thread::yield();
    }
  std::thread other([&] { EXPECT_OK(fsccl_barrier(comms[1], nullptr, nullptr)); });
  EXPECT_OK(fsccl_barrier(comms[0], nullptr, nullptr));
  other.join();
  for (const fsccl_comm_t comm : comms) EXPECT_OK(fsccl_comm_destroy(comm));
  // One communicator fails, and one is destroyed while it is being made.
  fsccl_comm_config_t config = FSCCL_COMM_CONFIG_INIT;
  ASSERT_OK(fsccl_unique_id_create(&id));
  config.unique_id = &id;
  config.rank = 0;
  config.ranks = 2;
  config.nonblocking = 1;
  config.timeout_ms = 200;
  fsccl_comm_t lonely = nullptr;
  EXPECT_EQ(fsccl_comm_create(&config, &lonely), FSCCL_IN_PROGRESS);
  fsccl_status_t state = FSCCL_IN_PROGRESS;
  while (state == FSCCL_IN_PROGRESS) {
    ASSERT_OK(fsccl_comm_async_error(lonely, &state));
    std::this_thread::yield();
  }
  EXPECT_EQ(state, FSCCL_ERR_TIMEOUT);
  EXPECT_EQ(fsccl_barrier(lonely, nullptr, nullptr), FSCCL_ERR_TIMEOUT);
  fsccl_error_info_t info = FSCCL_ERROR_INFO_INIT;
  ASSERT_OK(fsccl_last_error(&info));
  // On a busy machine the rank may give up before the place where ranks meet says who has come.
  EXPECT_TRUE(std::strstr(info.text, "1 of 2") || std::strstr(info.text, "joining 2 ranks"))
      << info.text;
  EXPECT_OK(fsccl_comm_destroy(lonely));
}

// A call that comes just as the communicator becomes ready either runs or fails.
TEST(Recovery, NoCallSaysThatItRanBeforeTheCommunicatorWasReady) {
  for (int round = 0; round < 300; ++round) {
    fsccl_unique_id_t id;
    ASSERT_OK(fsccl_unique_id_create(&id));
    fsccl_comm_config_t config = FSCCL_COMM_CONFIG_INIT;
    config.unique_id = &id;
    config.rank = 0;
    config.ranks = 1;
    config.nonblocking = 1;
    fsccl_comm_t comm = nullptr;
    ASSERT_EQ(fsccl_comm_create(&config, &comm), FSCCL_IN_PROGRESS);
    const int sent = round + 1;
    int received = 0;
    fsccl_status_t status = FSCCL_ERR_INVALID_STATE;
    while (status == FSCCL_ERR_INVALID_STATE)
      status = fsccl_all_gather(&sent, &received, 1, FSCCL_INT32, comm, nullptr, nullptr);
    ASSERT_OK(status);
    ASSERT_EQ(received, sent) << "in round " << round;
    ASSERT_OK(fsccl_comm_destroy(comm));
  }
}

// An all-gather of the test's own, between threads.
struct Meeting {
  int ranks = 3;
  std::vector<char> data;
  std::atomic<int> arrived{0};
};
struct Seat {
  Meeting* meetings;
  int rank, next = 0;
  bool fail = false;
};
int gather_between_threads(void* context, const void* mine, void* all, size_t bytes) {
  auto& seat = *static_cast<Seat*>(context);
  if (seat.fail) return 1;
  Meeting& meeting = seat.meetings[seat.next++];
  static std::mutex mutex;
  {
    const std::lock_guard lock(mutex);
    meeting.data.resize(bytes * static_cast<size_t>(meeting.ranks));
    std::memcpy(meeting.data.data() + bytes * static_cast<size_t>(seat.rank), mine, bytes);
  }
  meeting.arrived++;
  while (meeting.arrived.load() < meeting.ranks) std::this_thread::yield();
  std::memcpy(all, meeting.data.data(), meeting.data.size());
  return 0;
}

TEST(Creation, FromTheCallersAllGather) {
  std::array<Meeting, 20> meetings;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank)
    threads.emplace_back([&, rank] {
      Seat seat{&meetings[0], rank};
      fsccl_comm_config_t config = FSCCL_COMM_CONFIG_INIT;
      config.all_gather = gather_between_threads;
      config.all_gather_context = &seat;
      config.rank = rank;
      config.ranks = 3;
      fsccl_comm_t comm = nullptr;
      ASSERT_OK(fsccl_comm_create(&config, &comm));
      int sum = 0;
      EXPECT_OK(fsccl_all_reduce(&rank, &sum, 1, FSCCL_INT32, FSCCL_SUM, comm, nullptr, nullptr));
      EXPECT_EQ(sum, 3);
      EXPECT_OK(fsccl_comm_destroy(comm));
    });
  for (std::thread& thread : threads) thread.join();
  Seat seat{&meetings[0], 0, 0, true};
  fsccl_comm_config_t config = FSCCL_COMM_CONFIG_INIT;
  config.all_gather = gather_between_threads;
  config.all_gather_context = &seat;
  config.rank = 0;
  config.ranks = 3;
  config.timeout_ms = 1000;
  fsccl_comm_t comm = nullptr;
  EXPECT_LT(fsccl_comm_create(&config, &comm), 0);
  EXPECT_STRNE(last_error().text, "");
}

TEST(Creation, WrongConfigs) {
  fsccl_unique_id_t id{};
  fsccl_comm_t comm = nullptr;
  const auto refuse = [&](auto change, fsccl_status_t code, const char* word) {
    fsccl_comm_config_t config = FSCCL_COMM_CONFIG_INIT;
    config.unique_id = &id;
    config.rank = 0;
    config.ranks = 1;
    config.timeout_ms = 300;
    change(config);
    EXPECT_ERROR(fsccl_comm_create(&config, &comm), code, word);
    EXPECT_EQ(comm, nullptr);
  };
  using C = fsccl_comm_config_t&;
  refuse([](C c) { c.rank = 1; }, FSCCL_ERR_INVALID_ARGUMENT, "rank 1");
  refuse([](C c) { c.rank = -1; }, FSCCL_ERR_INVALID_ARGUMENT, "rank -1");
  refuse([](C c) { c.ranks = 0; }, FSCCL_ERR_INVALID_ARGUMENT, "ranks is 0");
  refuse([](C c) { c.timeout_ms = -5; }, FSCCL_ERR_INVALID_ARGUMENT, "-5");
  refuse([](C c) { c.version = 990000; }, FSCCL_ERR_VERSION, "990000");
  refuse([](C c) { c.size = 3; }, FSCCL_ERR_INVALID_ARGUMENT, "INIT");
  refuse([](C c) { c.size = offsetof(fsccl_comm_config_t, unique_id) + 2; },
         FSCCL_ERR_INVALID_ARGUMENT, "INIT");
  refuse([](C c) { c.all_gather = gather_between_threads; }, FSCCL_ERR_INVALID_ARGUMENT,
         "choose one");
  // The id is all zero, so fsccl_unique_id_create never made it.
  refuse([](C) {}, FSCCL_ERR_INVALID_ARGUMENT, "id");
  ASSERT_OK(fsccl_unique_id_create(&id));
  // The number of ranks exceeds what a job can have.
  refuse([](C c) { c.ranks = 1 << 30; }, FSCCL_ERR_INVALID_ARGUMENT, "1073741824");
  EXPECT_ERROR(fsccl_comm_create(nullptr, nullptr), FSCCL_ERR_INVALID_ARGUMENT, "comm is NULL");
  EXPECT_ERROR(fsccl_unique_id_create(nullptr), FSCCL_ERR_INVALID_ARGUMENT, "id is NULL");
}

// One communicator of a group fails, and a peer of another one comes late. The group ends only when
// the other one's operation has ended, too, because that still uses its buffers.
TEST(Recovery, AGroupEndsWithTheLastOfItsOperations) {
  std::promise<void> ended;
  const std::shared_future<void> group_ended = ended.get_future().share();
  run_ranks(2, [&](Rank& self) {
    fsccl_comm_t failing = nullptr, sound = nullptr;
    ASSERT_OK(fsccl_comm_split(self.comm, 0, 0, nullptr, &failing));
    ASSERT_OK(fsccl_comm_split(self.comm, 0, 0, nullptr, &sound));
    std::vector<int32_t> input(100'000, self.rank + 1), output(2 * input.size());
    int32_t sum = 1;
    const auto gather = [&] {
      return fsccl_all_gather(input.data(), output.data(), input.size(), FSCCL_INT32, sound,
                              nullptr, nullptr);
    };
    if (self.rank == 0) {
      ASSERT_OK(fsccl_group_start());
      EXPECT_OK(fsccl_all_reduce(&sum, &sum, 1, FSCCL_INT32, FSCCL_SUM, failing, nullptr, nullptr));
      EXPECT_OK(gather());
      EXPECT_ERROR(fsccl_group_end(), FSCCL_ERR_ABORTED, "abort");
      ended.set_value();
    } else {
      EXPECT_OK(fsccl_comm_abort(failing));
      group_ended.wait_for(std::chrono::milliseconds(300));  // a wrong library would end it now
      EXPECT_OK(gather());
    }
    EXPECT_EQ(std::count(output.begin(), output.end(), 2), static_cast<ptrdiff_t>(input.size()));
    EXPECT_OK(fsccl_comm_destroy(failing));
    EXPECT_OK(fsccl_comm_destroy(sound));
  });
}

}  // namespace
}  // namespace fsccl::testing
