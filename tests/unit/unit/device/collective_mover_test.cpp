// Tests a unit's gather and reduction with NCCL, for each way in which they can use it. Pieces of
// every rank arrive where they belong, and nothing else is touched. Sums are in rank order and in
// fp32. Ranks are threads, each with a GPU of the stand-in.
#include "unit/device/collective_mover.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <barrier>
#include <cstring>
#include <thread>

#include "allocators/cuda/device_arena.h"
#include "api/objects.h"
#include "tests/stand_in/cuda/control.h"
#include "tests/stand_in/nccl/in_process.h"

namespace fsccl {
namespace {

using Piece = CollectiveMover::Piece;

struct Shape {
  const char* name;
  const char* gathers_by;
  std::vector<Piece> (*pieces)(int ranks);
};

std::vector<Piece> flat(int ranks) {
  std::vector<Piece> pieces;
  for (int q = 0; q < ranks; q++)
    pieces.push_back({q, 512 + static_cast<uint64_t>(q) * 4000, 1000, FSCCL_FLOAT32});
  return pieces;
}
// Returns parameters one after the other, each divided unevenly among the ranks. A rank has nothing
// of some parameters.
std::vector<Piece> by_parameter(int ranks, uint64_t parameters, uint64_t count) {
  std::vector<Piece> pieces;
  uint64_t end = 64;
  for (uint64_t p = 0; p < parameters; p++)
    for (int q = 0; q < ranks; q++) {
      const uint64_t here =
          q && q == static_cast<int>(p % 3) ? 0 : count + 13 * static_cast<uint64_t>(q) + p;
      if (here) pieces.push_back({q, end, here, p % 2 ? FSCCL_FLOAT32 : FSCCL_BFLOAT16});
      end += (here * 4 + 64) / 64 * 64;
    }
  return pieces;
}
std::vector<Piece> large(int ranks) { return by_parameter(ranks, 2, 150'000); }
std::vector<Piece> small(int ranks) { return by_parameter(ranks, 40, 21); }

const Shape kShapes[] = {{"Flat", "one all-gather in place", flat},
                         {"Large", "a broadcast of each piece", large},
                         {"Small", "packed, one all-gather, unpacked", small}};

void run_ranks(int ranks, const std::function<void(Communicator&)>& body) {
  fsccl_unique_id_t id;
  ASSERT_EQ(fsccl_unique_id_create(&id), FSCCL_OK);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; rank++)
    threads.emplace_back([&, rank] {
      fsccl_comm_config_t config = FSCCL_COMM_CONFIG_INIT;
      config.unique_id = &id;
      config.rank = rank;
      config.ranks = ranks;
      fsccl_comm_t comm = nullptr;
      ASSERT_EQ(fsccl_comm_create(&config, &comm), FSCCL_OK);
      body(*comm_of(comm).value());
      EXPECT_EQ(fsccl_comm_destroy(comm), FSCCL_OK);
    });
  for (std::thread& thread : threads) thread.join();
}

// The slots of one rank, and a stream. The host can read the slots.
struct Slots {
  static constexpr uint64_t kBytes = 8u << 20, kOffset = 4096;
  // Makes memory like a pool's, which has one piece, or several if it has grown.
  explicit Slots(int rank, std::vector<uint64_t> pieces = {kBytes})
      : device(*cuda::Device::open(rank).value()),
        arena(DeviceArena::reserve(device, kBytes).take()),
        seen(kBytes - kOffset) {
    for (const uint64_t bytes : pieces) EXPECT_TRUE(arena.grow(bytes).ok());
    memory = arena.base();
    const cuda::Current current(device);
    EXPECT_EQ(device.driver().cuStreamCreateWithPriority(&stream, cuda::CU_STREAM_NON_BLOCKING, 0),
              cuda::CUDA_SUCCESS);
  }
  ~Slots() {
    const cuda::Current current(device);
    EXPECT_EQ(device.driver().cuStreamSynchronize(stream), cuda::CUDA_SUCCESS);
    EXPECT_EQ(device.driver().cuStreamDestroy(stream), cuda::CUDA_SUCCESS);
  }
  void copy(cuda::CUdeviceptr to, cuda::CUdeviceptr from, uint64_t bytes) {
    const cuda::Current current(device);
    EXPECT_EQ(device.driver().cuMemcpyAsync(to, from, bytes, stream), cuda::CUDA_SUCCESS);
    EXPECT_EQ(device.driver().cuStreamSynchronize(stream), cuda::CUDA_SUCCESS);
  }
  void put() {
    copy(memory + kOffset, reinterpret_cast<cuda::CUdeviceptr>(seen.data()), seen.size());
  }
  void take() {
    copy(reinterpret_cast<cuda::CUdeviceptr>(seen.data()), memory + kOffset, seen.size());
  }
  const cuda::Device& device;
  DeviceArena arena;
  std::vector<unsigned char> seen;
  cuda::CUdeviceptr memory = 0;
  cuda::CUstream stream = nullptr;
};

unsigned char byte_of(size_t piece, uint64_t at) {
  return static_cast<unsigned char>(piece * 31 + at * 7 + at / 256 + 1);
}

class Movers : public ::testing::TestWithParam<std::tuple<Shape, int>> {
 protected:
  void TearDown() override {
    EXPECT_EQ(stand_in::Control().broken_rules(), "");
    EXPECT_EQ(stand_in_nccl::Control().broken_rules(), "");
  }
};

Result<std::unique_ptr<CollectiveMover>> make(Communicator& comm, const Slots& slots,
                                              std::vector<CollectiveMover::Piece> parameters,
                                              std::vector<CollectiveMover::Piece> gradients) {
  Result<std::unique_ptr<CollectiveMover>> made = CollectiveMover::create(
      {&comm, comm.rank(), slots.memory, std::move(parameters), std::move(gradients)});
  if (made.ok()) FSCCL_TRY(made.value()->use_window(slots.arena.segment_bytes(0)));
  return made;
}

TEST_P(Movers, GatherBringsEveryPieceToItsPlace) {
  const auto& [shape, ranks] = GetParam();
  run_ranks(ranks, [&, pieces = shape.pieces(ranks)](Communicator& comm) {
    Slots slots(comm.rank());
    Result<std::unique_ptr<CollectiveMover>> made = make(comm, slots, pieces, {});
    ASSERT_TRUE(made.ok()) << made.status().text();
    EXPECT_THAT(made.value()->gathers_by(), ::testing::HasSubstr(shape.gathers_by));
    for (int turn = 0; turn < 3; turn++) {
      std::vector<unsigned char> wanted(slots.seen.size(), 0xA5);
      slots.seen = wanted;
      for (size_t i = 0; i < pieces.size(); i++)
        for (uint64_t b = 0; b < pieces[i].bytes(); b++) {
          wanted[pieces[i].offset + b] = byte_of(i + static_cast<size_t>(turn), b);
          if (pieces[i].rank == comm.rank())
            slots.seen[pieces[i].offset + b] = wanted[pieces[i].offset + b];
        }
      slots.put();
      const Status status = made.value()->gather(Slots::kOffset, slots.stream);
      ASSERT_TRUE(status.ok()) << status.text();
      slots.take();
      EXPECT_TRUE(slots.seen == wanted) << "rank " << comm.rank() << " turn " << turn;
    }
  });
}

void store(fsccl_dtype_t dtype, unsigned char* to, float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  bits >>= dtype == FSCCL_BFLOAT16 ? 16 : 0;
  std::memcpy(to, &bits, dtype_size(dtype));
}
// Returns a gradient that is exact in bf16; sums over the ranks are exact in fp32, and not in bf16.
float gradient(size_t piece, uint64_t element, int rank) {
  return static_cast<float>((piece + element) % 100) +
         (rank ? static_cast<float>(rank) * 0x1p-12f * 2 : 0);
}

TEST_P(Movers, ReduceSumsInFp32WhatBelongsToTheRank) {
  const auto& [shape, ranks] = GetParam();
  run_ranks(ranks, [&, pieces = shape.pieces(ranks)](Communicator& comm) {
    Slots slots(comm.rank());
    Result<std::unique_ptr<CollectiveMover>> made = make(comm, slots, {}, pieces);
    ASSERT_TRUE(made.ok()) << made.status().text();
    const auto value = [](size_t i, uint64_t k, int q) {  // the value, rounded to the stored type
      unsigned char bytes[4] = {};
      uint32_t bits = 0;
      store(FSCCL_BFLOAT16, bytes, gradient(i, k, q));
      std::memcpy(reinterpret_cast<unsigned char*>(&bits) + 2, bytes, 2);
      float rounded;
      std::memcpy(&rounded, &bits, sizeof rounded);
      return rounded;
    };
    std::vector<CollectiveMover::Sum> sums;
    std::vector<float> wanted;
    // The results go into the memory behind the slot, which is unused.
    const cuda::CUdeviceptr results = slots.memory + (6u << 20);
    for (size_t i = 0; i < pieces.size(); i++) {
      for (uint64_t k = 0; k < pieces[i].count; k++)
        store(pieces[i].dtype, &slots.seen[pieces[i].offset + k * dtype_size(pieces[i].dtype)],
              value(i, k, comm.rank()));
      if (pieces[i].rank != comm.rank()) continue;
      sums.push_back({results + wanted.size() * 4, FSCCL_FLOAT32});
      for (uint64_t k = 0; k < pieces[i].count; k++) {
        float sum = 0;
        for (int q = 0; q < ranks; q++) sum = q ? sum + value(i, k, q) : value(i, k, q);
        wanted.push_back(sum * 0.5f);
      }
    }
    ASSERT_TRUE(made.value()->place_sums(sums).ok());
    slots.put();
    cuda::ReduceEpilogue half;
    half.scale = 0.5;
    const Status status = made.value()->reduce(Slots::kOffset, half, 0, slots.stream);
    ASSERT_TRUE(status.ok()) << status.text();
    std::vector<float> got(wanted.size());
    if (got.empty()) return slots.take();
    slots.copy(reinterpret_cast<cuda::CUdeviceptr>(got.data()), results, got.size() * 4);
    EXPECT_TRUE(got == wanted) << "rank " << comm.rank();
  });
}

INSTANTIATE_TEST_SUITE_P(Nccl, Movers,
                         ::testing::Combine(::testing::ValuesIn(kShapes),
                                            ::testing::Values(1, 2, 3)),
                         [](const auto& one) {
                           return std::string(std::get<0>(one.param).name) + "_" +
                                  std::to_string(std::get<1>(one.param));
                         });

TEST(Mover, GathersByCopyEnginesWhereNcclCan) {
  const uint64_t before = stand_in_nccl::Control().calls("ncclAllGather by copy engines");
  run_ranks(2, [](Communicator& comm) {
    Slots slots(comm.rank());
    const auto made = make(comm, slots, flat(2), {});
    ASSERT_TRUE(made.ok()) << made.status().text();
    EXPECT_STREQ(made.value()->gathers_by(), "one all-gather in place, by copy engines");
    EXPECT_TRUE(made.value()->gather(0, slots.stream).ok());
    slots.take();
  });
  EXPECT_EQ(stand_in_nccl::Control().calls("ncclAllGather by copy engines") - before, 2u);
}

TEST(Mover, CopyEnginesAreForWhoAsks) {
  stand_in_nccl::in_process({{"NCCL_CTA_POLICY", "0"}}, [] {
    run_ranks(2, [](Communicator& comm) {
      Slots slots(comm.rank());
      const auto made = make(comm, slots, flat(2), {});
      ASSERT_TRUE(made.ok()) << made.status().text();
      EXPECT_STREQ(made.value()->gathers_by(), "one all-gather in place");
      EXPECT_THAT(
          DeviceCollectives::of(comm).explain(OpCode::all_gather, 1 << 20),
          ::testing::HasSubstr("NCCL_CTA_POLICY is not ZERO (before 2.29: 2) on all ranks"));
      EXPECT_TRUE(made.value()->gather(0, slots.stream).ok());
      slots.take();
    });
    EXPECT_EQ(stand_in_nccl::Control().calls("ncclAllGather by copy engines"), 0u);
  });
}

// The gather never ends, so its stream waits for ever. No thread must wait with it.
TEST(MoverWaits, ACopyEngineGatherThatHangsIsLeftBehind) {
  stand_in_nccl::in_process(
      {{"FSCCL_STAND_IN_NCCL_FAIL", "ncclAllGather:1:hang:1"}, {"FSCCL_TIMEOUT_MS", "1000"}}, [] {
        run_ranks(2, [](Communicator& comm) {
          Slots& slots = *new Slots(comm.rank());  // never freed, because the stream uses them
          auto made = make(comm, slots, flat(2), {});
          ASSERT_TRUE(made.ok()) << made.status().text();
          const Status status = made.value()->gather(0, slots.stream);
          ASSERT_TRUE(status.ok()) << status.text();
          const cuda::Current current(slots.device);
          cuda::OwnedEvent behind = cuda::OwnedEvent::create(slots.device).take();
          ASSERT_TRUE(behind.record(slots.stream).ok());
          EXPECT_EQ(DeviceCollectives::of(comm).finish(behind).code(), FSCCL_ERR_TIMEOUT);
          EXPECT_NE(slots.device.driver().cuStreamQuery(slots.stream), cuda::CUDA_SUCCESS);
        });
      });
}

// Slots of another pool may lie where those of an earlier pool lay, in other memory.
TEST(Mover, TheWindowEndsWithItsLastUser) {
  const stand_in_nccl::Control nccl;
  const uint64_t opened = nccl.calls("ncclCommWindowRegister"),
                 closed = nccl.calls("ncclCommWindowDeregister");
  std::barrier all(2);
  run_ranks(2, [&](Communicator& comm) {
    for (uint64_t pool = 1; pool <= 2; pool++) {
      {
        Slots slots(comm.rank());
        auto first = make(comm, slots, flat(2), {});
        const auto second = make(comm, slots, flat(2), {});
        EXPECT_TRUE(first.ok() && second.ok());
        first = fail(FSCCL_ERR_INVALID_STATE, "gone");
        EXPECT_STREQ(second.value()->gathers_by(), "one all-gather in place, by copy engines");
        EXPECT_TRUE(second.value()->gather(0, slots.stream).ok());
        slots.take();
      }
      all.arrive_and_wait();
      EXPECT_EQ(nccl.calls("ncclCommWindowRegister"), opened + 4 * pool)
          << "on two communicators of two ranks";
      EXPECT_EQ(nccl.calls("ncclCommWindowDeregister"), closed + 4 * pool)
          << "before the communicators end";
      all.arrive_and_wait();
    }
  });
  EXPECT_EQ(nccl.broken_rules(), "");
}

// The slots have grown. NCCL would take the window for a whole buffer that begins in it.
TEST(Mover, NoGatherLeavesTheWindow) {
  const uint64_t before = stand_in_nccl::Control().calls("ncclAllGather by copy engines");
  run_ranks(2, [](Communicator& comm) {
    Slots slots(comm.rank(), {2u << 20, 4u << 20, 2u << 20});
    const auto pieces = flat(2);
    const auto made = make(comm, slots, pieces, {});
    ASSERT_TRUE(made.ok()) << made.status().text();
    const uint64_t end = 2u << 20, bytes = pieces[0].bytes(), first = pieces[0].offset;
    ASSERT_LT(bytes, end);
    // The slots lie before the window's end and up to it, within it, and behind it.
    for (const uint64_t slot : {end - first - bytes, uint64_t{0}, end + 4096}) {
      for (const auto& piece : pieces) {
        const cuda::Current current(slots.device);
        const auto value =
            static_cast<unsigned char>(piece.rank == comm.rank() ? 10 + comm.rank() : 99);
        ASSERT_EQ(slots.device.driver().cuMemsetD8Async(slots.memory + slot + piece.offset, value,
                                                        piece.bytes(), slots.stream),
                  cuda::CUDA_SUCCESS);
      }
      const Status status = made.value()->gather(slot, slots.stream);
      ASSERT_TRUE(status.ok()) << status.text();
      std::vector<unsigned char> got(2 * bytes);
      slots.copy(reinterpret_cast<cuda::CUdeviceptr>(got.data()), slots.memory + slot + first,
                 got.size());
      std::vector<unsigned char> wanted(bytes, 10);
      wanted.resize(2 * bytes, 11);
      EXPECT_TRUE(got == wanted) << "rank " << comm.rank() << " at " << slot;
    }
  });
  EXPECT_EQ(stand_in_nccl::Control().calls("ncclAllGather by copy engines") - before, 2u);
  EXPECT_EQ(stand_in_nccl::Control().broken_rules(), "");
}

// If NCCL refuses the window, on one rank or on all, gathers work without it, although NCCL keeps
// the refusal as the communicator's error.
void gathers_without(const char* ranks_refused) {
  stand_in_nccl::in_process(
      {{"FSCCL_STAND_IN_NCCL_FAIL", ranks_refused}, {"FSCCL_TIMEOUT_MS", "8000"}}, [] {
        run_ranks(2, [](Communicator& comm) {
          Slots slots(comm.rank());
          const auto made = make(comm, slots, flat(2), {});
          ASSERT_TRUE(made.ok()) << made.status().text();
          EXPECT_STREQ(made.value()->gathers_by(), "one all-gather in place");
          EXPECT_FALSE(DeviceCollectives::of(comm).features().windows.usable);
          EXPECT_TRUE(made.value()->gather(0, slots.stream).ok());
          slots.take();
        });
      });
}

TEST(Mover, GathersWithoutTheWindowThatIsRefused) {
  gathers_without("ncclCommWindowRegister:1:error:0,ncclCommWindowRegister:1:error:1");
}
TEST(MoverWaits, GathersWithoutTheWindowThatOneRankIsRefused) {
  gathers_without("ncclCommWindowRegister:1:error:1");
}

// With these settings NCCL would accept the window but not use it, and would not say so.
TEST(Mover, GathersWithoutTheWindowThatASettingSwitchesOff) {
  for (const char* const setting : {"NCCL_CUMEM_ENABLE", "NCCL_WIN_ENABLE"})
    stand_in_nccl::in_process({{setting, "0"}}, [setting] {
      run_ranks(2, [setting](Communicator& comm) {
        Slots slots(comm.rank());
        const auto made = make(comm, slots, flat(2), {});
        ASSERT_TRUE(made.ok()) << made.status().text();
        EXPECT_STREQ(made.value()->gathers_by(), "one all-gather in place");
        const std::string why = std::string("rank 0: ") + setting + " is 0",
                          told = DeviceCollectives::of(comm).explain(OpCode::all_gather, 1 << 20);
        EXPECT_THAT(told, ::testing::HasSubstr("\"windows\":{\"usable\":false,\"why\":\"" + why));
        EXPECT_THAT(told, ::testing::HasSubstr("it needs windows: " + why));
        EXPECT_TRUE(made.value()->gather(0, slots.stream).ok());
        slots.take();
      });
      EXPECT_EQ(stand_in_nccl::Control().calls("ncclCommWindowRegister"), 0u);
    });
}

// If NCCL refuses the gather on one rank, the streams of other ranks may wait for work that this
// rank has not put on its stream. So the others are told. (With copy engines their streams would
// wait for ever.)
TEST(Mover, ARefusedGatherIsToldToThePeers) {
  stand_in_nccl::in_process(
      {{"FSCCL_STAND_IN_NCCL_FAIL", "ncclAllGather:1:error:1"},
       {"FSCCL_TIMEOUT_MS", "8000"},
       {"NCCL_CTA_POLICY", "0"}},
      [] {
        run_ranks(2, [](Communicator& comm) {
          Slots slots(comm.rank());
          const auto made = make(comm, slots, flat(2), {});
          ASSERT_TRUE(made.ok()) << made.status().text();
          const Status first = made.value()->gather(0, slots.stream);
          EXPECT_TRUE(comm.rank() == 0 || !first.ok());  // rank 0 may know of the failure already
          slots.take();                                  // ends, because the watch ends the stream
          const Status again = made.value()->gather(0, slots.stream);
          EXPECT_THAT(again.text(), ::testing::HasSubstr("injected"));
        });
      });
}

}  // namespace
}  // namespace fsccl
