// Tests the measurement at start. Whatever the ranks' speeds, all ranks finish it, with the same
// costs and the same next tick. The ranks are threads over a real channel, whose functions are
// wrapped to make a rank slow at a given point.
#include "select/calibration.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <array>
#include <atomic>
#include <utility>
#include <vector>

#include "tests/unit/wrapped_channel.h"

namespace fsccl {
namespace {

using namespace testing;

// An engine signals in this many ticks before it waits for its peers.
constexpr uint32_t kEngineTicks = 8;

Costs measure(int rank, int ranks, Wrapped& channel, uint32_t* tick, bool share_cores = false) {
  return calibrate({&channel, rank, ranks, now_ns() + kLimitNs, [] { return false; }}, ranks - 1,
                   {}, share_cores, tick);
}

void signal_as_the_engine_may(Wrapped& channel, uint32_t tick) {
  for (uint32_t i = 0; i < kEngineTicks; i++) {
    fsccl_transport_line_t line{};
    line.tick = tick + i;
    channel.inner->signal(line);
  }
}

// Ranks that share cores measure only the copy, and none waits for an exchange with another.
TEST(Calibration, RanksThatShareCoresMeasureTheCopyAlone) {
  std::vector<Costs> costs(4);
  over_channel(4, [&](int rank, Wrapped& channel, uint32_t tick) {
    costs[static_cast<size_t>(rank)] = measure(rank, 4, channel, &tick, true);
  });
  const Costs table;
  for (const Costs& one : costs) {
    EXPECT_EQ(one.origin, CostsOrigin::calibration);
    EXPECT_EQ(one.exchange, table.exchange);
    EXPECT_EQ(one.slot_cached.ns, table.slot_cached.ns);
    EXPECT_EQ(one.slot_streaming.ns, table.slot_streaming.ns);
    EXPECT_GT(one.copy_per_byte, 0);
    EXPECT_NE(one.copy_per_byte, table.copy_per_byte);
    EXPECT_EQ(one.copy_per_byte, costs[0].copy_per_byte);
  }
}

TEST(Calibration, AllTakeOverTheSame) {
  for (int ranks = 2; ranks <= 4; ranks++) {
    std::vector<Costs> costs(static_cast<size_t>(ranks));
    std::vector<uint32_t> ticks(costs.size());
    over_channel(ranks, [&](int rank, Wrapped& channel, uint32_t tick) {
      costs[static_cast<size_t>(rank)] = measure(rank, ranks, channel, &tick);
      ticks[static_cast<size_t>(rank)] = tick;
    });
    for (size_t rank = 1; rank < costs.size(); rank++) {
      EXPECT_EQ(ticks[rank], ticks[0]);
      EXPECT_EQ(costs[rank].exchange, costs[0].exchange);
      EXPECT_EQ(costs[rank].slot_cached.ns, costs[0].slot_cached.ns);
      EXPECT_EQ(costs[rank].copy_per_byte, costs[0].copy_per_byte);
    }
  }
}

// The time of the rank that is this thread, where a test uses own_time(). It passes only where the
// test says so, however busy the machine is.
thread_local int64_t own_ns = 0;

// Lets the two ranks measure by own_ns and returns their costs. Each signal takes 1 ns longer than
// the one before, so that copies through slots, whose time is a difference of two, take some time.
// `on_begin` is called before a rank measures, and `on_read` at each read.
std::array<Costs, 2> in_own_time(
    const std::function<void(int rank, size_t bytes)>& on_read,
    const std::function<void(int rank)>& on_poll = [](int) {},
    const std::function<void(int rank)>& on_begin = [](int) {}) {
  std::array<Costs, 2> costs;
  over_channel(2, [&](int rank, Wrapped& channel, uint32_t tick) {
    own_ns = 0;
    channel.on_signal = [first = tick](uint32_t signalled) { own_ns += 50 + signalled - first; };
    channel.on_read = [&, rank](size_t bytes) {
      own_ns += 100;
      on_read(rank, bytes);
      return FSCCL_OK;
    };
    channel.on_poll = [&, rank](auto...) {
      on_poll(rank);
      return true;
    };
    // The ranks do not share a core by their words, which is where the system may run them.
    channel.on_word = [](fsccl_transport_word_t* word) { word->processor = -1; };
    Startup startup{&channel, rank, 2, now_ns() + kLimitNs, [] { return false; }};
    startup.clock = [] { return own_ns; };
    on_begin(rank);
    costs[static_cast<size_t>(rank)] = calibrate(startup, 1, {}, false, &tick);
  });
  EXPECT_EQ(costs[0].origin, CostsOrigin::calibration);
  EXPECT_TRUE(costs[0].can_read);
  EXPECT_EQ(costs[1].exchange, costs[0].exchange);
  EXPECT_EQ(costs[1].read_to_slots, costs[0].read_to_slots);
  return costs;
}

// A large read that takes much longer than the copies through slots gets the largest factor.
TEST(Calibration, ReadsPastTheCachesAreMeasured) {
  const auto costs = in_own_time([](int, size_t bytes) {
    if (bytes > kPastCachesBytes / 4) own_ns += 5'000'000;
  });
  EXPECT_EQ(costs[0].read_to_slots, Costs::kMostToSlots);
}

// The bytes that the peer has just written are measured last among those of the largest size.
TEST(Calibration, ReadsOfWhatThePeerHasWrittenAreMeasured) {
  for (const int64_t longer : {0, 50, 100'000}) {
    std::array<int, 2> large{};
    std::atomic<int> most{0};
    const auto costs = in_own_time([&](int rank, size_t bytes) {
      if (bytes != Cost::kSizes.back()) return;
      const int reads = ++large[static_cast<size_t>(rank)];
      most = std::max<int>(most, reads);
      if (reads > 42) own_ns += longer;  // a batch has 7 samples of 6 reads
    });
    EXPECT_EQ(most, 84);
    const double wanted = longer == 0    ? Costs::kLeastWritten
                          : longer == 50 ? 1.5
                                         : Costs::kMostWritten;
    EXPECT_NEAR(costs[0].read_written, wanted, 0.15);
  }
}

// A system call takes longer after a wait than after another call, and in a plan it follows a wait.
TEST(Calibration, AReadFollowsAnExchange) {
  std::array<int, 2> reads{}, polls{}, without{};
  in_own_time(
      [&](int rank, size_t) {
        const auto me = static_cast<size_t>(rank);
        reads[me]++;
        without[me] += std::exchange(polls[me], 0) == 0;
      },
      [&](int rank) { polls[static_cast<size_t>(rank)]++; });
  for (size_t rank = 0; rank < 2; rank++) {
    EXPECT_GT(reads[rank], 100);
    EXPECT_EQ(without[rank], 0);
  }
}

// A rank may come to the measurement long after the other one, whose time passes in each poll.
TEST(Calibration, ARankThatComesLateIsWaitedFor) {
  std::atomic<bool> late{true};
  std::atomic<int> polls{0};
  in_own_time([](int, size_t) {},
              [&](int rank) {
                if (rank != 0 || !late) return;
                polls++;
                own_ns += 1'000'000;
              },
              [&](int rank) {
                if (rank != 1) return;
                while (polls < 3000) std::this_thread::yield();
                late = false;
              });
}

// A rank that waits too long for the other one only once large reads are measured keeps all that
// was measured before. Rank 1 waits: its time passes in each poll while rank 0 reads.
TEST(Calibration, WhatWasMeasuredBeforeTheLastPartIsKept) {
  std::atomic<bool> reads{false};
  std::atomic<int> polls{0};
  const auto costs = in_own_time(
      [&](int rank, size_t bytes) {
        if (rank != 0 || bytes < kPastCachesBytes / 4) return;
        reads = true;
        // Rank 1 looks at its clock after the first 1000 polls of a wait.
        while (polls < 3000) std::this_thread::yield();
        reads = false;
      },
      [&](int rank) {
        if (rank != 1 || !reads) return;
        polls++;
        own_ns += 1'000'000;
      });
  EXPECT_NE(costs[0].exchange, Costs{}.exchange);
  EXPECT_EQ(costs[0].read_to_slots, 0);
}

// The same holds for reads within the caches: the ranks know nevertheless that they can read. After
// the measurement was cut short no rank reads, because the other one may have freed its memory.
TEST(Calibration, WhoIsCutShortInReadsCanRead) {
  std::atomic<bool> slow{false};
  std::atomic<int> polls{0}, late{0};
  std::array<Costs, 2> costs;
  over_channel(2, [&](int rank, Wrapped& channel, uint32_t tick) {
    own_ns = 0;
    bool over = false;
    channel.on_signal = [first = tick](uint32_t signalled) { own_ns += 50 + signalled - first; };
    channel.on_read = [&, rank](size_t bytes) {
      late += over;
      if (rank != 0 || bytes != Cost::kSizes.back() || slow || over) return FSCCL_OK;
      slow = true;
      // Rank 1 looks at its clock after the first 1000 polls of a wait.
      while (polls < 3000) std::this_thread::yield();
      slow = false;
      over = true;
      return FSCCL_OK;
    };
    channel.on_poll = [&, rank](auto...) {
      if (rank != 1 || !slow) return true;
      polls++;
      own_ns += 1'000'000;
      return true;
    };
    channel.on_word = [](fsccl_transport_word_t* word) { word->processor = -1; };
    Startup startup{&channel, rank, 2, now_ns() + kLimitNs, [] { return false; }};
    startup.clock = [] { return own_ns; };
    costs[static_cast<size_t>(rank)] = calibrate(startup, 1, {}, false, &tick);
  });
  for (const Costs& one : costs) {
    EXPECT_EQ(one.origin, CostsOrigin::table);
    EXPECT_TRUE(one.can_read);
  }
  EXPECT_LE(late, 1) << "a read may follow the exchange in which rank 1 did not yet stop";
}

// Two ranks that do not run at once learn nevertheless whether the system lets them read each
// other's memory.
TEST(Calibration, WhoMeasuresNothingKnowsWhetherItCanRead) {
  for (const bool refused : {false, true})
    over_channel(2, [&](int rank, Wrapped& channel, uint32_t tick) {
      channel.on_read = [&](size_t) { return refused ? FSCCL_ERR_SYSTEM : FSCCL_OK; };
      channel.on_signal = [](uint32_t) {
        for (const int64_t turn = now_ns() + 10'000; now_ns() < turn;) std::this_thread::yield();
      };
      const Costs costs = measure(rank, 2, channel, &tick);
      EXPECT_EQ(costs.origin, CostsOrigin::table);
      EXPECT_EQ(costs.can_read, !refused);
    });
}

// One of the two ranks is so slow at an exchange that the other gives up, and then the slow one
// does not see at once the line with which the other gives up. The lines that come next, also the
// engine's, must not overwrite that line.
TEST(Calibration, WhoGivesUpWaitsForTheSlowOne) {
  for (uint32_t i = 0; i < 2 * FSCCL_TRANSPORT_TICKS; i++) {
    const int slow = static_cast<int>(i % 2);
    // The last tick for which the other rank has looked, and how often it has looked for it.
    std::atomic<uint32_t> polled{0}, tries{0};
    std::atomic<bool> over{false};
    const int64_t begin = now_ns();
    over_channel(2, [&](int rank, Wrapped& channel, uint32_t tick) {
      const uint32_t slow_at = tick + 2 + i / 2;
      if (rank == slow) {
        channel.on_signal = [&, slow_at](uint32_t signalled) {
          if (signalled != slow_at) return;
          const int64_t patience = now_ns() + 35'000'000;  // the other rank waits for 30 ms
          while (now_ns() < patience || polled != slow_at || tries < 2000)
            std::this_thread::yield();
        };
        channel.on_poll = [&](const fsccl_transport_line_t* line, int, uint32_t wanted) {
          return !line || line->payload[0] == 0 || over || polled > wanted;
        };
      } else {
        channel.on_poll = [&](const fsccl_transport_line_t*, int, uint32_t wanted) {
          tries = polled.exchange(wanted) == wanted ? tries + 1 : 0;
          return true;
        };
      }
      const Costs costs = measure(rank, 2, channel, &tick);
      if (rank != slow) {
        signal_as_the_engine_may(channel, tick);
        over = true;
      }
      EXPECT_EQ(costs.exchange, Costs{}.exchange);
    });
    ASSERT_LT(now_ns() - begin, kLimitNs) << "rank " << slow << ", exchange " << i / 2;
  }
}

// Two ranks that do not run at once notice it, and end the measurement.
TEST(Calibration, EndsAtOnceWhereTheTwoDoNotRunAtOnce) {
  std::array<std::atomic<int>, 2> signals{};
  over_channel(2, [&](int rank, Wrapped& channel, uint32_t tick) {
    channel.on_signal = [&, rank](uint32_t) {
      signals[static_cast<size_t>(rank)]++;
      for (const int64_t turn = now_ns() + 10'000; now_ns() < turn;) std::this_thread::yield();
    };
    EXPECT_EQ(measure(rank, 2, channel, &tick).origin, CostsOrigin::table);
  });
  for (const auto& count : signals) EXPECT_LT(count, 50);
}

// Two ranks that take turns on a core do not measure, however fast the core switches between them:
// their times would say that copies take twice as long as they do.
TEST(Calibration, RanksOnOneCoreMeasureNothing) {
  cpu_set_t before, first;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  CPU_ZERO(&first);
  for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&first) == 0; cpu++)
    if (CPU_ISSET(cpu, &before)) CPU_SET(cpu, &first);
  over_channel(2, [&](int rank, Wrapped& channel, uint32_t tick) {
    EXPECT_EQ(sched_setaffinity(0, sizeof first, &first), 0);
    const Startup startup{channel.inner.get(), rank, 2, now_ns() + kLimitNs, [] { return false; }};
    EXPECT_EQ(calibrate(startup, 1, {}, false, &tick).origin, CostsOrigin::table);
  });
}

// A rank that comes late still finds the first lines of ranks 0 and 1.
TEST(Calibration, NobodyIsOverrunAtTheBegin) {
  std::atomic<bool> waited_for{false}, over{false};
  over_channel(3, [&](int rank, Wrapped& channel, uint32_t tick) {
    if (rank == 2) {
      while (!waited_for && !over) std::this_thread::yield();
      for (int peer = 0; peer < 2; peer++) EXPECT_NE(channel.inner->poll(peer, tick - 1), nullptr);
    } else {
      channel.on_poll = [&](const fsccl_transport_line_t*, int peer, uint32_t) {
        if (peer == 2) waited_for = true;
        return true;
      };
    }
    measure(rank, 3, channel, &tick);
    over = true;
  });
}

}  // namespace
}  // namespace fsccl
