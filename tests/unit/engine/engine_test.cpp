// What an engine says of operations that failed while another thread drove them.
#include "engine/engine.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>

#include "plan/collectives.h"
#include "wrapped_channel.h"

namespace fsccl {
namespace {

using testing::over_channel;
using testing::Wrapped;

constexpr std::chrono::milliseconds kNotYet{50};

// A thread that drives a barrier is in the middle of it, as it could be in the middle of a copy, when the engine fails.
TEST(Engine, TellsOfAFailureWhenNobodyDrivesAnyMore) {
  std::promise<void> done;
  over_channel(2, [&, over = done.get_future().share()](int rank, Wrapped& channel, uint32_t tick) {
    if (rank == 1) return over.wait();
    std::promise<void> entered, released;
    std::atomic<bool> first{true};
    channel.on_poll = [&, until = released.get_future().share()](auto...) {
      if (first.exchange(false)) {
        entered.set_value();
        until.wait();
      }
      return true;
    };
    static const fsccl_transport_ops_t ops = Wrapped::ops();
    EngineOptions options;
    options.transport = &ops;
    options.channel = &channel;
    options.first_tick = tick;
    options.ranks = 2;
    options.same_process.assign(2, true);
    Engine engine(std::move(options));
    const Plan plan = barrier(0, 2);
    Operation* operation = nullptr;
    ASSERT_TRUE(engine.acquire(&operation, {}, {.op = OpCode::barrier}).ok());
    operation->plan = &plan;
    std::thread driver([&] {
      fsccl_status_t state;
      EXPECT_EQ(engine.submit(*operation, true, &state).code(), FSCCL_ERR_ABORTED);
    });
    entered.get_future().wait();
    Error error;
    error.code = FSCCL_ERR_ABORTED;
    engine.fail_all(error);

    fsccl_status_t state;
    EXPECT_TRUE(engine.test(1, &state).ok());
    EXPECT_EQ(state, FSCCL_IN_PROGRESS);
    std::promise<fsccl_status_t> told;
    engine.notify(
        1, {[](void* promise, fsccl_status_t status) { static_cast<std::promise<fsccl_status_t>*>(promise)->set_value(status); },
            &told,
            {}});
    std::future<fsccl_status_t> notified = told.get_future();
    std::future<Status> waited = std::async(std::launch::async, [&] { return engine.wait(1, -1, &state); });
    EXPECT_EQ(waited.wait_for(kNotYet), std::future_status::timeout);
    EXPECT_EQ(notified.wait_for(kNotYet), std::future_status::timeout);
    released.set_value();
    EXPECT_EQ(waited.get().code(), FSCCL_ERR_ABORTED);
    EXPECT_EQ(notified.get(), FSCCL_ERR_ABORTED);
    EXPECT_EQ(engine.test(1, &state).code(), FSCCL_ERR_ABORTED);
    driver.join();
    done.set_value();
  });
}

// Who waits for a rank looks just when the service thread is about to tell that it is dead: it must not tell less.
TEST(Engine, SaysOfADeathWhatIsKnownOfIt) {
  std::promise<void> done;
  over_channel(2, [&, over = done.get_future().share()](int rank, Wrapped& channel, uint32_t tick) {
    if (rank == 1) return over.wait();
    static const fsccl_transport_ops_t ops = Wrapped::ops();
    EngineOptions options;
    options.transport = &ops;
    options.channel = &channel;
    options.first_tick = tick;
    options.ranks = 2;
    options.same_process.assign(2, true);
    options.timeout_ms = 60'000;
    options.name = "world";
    options.members = {0, 1};
    Engine engine(std::move(options));
    const Plan plan = barrier(0, 2);
    Operation* operation = nullptr;
    ASSERT_TRUE(engine.acquire(&operation, {}, {.op = OpCode::barrier}).ok());
    operation->plan = &plan;
    fsccl_status_t state;
    ASSERT_TRUE(engine.submit(*operation, false, &state).ok());
    ASSERT_EQ(state, FSCCL_IN_PROGRESS);
    bool first = true;
    channel.on_failure = [&] {
      if (std::exchange(first, false)) (void)engine.wait(1, 0, &state).ok();
    };
    engine.lost(1, false, "silent for 900 ms");
    EXPECT_FALSE(first);
    EXPECT_EQ(engine.failure().text(), "rank 1 of 'world' is dead: silent for 900 ms");
    done.set_value();
  });
}

}  // namespace
}  // namespace fsccl
