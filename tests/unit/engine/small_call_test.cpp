// Tests small calls, which run without an entry in the ring of operations, and calls that begin
// like that and have to go on in the ring.
#include "engine/small_call.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "comm/collective.h"
#include "plan/collectives.h"
#include "tests/unit/wrapped_channel.h"
#include "transports/tcp/tcp.h"

namespace fsccl {
namespace {

using testing::options_over;
using testing::over_channel;
using testing::Wrapped;

constexpr int kRounds = 200;

// A rank's engine, with those parts of a call that a communicator would add.
struct Rank {
  Rank(
      int rank, int ranks, Wrapped& channel, uint32_t tick,
      const std::function<void(EngineOptions&)>& adjust = [](auto&) {})
      : Rank(rank, ranks, [&] {
          EngineOptions options = options_over(channel, rank, ranks, tick);
          adjust(options);
          return options;
        }()) {}
  Rank(int rank, int ranks, EngineOptions options) : shape{.rank = rank, .ranks = ranks} {
    engine = std::make_unique<Engine>(std::move(options));
    shape.count = 2;
    shape.dtype = FSCCL_INT32;
    shape.slot_bytes = engine->slot_bytes();
  }
  Shape with_root(int root) const {
    Shape rooted = shape;
    rooted.root = root;
    return rooted;
  }
  Status at_once(const Plan& plan, OpCode op, void* input, void* output) {
    const OperationSettings settings;
    return at_once({&plan, &settings, nullptr, buffers(input, output)}, op);
  }
  // Calls with the plan `asks`, in which ranks exchange the addresses of their buffers. If a buffer
  // cannot be reached, the call goes on with `fallback`.
  // `arena` is the arena in which this rank's buffers lie.
  Status at_once(const Plan& asks, const Plan& fallback, OpCode op, void* input, void* output,
                 uint32_t arena = kPrivate) {
    OperationSettings settings;
    set_plans(&settings, asks, fallback);
    SmallCall call{&asks, &settings, nullptr, buffers(input, output), &asks};
    for (uint32_t i = 0; i < settings.publishes; i++)
      call.published[i] = {reinterpret_cast<uint64_t>(call.buffers[settings.published[i]]), arena};
    return at_once(call, op);
  }
  Status at_once(SmallCall call, OpCode op) {
    const Fingerprint what{.op = op, .count = shape.count};
    call.fingerprint = &what;
    fsccl_status_t state = FSCCL_IN_PROGRESS;
    // The service thread may still use the operation that the ring has just completed.
    while (!engine->may_run_small()) {
      if (engine->failed() || engine->completed() != engine->submitted())
        return fail(FSCCL_ERR_INTERNAL, "something is under way");
      std::this_thread::yield();
    }
    return engine->run_small(call, &state);
  }
  Status in_the_ring(const Plan& plan, OpCode op, void* input, void* output, bool wait,
                     fsccl_status_t* state) {
    Operation* operation = nullptr;
    FSCCL_TRY(engine->acquire(&operation, {}, {.op = op, .count = shape.count}));
    operation->plan = &plan;
    for (size_t i = 0; i < 3; i++) operation->inline_bindings[i].base = buffers(input, output)[i];
    return engine->submit(*operation, wait, state);
  }
  std::array<std::byte*, 3> buffers(void* input, void* output) {
    return {static_cast<std::byte*>(input), static_cast<std::byte*>(output), scratch.data()};
  }

  Shape shape;
  std::unique_ptr<Engine> engine;
  std::array<std::byte, 8 * kInlineBytes> scratch;
};

TEST(SmallCall, IsForPlansOfFewBytes) {
  Shape shape{.rank = 1, .ranks = 3, .count = 1, .dtype = FSCCL_INT32, .root = 0};
  shape.slot_bytes = 1 << 20;
  for (const Plan& plan : {barrier(1, 3), all_gather_inline(shape), all_reduce_inline(shape),
                           broadcast_inline(shape), reduce_scatter_inline(shape)})
    EXPECT_TRUE(small_enough(plan)) << plan.name;
  EXPECT_TRUE(small_enough(move_slots(all_gather_movement(shape), shape.slot_bytes)))
      << "slots can be touched";
  shape.count = 10000;
  EXPECT_FALSE(small_enough(move_slots(all_gather_movement(shape), shape.slot_bytes)))
      << "it takes its time";
  EXPECT_FALSE(small_enough(move_direct(all_gather_movement(shape))));
  shape.count = 1000;
  EXPECT_TRUE(small_enough(move_direct(all_gather_movement(shape)))) << "and blocks of peers";
  EXPECT_TRUE(small_enough(reduce_direct(reduction_of_reduce_scatter(shape))));
  EXPECT_FALSE(small_enough(reduce_direct(reduction_of_all_reduce(shape))))
      << "it writes into them";
  EXPECT_FALSE(small_enough(Plan())) << "nobody hears of it";
  shape.mirrored = true;
  EXPECT_TRUE(small_enough(move_slots(all_gather_movement(shape), shape.slot_bytes)))
      << "between hosts";
  EXPECT_TRUE(small_enough(reduce_slots(reduction_of_reduce_scatter(shape), shape.slot_bytes)));
  shape.count = 10000;
  EXPECT_FALSE(small_enough(move_slots(all_gather_movement(shape), shape.slot_bytes)))
      << "goes straight to the output";
}

// At the end of a call of few bytes the engine has its channel prepare the line of the next signal,
// whether the call runs at once or in the ring. It does not after a call with a large slot.
TEST(SmallCall, PreparesTheNextSignal) {
  over_channel(2, [&](int rank, Wrapped& channel, uint32_t tick) {
    Rank self(rank, 2, channel, tick);
    uint32_t prepared = 0;
    std::vector<uint32_t> unprepared;
    channel.on_prepare = [&](uint32_t at) { prepared = at; };
    channel.on_signal = [&](uint32_t at) {
      if (at != prepared) unprepared.push_back(at - tick);
    };
    const Plan gather = all_gather_inline(self.shape);
    const auto slots = [&](size_t count) {
      self.shape.count = count;
      return move_slots(all_gather_movement(self.shape), self.shape.slot_bytes);
    };
    const Plan small = slots(128), large = slots(256);
    std::vector<int32_t> mine(256, rank), all(512);
    const auto run = [&](const Plan& plan) {
      ASSERT_TRUE(self.at_once(plan, OpCode::all_gather, mine.data(), all.data()).ok());
    };
    fsccl_status_t state;
    run(gather);
    ASSERT_TRUE(
        self.in_the_ring(small, OpCode::all_gather, mine.data(), all.data(), true, &state).ok());
    for (const Plan* plan : {&gather, &gather, &small, &small, &large}) run(*plan);
    EXPECT_EQ(unprepared, std::vector<uint32_t>{0}) << "but the first";
    unprepared.clear();
    run(gather);
    EXPECT_EQ(unprepared.size(), 1u) << "behind a large one";
  });
}

// Small calls alternate with operations of the ring, and the plans do not make all ranks wait in
// between. Both give the same results.
TEST(SmallCall, GivesWhatTheRingGives) {
  over_channel(3, [&](int rank, Wrapped& channel, uint32_t tick) {
    Rank self(rank, 3, channel, tick);
    const Plan gather = all_gather_inline(self.shape), sum = all_reduce_inline(self.shape);
    const Plan scatter = reduce_scatter_inline(self.shape);
    const Plan slots = move_slots(all_gather_movement(self.shape), self.shape.slot_bytes);
    const Plan reduction =
        reduce_slots(reduction_of_small_all_reduce(self.shape), self.shape.slot_bytes);
    fsccl_status_t state;
    for (int round = 0; round < kRounds; round++) {
      int32_t mine[2] = {rank + round, 10 * rank}, all[6] = {}, sums[2] = {}, part[2] = {};
      ASSERT_TRUE(self.at_once(gather, OpCode::all_gather, mine, all).ok());
      for (int q = 0; q < 3; q++) EXPECT_EQ(all[2 * q], q + round);
      ASSERT_TRUE(self.at_once(sum, OpCode::all_reduce, mine, sums).ok());
      EXPECT_EQ(sums[0], 3 + 3 * round);
      EXPECT_EQ(sums[1], 30);
      ASSERT_TRUE(self.at_once(scatter, OpCode::reduce_scatter, all, part).ok());
      EXPECT_EQ(part[0], 3 * (rank + round));
      const Plan broadcast = broadcast_inline(self.with_root(round % 3));
      for (int again = 0; again < round % 12; again++) {
        int32_t word[2] = {rank == round % 3 ? again : -1, round};
        ASSERT_TRUE(self.at_once(broadcast, OpCode::broadcast, word, word).ok());
        EXPECT_EQ(word[0], again);
      }
      for (const bool ring : {false, true}) {  // a first call goes to the ring to get slots' memory
        std::fill(std::begin(all), std::end(all), 0);
        ASSERT_TRUE((ring ? self.in_the_ring(slots, OpCode::all_gather, mine, all, true, &state)
                          : self.at_once(slots, OpCode::all_gather, mine, all))
                        .ok());
        for (int q = 0; q < 3; q++) EXPECT_EQ(all[2 * q], q + round);
        int32_t reduced[2] = {};
        ASSERT_TRUE(
            (ring ? self.in_the_ring(reduction, OpCode::all_reduce, mine, reduced, true, &state)
                  : self.at_once(reduction, OpCode::all_reduce, mine, reduced))
                .ok());
        EXPECT_EQ(reduced[0], 3 + 3 * round);
      }
      std::fill(std::begin(all), std::end(all), 0);
      ASSERT_TRUE(self.in_the_ring(slots, OpCode::all_gather, mine, all, round % 2, &state).ok());
      ASSERT_TRUE(self.engine->wait(self.engine->submitted(), -1, &state).ok());
      EXPECT_EQ(all[4], 2 + round);
    }
    EXPECT_EQ(self.engine->completed(), self.engine->submitted());
    EXPECT_EQ(self.engine->tally().counters().operations, self.engine->submitted());
  });
}

// A rank writes a slot of slot_streaming_from bytes or more past the caches, and a smaller one
// through them. Small calls are right either way.
TEST(SmallCall, WritesSlotsEitherWay) {
  for (const uint64_t streaming_from : {uint64_t{64}, UINT64_MAX})
    over_channel(3, [&](int rank, Wrapped& channel, uint32_t tick) {
      Rank self(rank, 3, channel, tick,
                [&](EngineOptions& options) { options.slot_streaming_from = streaming_from; });
      self.shape.count = 100;
      const Plan slots = move_slots(all_gather_movement(self.shape), self.shape.slot_bytes);
      ASSERT_TRUE(small_enough(slots));
      for (int round = 0; round < kRounds; round++) {
        const std::vector<int32_t> mine(100, 3 * round + rank);
        std::vector<int32_t> all(300);
        ASSERT_TRUE(
            self.at_once(slots, OpCode::all_gather, const_cast<int32_t*>(mine.data()), all.data())
                .ok());
        for (int q = 0; q < 3; q++)
          EXPECT_EQ(std::count(&all[100 * q], &all[100 * q] + 100, 3 * round + q), 100);
      }
    });
}

// A call reads peers' memory directly where they say that it lies. If not every rank can reach that
// memory, the bytes go through slots.
TEST(SmallCall, TakesWhatPeersHaveOutOfTheirMemory) {
  for (const bool reachable : {true, false})
    over_channel(3, [&](int rank, Wrapped& channel, uint32_t tick) {
      Rank self(rank, 3, channel, tick,
                [&](EngineOptions& options) { options.same_process.assign(3, reachable); });
      const Plan gather = move_direct(all_gather_movement(self.shape)),
                 reduction = reduce_direct(reduction_of_reduce_scatter(self.shape));
      const Plan gather_slots = move_slots(all_gather_movement(self.shape), self.shape.slot_bytes);
      const Plan reduction_in_slots =
          reduce_slots(reduction_of_reduce_scatter(self.shape), self.shape.slot_bytes);
      int signals = 0;
      channel.on_signal = [&](uint32_t) { signals++; };
      for (int round = 0; round < kRounds; round++) {
        int32_t mine[2] = {rank + round, 10 * rank}, all[6] = {}, part[2] = {};
        ASSERT_TRUE(self.at_once(gather, gather_slots, OpCode::all_gather, mine, all).ok());
        for (int q = 0; q < 3; q++) {
          EXPECT_EQ(all[2 * q], q + round);
          EXPECT_EQ(all[2 * q + 1], 10 * q);
        }
        ASSERT_TRUE(
            self.at_once(reduction, reduction_in_slots, OpCode::reduce_scatter, all, part).ok());
        EXPECT_EQ(part[0], 3 * (rank + round));
        EXPECT_EQ(part[1], 30 * rank);
      }
      EXPECT_EQ(signals,
                kRounds * (reachable ? 4 : 2 + gather_slots.ticks + reduction_in_slots.ticks));
      EXPECT_EQ(self.engine->completed(), self.engine->submitted());
    });
}

TEST(SmallCall, NamesWhoseBufferCannotBeReached) {
  over_channel(2, [&](int rank, Wrapped& channel, uint32_t tick) {
    const ArenaTable arenas;
    Rank self(rank, 2, channel, tick, [&](EngineOptions& options) { options.arenas = &arenas; });
    const Plan gather = move_direct(all_gather_movement(self.shape));
    int32_t mine[2] = {}, all[4] = {};
    const Status status = self.at_once(gather, gather, OpCode::all_gather, mine, all, kFirstArena);
    EXPECT_EQ(status.code(), FSCCL_ERR_PROTOCOL);
    EXPECT_NE(status.error().text.find("use pools made on a communicator of both"),
              std::string::npos)
        << status.error().text;
  });
}

// A call reads nothing after a failure, because peers may have given back what it would read.
TEST(SmallCall, ReadsNothingBehindAFailure) {
  over_channel(2, [&](int rank, Wrapped& channel, uint32_t tick) {
    Rank self(rank, 2, channel, tick);
    const Plan gather = move_direct(all_gather_movement(self.shape));
    int32_t mine[2] = {1, 1}, all[4] = {};
    if (rank == 0) {
      // Rank 0 begins when rank 1's signal is there, so that the call is done at once.
      while (!channel.inner->poll(1, tick)) std::this_thread::yield();
      channel.on_poll = [&](const fsccl_transport_line_t* line, auto...) {
        if (line && !self.engine->failed()) {
          Error error;
          error.code = FSCCL_ERR_ABORTED;
          error.text = "aborted";
          self.engine->fail_all(error);
        }
        return true;
      };
    }
    EXPECT_EQ(self.at_once(gather, gather, OpCode::all_gather, mine, all).code(),
              FSCCL_ERR_ABORTED);
    if (rank == 0) {
      EXPECT_EQ(all[2], 0);
    }
  });
}

// A rank sees its peer's signal only after more looks than a small call makes, so the ring carries
// out the rest of the call.
TEST(SmallCall, GoesOnInTheRingWhereAPeerIsLate) {
  over_channel(2, [&](int rank, Wrapped& channel, uint32_t tick) {
    Rank self(rank, 2, channel, tick);
    const Plan gather = all_gather_inline(self.shape);
    int hidden = 0;
    channel.on_poll = [&](auto...) { return hidden-- <= 0; };
    int signals = 0;
    channel.on_signal = [&](uint32_t) { signals++; };
    for (int round = 0; round < kRounds; round++) {
      hidden = rank == 0 && round % 2 ? 500 : 0;
      int32_t mine[2] = {rank, round}, all[4] = {};
      ASSERT_TRUE(self.at_once(gather, OpCode::all_gather, mine, all).ok());
      EXPECT_LT(hidden, 0) << "it has been looked for often enough";
      EXPECT_EQ(all[2], 1);
      EXPECT_EQ(all[3], round);
    }
    EXPECT_EQ(signals, kRounds) << "none is given twice";
    EXPECT_EQ(self.engine->completed(), kRounds);
  });
}

TEST(SmallCall, NamesBothCallsWhereTheyDiffer) {
  over_channel(2, [&](int rank, Wrapped& channel, uint32_t tick) {
    Rank self(rank, 2, channel, tick);
    const Plan gather = all_gather_inline(self.shape), meet = barrier(rank, 2);
    int32_t mine[2] = {}, all[4] = {};
    const Status status = rank == 0 ? self.at_once(gather, OpCode::all_gather, mine, all)
                                    : self.at_once(meet, OpCode::barrier, nullptr, nullptr);
    EXPECT_EQ(status.code(), FSCCL_ERR_MISMATCH);
    EXPECT_NE(status.error().text.find("all_gather"), std::string::npos) << status.error().text;
    EXPECT_NE(status.error().text.find("barrier"), std::string::npos) << status.error().text;
    EXPECT_FALSE(self.engine->may_run_small());
  });
}

TEST(SmallCall, WaitsForItsTurn) {
  std::atomic<bool> looked{false};
  over_channel(2, [&](int rank, Wrapped& channel, uint32_t tick) {
    Rank self(rank, 2, channel, tick);
    const Plan meet = barrier(rank, 2);
    fsccl_status_t state;
    if (rank == 0) {
      ASSERT_TRUE(self.in_the_ring(meet, OpCode::barrier, nullptr, nullptr, false, &state).ok());
      EXPECT_FALSE(self.engine->may_run_small()) << "an operation before it is under way";
      looked = true;
      looked.notify_all();
    } else {
      looked.wait(false);
      ASSERT_TRUE(self.in_the_ring(meet, OpCode::barrier, nullptr, nullptr, false, &state).ok());
    }
    ASSERT_TRUE(self.engine->wait(1, -1, &state).ok());
    EXPECT_TRUE(self.at_once(meet, OpCode::barrier, nullptr, nullptr).ok());
    EXPECT_EQ(self.engine->completed(), 2U);
  });
}

// A rank that only receives tells its peers now and then that it has entered, so that the window of
// ticks can move, but not in every call.
TEST(SmallCall, WhoOnlyReceivesTellsNowAndThen) {
  over_channel(3, [&](int rank, Wrapped& channel, uint32_t tick) {
    Rank self(rank, 3, channel, tick);
    int signals = 0;
    channel.on_signal = [&](uint32_t) { signals++; };
    const Plan broadcast = broadcast_inline(self.with_root(1));
    for (int round = 0; round < kRounds; round++) {
      int32_t word[2] = {rank == 1 ? round : -1, round};
      ASSERT_TRUE(self.at_once(broadcast, OpCode::broadcast, word, word).ok());
      EXPECT_EQ(word[0], round);
    }
    EXPECT_GE(signals, rank == 1 ? kRounds : kRounds / 4 - 1);
    // The rank also signals if it has to wait for long.
    EXPECT_LT(signals, rank == 1 ? kRounds + 1 : kRounds);
  });
}

// A small call has no entry in the queue. A thread that looks for work meanwhile finds none, and
// leaves the call alone.
TEST(SmallCall, OthersFindNothingUnderWay) {
  over_channel(2, [&](int rank, Wrapped& channel, uint32_t tick) {
    Rank self(rank, 2, channel, tick);
    const Plan meet = barrier(rank, 2), sum = all_reduce_inline(self.shape);
    const Plan slots = move_slots(all_gather_movement(self.shape), self.shape.slot_bytes);
    fsccl_transport_word_t word{};
    bool all_at_once = true;
    channel.on_signal = [&](uint32_t) {
      EXPECT_TRUE(!all_at_once || self.engine->try_progress(&word) == Engine::Attempt::idle);
    };
    EXPECT_TRUE(self.at_once(meet, OpCode::barrier, nullptr, nullptr).ok());
    all_at_once = false;
    std::atomic<bool> over{false};
    std::thread other([&] {
      fsccl_transport_word_t seen{};
      while (!over) (void)self.engine->try_progress(&seen);
    });
    fsccl_status_t state;
    for (int round = 0; round < kRounds; round++) {
      int32_t mine[2] = {rank + round, rank}, sums[2] = {}, all[4] = {};
      EXPECT_TRUE(self.at_once(sum, OpCode::all_reduce, mine, sums).ok());
      EXPECT_EQ(sums[0], 1 + 2 * round);
      EXPECT_TRUE(self.in_the_ring(slots, OpCode::all_gather, mine, all, round % 2, &state).ok());
      EXPECT_TRUE(self.engine->wait(self.engine->submitted(), -1, &state).ok());
      EXPECT_EQ(all[2], 1 + round);
    }
    over = true;
    other.join();
    EXPECT_EQ(self.engine->tally().counters().operations, self.engine->submitted());
  });
}

// Runs ranks as threads, with a channel over TCP.
void between_hosts(int ranks, const std::function<void(int rank, OpenedChannel opened)>& body) {
  const Transport& tcp = *tcp_transport();
  const auto all = static_cast<size_t>(ranks);
  const std::array<unsigned char, 32> key{7};
  std::vector<uint8_t> endpoints(all * kEndpointRoom);
  std::vector<std::unique_ptr<TransportNode>> nodes;
  for (size_t rank = 0; rank < all; rank++) {
    Result<std::unique_ptr<TransportNode>> joined = tcp.join(
        {sizeof(fsccl_transport_job_t), static_cast<int>(rank), ranks, key.data(), 0, nullptr});
    ASSERT_TRUE(joined.ok()) << joined.status().text();
    nodes.push_back(joined.take());
    std::copy(nodes.back()->endpoint().begin(), nodes.back()->endpoint().end(),
              &endpoints[rank * kEndpointRoom]);
  }
  std::vector<int32_t> members(all);
  std::iota(members.begin(), members.end(), 0);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; rank++)
    threads.emplace_back([&, rank] {
      std::unique_ptr<TransportNode>& node = nodes[static_cast<size_t>(rank)];
      const Status connected = node->connect(endpoints.data(), kEndpointRoom);
      ASSERT_TRUE(connected.ok()) << connected.text();
      ChannelRequest request;
      request.rank = rank;
      request.ranks = ranks;
      request.node = node.get();
      request.members = members;
      request.meeting = request.tag = 7;
      Result<OpenedChannel> opened = tcp.open(request);
      ASSERT_TRUE(opened.ok()) << opened.status().text();
      body(rank, opened.take());
      node.reset();
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(SmallCall, CarriesFewBytesBetweenHosts) {
  constexpr int ranks = 3;
  between_hosts(ranks, [&](int rank, OpenedChannel opened) {
    EngineOptions options = options_over(std::move(opened.channel), rank, ranks, opened.first_tick);
    Rank self(rank, ranks, std::move(options));
    self.shape.mirrored = true;
    self.shape.count = 100;
    const Plan gather = move_slots(all_gather_movement(self.shape), self.shape.slot_bytes);
    const Plan reduction =
        reduce_slots(reduction_of_small_all_reduce(self.shape), self.shape.slot_bytes);
    std::vector<Plan> broadcasts;
    for (int root = 0; root < ranks; root++)
      broadcasts.push_back(
          move_slots(broadcast_movement(self.with_root(root)), self.shape.slot_bytes));
    for (const Plan* plan : {&gather, &reduction, &std::as_const(broadcasts.front())})
      ASSERT_TRUE(small_enough(*plan)) << plan->name;
    fsccl_status_t state;
    for (int round = 0; round < kRounds; round++) {
      std::vector<int32_t> mine(100, 10 * round + rank), all(300), sum(100);
      ASSERT_TRUE(self.at_once(gather, OpCode::all_gather, mine.data(), all.data()).ok());
      for (int q = 0; q < ranks; q++)
        EXPECT_EQ(std::count(&all[100 * q], &all[100 * q] + 100, 10 * round + q), 100);
      ASSERT_TRUE((round % 7 ? self.at_once(reduction, OpCode::all_reduce, mine.data(), sum.data())
                             : self.in_the_ring(reduction, OpCode::all_reduce, mine.data(),
                                                sum.data(), true, &state))
                      .ok());
      EXPECT_EQ(std::count(sum.begin(), sum.end(), 30 * round + 3), 100);
      for (int again = 0; again < round % 12; again++) {  // fills the window in some rounds
        std::vector<int32_t> words(100, rank == round % ranks ? again : -1);
        const Plan& broadcast = broadcasts[static_cast<size_t>(round % ranks)];
        ASSERT_TRUE(self.at_once(broadcast, OpCode::broadcast, words.data(), words.data()).ok());
        EXPECT_EQ(std::count(words.begin(), words.end(), again), 100);
      }
    }
    EXPECT_EQ(self.engine->completed(), self.engine->submitted());
  });
}

}  // namespace
}  // namespace fsccl
