// Tests blocks of a pool on a GPU, on streams: which memory a stream can take again at once, which
// work it waits for, and when the pool takes memory from the driver and gives it back.
#include <memory>
#include <random>

#include "pool_ranks.h"
#include "tests/conformance/capture.h"

namespace fsccl::testing {
namespace {

constexpr uint64_t kKb = 1 << 10, kMb = 1 << 20;

class DeviceBlocksTest : public OnDevice {
 protected:
  static cuda::CUdeviceptr take(const PoolRank& rank, uint64_t bytes, const TestStream& on) {
    Result<void*> block = rank.pool.alloc(bytes, on, 1);
    EXPECT_TRUE(block.ok()) << text_of(block.status());
    return block.ok() ? reinterpret_cast<cuda::CUdeviceptr>(block.value()) : 0;
  }
  static void give(const PoolRank& rank, cuda::CUdeviceptr block, const TestStream& on) {
    EXPECT_GOOD(rank.pool.free(reinterpret_cast<void*>(block), on));
  }
};

TEST_F(DeviceBlocksTest, FreedBytesAreTheirStreamsAtOnceAndAnothersWhenTheyAreOver) {
  run_pools(1, [&](const PoolRank& rank) {
    HostPage page;
    TestStream a, b;
    const auto spare = take(rank, 4 * kMb, a), block = take(rank, kMb, a);
    page.hold(a, 0);
    give(rank, block, a);
    EXPECT_EQ(take(rank, kMb, a), block);
    give(rank, block, a);
    const auto beside = take(rank, kMb, b);  // gets a block for which b need not wait
    EXPECT_NE(beside, block);
    b.fill(beside, 1, kMb);
    b.finish();
    EXPECT_EQ(rank.pool.counters().waits, 0u);
    page.word(0) = 1;
    a.finish();
    give(rank, beside, b);
    give(rank, spare, a);
    EXPECT_EQ(rank.stats().local_live_bytes, 0u);
  });
}

// The pool has 20 MiB, all of which another stream has used, and its limit allows no more. So the
// stream waits on the device for the other stream.
TEST_F(DeviceBlocksTest, WhatNothingElseFitsIsWaitedForOnTheDevice) {
  run_pools(
      1,
      [&](const PoolRank& rank) {
        HostPage page;
        TestStream a, b;
        const auto first = take(rank, 12 * kMb, a), second = take(rank, 8 * kMb, a);
        page.hold(a, 0);
        a.fill(first, 1, 12 * kMb);
        give(rank, first, a);
        give(rank, second, a);
        const auto taken = take(rank, 10 * kMb, b);
        EXPECT_EQ(rank.pool.counters().waits, 1u);
        b.fill(taken, 2, 10 * kMb);
        EXPECT_FALSE(b.idle());
        page.word(0) = 1;
        EXPECT_EQ(byte_at(taken, b, page), 2);
        give(rank, taken, b);
        EXPECT_EQ(rank.stats().growths, 1u);
      },
      [](fsccl_pool_config_t& config, int) { config.limit_bytes = 20 * kMb; });
}

TEST_F(DeviceBlocksTest, BytesOfSeveralStreamsTogetherAreOneBlock) {
  run_pools(
      1,
      [&](const PoolRank& rank) {
        TestStream a, b, c;
        const auto first = take(rank, 8 * kMb, a), second = take(rank, 12 * kMb, b);
        give(rank, first, a);
        give(rank, second, b);
        a.finish();
        const auto all = take(rank, 20 * kMb, c);
        c.fill(all, 3, 20 * kMb);
        give(rank, all, c);
        EXPECT_EQ(rank.stats().growths, 1u);
      },
      [](fsccl_pool_config_t& config, int) { config.limit_bytes = 20 * kMb; });
}

// PyTorch captures in the global mode. CUDA then refuses to all other threads and streams the calls
// that may wait, unless a thread says that its calls are not about the capture.
TEST_F(DeviceBlocksTest, ACaptureElsewhereGoesOn) {
  run_pools(1, [&](const PoolRank& rank) {
    TestStream a, b, captured;
    for (int step = 0; step < 3; step++) {
      const auto capture = step == 1 ? std::make_unique<Capture>(0, captured.get()) : nullptr;
      const auto first = take(rank, 30 * kMb, a);
      give(rank, first, a);
      give(rank, take(rank, (30 + static_cast<uint64_t>(step)) * kMb, b), b);
      (void)rank.pool.trim();
    }
  });
}

// A stream that is captured does not even take a block that was its own before, because a graph
// does not wait for earlier work, and may run again at any time.
TEST_F(DeviceBlocksTest, AStreamThatIsCapturedTakesWhatNobodyUsesAndGivesNothingBack) {
  run_pools(1, [&](const PoolRank& rank) {
    HostPage page;
    TestStream a, captured;
    give(rank, take(rank, 20 * kMb, a), a);
    const auto kept = take(rank, kMb, captured), own = take(rank, kMb, captured);
    a.finish();  // the pool will notice this, because it knows two streams by now
    page.hold(captured, 0);
    give(rank, own, captured);
    cuda::CUdeviceptr of_graph = 0;
    {
      const Capture capture(0, captured.get());
      of_graph = take(rank, kMb, captured);
      EXPECT_NE(of_graph, own);
      captured.fill(of_graph, 1, kMb);
      const Status refused = rank.pool.free(reinterpret_cast<void*>(kept), captured);
      EXPECT_EQ(refused.code(), FSCCL_ERR_NOT_AVAILABLE) << text_of(refused);
      EXPECT_THAT(refused.text(), ::testing::HasSubstr("behind the capture"));
    }
    page.word(0) = 1;
    give(rank, kept, captured);
    give(rank, of_graph, captured);
    EXPECT_EQ(rank.stats().growths, 1u);
  });
}

TEST_F(DeviceBlocksTest, StepsThatAreAlikeAskTheDriverForNoMemory) {
  run_pools(1, [&](const PoolRank& rank) {
    TestStream a, b;
    uint64_t before = 0, growths = 0, waits = 0;
    for (int step = 0; step < 60; step++) {
      if (step == 40)
        before = memory_calls(), growths = rank.stats().growths, waits = rank.pool.counters().waits;
      std::vector<cuda::CUdeviceptr> blocks;
      for (uint64_t i = 1; i <= 12; i++) blocks.push_back(take(rank, i * 300 * kKb, i % 3 ? a : b));
      for (uint64_t i = 1; i <= 12; i++) give(rank, blocks[i - 1], i % 3 ? a : b);
      a.finish(), b.finish();  // if a stream is late, a step may need more memory
    }
    EXPECT_EQ(memory_calls(), before);
    EXPECT_EQ(rank.stats().growths, growths);
    EXPECT_EQ(rank.pool.counters().waits, waits);
  });
}

// Whatever the order of calls, no stream writes to a byte before the stream that used it last is
// done with it.
TEST_F(DeviceBlocksTest, NobodyWritesWhatIsStillInUse) {
  run_pools(
      1,
      [&](const PoolRank& rank) {
        HostPage page;
        std::mt19937 random(11);
        const TestStream streams[3];
        struct Block {
          cuda::CUdeviceptr at;
          uint64_t bytes;
          uint8_t value;
          const TestStream* stream;
        };
        std::vector<Block> held;
        for (int i = 0; i < 2000; i++) {
          if (held.empty() || (held.size() < 12 && random() % 2)) {
            Block block{0, 1 + random() % (2 * kMb), static_cast<uint8_t>(random()),
                        &streams[random() % 3]};
            block.at = take(rank, block.bytes, *block.stream);
            block.stream->fill(block.at, block.value, block.bytes);
            held.push_back(block);
          } else {
            const size_t which = random() % held.size();
            const Block block = held[which];
            held.erase(held.begin() + static_cast<std::ptrdiff_t>(which));
            if (random() % 8 == 0) {
              EXPECT_EQ(byte_at(block.at + random() % block.bytes, *block.stream, page),
                        block.value);
            } else {  // the stream reads it when it comes to it, and copies it to its own place
              block.stream->copy(page.room() + 8 + static_cast<size_t>(block.stream - streams),
                                 block.at + block.bytes - 1, 1);
            }
            give(rank, block.at, *block.stream);
          }
        }
        for (const Block& block : held) give(rank, block.at, *block.stream);
      },
      [](fsccl_pool_config_t& config, int) { config.limit_bytes = 80 * kMb; });
}

TEST_F(DeviceBlocksTest, TrimWaitsForStreamsAndGivesWholeSegmentsBack) {
  run_pools(1, [&](const PoolRank& rank) {
    TestStream a, b;
    const auto kept = take(rank, kMb, a), large = take(rank, 40 * kMb, b);
    EXPECT_EQ(rank.stats().growths, 2u);
    b.fill(large, 1, 40 * kMb);
    give(rank, large, b);
    const uint64_t before = rank.stats().reserved_bytes, released = rank.pool.trim();
    EXPECT_GE(released, 20 * kMb);
    EXPECT_EQ(rank.stats().reserved_bytes, before - released);
    give(rank, kept, a);
    (void)rank.pool.trim();
    EXPECT_EQ(rank.stats().reserved_bytes, 0u);
    give(rank, take(rank, kMb, b), b);
  });
}

TEST_F(DeviceBlocksTest, PressureIsPutOnTheProgramOnceAndItsBlocksServe) {
  run_pools(
      1,
      [&](const PoolRank& rank) {
        std::vector<cuda::CUdeviceptr> cached{take(rank, 12 * kMb, rank.stream)};
        uint64_t asked = 0;
        rank.pool.set_pressure([&](uint64_t) {
          asked++;
          for (const auto block : cached) give(rank, block, rank.stream);
          cached.clear();
        });
        const auto block = take(rank, 14 * kMb, rank.stream);
        EXPECT_EQ(asked, 1u);
        const Result<void*> refused = rank.pool.alloc(10 * kMb, rank.stream, 1);
        EXPECT_EQ(refused.status().code(), FSCCL_ERR_OUT_OF_MEMORY);
        EXPECT_EQ(asked, 2u);
        EXPECT_THAT(refused.status().text(), ::testing::HasSubstr("FSCCL_POOL_LIMIT"));
        give(rank, block, rank.stream);
        EXPECT_EQ(rank.stats().local_live_bytes, 0u);
      },
      [](fsccl_pool_config_t& config, int) { config.limit_bytes = 20 * kMb; });
}

TEST_F(DeviceBlocksTest, AlignmentsSizesAndForeignPointers) {
  run_pools(1, [&](const PoolRank& rank) {
    const auto odd = take(rank, 1, rank.stream), none = take(rank, 0, rank.stream);
    EXPECT_EQ(odd % DeviceBlocks::kAlignment, 0u);
    EXPECT_NE(odd, none);
    void* const aligned = rank.pool.alloc(1000, rank.stream, 2 * kMb).take();
    EXPECT_EQ(reinterpret_cast<uint64_t>(aligned) % (2 * kMb), 0u);
    EXPECT_EQ(rank.pool.alloc(1, rank.stream, 4 * kMb).status().code(), FSCCL_ERR_INVALID_ARGUMENT);
    EXPECT_EQ(rank.pool.free(reinterpret_cast<void*>(odd + 512 * 9), rank.stream).code(),
              FSCCL_ERR_INVALID_ARGUMENT);
    give(rank, odd, rank.stream);
    EXPECT_EQ(rank.pool.free(reinterpret_cast<void*>(odd), rank.stream).code(),
              FSCCL_ERR_INVALID_ARGUMENT);
    give(rank, none, rank.stream);
    EXPECT_GOOD(rank.pool.free(aligned, rank.stream));
  });
}

// No segment is unmapped while a stream may still write to it.
TEST_F(DeviceBlocksTest, ThePoolEndsWhenItsStreamsDo) {
  HostPage page;
  TestStream late;
  std::thread opener;
  run_pools(1, [&](const PoolRank& rank) {
    TestStream other;
    const auto block = take(rank, kMb, late);
    page.hold(late, 0);
    late.fill(block, 1, kMb);
    give(rank, block, late);
    give(rank, take(rank, kMb, other), other);
    opener = std::thread([&] { page.word(0) = 1; });
  });
  opener.join();
}

}  // namespace
}  // namespace fsccl::testing
