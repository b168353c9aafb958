// Tests the tables and launches of the kernels for GPUs: tiles, grids, the image that is loaded,
// and calls that a driver refuses.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <set>
#include <sstream>

#include "kernels/cuda/image.h"
#include "kernels/cuda/tables.h"
#include "tests/stand_in/cuda/control.h"

namespace fsccl::cuda {
namespace {

TEST(DeviceTables, EachElementIsInOneTile) {
  const auto cut = cut_casts({{0, 0, 2 * kCastTile + 1, FSCCL_FLOAT32, FSCCL_BFLOAT16},
                              {0, 0, 0, FSCCL_FLOAT32, FSCCL_BFLOAT16},
                              {0, 0, kCopyTile / 8, FSCCL_INT64, FSCCL_INT64}});
  ASSERT_TRUE(cut.ok());
  std::vector<std::pair<uint32_t, uint32_t>> tiles;
  for (const Tile tile : cut.value().tiles) tiles.emplace_back(tile.piece, tile.index);
  EXPECT_EQ(tiles, (std::vector<std::pair<uint32_t, uint32_t>>{{0, 0}, {0, 1}, {0, 2}, {2, 0}}));
}

// Returns the tiles of the multiprocessor that has the most, where blocks are dealt to them in
// turn.
uint32_t most_tiles(uint32_t tiles, uint32_t grid, uint32_t multiprocessors) {
  std::vector<uint32_t> found(multiprocessors);
  for (uint32_t tile = 0; tile < tiles; tile++) found[tile % grid % multiprocessors]++;
  return *std::max_element(found.begin(), found.end());
}

TEST(DeviceTables, GridsAreFullToTheEnd) {
  EXPECT_EQ(even_grid(0, 132, 660), 0u);
  EXPECT_EQ(even_grid(300, 132, 660), 300u);  // small parameters: one wave
  EXPECT_EQ(even_grid(661, 132, 660), 396u);  // not 660 and then one
  // The grid does not have 586 blocks, of which some multiprocessors would have five and some four.
  EXPECT_EQ(even_grid(4096, 132, 660), 660u);
  EXPECT_EQ(even_grid(4096, 132, 659), 659u);
  for (uint32_t tiles = 1; tiles < 5000; tiles += 7) {
    const uint32_t grid = even_grid(tiles, 132, 660), rounds = (tiles + 659) / 660;
    EXPECT_LE(grid, 660u);
    EXPECT_EQ((tiles + grid - 1) / grid, rounds) << tiles;
    EXPECT_EQ(most_tiles(tiles, grid, 132), (tiles + 131) / 132) << tiles;
  }
}

// The block that adds the norm counts among the blocks that fit the device at once, because one
// more block would wait until another ends.
TEST(DeviceTables, ABlockOfAReduceAddsTheNorm) {
  EXPECT_EQ(reduce_grid(0, true, 132, 660).blocks, 1u);
  EXPECT_EQ(reduce_grid(300, false, 132, 660).blocks, 300u);
  EXPECT_EQ(reduce_grid(300, true, 132, 660).blocks, 301u);
  EXPECT_EQ(reduce_grid(659, true, 132, 660).blocks, 660u);
  for (uint32_t tiles = 660; tiles < 5000; tiles++)
    EXPECT_LE(reduce_grid(tiles, true, 132, 660).blocks, 660u) << tiles;
}

TEST(DeviceTables, WhatNoKernelConvertsIsRefused) {
  EXPECT_EQ(cut_casts({{0, 0, 1, FSCCL_INT32, FSCCL_FLOAT32}}).status().code(),
            FSCCL_ERR_NOT_AVAILABLE);
  EXPECT_EQ(cut_reduces({{0, 0, 1, FSCCL_INT32, FSCCL_INT32}}).status().code(),
            FSCCL_ERR_NOT_AVAILABLE);
  EXPECT_EQ(cut_reduces({{0, 0, uint64_t{1} << 50, FSCCL_FLOAT32, FSCCL_FLOAT32}}).status().code(),
            FSCCL_ERR_INVALID_ARGUMENT);
}

// Tests over the stand-in: if the driver refuses a call, the error says what to do, and no resource
// is left behind.
class DeviceKernelsErrors : public testing::Test {
 protected:
  void SetUp() override {
    if (!kKernelImage.bytes) GTEST_SKIP() << "the library was built without nvcc";
    if (!control_.there()) GTEST_SKIP() << "no stand-in for the driver";
    const auto device = Device::open(0);
    ASSERT_TRUE(device.ok()) << device.status().text();
    device_ = device.value();
  }
  const stand_in::Control control_;
  const Device* device_ = nullptr;
};

TEST_F(DeviceKernelsErrors, ADriverThatCannotLoadThem) {
  const auto device = Device::open(1);  // none but this test loads kernels on it
  ASSERT_TRUE(device.ok()) << device.status().text();
  const int64_t streams = control_.live("streams"), modules = control_.live("modules");
  for (const char* const function : {"cuModuleLoadData", "cuModuleGetFunction"}) {
    control_.fail(function, 1, 209);
    const auto kernels = DeviceKernels::of(*device.value());
    ASSERT_FALSE(kernels.ok()) << function;
    if (function == std::string("cuModuleLoadData")) {
      EXPECT_EQ(kernels.status().code(), FSCCL_ERR_NOT_AVAILABLE);
      for (const char* const part : {"device 1", "compute capability", "sm_90", "newer driver"})
        EXPECT_NE(kernels.status().text().find(part), std::string::npos) << kernels.status().text();
    }
    EXPECT_EQ(control_.live("streams"), streams);
    EXPECT_EQ(control_.live("modules"), modules) << function;
  }
  // If the driver does not say how many blocks of a kernel fit, a number that is known to fit is
  // used.
  control_.fail("cuOccupancyMaxActiveBlocksPerMultiprocessor", 2, 801);
  const auto kernels = DeviceKernels::of(*device.value());
  ASSERT_TRUE(kernels.ok()) << kernels.status().text();
  EXPECT_EQ(kernels.value()->reduce_blocks(false), 4u * kBlocksPerMultiprocessor);
  EXPECT_EQ(kernels.value()->reduce_blocks(true), 4u * 12);
}

// The memory of a table that is gone, or could not be filled, goes to the next table. It is not
// freed, because that would wait for the device.
TEST_F(DeviceKernelsErrors, ATableThatFindsNoMemory) {
  const auto kernels = DeviceKernels::of(*device_);
  ASSERT_TRUE(kernels.ok()) << kernels.status().text();
  EXPECT_EQ(DeviceKernels::of(*device_).value(), kernels.value());
  // The table is larger than any other here.
  const std::vector<CastRange> casts{{0, 0, uint64_t{1} << 32, FSCCL_FLOAT32, FSCCL_BFLOAT16}};
  const std::vector<ReduceRange> reduces{{0, 0, uint64_t{1} << 32, FSCCL_FLOAT32, FSCCL_BFLOAT16}};
  const int64_t allocations = control_.live("allocations");
  control_.fail("cuMemAlloc_v2");
  EXPECT_EQ(kernels.value()->make_casts(casts, CastBase::both).status().code(),
            FSCCL_ERR_OUT_OF_MEMORY);
  EXPECT_EQ(control_.live("allocations"), allocations);
  control_.fail("cuMemcpyAsync", 1, 719);
  EXPECT_EQ(kernels.value()->make_reduces(reduces, 2).status().code(), FSCCL_ERR_SYSTEM);
  EXPECT_EQ(kernels.value()->make_reduces(reduces, 0).status().code(), FSCCL_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(control_.live("allocations"), allocations + 1);
  const uint64_t frees = control_.calls("cuMemFree_v2"), made = control_.calls("cuMemAlloc_v2");
  for (int i = 0; i < 3; i++) EXPECT_TRUE(kernels.value()->make_reduces(reduces, 2).ok());
  EXPECT_EQ(control_.calls("cuMemFree_v2"), frees);
  EXPECT_EQ(control_.calls("cuMemAlloc_v2"), made);
  EXPECT_EQ(control_.broken_rules(), "");
}

// A call is one launch, whatever the number of its pieces. The number of sources does not matter as
// long as they fit the launch's arguments.
TEST_F(DeviceKernelsErrors, NoneIsMoreThanOneLaunch) {
  const auto kernels = DeviceKernels::of(*device_);
  ASSERT_TRUE(kernels.ok()) << kernels.status().text();
  const Current current(*device_);
  CUdeviceptr memory = 0;
  ASSERT_EQ(device_->driver().cuMemAlloc(&memory, 1 << 20), CUDA_SUCCESS);
  CUstream stream = nullptr;
  ASSERT_EQ(device_->driver().cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0),
            CUDA_SUCCESS);
  std::vector<CastRange> casts;
  std::vector<ReduceRange> reduces;
  for (uint64_t i = 0; i < 300; i++) {
    casts.push_back({i * 256, 256 * 1024 + i * 256, 60, FSCCL_FLOAT32, FSCCL_BFLOAT16});
    reduces.push_back({i * 256, memory + 512 * 1024 + i * 256, 60, FSCCL_BFLOAT16, FSCCL_FLOAT32});
  }
  {
    const auto cast_table = kernels.value()->make_casts(casts, CastBase::both);
    const auto reduce_table = kernels.value()->make_reduces(reduces, 64),
               many = kernels.value()->make_reduces(reduces, 65);
    ASSERT_TRUE(cast_table.ok() && reduce_table.ok() && many.ok());
    const std::vector<CUdeviceptr> bases(65, memory);
    const auto launches = [&] {
      return control_.calls("kernel fsccl_cast") + control_.calls("kernel fsccl_reduce") +
             control_.calls("kernel fsccl_put_bases");
    };
    const uint64_t before = launches();
    EXPECT_TRUE(kernels.value()->cast(*cast_table.value(), memory, memory, stream).ok());
    EXPECT_TRUE(kernels.value()
                    ->reduce(*reduce_table.value(), bases.data(), {}, memory + 1024 * 1000, stream)
                    .ok());
    EXPECT_EQ(launches() - before, 2u);
    EXPECT_TRUE(kernels.value()->reduce(*many.value(), bases.data(), {}, 0, stream).ok());
    EXPECT_EQ(launches() - before, 4u);
    ASSERT_EQ(device_->driver().cuStreamSynchronize(stream), CUDA_SUCCESS);
  }
  EXPECT_EQ(device_->driver().cuStreamDestroy(stream), CUDA_SUCCESS);
  EXPECT_EQ(device_->driver().cuMemFree(memory), CUDA_SUCCESS);
  EXPECT_EQ(control_.broken_rules(), "");
}

TEST_F(DeviceKernelsErrors, AsManyBlocksAsFit) {
  const auto kernels = DeviceKernels::of(*device_);
  ASSERT_TRUE(kernels.ok()) << kernels.status().text();
  const Current current(*device_);
  CUdeviceptr memory = 0;
  ASSERT_EQ(device_->driver().cuMemAlloc(&memory, 4 << 20), CUDA_SUCCESS);
  CUstream stream = nullptr;
  ASSERT_EQ(device_->driver().cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0),
            CUDA_SUCCESS);
  {
    const auto table = kernels.value()->make_reduces(
        {{0, memory, 100 * kReduceTile, FSCCL_FLOAT32, FSCCL_FLOAT32}}, 1);
    ASSERT_TRUE(table.ok()) << table.status().text();
    ASSERT_EQ(device_->multiprocessors(), 4);
    EXPECT_TRUE(kernels.value()->reduce(*table.value(), &memory, {}, 0, stream).ok());
    // 64 blocks fit, 16 a multiprocessor
    EXPECT_EQ(control_.calls("fsccl_reduce<<<52, 128>>>"), 1u);
    EXPECT_TRUE(
        kernels.value()->reduce(*table.value(), &memory, {}, memory + 2'000'000, stream).ok());
    // 48 blocks fit, 12 a multiprocessor
    EXPECT_EQ(control_.calls("fsccl_reduce<<<37, 160>>>"), 1u);
    ASSERT_EQ(device_->driver().cuStreamSynchronize(stream), CUDA_SUCCESS);
  }
  EXPECT_EQ(device_->driver().cuStreamDestroy(stream), CUDA_SUCCESS);
  EXPECT_EQ(device_->driver().cuMemFree(memory), CUDA_SUCCESS);
  EXPECT_EQ(control_.broken_rules(), "");
}

template <class T>
T read_at(size_t offset) {
  T value;
  EXPECT_LE(offset + sizeof value, kKernelImage.size);
  std::memcpy(&value, static_cast<const uint8_t*>(kKernelImage.bytes) + offset, sizeof value);
  return value;
}

// Reads the headers of the fat binary: its size, and for each entry the kind (1: PTX, 2: code), the
// sizes and the architecture.
TEST(DeviceImage, HasCodeForEveryArchitectureAndPtxOfTheFirstAndTheLast) {
  if (!kKernelImage.bytes) GTEST_SKIP() << "the library was built without nvcc";
  ASSERT_EQ(read_at<uint32_t>(0), 0xba55ed50u);
  const size_t end = read_at<uint16_t>(6) + read_at<uint64_t>(8);
  ASSERT_LE(end, kKernelImage.size);
  std::set<std::string> found;
  for (size_t at = read_at<uint16_t>(6); at < end && !HasFailure();) {
    const auto kind = read_at<uint16_t>(at);
    ASSERT_TRUE(kind == 1 || kind == 2) << kind;
    found.insert(fmt::format("{}_{}", kind == 1 ? "compute" : "sm", read_at<uint32_t>(at + 28)));
    at += read_at<uint32_t>(at + 4) + read_at<uint64_t>(at + 8);
  }
  std::istringstream said(kKernelImage.architectures);
  EXPECT_EQ(found, std::set<std::string>(std::istream_iterator<std::string>(said), {}));
  for (const char* const architecture : {"sm_80", "sm_90", "compute_80"})
    EXPECT_TRUE(found.contains(architecture)) << architecture;
}

}  // namespace
}  // namespace fsccl::cuda
