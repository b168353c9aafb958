// Tests fsccl_redistribute(): state that is sharded in one way becomes sharded in another, between
// ranks of which some hold copies, some hold other versions, and some hold nothing. Every byte that
// a rank gets is checked, and the tests make sure that no other byte was written.
#include <algorithm>

#include "fsccl/insight.h"
#include "fsccl/redistribute.h"
#include "support.h"

namespace fsccl::testing {
namespace {

constexpr size_t kGuard = 16;
constexpr char kUntouched = 0x5a;

struct ShardingCase {
  std::vector<fsccl_param_t> params;
  std::vector<fsccl_redistributed_t> buffers;
  fsccl_layout_t from = FSCCL_LAYOUT_FLAT, to = FSCCL_LAYOUT_FLAT;
  int old_shards = 1, new_shards = 1;
  uint64_t limit_bytes = 0;
};

fsccl_param_t param_of(std::vector<int64_t> shape, const char* name = nullptr) {
  fsccl_param_t param = FSCCL_PARAM_INIT;
  param.dims = static_cast<int>(shape.size());
  std::copy(shape.begin(), shape.end(), param.shape);
  param.name = name;
  return param;
}

char value_at(size_t buffer, uint64_t byte, uint64_t version) {
  return static_cast<char>(mix(mix(buffer, byte), version));
}

// The old and new buffers of a rank, in memory of the test with guards at both ends.
class State {
 public:
  State(ShardingCase c, int holds, int takes, uint64_t version)
      : case_(std::move(c)), takes_(takes) {
    config_ = FSCCL_REDISTRIBUTE_CONFIG_INIT;
    config_.from = {case_.from, case_.old_shards, holds};
    config_.to = {case_.to, case_.new_shards, takes};
    config_.version = version;
    config_.limit_bytes = case_.limit_bytes;
    old_ = pieces(case_.from, case_.old_shards, holds);
    new_ = pieces(case_.to, case_.new_shards, takes);
    for (size_t k = 0; k < case_.buffers.size(); k++) {
      fsccl_redistributed_t& buffer = case_.buffers[k];
      from_.push_back(memory(old_, buffer));
      to_.push_back(memory(new_, buffer));
      const uint64_t begin = at(old_, buffer).begin * fsccl_dtype_size(buffer.dtype);
      for (size_t i = kGuard; i + kGuard < from_[k].size(); i++)
        from_[k][i] = value_at(k, begin + i - kGuard, version);
      if (holds >= 0) buffer.from = from_[k].data() + kGuard;
      if (takes >= 0) buffer.to = to_[k].data() + kGuard;
    }
    before_ = from_;
  }

  fsccl_status_t move(fsccl_comm_t comm, uint64_t* version) {
    config_.params = case_.params.data();
    config_.count = case_.params.size();
    return fsccl_redistribute(&config_, case_.buffers.data(), case_.buffers.size(), comm, version);
  }
  void check(uint64_t version) {
    EXPECT_TRUE(from_ == before_);
    for (size_t k = 0; k < to_.size(); k++) {
      const fsccl_redistributed_t& buffer = case_.buffers[k];
      const uint64_t begin =
          takes_ < 0 ? 0 : at(new_, buffer).begin * fsccl_dtype_size(buffer.dtype);
      for (size_t i = 0; i < to_[k].size(); i++) {
        const bool guard = i < kGuard || i + kGuard >= to_[k].size();
        ASSERT_EQ(to_[k][i], guard ? kUntouched : value_at(k, begin + i - kGuard, version))
            << "buffer " << k << " byte " << i;
      }
    }
  }
  fsccl_redistribute_config_t& config() { return config_; }
  ShardingCase& parts() { return case_; }

 private:
  static const fsccl_piece_t& at(const std::vector<fsccl_piece_t>& pieces,
                                 const fsccl_redistributed_t& buffer) {
    static const fsccl_piece_t kNone = {0, 0};
    return pieces.empty() ? kNone : pieces[buffer.param];
  }
  std::vector<fsccl_piece_t> pieces(fsccl_layout_t layout, int shards, int shard) {
    std::vector<fsccl_piece_t> pieces(shard < 0 ? 0 : case_.params.size());
    if (shard >= 0) {
      EXPECT_OK(fsccl_layout_plan(layout, case_.params.data(), case_.params.size(), shards, shard,
                                  pieces.data(), nullptr));
    }
    return pieces;
  }
  static std::vector<char> memory(const std::vector<fsccl_piece_t>& pieces,
                                  const fsccl_redistributed_t& buffer) {
    return std::vector<char>(at(pieces, buffer).count * fsccl_dtype_size(buffer.dtype) + 2 * kGuard,
                             kUntouched);
  }

  ShardingCase case_;
  int takes_;
  fsccl_redistribute_config_t config_;
  std::vector<fsccl_piece_t> old_, new_;
  std::vector<std::vector<char>> from_, to_, before_;
};

ShardingCase random_case(Random& random, int ranks) {
  ShardingCase c;
  const fsccl_layout_t layouts[] = {FSCCL_LAYOUT_FLAT, FSCCL_LAYOUT_PER_PARAM, FSCCL_LAYOUT_RAGGED};
  for (uint64_t i = 1 + random.below(5); i > 0; i--) {
    std::vector<int64_t> shape;
    for (uint64_t dims = random.below(4); dims > 0; dims--)
      shape.push_back(static_cast<int64_t>(random.below(12)));
    c.params.push_back(param_of(shape));
    c.params.back().dtype = FSCCL_FLOAT32;
    if (c.params.size() > 1 && random.below(5) == 0 && c.params[0].tied_to < 0) {
      c.params.back() = c.params[0];
      c.params.back().tied_to = 0;
    }
  }
  for (size_t i = 0; i < c.params.size(); i++)
    for (uint64_t states = random.below(4); states > 0; states--)
      c.buffers.push_back(
          {i, static_cast<fsccl_dtype_t>(random.below(FSCCL_DTYPE_COUNT)), nullptr, nullptr});
  c.from = layouts[random.below(3)];
  c.to = layouts[random.below(3)];
  c.old_shards = 1 + static_cast<int>(random.below(static_cast<uint64_t>(ranks)));
  c.new_shards = 1 + static_cast<int>(random.below(static_cast<uint64_t>(ranks)));
  c.limit_bytes = random.below(2) ? 0 : random.below(3000);
  return c;
}

// Deals out the shards in a way that all ranks know: each shard goes to at least one rank.
std::vector<int> deal_out(Random& random, int ranks, int shards) {
  std::vector<int> dealt(static_cast<size_t>(ranks));
  const uint64_t first = random.below(static_cast<uint64_t>(ranks));
  for (size_t k = 0; k < dealt.size(); k++)
    dealt[(k + first) % dealt.size()] =
        static_cast<int>(k) < shards
            ? static_cast<int>(k)
            : static_cast<int>(random.below(static_cast<uint64_t>(shards) + 1)) - 1;
  return dealt;
}

TEST(Redistribute, AnyLayoutToAnyOther) {
  constexpr int kRanks = 6;
  run_ranks(kRanks, [](Rank& self) {
    Random random(5);
    for (uint64_t round = 0; round < 60 && !HasFailure(); round++) {
      const ShardingCase c = random_case(random, kRanks);
      const auto holds = deal_out(random, kRanks, c.old_shards),
                 takes = deal_out(random, kRanks, c.new_shards);
      State state(c, holds[static_cast<size_t>(self.rank)], takes[static_cast<size_t>(self.rank)],
                  round);
      uint64_t version = ~uint64_t{0};
      ASSERT_OK(state.move(self.comm, &version));
      EXPECT_EQ(version, round);
      state.check(round);
    }
  });
}

// Three ranks that hold shards 0, 1 and 0 have the given versions.
void versions(std::vector<uint64_t> versions, uint64_t expected) {
  run_ranks(3, [&](Rank& self) {
    ShardingCase c;
    c.params = {param_of({64, 3})};
    c.buffers = {{0, FSCCL_FLOAT32, nullptr, nullptr}};
    c.old_shards = 2;
    c.new_shards = 3;
    State state(c, self.rank % 2, self.rank, versions[static_cast<size_t>(self.rank)]);
    uint64_t version = 0;
    ASSERT_OK(state.move(self.comm, &version));
    EXPECT_EQ(version, expected);
    state.check(expected);
  });
}

TEST(Redistribute, TheNewestVersionThatIsWhole) {
  versions({7, 7, 7}, 7);
  versions({8, 7, 7}, 7);
  versions({7, 8, 8}, 8);
  versions({9, 9, 10}, 9);
}

// The exchange takes rounds, whose number follows from the limit of one operation and from the
// memory.
TEST(Redistribute, RoundsKeepToTheLimit) {
  run_ranks(2, [](Rank& self) {
    const auto operations = [&] {
      fsccl_counters_t counters = FSCCL_COUNTERS_INIT;
      EXPECT_OK(fsccl_comm_counters(self.comm, &counters));
      return counters.operations;
    };
    ShardingCase c;
    c.params = {param_of({1 << 14})};
    // The buffers have 80 KiB, of which half moves.
    c.buffers = {{0, FSCCL_UINT8, nullptr, nullptr}, {0, FSCCL_FLOAT32, nullptr, nullptr}};
    c.old_shards = c.new_shards = 2;
    for (const uint64_t limit :
         {uint64_t{0}, uint64_t{80} << 10, uint64_t{16} << 10, uint64_t{6000}}) {
      c.limit_bytes = limit;
      State state(c, self.rank, 1 - self.rank, 3);
      const uint64_t before = operations(), part = limit ? limit / 2 / 64 * 64 : 40 << 10;
      ASSERT_OK(state.move(self.comm, nullptr));
      state.check(3);
      // Ranks compare the terms, whether all can take part, what they hold, and whether all have
      // memory.
      constexpr uint64_t kVotes = 4;
      EXPECT_EQ(operations() - before, kVotes + ((40u << 10) + part - 1) / part);
    }
  });
}

TEST(Redistribute, WhatIsLostIsNamedByAll) {
  run_ranks(3, [](Rank& self) {
    ShardingCase c;
    c.params = {param_of({10, 2}, "first"), param_of({6}, "second")};
    c.buffers = {{0, FSCCL_FLOAT32, nullptr, nullptr}, {1, FSCCL_FLOAT32, nullptr, nullptr}};
    c.old_shards = 4;
    c.new_shards = 3;
    uint64_t version = 77;
    for (const auto layout : {FSCCL_LAYOUT_FLAT, FSCCL_LAYOUT_PER_PARAM}) {
      c.from = layout;
      State lost(c, self.rank == 2 ? 3 : self.rank, self.rank, 5);
      if (layout == FSCCL_LAYOUT_FLAT) {
        EXPECT_ERROR(lost.move(self.comm, &version), FSCCL_ERR_INVALID_STATE,
                     "no rank holds shard 2 of 4 of version 5: elements 14 .. 19 of parameter 0 "
                     "('first'), and of 1 more",
                     "checkpoint");
      } else {
        EXPECT_ERROR(lost.move(self.comm, &version), FSCCL_ERR_INVALID_STATE, "shard 2 of 4",
                     "elements 12 .. 17 of parameter 0");
      }
      EXPECT_EQ(version, 77u);
    }
    // If there are two versions, and neither is whole, the error names the one that lacks less.
    c.from = FSCCL_LAYOUT_FLAT;
    c.old_shards = 3;
    State mixed(c, self.rank, self.rank, self.rank == 1 ? 6 : 5);
    EXPECT_ERROR(mixed.move(self.comm, &version), FSCCL_ERR_INVALID_STATE,
                 "shard 1 of 3 of version 5", "1 other versions");
    State whole(c, self.rank, 2 - self.rank, 6);
    ASSERT_OK(whole.move(self.comm, &version));
    whole.check(6);
  });
}

// A wrong argument leaves no rank waiting, and the communicator still works.
TEST(Redistribute, WrongArguments) {
  run_ranks(2, [](Rank& self) {
    const bool odd = self.rank == 1;
    ShardingCase c;
    c.params = {param_of({8}), param_of({8})};
    c.buffers = {{0, FSCCL_FLOAT32, nullptr, nullptr}, {1, FSCCL_FLOAT32, nullptr, nullptr}};
    c.old_shards = c.new_shards = 2;
    const auto both = [&](const char* text, auto&& spoil) {
      State state(c, self.rank, self.rank, 1);
      if (odd) spoil(state);
      EXPECT_ERROR(state.move(self.comm, nullptr), FSCCL_ERR_INVALID_ARGUMENT,
                   odd ? text : "rank 1 could not take part");
    };
    both("shard 2 of 2", [](State& state) { state.config().from.rank = 2; });
    both("shard -2 of 2", [](State& state) { state.config().to.rank = -2; });
    both("shard 1 of 0", [](State& state) { state.config().to.ranks = 0; });
    both("`from` is NULL", [](State& state) { state.parts().buffers[1].from = nullptr; });
    both("`to` is NULL", [](State& state) { state.parts().buffers[1].to = nullptr; });
    both("overlap", [](State& state) {
      state.parts().buffers[1].to = const_cast<void*>(state.parts().buffers[1].from);
    });
    both("buffer 1: parameter 2 of 2", [](State& state) { state.parts().buffers[1].param = 2; });
    both("dtype 99",
         [](State& state) { state.parts().buffers[1].dtype = wild<fsccl_dtype_t>(99); });
    both("not a fsccl_layout_t",
         [](State& state) { state.config().to.layout = wild<fsccl_layout_t>(9); });
    both("dims is 9", [](State& state) { state.parts().params[0].dims = 9; });
    both("size field is 3", [](State& state) { state.config().size = 3; });
    const auto differ = [&](const char* text, auto&& spoil) {
      State state(c, self.rank, self.rank, 1);
      if (odd) spoil(state);
      EXPECT_ERROR(state.move(self.comm, nullptr), FSCCL_ERR_MISMATCH, "rank 0 and rank 1", text);
    };
    differ("layouts", [](State& state) { state.config().to.layout = FSCCL_LAYOUT_RAGGED; });
    differ("shapes", [](State& state) { state.parts().params[1].shape[0] = 7; });
    differ("buffers", [](State& state) { state.parts().buffers[1].dtype = FSCCL_INT32; });
    State idle(c, self.rank, odd ? 0 : FSCCL_NO_SHARD, 1);
    EXPECT_ERROR(idle.move(self.comm, nullptr), FSCCL_ERR_INVALID_ARGUMENT,
                 "no rank takes shard 1 of the 2");
    EXPECT_ERROR(fsccl_redistribute(nullptr, nullptr, 0, self.comm, nullptr),
                 FSCCL_ERR_INVALID_ARGUMENT, "config is NULL");
    EXPECT_ERROR(fsccl_redistribute(nullptr, nullptr, 0, nullptr, nullptr),
                 FSCCL_ERR_INVALID_HANDLE, "");
    State good(c, self.rank, 1 - self.rank, 1);
    ASSERT_OK(good.move(self.comm, nullptr));
    good.check(1);
  });
}

// Blocks that are whole rows are stored as the parameter is. Other blocks keep their order only
// from ragged to ragged.
TEST(Redistribute, Blocks) {
  run_ranks(2, [](Rank& self) {
    ShardingCase c;
    c.params = {param_of({12, 10}), param_of({3})};
    c.buffers = {{0, FSCCL_FLOAT64, nullptr, nullptr}, {1, FSCCL_FLOAT64, nullptr, nullptr}};
    c.from = FSCCL_LAYOUT_RAGGED;
    c.to = FSCCL_LAYOUT_RAGGED;
    c.new_shards = 2;
    c.params[0].block_rows = 4;
    c.params[0].block_columns = 5;
    State blocks(c, self.rank == 0 ? 0 : FSCCL_NO_SHARD, self.rank, 2);
    ASSERT_OK(blocks.move(self.comm, nullptr));
    blocks.check(2);
    c.params[0].block_columns = 10;
    State rows(c, self.rank == 0 ? 0 : FSCCL_NO_SHARD, self.rank, 2);
    rows.config().to.layout = FSCCL_LAYOUT_PER_PARAM;  // 6 rows a rank (if ragged, 8 and 4)
    std::vector<double> mine(60), tail(3, 0);
    rows.parts().buffers[0].to = mine.data();
    rows.parts().buffers[1].to = tail.data();
    ASSERT_OK(rows.move(self.comm, nullptr));
    for (size_t i = 0; i < sizeof(double) * mine.size(); i++)
      ASSERT_EQ(reinterpret_cast<const char*>(mine.data())[i],
                value_at(0, static_cast<uint64_t>(self.rank)* 480 + i, 2));
    rows.parts().params[0].block_columns = 5;
    EXPECT_ERROR(rows.move(self.comm, nullptr), FSCCL_ERR_NOT_AVAILABLE, "blocks of 4 x 5",
                 "FSCCL_LAYOUT_RAGGED");
  });
}

}  // namespace
}  // namespace fsccl::testing
