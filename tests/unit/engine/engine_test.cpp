// Tests engines: what they report when a rank dies, fails or calls something else, whichever thread
// drives the operation, and how their threads signal and wait.
#include "engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstring>
#include <future>

#include "comm/collective.h"
#include "engine/runner.h"
#include "plan/build.h"
#include "plan/collectives.h"
#include "tests/unit/bootstrap/ranks.h"
#include "tests/unit/wrapped_channel.h"

namespace fsccl {
namespace {

using testing::options_over;
using testing::over_channel;
using testing::Wrapped;

constexpr std::chrono::milliseconds kNotYet{50};

// Reports a failure to the other ranks of the channel, as a rank does that finds one.
void report(Channel& channel, int32_t code, int rank, int peer, const char* text) {
  fsccl_transport_failure_t failure{};
  failure.code = code;
  failure.rank = rank;
  failure.peer = peer;
  std::strcpy(failure.text, text);
  channel.fail(failure);
}

// Reports in 20 ms that a rank has died.
std::thread reports_a_death(Channel& channel, const char* text) {
  return std::thread([&channel, text] {
    usleep(20'000);
    report(channel, FSCCL_ERR_PEER_DEAD, 1, 1, text);
  });
}

Notification into(std::promise<fsccl_status_t>* told) {
  return {[](void* promise, fsccl_status_t status) {
            static_cast<std::promise<fsccl_status_t>*>(promise)->set_value(status);
          },
          told,
          {}};
}

// Runs `body` while a thread is in the middle of driving a barrier, as it could be in the middle of
// a copy. The thread stays there until `body` calls `go_on`.
void failed_while_driven(
    const std::function<void(Engine&, const std::function<void()>& go_on)>& body) {
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
    Engine engine(options_over(channel, 0, 2, tick));
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
    body(engine, [&] { released.set_value(); });
    driver.join();
    done.set_value();
  });
}

TEST(Engine, TellsOfAFailureWhenNobodyDrivesAnyMore) {
  failed_while_driven([](Engine& engine, const std::function<void()>& go_on) {
    fsccl_status_t state;
    EXPECT_TRUE(engine.test(1, &state).ok());
    EXPECT_EQ(state, FSCCL_IN_PROGRESS);
    std::promise<fsccl_status_t> told;
    engine.notify(1, into(&told));
    std::future<fsccl_status_t> notified = told.get_future();
    std::future<Status> waited =
        std::async(std::launch::async, [&] { return engine.wait(1, -1, &state); });
    EXPECT_EQ(waited.wait_for(kNotYet), std::future_status::timeout);
    EXPECT_EQ(notified.wait_for(kNotYet), std::future_status::timeout);
    go_on();
    EXPECT_EQ(waited.get().code(), FSCCL_ERR_ABORTED);
    EXPECT_EQ(notified.get(), FSCCL_ERR_ABORTED);
    EXPECT_EQ(engine.test(1, &state).code(), FSCCL_ERR_ABORTED);
  });
}

// retire() returns only when no thread drives an operation any more, because the caller may then
// free the memory that operations use.
TEST(Engine, RetiresWhenNobodyDrivesAnyMore) {
  failed_while_driven([](Engine& engine, const std::function<void()>& go_on) {
    const std::future<void> retired = std::async(std::launch::async, [&] { engine.retire(); });
    EXPECT_EQ(retired.wait_for(kNotYet), std::future_status::timeout);
    go_on();
    retired.wait();
  });
}

// Rank 0, in a barrier that waits for rank 1.
class InBarrier {
 public:
  InBarrier(Wrapped& channel, uint32_t tick) : engine_(options_over(channel, 0, 2, tick)) {
    Operation* operation = nullptr;
    EXPECT_TRUE(engine_.acquire(&operation, {}, {.op = OpCode::barrier}).ok());
    operation->plan = &plan_;
    fsccl_status_t state;
    EXPECT_TRUE(engine_.submit(*operation, false, &state).ok());
    EXPECT_EQ(state, FSCCL_IN_PROGRESS);
  }
  Engine& engine() { return engine_; }

 private:
  const Plan plan_ = barrier(0, 2);
  Engine engine_;
};

void in_barrier(const std::function<void(Engine&, Wrapped&)>& body) {
  std::promise<void> done;
  over_channel(2, [&, over = done.get_future().share()](int rank, Wrapped& channel, uint32_t tick) {
    if (rank == 1) return over.wait();
    InBarrier rank_0(channel, tick);
    body(rank_0.engine(), channel);
    done.set_value();
  });
}

// The service thread is about to report that a rank is dead, and why. A caller that waits for the
// rank notices the failure just then. The caller's error must say as much as the report.
TEST(Engine, SaysOfADeathWhatIsKnownOfIt) {
  in_barrier([](Engine& engine, Wrapped& channel) {
    std::atomic<bool> looked{false};
    channel.on_failure = [&] {
      fsccl_status_t state;
      if (!looked.exchange(true)) (void)engine.wait(1, 0, &state).ok();
    };
    engine.lost(1, false, "silent for 900 ms");
    EXPECT_TRUE(looked);
    EXPECT_EQ(engine.failure().text(), "rank 1 of 'world' is dead: silent for 900 ms");
  });
}

// Between hosts a root puts all pieces of a round before it waits. Each of its signals but the last
// may leave together with the next one, so that fewer packets are sent.
TEST(Runner, KnowsWhichSignalsAnotherFollows) {
  Shape shape;
  shape.ranks = 2;
  shape.dtype = FSCCL_FLOAT32;
  shape.count = 1 << 20;
  shape.mirrored = true;
  for (const int rank : {0, 1}) {
    shape.rank = rank;
    const Plan plan = move_slots(broadcast_movement(shape), 512 << 10);
    std::vector<bool> followed;
    for (uint32_t step = 0; step < plan.steps.size(); step++)
      if (plan.steps[step].kind == StepKind::signal)
        followed.push_back(Runner::signals_again(plan, step));
    std::vector<bool> meant(rank == 0 ? static_cast<size_t>(plan.ticks) : 1, true);
    meant.back() = false;
    EXPECT_EQ(followed, meant) << rank;
  }
}

// A channel that keeps the lines of its rank.
struct Lines : Wrapped {
  using Wrapped::Wrapped;
  std::vector<fsccl_transport_line_t> lines;
  void signal(const fsccl_transport_line_t& line) override {
    lines.push_back(line);
    Wrapped::signal(line);
  }
};

[[gnu::noinline]] void leave_bytes_on_the_stack() {
  std::array<volatile unsigned char, 16384> bytes;
  for (volatile unsigned char& byte : bytes) byte = 0xa5;
}

// A line is sent to other processes and over networks, so the bytes that carry nothing must be
// zero.
TEST(Runner, SignalsHoldNothingButWhatTheyTell) {
  over_channel(2, [](int rank, Wrapped& channel, uint32_t tick) {
    Lines wire(channel.inner);
    Engine engine(options_over(wire, rank, 2, tick));
    const Plan plan = barrier(rank, 2);
    Operation* operation = nullptr;
    const Fingerprint what{.op = OpCode::barrier};
    ASSERT_TRUE(engine.acquire(&operation, {}, what).ok());
    operation->plan = &plan;
    fsccl_status_t state;
    leave_bytes_on_the_stack();
    EXPECT_TRUE(engine.submit(*operation, true, &state).ok());
    while (!engine.may_run_small()) std::this_thread::yield();
    const OperationSettings settings;
    leave_bytes_on_the_stack();
    EXPECT_TRUE(engine.run_small({&plan, &settings, &what}, &state).ok());
    ASSERT_GE(wire.lines.size(), 2u);
    for (const fsccl_transport_line_t& line : wire.lines) {
      EXPECT_EQ(line.processor, -1);
      EXPECT_THAT(line.payload, ::testing::Each(0));
    }
  });
}

// Counts how often a thread asks where it may sleep until a signal of this tick.
struct CountsSleeps : Wrapped {
  using Wrapped::Wrapped;
  uint32_t counted_tick = 0;
  std::atomic<int> sleeps{0};
  void word(int peer, uint32_t tick, fsccl_transport_word_t* word) override {
    if (tick == counted_tick) sleeps++;
    Wrapped::word(peer, tick, word);
  }
};

// If the service thread slept for each signal of a large operation, each piece would cost two
// switches of threads. The signal of tick 1 is there when the service thread comes to it, and is
// seen at the 40th look.
TEST(Engine, TheServiceThreadPollsForAPeerThatIsInTheSameOperation) {
  over_channel(2, [](int rank, Wrapped& channel, uint32_t tick) {
    CountsSleeps counting(channel.inner);
    counting.counted_tick = tick + 1;
    int looks = 0;
    if (rank == 0)
      counting.on_poll = [&](const fsccl_transport_line_t* line, int peer, uint32_t at) {
        if (at == tick) return channel.inner->poll(peer, tick + 1) != nullptr;
        return line == nullptr || ++looks >= 40;
      };
    Engine engine(options_over(counting, rank, 2, tick));
    Builder two_ticks("two ticks", rank, 2, 2);
    two_ticks.signal(0);
    two_ticks.wait_all(0);
    two_ticks.signal(1);
    two_ticks.wait_all(1);
    const Plan plan = two_ticks.take();
    Operation* operation = nullptr;
    ASSERT_TRUE(engine.acquire(&operation, {}, {.op = OpCode::barrier}).ok());
    operation->plan = &plan;
    fsccl_status_t state;
    ASSERT_TRUE(engine.submit(*operation, rank == 1, &state).ok());
    if (rank == 1) return;
    std::promise<fsccl_status_t> over;
    engine.notify(1, into(&over));
    EXPECT_EQ(over.get_future().get(), FSCCL_OK);
    EXPECT_EQ(counting.sleeps, 0);
  });
}

// A rank reports a failure and ends at once. Its end can be known before the failure has been read,
// but the failure must be the error.
TEST(Engine, HearsOutWhoHasEnded) {
  in_barrier([](Engine& engine, Wrapped& channel) {
    channel.on_hear_out = [&] {
      report(channel, FSCCL_ERR_TIMEOUT, 1, 0, "rank 1 has waited for too long");
    };
    engine.lost(1, false);
    EXPECT_EQ(engine.failure().code(), FSCCL_ERR_TIMEOUT);
    EXPECT_EQ(engine.failure().text(), "rank 1 has waited for too long");
  });
}

// Rank 1 has learned of the death of another rank, and has left because of it. Rank 0 hears of the
// death 20 ms after it sees that rank 1 has left, and returns the death.
TEST(Engine, ARankThatLeftBecauseOfADeathIsNotItsCause) {
  in_barrier([](Engine& engine, Wrapped& channel) {
    channel.peers_left = true;
    std::thread teller = reports_a_death(channel, "rank 2 died");
    fsccl_status_t state;
    EXPECT_EQ(engine.wait(1, -1, &state).text(), "rank 2 died");
    teller.join();
  });
}

TEST(Engine, ARankThatLeftForNoOtherReasonIsReported) {
  in_barrier([](Engine& engine, Wrapped& channel) {
    channel.peers_left = true;
    fsccl_status_t state;
    const Status status = engine.wait(1, -1, &state);
    EXPECT_EQ(status.code(), FSCCL_ERR_PEER_DEAD);
    EXPECT_THAT(status.text(), ::testing::StartsWith("rank 1 has left"));
  });
}

// A rank trusts neither the code nor the text of a failure that another process reports.
TEST(Engine, ABoardWithoutAnErrorIsOneOfTheProtocol) {
  for (const int32_t code : {0, 1, FSCCL_ERR_INTERNAL - 1})
    in_barrier([code](Engine& engine, Wrapped& channel) {
      report(channel, code, 1, 0, "red \x1b[31m");
      engine.look_for_failure();
      EXPECT_EQ(engine.failure().code(), FSCCL_ERR_PROTOCOL);
      EXPECT_EQ(engine.failure().text(), "red ?[31m");
    });
}

// The connection to a rank breaks, and there is no other rank that could report a death. If nobody
// listens at the rank's socket any more, the rank is dead.
TEST(Engine, ABrokenConnectionIsADeathIfNobodyListensAtTheDoorOfThatRank) {
  std::vector<testing::Joined> joined = testing::join_all_by_id(2);
  ASSERT_EQ(joined.size(), 2u);
  for (const bool lives : {true, false}) {
    if (!lives) joined[1].job->leave();
    over_channel(2, [&](int rank, Wrapped& channel, uint32_t tick) {
      if (rank == 1) return;
      EngineOptions options = options_over(channel, 0, 2, tick);
      options.job = joined[0].job.get();
      Engine engine(std::move(options));
      report(channel, FSCCL_ERR_LINK, 0, 1, "the connection to rank 1 broke");
      engine.look_for_failure();
      const Status status = engine.failure();
      EXPECT_EQ(status.code(), lives ? FSCCL_ERR_LINK : FSCCL_ERR_PEER_DEAD);
      EXPECT_EQ(status.error().peer, 1);
      EXPECT_EQ(status.text(), lives ? "the connection to rank 1 broke"
                                     : "rank 1 of 'world' died: the connection to rank 1 broke");
    });
  }
}

// Both ranks run `plan_of(rank)`. Rank 1 completes it. Rank 0 sees rank 1's signals only after its
// engine was told that rank 1 is dead, and then calls `look`.
void dead_behind(const std::function<Plan(int rank)>& plan_of,
                 const std::function<void(Engine&)>& look) {
  std::promise<void> passed, done;
  over_channel(2, [&, behind = passed.get_future().share(), over = done.get_future().share()](
                      int rank, Wrapped& channel, uint32_t tick) {
    std::vector<std::byte> memory(2 * 4096);
    const Plan plan = plan_of(rank);
    Engine engine(options_over(channel, rank, 2, tick));
    if (rank == 0) channel.on_poll = [&](auto...) { return engine.failed(); };
    OperationSettings settings;
    set_plans(&settings, plan, plan);
    Operation* operation = nullptr;
    ASSERT_TRUE(engine.acquire(&operation, settings, {.op = OpCode::all_gather}).ok());
    operation->plan = &plan;
    for (Binding& binding : operation->inline_bindings) binding.base = memory.data();
    fsccl_status_t state;
    EXPECT_TRUE(engine.submit(*operation, rank == 1, &state).ok());
    if (rank == 1) {
      passed.set_value();
      return over.wait();
    }
    EXPECT_EQ(state, FSCCL_IN_PROGRESS);
    behind.wait();
    engine.lost(1, false);
    look(engine);
    done.set_value();
  });
}

TEST(Engine, WhatCameBeforeADeathIsNotLost) {
  const auto barrier_of = [](int rank) { return barrier(rank, 2); };
  fsccl_status_t state = FSCCL_IN_PROGRESS;
  dead_behind(barrier_of, [&](Engine& engine) { EXPECT_TRUE(engine.wait(1, -1, &state).ok()); });
  EXPECT_EQ(state, FSCCL_OK);
  state = FSCCL_IN_PROGRESS;
  dead_behind(barrier_of, [&](Engine& engine) {
    // The service thread drives the operation.
    while (engine.test(1, &state).ok() && state == FSCCL_IN_PROGRESS) std::this_thread::yield();
  });
  EXPECT_EQ(state, FSCCL_OK);
  dead_behind(barrier_of, [&](Engine& engine) {
    std::promise<fsccl_status_t> told;
    engine.notify(1, into(&told));
    EXPECT_EQ(told.get_future().get(), FSCCL_OK);
    Operation* operation = nullptr;
    EXPECT_EQ(engine.acquire(&operation, {}, {.op = OpCode::barrier}).code(), FSCCL_ERR_PEER_DEAD);
  });
}

// A rank does not read memory behind a death, because peers may have given back what it would read.
TEST(Engine, NothingIsMovedBehindADeath) {
  Shape shape;
  shape.ranks = 2, shape.count = 1024, shape.dtype = FSCCL_FLOAT32;
  const auto plan_of = [&](int rank) {
    Shape mine = shape;
    mine.rank = rank;
    return move_slots(all_gather_movement(mine), 64 << 10);
  };
  dead_behind(plan_of, [](Engine& engine) {
    fsccl_status_t state;
    EXPECT_EQ(engine.wait(1, -1, &state).code(), FSCCL_ERR_PEER_DEAD);
    EXPECT_EQ(engine.test(1, &state).code(), FSCCL_ERR_PEER_DEAD);
  });
}

// Returns the error of rank 0 from an all-gather in which its read of rank 1's memory ends with
// `read`. `at_end` is called before its channel goes.
Error all_gather_that_reads(
    const std::function<fsccl_status_t(Wrapped&)>& read,
    const std::function<void()>& at_end = [] {}) {
  Error error;
  over_channel(2, [&](int rank, Wrapped& channel, uint32_t tick) {
    if (rank == 0) channel.on_read = [&](size_t) { return read(channel); };
    EngineOptions options = options_over(channel, rank, 2, tick);
    options.same_process.assign(2, false);
    Engine engine(std::move(options));
    Shape shape;
    shape.rank = rank, shape.ranks = 2, shape.count = 4096, shape.dtype = FSCCL_UINT8;
    const Plan plan = move_direct(all_gather_movement(shape));
    OperationSettings settings;
    set_plans(&settings, plan, plan);
    settings.reads = true;
    Operation* operation = nullptr;
    ASSERT_TRUE(engine.acquire(&operation, settings, {.op = OpCode::all_gather}).ok());
    operation->plan = &plan;
    std::vector<std::byte> memory(3 * 4096);
    for (size_t i = 0; i < 2; i++) {
      Binding& binding = operation->inline_bindings[i];
      binding.base = memory.data() + i * 4096;
      binding.location = {reinterpret_cast<uint64_t>(binding.base), kPrivate};
    }
    fsccl_status_t state;
    EXPECT_FALSE(engine.submit(*operation, true, &state).ok());
    if (rank != 0) return;
    error = engine.failure().error();
    at_end();
  });
  return error;
}

// Two ranks each make two calls, of which the first ones differ, and wait only for the second. As
// can happen over a network, the line of a peer's first call arrives after that of its second: it
// is hidden until then, and as long as `hides` returns true. Returns the error of rank 0.
std::string told_of_first_calls_that_differ(const std::function<bool()>& hides) {
  std::string text;
  over_channel(2, [&](int rank, Wrapped& channel, uint32_t tick) {
    ChannelTraits traits = channel.traits();
    traits.mirrors = true;
    Wrapped network(channel.inner, traits);
    bool second_came = false;
    network.on_poll = [&](const fsccl_transport_line_t* line, int, uint32_t at) {
      if (at == tick) return second_came && !hides();
      second_came = second_came || line;
      return true;
    };
    Engine engine(options_over(network, rank, 2, tick));
    const Plan second = barrier(rank, 2);
    Plan first = second;
    first.completes_early = true;
    std::erase_if(first.steps, [](const Step& step) { return step.kind == StepKind::wait; });
    const auto call = [&](const Plan& plan, const Fingerprint& what) {
      Operation* operation = nullptr;
      EXPECT_TRUE(engine.acquire(&operation, {}, what).ok());
      operation->plan = &plan;
      fsccl_status_t state;
      return engine.submit(*operation, true, &state);
    };
    EXPECT_TRUE(call(first, {.op = OpCode::broadcast, .count = rank ? 7u : 5u}).ok());
    const Status status =
        call(second, {.op = OpCode::barrier, .history = static_cast<uint64_t>(rank)});
    EXPECT_EQ(status.code(), FSCCL_ERR_MISMATCH) << status.text();
    if (rank == 0) text = status.text();
  });
  return text;
}

TEST(Engine, NamesTheFirstCallThatDiffersThoughItsLineComesLater) {
  std::atomic<int> looks{0};
  EXPECT_THAT(told_of_first_calls_that_differ([&] { return looks++ < 10; }),
              ::testing::HasSubstr("they differ in count 5 and 7"));
}

// A peer that calls something else may never send the line that is missing. The error reports the
// difference nevertheless.
TEST(Engine, ACallThatDiffersIsToldThoughAnEarlierLineNeverComes) {
  EXPECT_THAT(told_of_first_calls_that_differ([] { return true; }),
              ::testing::HasSubstr("rank 1 calls barrier"));
}

TEST(Engine, SaysThatARankDiedWhoseMemoryCouldNotBeRead) {
  const Error error = all_gather_that_reads([](Wrapped&) { return FSCCL_ERR_PEER_DEAD; });
  EXPECT_EQ(error.code, FSCCL_ERR_PEER_DEAD);
  EXPECT_EQ(error.peer, 1);
  EXPECT_THAT(error.text, ::testing::AllOf(::testing::StartsWith("rank 1 died while "),
                                           ::testing::EndsWith("read its memory")));
}

// The read of rank 1's memory fails because rank 1's process has ended. Rank 1 had reported a
// timeout before it ended, so rank 0 returns that timeout and does not call rank 1 dead.
TEST(Engine, ARankThatEndedAfterAFailureIsNotItsCause) {
  const Error error = all_gather_that_reads([](Wrapped& channel) {
    report(channel, FSCCL_ERR_TIMEOUT, 1, 0, "rank 1 has waited for too long");
    return FSCCL_ERR_PEER_DEAD;
  });
  EXPECT_EQ(error.code, FSCCL_ERR_TIMEOUT);
  EXPECT_EQ(error.text, "rank 1 has waited for too long");
}

// The read fails because the memory of rank 1 is no longer mapped: rank 1's buffers went back to
// their owner after a failure of which rank 0 has not heard yet. Rank 0 hears of that failure 20 ms
// later, and returns it instead of FSCCL_ERR_LINK.
TEST(Engine, ARankWhoseMemoryIsGoneAfterAFailureIsNotItsCause) {
  std::thread teller;
  const auto read = [&](Wrapped& channel) {
    teller = reports_a_death(channel, "rank 1 died");
    return FSCCL_ERR_LINK;
  };
  const Error error = all_gather_that_reads(read, [&] { teller.join(); });
  EXPECT_EQ(error.code, FSCCL_ERR_PEER_DEAD);
  EXPECT_EQ(error.text, "rank 1 died");
}

TEST(Engine, ReadsThatFailForNoOtherReasonAreTold) {
  const Error error = all_gather_that_reads([](Wrapped&) { return FSCCL_ERR_LINK; });
  EXPECT_EQ(error.code, FSCCL_ERR_LINK);
  EXPECT_EQ(error.peer, 1);
}

}  // namespace
}  // namespace fsccl
