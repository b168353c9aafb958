// Tests a job that has been joined: exchanges over the tree, descriptors, losses, leaving, and
// fork.
#include "bootstrap/job.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <future>
#include <map>
#include <mutex>

#include "base/reactor.h"
#include "bootstrap/tree.h"
#include "ranks.h"

namespace fsccl {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using testing::join_all_by_id;
using testing::Joined;
using testing::kPatienceMs;
using testing::on_each_rank;
using ::testing::Pair;
using testing::text_of;
using ::testing::UnorderedElementsAre;

Deadline patience() { return Deadline::in_ms(kPatienceMs); }

class JobOf : public ::testing::Test {
 protected:
  void join(int ranks) {
    for (Joined& joined : join_all_by_id(ranks)) {
      ASSERT_TRUE(joined.status.ok()) << joined.status.text();
      jobs.push_back(joined.job);
    }
    ASSERT_EQ(jobs.size(), static_cast<size_t>(ranks));
  }
  Job& job(int rank) { return *jobs[static_cast<size_t>(rank)]; }
  std::vector<std::shared_ptr<Job>> jobs;
};

// Collects losses and waits for them.
class Losses {
 public:
  explicit Losses(Job& job) {
    job.on_loss([this](int rank, bool left) {
      const std::lock_guard lock(mutex_);
      seen_.push_back({rank, left});
      changed_.notify_all();
    });
  }
  std::vector<std::pair<int, bool>> wait_for(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::milliseconds(kPatienceMs),
                      [&] { return seen_.size() >= count; });
    return seen_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::pair<int, bool>> seen_;
};

TEST_F(JobOf, AllGatherOfManySizes) {
  constexpr int kRanks = 20;
  join(kRanks);
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{24}, size_t{4099}, size_t{50'000}}) {
    on_each_rank<int>(kRanks, [&](int rank) {
      const std::vector<uint8_t> mine(bytes, static_cast<uint8_t>(rank + 1));
      std::vector<uint8_t> all(bytes * kRanks);
      const Status status = job(rank).all_gather(mine.data(), all.data(), bytes, patience());
      EXPECT_TRUE(status.ok()) << status.text();
      for (size_t i = 0; i < all.size(); ++i) {
        if (all[i] == i / bytes + 1) continue;
        ADD_FAILURE() << "rank " << rank << " byte " << i << " of " << bytes;
        break;
      }
      return 0;
    });
  }
}

TEST_F(JobOf, ManyBarriersInARow) {
  constexpr int kRanks = 10, kRounds = 50;
  join(kRanks);
  std::atomic<int> entered{0};
  on_each_rank<int>(kRanks, [&](int rank) {
    for (int round = 1; round <= kRounds; ++round) {
      ++entered;
      EXPECT_TRUE(job(rank).barrier(patience()).ok());
      EXPECT_GE(entered.load(), round * kRanks);
    }
    return 0;
  });
}

TEST_F(JobOf, DisagreeingExchangesFailForAll) {
  join(10);
  const auto statuses = on_each_rank<Status>(10, [&](int rank) {
    const uint64_t mine[2] = {};
    uint64_t all[20] = {};
    return job(rank).all_gather(mine, all, rank == 7 ? 16 : 8, patience());
  });
  for (const Status& status : statuses) {
    EXPECT_EQ(status.code(), FSCCL_ERR_MISMATCH);
    EXPECT_THAT(text_of(status), ::testing::AllOf(HasSubstr("16 bytes"), HasSubstr("8 bytes")));
  }
}

// Ranks leave one after the other, the root of the tree first. Each time the remaining ranks mend
// the tree and agree on one answer.
TEST_F(JobOf, TheRestAgreeWhoIsLeft) {
  constexpr int kRanks = 20;
  join(kRanks);
  std::vector<int> by_order(kRanks), members(kRanks);
  for (int rank = 0; rank < kRanks; rank++) {
    by_order[static_cast<size_t>(static_cast<TreeJob&>(job(rank)).order())] = rank;
    members[static_cast<size_t>(rank)] = rank;
  }
  std::vector<int32_t> gone;
  for (const size_t order : {0, 1, 9, 2}) {
    gone.push_back(by_order[order]);
    job(gone.back()).leave();
    std::vector<int32_t> failed = gone;
    std::sort(failed.begin(), failed.end());
    on_each_rank<int>(kRanks, [&](int rank) {
      if (std::binary_search(failed.begin(), failed.end(), rank)) return 0;
      Job::Question question{order + 1, members, {}, {}};
      if (rank == 19) question.refusal = {19, FSCCL_ERR_LINK, "no link"};
      const Result<Job::Agreed> agreed = job(rank).agree(question, patience());
      EXPECT_TRUE(agreed.ok()) << text_of(agreed.status());
      if (!agreed.ok()) return 1;
      EXPECT_TRUE(agreed.value().reached)
          << rank << ": " << agreed.value().missing.size() << " are missing";
      EXPECT_EQ(agreed.value().failed, failed);
      const bool refused = !std::binary_search(failed.begin(), failed.end(), 19);
      EXPECT_EQ(agreed.value().refusal.code, refused ? FSCCL_ERR_LINK : FSCCL_OK);
      EXPECT_EQ(agreed.value().refusal.text, refused ? "no link" : "");
      return 0;
    });
  }
}

// All ranks are slow. A rank that does not answer in time is not taken for dead: the rank that
// connects to it tries again, and waits longer.
TEST_F(JobOf, SlowRanksFindTogetherToo) {
  constexpr int kRanks = 6;
  join(kRanks);
  std::vector<int> members;
  int root = -1;
  for (int rank = 0; rank < kRanks; rank++) {
    members.push_back(rank);
    if (static_cast<TreeJob&>(job(rank)).order() == 0) root = rank;
  }
  // Each turn of the service thread takes longer than a turn may take.
  const int slow = Reactor::instance().add_hook([]() -> int64_t {
    std::this_thread::sleep_for(std::chrono::milliseconds(220));
    return 0;
  });
  job(root).leave();
  on_each_rank<int>(kRanks, [&](int rank) {
    if (rank == root) return 0;
    const Result<Job::Agreed> agreed = job(rank).agree({1, members, {}, {}}, patience());
    EXPECT_TRUE(agreed.ok()) << text_of(agreed.status());
    EXPECT_EQ(agreed.ok() ? agreed.value().failed : std::vector<int32_t>(),
              std::vector<int32_t>{root});
    return 0;
  });
  Reactor::instance().remove_hook(slow);
}

TEST_F(JobOf, ALateRankIsNamed) {
  join(3);
  const auto statuses = on_each_rank<Status>(
      3, [&](int rank) { return rank == 2 ? Status() : job(rank).barrier(Deadline::in_ms(300)); });
  EXPECT_EQ(statuses[0].code(), FSCCL_ERR_TIMEOUT);
  EXPECT_EQ(statuses[1].code(), FSCCL_ERR_TIMEOUT);
  // The late rank is told when it comes. Since it is the last one to contribute, it may still
  // complete the first barrier.
  Status late = job(2).barrier(patience());
  if (late.ok()) late = job(2).barrier(patience());
  EXPECT_EQ(late.code(), FSCCL_ERR_TIMEOUT);
}

TEST_F(JobOf, TooLargeAnExchangeIsRefused) {
  join(2);
  EXPECT_EQ(job(0).all_gather(nullptr, nullptr, size_t{1} << 40, patience()).code(),
            FSCCL_ERR_INVALID_ARGUMENT);
}

// -------------------------------------------------------------------------------------------------
// descriptors

Fd memory_with(const char* text) {
  Fd fd(memfd_create("test", MFD_CLOEXEC));
  EXPECT_EQ(write(fd.get(), text, strlen(text)), static_cast<ssize_t>(strlen(text)));
  return fd;
}

std::string content(const Fd& fd) {
  char text[64] = {};
  EXPECT_GE(pread(fd.get(), text, sizeof(text) - 1, 0), 0);
  return text;
}

TEST_F(JobOf, EveryRankFetchesFromEveryOther) {
  constexpr int kRanks = 6;
  join(kRanks);
  on_each_rank<int>(kRanks, [&](int rank) {
    EXPECT_TRUE(job(rank).publish_fd(5, memory_with(std::to_string(rank).c_str()).get()).ok());
    for (int other = 0; other < kRanks; ++other) {
      const Result<Fd> fd = job(rank).fetch_fd(other, 5, patience(), {});
      EXPECT_TRUE(fd.ok()) << fd.status().text();
      if (!fd.ok()) continue;
      EXPECT_EQ(content(fd.value()), std::to_string(other));
      EXPECT_EQ(fcntl(fd.value().get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    }
    return 0;
  });
}

TEST_F(JobOf, AFetchWaitsUntilTheDescriptorIsPublished) {
  join(2);
  for (const int owner : {0, 1}) {  // rank 1 fetches from another and from itself
    std::thread fetcher([&] {
      const Result<Fd> fd = job(1).fetch_fd(owner, 9, patience(), {});
      ASSERT_TRUE(fd.ok()) << fd.status().text();
      EXPECT_EQ(content(fd.value()), "late");
    });
    // The publication waits until the request has surely been seen to find nothing: a second
    // request with a short deadline was sent later and has been refused.
    EXPECT_EQ(job(0).fetch_fd(owner, 9, Deadline::in_ms(50), {}).status().code(),
              FSCCL_ERR_TIMEOUT);
    EXPECT_TRUE(job(owner).publish_fd(9, memory_with("late").get()).ok());
    fetcher.join();
    job(owner).withdraw_fd(9);
    EXPECT_EQ(job(0).fetch_fd(owner, 9, Deadline::in_ms(50), {}).status().code(),
              FSCCL_ERR_TIMEOUT);
  }
}

TEST_F(JobOf, AFetchEndsWhenTheOwnerLeaves) {
  join(2);
  std::thread fetcher([&] {
    const Status status = job(1).fetch_fd(0, 9, patience(), {}).take_status();
    EXPECT_EQ(status.code(), FSCCL_ERR_PEER_DEAD);
    // The error says more than that rank 0 does not answer, because by then all ranks know that it
    // has left.
    EXPECT_THAT(status.text(), HasSubstr("rank 0 has left"));
  });
  EXPECT_EQ(job(1).fetch_fd(0, 8, Deadline::in_ms(50), {}).status().code(), FSCCL_ERR_TIMEOUT);
  job(0).leave();
  fetcher.join();
}

// The owner is alive and never publishes the descriptor, because its communicator has failed. The
// caller knows of the failure and ends the wait.
TEST_F(JobOf, AFetchEndsWhenItsCallerHasNoUseForItAnyMore) {
  join(2);
  std::atomic<int> looks{0};
  const auto broken = [&] {
    return ++looks < 3 ? success() : fail(FSCCL_ERR_ABORTED, "given up").with_peer(0, 1);
  };
  const Status status = job(1).fetch_fd(0, 9, Deadline::never(), broken).take_status();
  EXPECT_EQ(status.code(), FSCCL_ERR_ABORTED);
  EXPECT_EQ(status.text(), "given up");
  EXPECT_EQ(status.error().peer, 1);  // the peer of the reason, and not the owner
}

// More ranks fetch at once than the owner serves and than its listener queues. None of them takes
// the owner for dead.
TEST_F(JobOf, ACrowdFetchesAtOnce) {
  constexpr int kCrowd = 700;
  join(2);
  ASSERT_TRUE(job(0).publish_fd(5, memory_with("all").get()).ok());
  std::atomic<bool> begun{false}, released{false};
  // The service thread accepts nobody until all are waiting.
  const int hook = Reactor::instance().add_hook([&]() -> int64_t {
    begun = true;
    while (!released) std::this_thread::yield();
    return -1;
  });
  while (!begun) std::this_thread::yield();
  std::vector<std::thread> crowd;
  std::atomic<int> fetched{0}, fetching{0};
  for (int i = 0; i < kCrowd; ++i)
    crowd.emplace_back([&] {
      ++fetching;
      const Result<Fd> fd = job(1).fetch_fd(0, 5, patience(), {});
      EXPECT_TRUE(fd.ok()) << fd.status().text();
      fetched += fd.ok();
    });
  while (fetching < kCrowd) std::this_thread::yield();
  // The pause lets most of the crowd connect before the owner accepts. A smaller crowd would prove
  // less.
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  released = true;
  for (std::thread& one : crowd) one.join();
  Reactor::instance().remove_hook(hook);
  EXPECT_EQ(fetched, kCrowd);
}

TEST_F(JobOf, PublishingTwiceIsRefused) {
  join(1);
  const Fd fd = memory_with("x");
  EXPECT_TRUE(job(0).publish_fd(1, fd.get()).ok());
  EXPECT_FALSE(job(0).publish_fd(1, fd.get()).ok());
  EXPECT_EQ(content(job(0).fetch_fd(0, 1, patience(), {}).value()), "x");
  EXPECT_EQ(job(0).fetch_fd(1, 1, patience(), {}).status().code(), FSCCL_ERR_INVALID_ARGUMENT);
}

// -------------------------------------------------------------------------------------------------
// losses

TEST_F(JobOf, ALeavingRankIsToldToAllOnce) {
  constexpr int kRanks = 12;
  join(kRanks);
  std::vector<std::unique_ptr<Losses>> losses;
  for (int rank = 0; rank < kRanks; ++rank) losses.push_back(std::make_unique<Losses>(job(rank)));
  job(4).leave();
  job(4).leave();
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank == 4) continue;
    EXPECT_EQ(losses[static_cast<size_t>(rank)]->wait_for(1),
              (std::vector<std::pair<int, bool>>{{4, true}}))
        << rank;
    const Status status = job(rank).barrier(patience());
    EXPECT_EQ(status.code(), FSCCL_ERR_PEER_DEAD);
    EXPECT_THAT(status.text(), HasSubstr("rank 4 has left"));
    EXPECT_EQ(status.error().peer, 4);
  }
  for (int rank = 0; rank < kRanks; ++rank) job(rank).leave();
  for (int rank = 0; rank < kRanks; ++rank)
    EXPECT_LE(losses[static_cast<size_t>(rank)]->wait_for(0).size(),
              static_cast<size_t>(kRanks - 1));
}

TEST_F(JobOf, AHandlerSetLateHearsWhatHasHappened) {
  join(3);
  job(2).leave();
  EXPECT_EQ(job(0).barrier(patience()).code(), FSCCL_ERR_PEER_DEAD);
  Losses losses(job(0));
  EXPECT_EQ(losses.wait_for(1), (std::vector<std::pair<int, bool>>{{2, true}}));
}

// The two other ranks hear of each other through the root alone. The service thread reads nothing
// while one of them and then the root leave, so the root passes the first loss on as it leaves.
TEST_F(JobOf, ALeavingRankPassesOnWhatItHasNotRead) {
  join(3);
  std::sort(jobs.begin(), jobs.end(), [](const auto& a, const auto& b) {
    return static_cast<const TreeJob&>(*a).order() < static_cast<const TreeJob&>(*b).order();
  });
  Job &root = *jobs[0], &leaf = *jobs[1], &stays = *jobs[2];
  Losses losses(stays);
  std::promise<void> held, go_on;
  bool holds = true;
  const int hook = Reactor::instance().add_hook([&]() -> int64_t {
    if (std::exchange(holds, false)) held.set_value(), go_on.get_future().wait();
    return -1;
  });
  held.get_future().wait();
  leaf.leave();
  root.leave();
  go_on.set_value();
  EXPECT_THAT(losses.wait_for(2),
              UnorderedElementsAre(Pair(leaf.rank(), true), Pair(root.rank(), true)));
  Reactor::instance().remove_hook(hook);
}

TEST_F(JobOf, ABarrierEndsWhenItsRankLeaves) {
  join(2);
  std::thread waiting([&] { EXPECT_EQ(job(0).barrier(patience()).code(), FSCCL_ERR_ABORTED); });
  EXPECT_EQ(job(1).fetch_fd(0, 1, Deadline::in_ms(30), {}).status().code(), FSCCL_ERR_TIMEOUT);
  job(0).leave();
  waiting.join();
}

TEST_F(JobOf, AfterForkTheChildHoldsNothingAndDisturbsNothing) {
  join(3);
  int lived[2];
  ASSERT_EQ(pipe(lived), 0);
  const pid_t child = fork();
  if (child == 0) {
    fsccl_unique_id_t id;
    const bool refused = create_unique_id(&id).code() == FSCCL_ERR_FORKED;
    char byte;
    close(lived[1]);
    (void)!read(lived[0], &byte, 1);  // waits until the parent has finished
    _exit(refused ? 0 : 1);
  }
  close(lived[0]);
  on_each_rank<int>(3, [&](int rank) {
    EXPECT_TRUE(job(rank).barrier(patience()).ok());
    return 0;
  });
  // The child lives, but its copies of the sockets do not hide that a link is closed.
  Losses losses(job(0));
  job(1).leave();
  EXPECT_EQ(losses.wait_for(1).size(), 1u);
  close(lived[1]);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace fsccl
