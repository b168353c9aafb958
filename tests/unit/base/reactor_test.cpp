// Tests the service thread: callbacks, hooks, and the promise that a callback never runs after
// unwatch() has returned.
#include "base/reactor.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <thread>

namespace fsccl {
namespace {

struct Pair {
  Pair() {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    near = Fd(ends[0]);
    far = Fd(ends[1]);
  }
  Fd near, far;
};

constexpr auto kPatience = std::chrono::seconds(20);

TEST(Reactor, CallsBackInItsThreadWhenReadableAndWhenClosed) {
  Reactor& reactor = Reactor::instance();
  Pair pair;
  std::promise<bool> readable, closed;
  ASSERT_TRUE(reactor
                  .watch(pair.near.get(),
                         [&] {
                           char byte;
                           const ssize_t count = read(pair.near.get(), &byte, 1);
                           if (count == 1) readable.set_value(reactor.in_service_thread());
                           if (count != 0) return;
                           reactor.unwatch(pair.near.get());  // from the callback itself
                           closed.set_value(true);
                         })
                  .ok());
  EXPECT_FALSE(reactor.in_service_thread());
  ASSERT_EQ(write(pair.far.get(), "x", 1), 1);
  auto first = readable.get_future(), second = closed.get_future();
  ASSERT_EQ(first.wait_for(kPatience), std::future_status::ready);
  EXPECT_TRUE(first.get());
  pair.far.reset();
  ASSERT_EQ(second.wait_for(kPatience), std::future_status::ready);
}

TEST(Reactor, WatchingTwiceIsAnError) {
  Pair pair;
  ASSERT_TRUE(Reactor::instance().watch(pair.near.get(), [] {}).ok());
  EXPECT_FALSE(Reactor::instance().watch(pair.near.get(), [] {}).ok());
  Reactor::instance().unwatch(pair.near.get());
  EXPECT_TRUE(Reactor::instance().watch(pair.near.get(), [] {}).ok());
  Reactor::instance().unwatch(pair.near.get());
}

TEST(Reactor, WritableOnlyWhileWanted) {
  Reactor& reactor = Reactor::instance();
  Pair pair;
  std::promise<void> writable;
  std::atomic<int> calls{0};
  ASSERT_TRUE(reactor
                  .watch(
                      pair.near.get(), [] {},
                      [&] {
                        reactor.want_writable(pair.near.get(), false);
                        if (++calls == 1) writable.set_value();
                      })
                  .ok());
  reactor.want_writable(pair.near.get(), true);
  ASSERT_EQ(writable.get_future().wait_for(kPatience), std::future_status::ready);
  reactor.unwatch(pair.near.get());
  EXPECT_EQ(calls, 1);
}

// A sanitizer, or the flag, reports a callback that runs after unwatch has returned.
TEST(Reactor, NothingRunsAfterUnwatch) {
  Reactor& reactor = Reactor::instance();
  for (int round = 0; round < 300; ++round) {
    Pair pair;
    auto alive = std::make_unique<std::atomic<bool>>(true);
    std::atomic<bool> ran{false}, late{false};
    ASSERT_TRUE(reactor
                    .watch(pair.near.get(),
                           [&, flag = alive.get()] {
                             ran = true;
                             if (!*flag) late = true;
                           })
                    .ok());
    ASSERT_EQ(write(pair.far.get(), "x", 1), 1);
    if (round % 2 == 0)
      while (!ran) std::this_thread::yield();
    reactor.unwatch(pair.near.get());
    *alive = false;
    alive.reset();
    EXPECT_FALSE(late);
  }
}

TEST(Reactor, AHookRunsWhenKickedAndByItsOwnClock) {
  Reactor& reactor = Reactor::instance();
  std::atomic<int> kicked{0}, timed{0};
  const int waiting = reactor.add_hook([&]() -> int64_t {
    ++kicked;
    return -1;
  });
  while (kicked == 0) std::this_thread::yield();  // the hook runs once when it is added
  for (int round = 0; round < 200; ++round) {
    const int before = kicked;
    reactor.kick();
    while (kicked == before) std::this_thread::yield();  // a lost kick would hang here
  }
  const int periodic = reactor.add_hook([&]() -> int64_t {
    ++timed;
    return 100'000;
  });
  while (timed < 5) std::this_thread::yield();
  reactor.remove_hook(periodic);
  const int after = timed;
  reactor.remove_hook(waiting);
  EXPECT_EQ(timed, after);
}

TEST(Reactor, HooksMayRemoveThemselvesAndTheThreadComesAndGoes) {
  Reactor& reactor = Reactor::instance();
  for (int round = 0; round < 200; ++round) {
    std::promise<void> done;
    std::atomic<int> id{-1};
    id = reactor.add_hook([&]() -> int64_t {
      if (id < 0) return 0;
      reactor.remove_hook(id);
      done.set_value();
      return -1;
    });
    ASSERT_EQ(done.get_future().wait_for(kPatience), std::future_status::ready);
    Pair pair;
    ASSERT_TRUE(reactor.watch(pair.near.get(), [] {}).ok());
    reactor.unwatch(pair.near.get());
  }
}

TEST(Reactor, UsersOfManyThreads) {
  Reactor& reactor = Reactor::instance();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 200; ++round) {
        Pair pair;
        std::promise<void> called;
        std::atomic<bool> once{false};
        ASSERT_TRUE(reactor
                        .watch(pair.near.get(),
                               [&] {
                                 if (!once.exchange(true)) called.set_value();
                               })
                        .ok());
        ASSERT_EQ(write(pair.far.get(), "x", 1), 1);
        ASSERT_EQ(called.get_future().wait_for(kPatience), std::future_status::ready);
        reactor.unwatch(pair.near.get());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Reactor, AChildOfForkClosesWhatIsWatchedAndStartsNothing) {
  Reactor& reactor = Reactor::instance();
  Pair pair;
  ASSERT_TRUE(reactor.watch(pair.near.get(), [] {}).ok());
  int gate[2];
  ASSERT_EQ(pipe(gate), 0);
  const pid_t child = fork();
  if (child == 0) {
    close(gate[1]);
    const bool refused = reactor.watch(pair.far.get(), [] {}).code() == FSCCL_ERR_FORKED &&
                         reactor.add_hook([] { return int64_t{-1}; }) == -1;
    pair.far.reset();
    char byte;
    (void)!read(gate[0], &byte, 1);  // the child lives until the parent has looked
    _exit(refused ? 0 : 1);
  }
  close(gate[0]);
  reactor.unwatch(pair.near.get());
  pair.near.reset();
  // The child's copy of the near end does not keep the connection open.
  const int flags = fcntl(pair.far.get(), F_GETFL);
  ASSERT_EQ(fcntl(pair.far.get(), F_SETFL, flags & ~O_NONBLOCK), 0);
  char byte;
  EXPECT_EQ(read(pair.far.get(), &byte, 1), 0);
  close(gate[1]);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace fsccl
