// Tests that a call begins with the plan that suits the buffers of the calls before it.
#include "engine/foresight.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "comm/collective.h"
#include "tests/unit/wrapped_channel.h"

namespace fsccl {
namespace {

using testing::options_over;
using testing::over_channel;
using testing::Wrapped;

TEST(Foresight, WantsToBeSure) {
  Foresight foresight;
  for (int i = 0; i < 4; i++) {
    EXPECT_FALSE(foresight.unreachable());
    foresight.found(true);
  }
  EXPECT_TRUE(foresight.unreachable());
  foresight.found(true);
  EXPECT_TRUE(foresight.unreachable());
  foresight.found(false);
  for (int i = 0; i < 3; i++) foresight.found(true);
  EXPECT_FALSE(foresight.unreachable());
}

TEST(RootedForesight, AsksAgain) {
  RootedForesight foresight;
  for (int i = 0; i < 4; i++) {
    EXPECT_FALSE(foresight.unreachable());
    foresight.found(true);
  }
  for (int round = 0; round < 3; round++) {
    for (uint32_t i = 0; i < RootedForesight::kUnasked; i++) {
      EXPECT_TRUE(foresight.unreachable());
      foresight.did_not_ask();
    }
    EXPECT_FALSE(foresight.unreachable());
    foresight.found(true);
  }
  EXPECT_TRUE(foresight.unreachable());
  foresight.found(false);
  EXPECT_FALSE(foresight.unreachable());
}

constexpr int kRanks = 3;
constexpr size_t kCount = 1000;
// A peer whose signals are hidden from this many looks is late: the looks of a small call, and as
// many of the ring (Runner::bare_polls()), are over, and the thread sleeps.
constexpr int kLooksForALatePeer = 850;

// One of three ranks, which makes all-gathers or broadcasts. Its buffers lie in memory that no
// other rank can touch, or in an arena of all ranks.
class Calling {
 public:
  Calling(int rank, Wrapped& channel, uint32_t tick, const ArenaTable& arenas, float* pool)
      : rank_(rank),
        pool_(pool),
        engine_(options(rank, channel, tick, arenas)),
        collectives_(engine_, asking()) {
    channel.on_signal = [this](uint32_t) { signals_++; };
    channel.on_poll = [this](auto...) { return hidden_-- <= 0; };
  }
  // Hides peers' signals from the next `looks` looks for them.
  void hide(int looks) { hidden_ = looks; }

  // Returns how many signals this rank gave in a call: a call that goes through slots at once gives
  // one, a call that asks first gives two.
  int signals_of_a_call(bool pooled, OpCode op = OpCode::all_gather, int root = 0) {
    std::vector<float> own(kCount * (kRanks + 1));
    float* const send = pooled ? pool_ : own.data();
    float* const recv = send + kCount;
    std::fill_n(send, kCount, static_cast<float>(10 * calls_ + rank_));
    const int before = signals_;
    fsccl_status_t state = FSCCL_IN_PROGRESS;
    EXPECT_TRUE(collectives_
                    .run({.op = op,
                          .input = send,
                          .output = op == OpCode::broadcast ? send : recv,
                          .count = kCount,
                          .dtype = FSCCL_FLOAT32,
                          .root = root},
                         true, &state)
                    .ok());
    const auto expect_of = [&](const float* begin, int q) {
      const auto value = static_cast<float>(10 * calls_ + q);
      EXPECT_EQ(std::count(begin, begin + kCount, value), kCount) << "of " << q;
    };
    if (op == OpCode::broadcast)
      expect_of(send, root);
    else
      for (int q = 0; q < kRanks; q++) expect_of(recv + kCount * q, q);
    calls_++;
    return signals_ - before;
  }

 private:
  static EngineOptions options(int rank, Wrapped& channel, uint32_t tick,
                               const ArenaTable& arenas) {
    EngineOptions options = options_over(channel, rank, kRanks, tick);
    options.arenas = &arenas;
    options.same_process.assign(kRanks, false);
    return options;
  }
  static CollectiveOptions asking() {
    CollectiveOptions options;
    options.select.eager_bytes = 0;
    return options;
  }

  const int rank_;
  float* const pool_;
  int calls_ = 0, signals_ = 0, hidden_ = 0;
  Engine engine_;
  Collectives collectives_;
};

void run_calls(const std::function<void(int rank, Calling& self)>& body) {
  std::vector<float> memory(kRanks * kCount * (kRanks + 1));
  ArenaTable arenas;
  ASSERT_TRUE(arenas
                  .add(kFirstArena, reinterpret_cast<std::byte*>(memory.data()),
                       memory.size() * sizeof(float), {0, 1, 2})
                  .ok());
  over_channel(kRanks, [&](int rank, Wrapped& channel, uint32_t tick) {
    Calling self(rank, channel, tick, arenas,
                 memory.data() + static_cast<size_t>(rank) * kCount * (kRanks + 1));
    body(rank, self);
  });
}

TEST(Foresight, SavesAnExchangeOfCallsOnTheCallersMemory) {
  run_calls([](int, Calling& self) {
    for (int i = 0; i < 4; i++) EXPECT_EQ(self.signals_of_a_call(false), 2) << i;
    for (int i = 0; i < 20; i++) EXPECT_EQ(self.signals_of_a_call(false), 1) << i;
    EXPECT_EQ(self.signals_of_a_call(true), 1) << "in vain";
    EXPECT_EQ(self.signals_of_a_call(true), 2) << "straight from memory of the pool";
    for (int i = 0; i < 4; i++) EXPECT_EQ(self.signals_of_a_call(false), 2) << i;
    EXPECT_EQ(self.signals_of_a_call(false), 1);
  });
}

// A call that began without an entry in the ring goes on in the ring if a peer is late, whichever
// of its waits is the long one.
TEST(Foresight, HoldsWhereAPeerIsLate) {
  run_calls([](int rank, Calling& self) {
    for (int i = 0; i < 4; i++) EXPECT_EQ(self.signals_of_a_call(false), 2) << i;
    for (int i = 0; i < 30; i++) {
      if (i % 3 == rank) self.hide(i % 2 ? kLooksForALatePeer : 1);
      EXPECT_EQ(self.signals_of_a_call(false), 1) << i;
    }
    if (rank == 1) self.hide(kLooksForALatePeer);
    EXPECT_EQ(self.signals_of_a_call(true), 1);
    EXPECT_EQ(self.signals_of_a_call(true), 2);
    for (int i = 0; i < 8; i++) {
      if (i == rank) self.hide(kLooksForALatePeer);
      EXPECT_EQ(self.signals_of_a_call(rank != 2), i < 4 ? 2 : 1) << i;
    }
  });
}

TEST(Foresight, IsTheSameOnRanksWhoseOwnMemoryIsOfThePool) {
  run_calls([](int rank, Calling& self) {
    for (int i = 0; i < 8; i++) EXPECT_EQ(self.signals_of_a_call(rank != 1), i < 4 ? 2 : 1) << i;
  });
}

// A root that asks where the buffers are gives one signal more.
TEST(RootedForesight, SavesAnExchangeOfMostCallsOnTheCallersMemory) {
  run_calls([](int rank, Calling& self) {
    const auto broadcast = [&](bool pooled, int call) {
      const int signals = self.signals_of_a_call(pooled, OpCode::broadcast, call % kRanks);
      return rank == call % kRanks ? signals : -1;
    };
    const auto expect = [&](bool pooled, int call, int signals) {
      const int given = broadcast(pooled, call);
      EXPECT_TRUE(given < 0 || given == signals) << given << " signals of call " << call;
    };
    int call = 0;
    for (; call < 4; call++) expect(false, call, 2);
    for (int round = 0; round < 3; round++) {
      for (uint32_t i = 0; i < RootedForesight::kUnasked; i++) expect(false, call++, 1);
      expect(false, call++, 2);
    }
    for (uint32_t i = 0; i < RootedForesight::kUnasked; i++) expect(true, call++, 1);
    for (int i = 0; i < 9; i++) broadcast(true, call++);
    for (int i = 0; i < 4; i++) expect(false, call++, 2);
    expect(false, call++, 1);
  });
}

TEST(RootedForesight, HoldsWhereAPeerIsLate) {
  run_calls([](int rank, Calling& self) {
    for (int i = 0; i < 60; i++) {
      const int root = i / 3 % kRanks;
      const bool late = i % 4 == rank && rank != root;  // a root looks for nobody
      if (late) self.hide(i % 2 ? kLooksForALatePeer : 1);
      self.signals_of_a_call(rank == 1 || i / 20 == 1, OpCode::broadcast, root);
    }
  });
}

}  // namespace
}  // namespace fsccl
