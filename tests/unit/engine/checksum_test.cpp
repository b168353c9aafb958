// Tests FSCCL_CHECKSUM over shared memory: a byte changes between the rank that puts it and the
// rank that takes it.
#include <gmock/gmock.h>

#include <array>
#include <barrier>
#include <cstring>

#include "engine/engine.h"
#include "plan/collectives.h"
#include "tests/unit/wrapped_channel.h"

namespace fsccl {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using testing::options_over;
using testing::over_channel;
using testing::Wrapped;

constexpr size_t kMost = 1 << 20;

struct Outcome {
  Status status;     // status of the operation, or an error that the engine found after it
  Status unsettled;  // status of the operation alone
  std::vector<uint8_t> output;
};

struct Case {
  OpCode op;
  std::function<Plan(const Shape&)> plan;
  uint64_t count;  // bytes of a rank
  std::function<void(int rank, Wrapped& channel)> spoil = [](int, Wrapped&) {};
};

// Runs the case once on two ranks. All bytes of rank r's input are r + 1.
std::array<Outcome, 2> run(const Case& what, bool checksum) {
  std::array<Outcome, 2> results;
  std::barrier over(2);
  over_channel(2, [&](int rank, Wrapped& channel, uint32_t tick) {
    what.spoil(rank, channel);
    EngineOptions options = options_over(channel, rank, 2, tick);
    options.checksum = checksum;
    Engine engine(std::move(options));
    Shape shape;
    shape.rank = rank;
    shape.ranks = 2;
    shape.count = what.count;
    shape.slot_bytes = engine.slot_bytes();
    const Plan plan = what.plan(shape);
    std::vector<uint8_t> input(kMost, static_cast<uint8_t>(rank + 1)), scratch(64);
    Outcome& result = results[static_cast<size_t>(rank)];
    result.output.resize(kMost);
    Operation* operation = nullptr;
    ASSERT_TRUE(
        engine.acquire(&operation, {}, {.op = what.op, .dtype = FSCCL_UINT8, .count = what.count})
            .ok());
    operation->plan = &plan;
    operation->inline_bindings[0].base = reinterpret_cast<std::byte*>(input.data());
    operation->inline_bindings[1].base = reinterpret_cast<std::byte*>(result.output.data());
    operation->inline_bindings[2].base = reinterpret_cast<std::byte*>(scratch.data());
    fsccl_status_t state;
    result.unsettled = engine.submit(*operation, true, &state);
    over.arrive_and_wait();
    engine.look_for_failure();
    result.status = engine.failed() ? engine.failure() : success();
  });
  return results;
}

Plan all_gather(const Shape& shape) {
  return move_slots(all_gather_movement(shape), shape.slot_bytes);
}
Plan reduce_scatter(const Shape& shape) {
  return reduce_slots(reduction_of_reduce_scatter(shape), shape.slot_bytes);
}
Plan all_reduce(const Shape& shape) {
  return reduce_slots(reduction_of_all_reduce(shape), shape.slot_bytes);
}

// Returns a function that changes byte `at` of rank 0's slots when rank 0 has given signal number
// `signal`.
auto flip_in_slot(uint32_t signal, size_t at) {
  return [=](int rank, Wrapped& channel) {
    if (rank != 0) return;
    channel.on_signal = [=, &channel, seen = uint32_t{0}](uint32_t) mutable {
      size_t ring = 0, slot = 0;
      auto* bytes = reinterpret_cast<uint8_t*>(channel.inner->slots(0, &ring, &slot));
      if (seen++ == signal) bytes[at] ^= 4;
    };
  };
}

void expect_named(const std::array<Outcome, 2>& results, const char* operation) {
  EXPECT_EQ(results[1].unsettled.code(), FSCCL_ERR_PROTOCOL);
  for (const Outcome& result : results) {
    EXPECT_EQ(result.status.code(), FSCCL_ERR_PROTOCOL);
    EXPECT_THAT(
        result.status.text(),
        AllOf(HasSubstr("rank 1 got "), HasSubstr("from rank 0 over shm"), HasSubstr(operation),
              ContainsRegex("CRC32C is 0x[0-9a-f]{8}, 0x[0-9a-f]{8} was meant")));
  }
}

TEST(Checksum, FindsAByteThatChangedInASlot) {
  const Case what{OpCode::all_gather, all_gather, 5000, flip_in_slot(0, 4999)};
  expect_named(run(what, true), "5000 bytes of all_gather of 5000 uint8 (operation 1)");
  const auto unseen = run(what, false);  // without checksums no rank notices the change
  EXPECT_TRUE(unseen[1].status.ok());
  EXPECT_EQ(unseen[1].output[4999], 1 ^ 4);
}

TEST(Checksum, FindsItInWhatIsFolded) {
  const Case what{OpCode::reduce_scatter, reduce_scatter, 3000, nullptr};
  for (const size_t at : {size_t{0}, size_t{2999}}) {  // the slot holds only rank 1's piece
    Case spoiled = what;
    spoiled.spoil = flip_in_slot(0, at);
    expect_named(run(spoiled, true), "reduce_scatter");
    EXPECT_TRUE(run(spoiled, false)[1].status.ok());
  }
}

TEST(Checksum, FindsItInAResult) {
  Case what{OpCode::all_reduce, all_reduce, 3072, nullptr};
  size_t result_slot = 0;
  what.plan = [&](const Shape& shape) {
    Plan plan = all_reduce(shape);
    if (shape.rank == 0) result_slot = slot_bytes_with_checksums(plan.slots[0]);
    return plan;
  };
  what.spoil = [&](int rank, Wrapped& channel) {
    if (rank != 0) return;
    channel.on_signal = [&, seen = 0](uint32_t) mutable {
      size_t ring = 0, slot = 0;
      auto* bytes = reinterpret_cast<uint8_t*>(channel.inner->slots(0, &ring, &slot));
      if (seen++ == 1) bytes[result_slot + 17] ^= 1;
    };
  };
  expect_named(run(what, true), "all_reduce");
}

TEST(Checksum, FindsItInASignal) {
  const Case what{OpCode::all_gather, all_gather_inline, 24, [](int rank, Wrapped& channel) {
                    if (rank != 1) return;
                    channel.on_poll = [done = false](const fsccl_transport_line_t* line, int,
                                                     uint32_t) mutable {
                      if (line && !std::exchange(done, true))
                        const_cast<fsccl_transport_line_t*>(line)->payload[23] ^= 128;
                      return true;
                    };
                  }};
  expect_named(run(what, true), "a signal's payload of all_gather of 24 uint8 (operation 1)");
  const auto unseen = run(what, false);
  EXPECT_TRUE(unseen[1].status.ok());
  EXPECT_EQ(unseen[1].output[23], 1 ^ 128);
}

TEST(Checksum, LetsWhatIsAsItWasMeantPass) {
  for (const uint64_t count : {1, 63, 5000, 300'001}) {
    const auto gathered = run({OpCode::all_gather, all_gather, count}, true);
    for (const Outcome& result : gathered) {
      EXPECT_TRUE(result.status.ok()) << result.status.text();
      EXPECT_EQ(result.output[0], 1);
      EXPECT_EQ(result.output[count], 2);
    }
    for (const Case& what : {Case{OpCode::reduce_scatter, reduce_scatter, count},
                             Case{OpCode::all_reduce, all_reduce, count}})
      for (const Outcome& result : run(what, true)) {
        EXPECT_TRUE(result.status.ok()) << result.status.text();
        EXPECT_EQ(result.output[0], 3);
        EXPECT_EQ(result.output[count - 1], 3);
      }
  }
}

// differ_in_checksum() is true only of two calls that differ in nothing else. Any other difference
// is still a mismatch.
TEST(Checksum, IsNoMismatch) {
  const auto results = run({OpCode::all_gather, all_gather, 100, [](int, Wrapped&) {}}, true);
  EXPECT_TRUE(results[0].status.ok());
  Fingerprint mine{.op = OpCode::all_gather, .count = 8, .sequence = 5}, theirs = mine;
  theirs.sequence ^= uint64_t{1} << 40;
  EXPECT_TRUE(differ_in_checksum(mine, theirs));
  theirs.count = 9;
  EXPECT_FALSE(differ_in_checksum(mine, theirs));
  theirs = mine;
  theirs.sequence = 6;
  EXPECT_FALSE(differ_in_checksum(mine, theirs));
}

TEST(Checksum, SlotsAndTheirTablesFitWhereSlotsDid) {
  for (size_t bytes = 4096; bytes <= 1 << 20; bytes += 4096) {
    const size_t slot = slot_bytes_beside_checksums(bytes);
    EXPECT_LE(slot_bytes_with_checksums(slot), bytes);
    EXPECT_EQ(slot % 64, 0u);
    EXPECT_GE(slot, bytes * 9 / 10);
  }
  for (size_t ranks = 2; ranks <= 4096; ranks++)  // a line of each rank fits beside checksums
    EXPECT_GE(slot_bytes_beside_checksums(slot_bytes_with_checksums(64 * ranks)), 64 * ranks)
        << ranks;
}

}  // namespace
}  // namespace fsccl
