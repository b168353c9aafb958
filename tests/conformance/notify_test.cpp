// Tests fsccl_work_callback and fsccl_work_event_fd: each notifies once, whichever thread completes
// the operation and however it ends.
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "support.h"

namespace fsccl::testing {
namespace {

// The arguments of a callback.
struct Told {
  std::atomic<int> times{0};
  std::atomic<int> status{1};
  std::atomic<std::thread::id> thread{};

  static void done(void* self, fsccl_status_t status) {
    auto& told = *static_cast<Told*>(self);
    told.status = status;
    told.thread = std::this_thread::get_id();
    told.times++;
  }
  void await() const {
    while (times == 0) std::this_thread::yield();
  }
};

bool readable(int fd, int timeout_ms) {
  pollfd polled{fd, POLLIN, 0};
  return poll(&polled, 1, timeout_ms) == 1 && polled.revents == POLLIN;
}

fsccl_work_t start_barrier(fsccl_comm_t comm) {
  fsccl_work_t work = nullptr;
  EXPECT_GE(fsccl_barrier(comm, nullptr, &work), 0);
  return work;
}

// Lets rank 0 issue an operation that the others enter only after `release`.
class Gate {
 public:
  void pass() const {
    while (!open_) std::this_thread::yield();
  }
  void release() { open_ = true; }

 private:
  std::atomic<bool> open_{false};
};

class Notify : public ::testing::TestWithParam<int> {};

TEST_P(Notify, OnceWhoeverCompletesIt) {
  run_ranks(GetParam(), [](Rank& self) {
    Random own(static_cast<uint64_t>(self.rank) + 1);
    for (int round = 0; round < 60 && !HasFailure(); ++round) {
      std::vector<Told> told(1 + own.below(3));
      std::vector<fsccl_work_t> works(20);
      std::vector<Told> each(works.size());
      int fd = -1;
      for (size_t i = 0; i < works.size(); ++i) {
        dawdle(own);
        works[i] = start_barrier(self.comm);
        ASSERT_OK(fsccl_work_callback(works[i], Told::done, &each[i]));
      }
      for (Told& one : told)
        ASSERT_OK(fsccl_work_callback(works[own.below(works.size())], Told::done, &one));
      ASSERT_OK(fsccl_work_event_fd(works.back(), &fd));
      if (round % 3 == 0) {
        ASSERT_OK(fsccl_work_wait(works[own.below(works.size())], -1));
      } else if (round % 3 == 1) {
        while (fsccl_work_test(works.back()) == FSCCL_IN_PROGRESS) std::this_thread::yield();
      }
      for (auto* list : {&told, &each})
        for (Told& one : *list) {
          one.await();
          EXPECT_EQ(one.status, FSCCL_OK);
        }
      EXPECT_TRUE(readable(fd, 60'000));
      EXPECT_OK(fsccl_work_test(works.back()));
      ASSERT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
      for (auto* list : {&told, &each})
        for (Told& one : *list) EXPECT_EQ(one.times, 1);
      close(fd);
    }
  });
}

TEST_P(Notify, AtOnceInThisThreadWhenComplete) {
  run_ranks(GetParam(), [](Rank& self) {
    const fsccl_work_t work = start_barrier(self.comm);
    ASSERT_OK(fsccl_work_wait(work, -1));
    Told told;
    ASSERT_OK(fsccl_work_callback(work, Told::done, &told));
    EXPECT_EQ(told.times, 1);
    EXPECT_EQ(told.status, FSCCL_OK);
    EXPECT_EQ(told.thread.load(), std::this_thread::get_id());
    int fd = -1;
    ASSERT_OK(fsccl_work_event_fd(work, &fd));
    EXPECT_TRUE(readable(fd, 0));
    EXPECT_EQ(fcntl(fd, F_GETFD), FD_CLOEXEC);
    EXPECT_TRUE(fcntl(fd, F_GETFL) & O_NONBLOCK);
    eventfd_t value = 0;
    EXPECT_EQ(eventfd_read(fd, &value), 0);
    close(fd);
  });
}

// A chain of operations, each submitted by the callback of the one before, moves itself on and
// needs no stack.
struct Chain {
  fsccl_comm_t comm;
  int left;
  std::atomic<int> status{1};

  static void next(void* self, fsccl_status_t status) {
    auto& chain = *static_cast<Chain*>(self);
    if (status != FSCCL_OK || chain.left-- == 0) {
      chain.status = status;
      return;
    }
    fsccl_work_t work = nullptr;
    const fsccl_status_t started = fsccl_barrier(chain.comm, nullptr, &work);
    if (started < 0 || fsccl_work_callback(work, next, self) != FSCCL_OK)
      chain.status = FSCCL_ERR_INTERNAL;
  }
};

TEST_P(Notify, ACallbackSubmitsTheNext) {
  run_ranks(GetParam(), [](Rank& self) {
    Chain chain{self.comm, self.ranks == 1 ? 200'000 : 500};
    Chain::next(&chain, FSCCL_OK);
    while (chain.status == 1) std::this_thread::yield();
    EXPECT_EQ(chain.status, FSCCL_OK);
    EXPECT_EQ(chain.left, -1);
    ASSERT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
  });
}

TEST_P(Notify, SeveralThreadsRegister) {
  run_ranks(GetParam(), [](Rank& self) {
    constexpr int kOperations = 300, kThreads = 3;
    std::vector<std::atomic<fsccl_work_t>> works(kOperations);
    std::vector<Told> told(kOperations * kThreads);
    std::vector<std::thread> helpers;
    for (int h = 0; h < kThreads; ++h)
      helpers.emplace_back([&, h] {
        for (int i = 0; i < kOperations; ++i) {
          while (!works[static_cast<size_t>(i)].load()) std::this_thread::yield();
          EXPECT_OK(fsccl_work_callback(works[static_cast<size_t>(i)], Told::done,
                                        &told[static_cast<size_t>(i * kThreads + h)]));
        }
      });
    Random own(static_cast<uint64_t>(self.rank) + 40);
    for (auto& work : works) {
      dawdle(own);
      work = start_barrier(self.comm);
    }
    for (std::thread& helper : helpers) helper.join();
    for (Told& one : told) one.await();
    ASSERT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
    for (Told& one : told) {
      EXPECT_EQ(one.times, 1);
      EXPECT_EQ(one.status, FSCCL_OK);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Shm, Notify, ::testing::Values(1, 2, 4),
                         ::testing::PrintToStringParamName());

// A thread that waits for the second operation completes the first. The notification of the first
// must not wait for the second.
TEST(Notifications, TheFirstIsToldWhileTheSecondIsWaitedFor) {
  Gate gate;
  run_ranks(2, [&](Rank& self) {
    if (self.rank == 0) {
      const fsccl_work_t first = start_barrier(self.comm), second = start_barrier(self.comm);
      ASSERT_OK(fsccl_work_callback(
          first, [](void* context, fsccl_status_t) { static_cast<Gate*>(context)->release(); },
          &gate));
      ASSERT_OK(fsccl_work_wait(second, -1));
    } else {
      ASSERT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
      gate.pass();
      ASSERT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
    }
  });
}

TEST(Notifications, NotBeforeThePeerIsThere) {
  Gate gate;
  run_ranks(2, [&](Rank& self) {
    if (self.rank == 1) gate.pass();
    const fsccl_work_t work = start_barrier(self.comm);
    if (self.rank == 1) {
      EXPECT_OK(fsccl_work_wait(work, -1));
      return;
    }
    Told told;
    int fd = -1, closed = -1;
    ASSERT_OK(fsccl_work_callback(work, Told::done, &told));
    ASSERT_OK(fsccl_work_event_fd(work, &fd));
    // The program closes the descriptor early, and another file gets its number. The library must
    // not write to that file.
    ASSERT_OK(fsccl_work_event_fd(work, &closed));
    close(closed);
    const int other = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    EXPECT_FALSE(readable(fd, 0));
    EXPECT_EQ(told.times, 0);
    gate.release();
    EXPECT_TRUE(readable(fd, 60'000));
    told.await();
    EXPECT_EQ(other, closed);
    EXPECT_FALSE(readable(other, 0));
    close(other);
    close(fd);
  });
}

// The service thread sleeps for the blocked operation all the while. Other communicators come and
// go without waiting for it.
TEST(Notifications, OthersComeAndGoMeanwhile) {
  Gate gate;
  run_ranks(2, [&](Rank& self) {
    if (self.rank == 1) {
      gate.pass();
      ASSERT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
      return;
    }
    Told told;
    ASSERT_OK(fsccl_work_callback(start_barrier(self.comm), Told::done, &told));
    for (int i = 0; i < 6; i++) {
      run_ranks(1, [](Rank& other) {
        Told of_other;
        ASSERT_OK(fsccl_work_callback(start_barrier(other.comm), Told::done, &of_other));
        of_other.await();
      });
    }
    EXPECT_EQ(told.times, 0);
    gate.release();
    told.await();
  });
}

TEST(Notifications, AbortTellsAll) {
  run_ranks(2,
            [](Rank& self) {
              ASSERT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
              self.meet();
              if (self.rank == 1) {  // never enters the second one; learns of the end here
                fsccl_status_t state = FSCCL_OK;
                while (state == FSCCL_OK) ASSERT_OK(fsccl_comm_async_error(self.comm, &state));
                EXPECT_EQ(state, FSCCL_ERR_ABORTED);
                return;
              }
              std::vector<Told> told(40);
              std::vector<fsccl_work_t> works;
              int fd = -1;
              for (Told& one : told) {
                works.push_back(start_barrier(self.comm));
                ASSERT_OK(fsccl_work_callback(works.back(), Told::done, &one));
              }
              ASSERT_OK(fsccl_work_event_fd(works.back(), &fd));
              EXPECT_FALSE(readable(fd, 0));
              ASSERT_OK(fsccl_comm_abort(self.comm));
              EXPECT_TRUE(readable(fd, 60'000));
              for (Told& one : told) {
                one.await();
                EXPECT_EQ(one.status, FSCCL_ERR_ABORTED);
              }
              EXPECT_ERROR(fsccl_work_test(works.back()), FSCCL_ERR_ABORTED, "aborted by rank 0");
              Told late;  // its callback must be called at once
              ASSERT_OK(fsccl_work_callback(works.back(), Told::done, &late));
              EXPECT_EQ(late.times, 1);
              EXPECT_EQ(late.status, FSCCL_ERR_ABORTED);
              close(fd);
            },
            {.abort_at_end = true});
}

TEST(Notifications, DestroyTellsThoseThatAreLeft) {
  for (int i = 0; i < 20; i++) {
    Told told;
    run_ranks(2, [&](Rank& self) {
      if (self.rank == 1) return;
      ASSERT_OK(fsccl_work_callback(start_barrier(self.comm), Told::done, &told));
      ASSERT_OK(fsccl_comm_abort(self.comm));
      ASSERT_OK(fsccl_comm_destroy(self.comm));
      self.comm = nullptr;
      EXPECT_EQ(told.times, 1);
      EXPECT_TRUE(told.status == FSCCL_ERR_ABORTED || told.status == FSCCL_ERR_PEER_DEAD)
          << told.status;
    });
    EXPECT_EQ(told.times, 1);
  }
}

TEST(Notifications, MismatchTellsBothRanks) {
  run_ranks(2,
            [](Rank& self) {
              std::vector<float> values(5000, 1);
              fsccl_work_t work = nullptr;
              const fsccl_status_t status = fsccl_all_reduce(
                  values.data(), values.data(), values.size() - static_cast<size_t>(self.rank),
                  FSCCL_FLOAT32, FSCCL_SUM, self.comm, nullptr, &work);
              if (status < 0) {
                EXPECT_EQ(status, FSCCL_ERR_MISMATCH);
                return;
              }
              Told told;
              int fd = -1;
              ASSERT_OK(fsccl_work_callback(work, Told::done, &told));
              ASSERT_OK(fsccl_work_event_fd(work, &fd));
              EXPECT_TRUE(readable(fd, 60'000));
              told.await();
              EXPECT_EQ(told.status, FSCCL_ERR_MISMATCH);
              EXPECT_EQ(told.times, 1);
              close(fd);
            },
            {.abort_at_end = true});
}

TEST(Notifications, ADeadlineTellsThoughNobodyWaits) {
  Gate gate;
  run_ranks(2,
            [&](Rank& self) {
              if (self.rank == 1) return gate.pass();
              Told told;
              ASSERT_OK(fsccl_work_callback(start_barrier(self.comm), Told::done, &told));
              told.await();
              EXPECT_EQ(told.status, FSCCL_ERR_TIMEOUT);
              gate.release();
            },
            {.timeout_ms = 200, .abort_at_end = true});
}

TEST(Notifications, MisuseIsRefused) {
  run_ranks(1, [](Rank& self) {
    const fsccl_work_t work = start_barrier(self.comm);
    Told told;
    EXPECT_ERROR(fsccl_work_callback(work, nullptr, &told), FSCCL_ERR_INVALID_ARGUMENT, "done");
    EXPECT_ERROR(fsccl_work_event_fd(work, nullptr), FSCCL_ERR_INVALID_ARGUMENT, "fd");
    EXPECT_ERROR(fsccl_work_callback(nullptr, Told::done, &told), FSCCL_ERR_INVALID_HANDLE, "NULL");
    int fd = -1;
    EXPECT_ERROR(fsccl_work_event_fd(reinterpret_cast<fsccl_work_t>(self.comm), &fd),
                 FSCCL_ERR_INVALID_HANDLE, "communicator");
    EXPECT_EQ(told.times, 0);
    EXPECT_EQ(fd, -1);
    ASSERT_OK(fsccl_work_callback(
        work,
        [](void* context, fsccl_status_t) {
          EXPECT_ERROR(fsccl_comm_destroy(static_cast<fsccl_comm_t>(context)),
                       FSCCL_ERR_INVALID_STATE, "callback");
        },
        self.comm));
  });
}

}  // namespace
}  // namespace fsccl::testing
