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

constexpr int kRanks = 3;
constexpr size_t kCount = 1000;
// A peer whose signals are hidden from this many looks is late: the looks of a small call, and as
// many of the ring (Runner::bare_polls()), are over, and the thread sleeps.
constexpr int kLooksForALatePeer = 850;

// One of three ranks, which makes all-gathers. Its buffers lie in memory that no other rank can
// touch, or in an arena of all ranks.
class Gathering {
 public:
  Gathering(int rank, Wrapped& channel, uint32_t tick, const ArenaTable& arenas, float* pool)
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
  int signals_of_a_call(bool pooled) {
    std::vector<float> own(kCount * (kRanks + 1));
    float* const send = pooled ? pool_ : own.data();
    float* const recv = send + kCount;
    std::fill_n(send, kCount, static_cast<float>(10 * calls_ + rank_));
    const int before = signals_;
    fsccl_status_t state = FSCCL_IN_PROGRESS;
    EXPECT_TRUE(collectives_
                    .run({.op = OpCode::all_gather,
                          .input = send,
                          .output = recv,
                          .count = kCount,
                          .dtype = FSCCL_FLOAT32},
                         true, &state)
                    .ok());
    for (int q = 0; q < kRanks; q++)
      EXPECT_EQ(std::count(recv + kCount * q, recv + kCount * (q + 1),
                           static_cast<float>(10 * calls_ + q)),
                kCount)
          << "of " << q;
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

void gather(const std::function<void(int rank, Gathering& self)>& body) {
  std::vector<float> memory(kRanks * kCount * (kRanks + 1));
  ArenaTable arenas;
  ASSERT_TRUE(arenas
                  .add(kFirstArena, reinterpret_cast<std::byte*>(memory.data()),
                       memory.size() * sizeof(float), {0, 1, 2})
                  .ok());
  over_channel(kRanks, [&](int rank, Wrapped& channel, uint32_t tick) {
    Gathering self(rank, channel, tick, arenas,
                   memory.data() + static_cast<size_t>(rank) * kCount * (kRanks + 1));
    body(rank, self);
  });
}

TEST(Foresight, SavesAnExchangeOfCallsOnTheCallersMemory) {
  gather([](int, Gathering& self) {
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
  gather([](int rank, Gathering& self) {
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
  gather([](int rank, Gathering& self) {
    for (int i = 0; i < 8; i++) EXPECT_EQ(self.signals_of_a_call(rank != 1), i < 4 ? 2 : 1) << i;
  });
}

}  // namespace
}  // namespace fsccl
