// Tests fsccl_allocator_cuda() over the stand-in driver: what it does besides being a source like
// any other (allocators_test.cpp), and its use as PyTorch's allocator.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <thread>

#include "capture.h"
#include "refusing_source.h"
#include "tests/unit/on_device.h"

namespace fsccl::testing {
namespace {

constexpr uint64_t kLargePage = 2 << 20;

class CudaSource : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(control.there()) << "the stand-in driver was not found: LD_LIBRARY_PATH";
    ASSERT_OK(fsccl_allocator_cuda(1, &table));
  }
  void TearDown() override {
    EXPECT_OK(fsccl_torch_use(1, nullptr));
    EXPECT_OK(table.destroy(table.context));
    EXPECT_EQ(control.leaks(), "");
    EXPECT_EQ(control.used_bytes(0) + control.used_bytes(1), 0u);
    EXPECT_EQ(control.broken_rules(), "");
  }
  const stand_in::Control control;
  fsccl_allocator_t table = FSCCL_ALLOCATOR_INIT;
};

TEST_F(CudaSource, IsOfItsDevice) {
  EXPECT_EQ(table.memory, FSCCL_MEMORY_CUDA);
  EXPECT_EQ(table.device, 1);
  EXPECT_STREQ(table.name, "cuda");
  fsccl_allocator_t limited = FSCCL_ALLOCATOR_INIT;
  ASSERT_OK(fsccl_allocator_limit(&table, 1000, &limited));
  EXPECT_EQ(limited.memory, FSCCL_MEMORY_CUDA);
  EXPECT_EQ(limited.device, 1);
  EXPECT_OK(limited.destroy(limited.context));
  fsccl_allocator_t none = FSCCL_ALLOCATOR_INIT;
  EXPECT_ERROR(fsccl_allocator_guard(&table, nullptr, nullptr, &none), FSCCL_ERR_NOT_AVAILABLE,
               "device memory");
  EXPECT_ERROR(fsccl_allocator_cuda(2, &none), FSCCL_ERR_NOT_AVAILABLE, "device 2", "sees 2");
  EXPECT_ERROR(fsccl_allocator_cuda(-1, &none), FSCCL_ERR_NOT_AVAILABLE, "device -1");
  EXPECT_ERROR(fsccl_allocator_cuda(0, nullptr), FSCCL_ERR_INVALID_ARGUMENT, "NULL");
}

TEST_F(CudaSource, TakesWholePagesOfTheDevice) {
  void *one = nullptr, *two = nullptr;
  ASSERT_OK(get(table, 1, &one));
  ASSERT_OK(get(table, kLargePage + 1, &two));
  EXPECT_EQ(control.used_bytes(1), 3 * kLargePage);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(one) % kLargePage, 0u);
  EXPECT_OK(give(table, two, kLargePage + 1));
  EXPECT_EQ(control.used_bytes(1), kLargePage);
  EXPECT_OK(give(table, one, 1));
}

TEST_F(CudaSource, AFullDeviceIsOutOfMemoryAndRecovers) {
  void *first = nullptr, *second = nullptr, *none = nullptr;
  ASSERT_OK(get(table, 600 << 20, &first));
  EXPECT_ERROR(get(table, 600 << 20, &none), FSCCL_ERR_OUT_OF_MEMORY,
               "device 1 has no 629145600 bytes more", "are free");
  ASSERT_OK(get(table, 400 << 20, &second));
  EXPECT_OK(give(table, first, 600 << 20));
  ASSERT_OK(get(table, 600 << 20, &first));
  EXPECT_OK(give(table, first, 600 << 20));
  EXPECT_OK(give(table, second, 400 << 20));
}

TEST_F(CudaSource, ServesPyTorch) {
  ASSERT_OK(fsccl_torch_use(1, &table));
  EXPECT_ERROR(fsccl_torch_use(0, &table), FSCCL_ERR_INVALID_ARGUMENT, "device 1", "device 0");
  void* const block = fsccl_torch_malloc(1000, 1, nullptr);
  ASSERT_NE(block, nullptr);
  EXPECT_EQ(control.used_bytes(1), kLargePage);
  EXPECT_EQ(fsccl_torch_malloc(int64_t{2} << 30, 1, nullptr), nullptr);
  EXPECT_EQ(last_error().code, FSCCL_ERR_OUT_OF_MEMORY);
  fsccl_torch_free(block, 1000, 1, nullptr);
  EXPECT_EQ(control.used_bytes(1), 0u);
}

// PyTorch frees memory while streams may still use it, and relies on cudaFree to wait for them. So
// the source waits, too.
TEST_F(CudaSource, WhatAStreamHasStillToDoIsWaitedFor) {
  ASSERT_OK(fsccl_torch_use(1, &table));
  const cuda::Device& device = gpu(1);
  HostPage page(device);
  TestStream a(device);
  uint32_t gate = 0;
  for (const cuda::CUstream stream : {a.get(), cuda::CUstream(nullptr)}) {
    void* const block = fsccl_torch_malloc(1000, 1, stream);
    ASSERT_NE(block, nullptr);
    page.word(0) = gate++;
    page.hold(a, 0, gate);
    a.fill(reinterpret_cast<cuda::CUdeviceptr>(block), 1, 1000);
    std::thread opener([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      page.word(0) = gate;
    });
    fsccl_torch_free(block, 1000, 1, stream);
    EXPECT_TRUE(a.idle());
    opener.join();
    EXPECT_EQ(control.used_bytes(1), 0u);
  }
}

TEST_F(CudaSource, ABlockThatCannotBeWaitedForStaysAndIsSaid) {
  TestStream a(gpu(1));
  void* block = nullptr;
  ASSERT_OK(get(table, 1000, &block));
  const auto give_on = [&](void* stream) {
    return table.deallocate(table.context, block, 1000, stream);
  };
  {
    const Capture capture(1, a.get());
    EXPECT_ERROR(give_on(a.get()), FSCCL_ERR_NOT_AVAILABLE, "being captured", "stays");
  }
  EXPECT_EQ(control.used_bytes(1), kLargePage);  // the block stays until the source ends
}

TEST_F(CudaSource, AChildOfForkIsTold) {
  void* block = nullptr;
  ASSERT_OK(get(table, 1000, &block));
  const pid_t child = fork();
  if (child == 0) {
    void* none = nullptr;
    fsccl_allocator_t other;
    const bool told = get(table, 100, &none) == FSCCL_ERR_FORKED &&
                      give(table, block, 1000) == FSCCL_ERR_FORKED &&
                      fsccl_allocator_cuda(0, &other) == FSCCL_ERR_FORKED;
    _exit(told ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_OK(give(table, block, 1000));
}

}  // namespace
}  // namespace fsccl::testing
