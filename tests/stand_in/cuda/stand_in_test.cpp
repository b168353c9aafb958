// Tests that the stand-in keeps the rules of CUDA on which the library relies, and refuses calls
// that CUDA refuses. Otherwise a test over it would prove nothing. This file tests memory, kernels
// and calls. stand_in_streams_test.cpp tests streams.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <ctime>
#include <memory>
#include <thread>
#include <vector>

#include "cuda/pointer.h"
#include "on_stand_in.h"

namespace fsccl::cuda {
namespace {

TEST_F(StandIn, ForeignMemoryInACopyIsRefused) {
  CUdeviceptr reserved = 0;
  ASSERT_EQ(d().cuMemAddressReserve(&reserved, kUnit, 0, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(d().cuMemcpyAsync(reserved, memory, 4, a), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(d().cuMemcpyAsync(memory, memory + kUnit - 4, 8, a), CUDA_ERROR_INVALID_VALUE)
      << "beyond the end";
  EXPECT_NE(control.broken_rules(), "");
  ASSERT_EQ(d().cuMemAddressFree(reserved, kUnit), CUDA_SUCCESS);
}

TEST_F(StandIn, MemoryThatIsGoneWhenItsCopyRunsBreaksTheDevice) {
  CUdeviceptr pointer = 0;
  CUmemGenericAllocationHandle handle = 0;
  const CUmemAllocationProp wanted = properties();
  const CUmemAccessDesc access;
  ASSERT_EQ(d().cuMemAddressReserve(&pointer, kUnit, 0, 0, 0), CUDA_SUCCESS);
  ASSERT_EQ(d().cuMemCreate(&handle, kUnit, &wanted, 0), CUDA_SUCCESS);
  ASSERT_EQ(d().cuMemMap(pointer, kUnit, 0, handle, 0), CUDA_SUCCESS);
  EXPECT_EQ(d().cuMemcpyAsync(pointer, memory, 4, a), CUDA_ERROR_INVALID_VALUE) << "no access yet";
  ASSERT_EQ(d().cuMemSetAccess(pointer, kUnit, &access, 1), CUDA_SUCCESS);
  close(a, 0);
  ASSERT_EQ(d().cuMemcpyAsync(pointer, memory, 4, a), CUDA_SUCCESS);
  control.broken_rules();
  ASSERT_EQ(d().cuMemUnmap(pointer, kUnit), CUDA_SUCCESS);
  EXPECT_NE(control.broken_rules().find("that a stream has still to use"), std::string::npos);
  gates[0] = 1;
  EXPECT_EQ(d().cuStreamSynchronize(a), kIllegalAddress);
  EXPECT_NE(control.broken_rules().find("not there any more"), std::string::npos);
  CUevent event = nullptr;
  EXPECT_EQ(d().cuEventCreate(&event, 0), kIllegalAddress) << "and so does everything that follows";
  control.break_device(0, 0);
  ASSERT_EQ(d().cuMemRelease(handle), CUDA_SUCCESS);
  ASSERT_EQ(d().cuMemAddressFree(pointer, kUnit), CUDA_SUCCESS);
}

TEST_F(StandIn, VirtualMemoryKeepsItsRules) {
  CUdeviceptr pointer = 0;
  CUmemGenericAllocationHandle handle = 0, other = 0;
  const CUmemAllocationProp wanted = properties(1);
  const CUmemAccessDesc access;
  EXPECT_EQ(d().cuMemAddressReserve(&pointer, kUnit + 4096, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(d().cuMemAddressReserve(&pointer, 4 * kUnit, 0, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(pointer % kUnit, 0u);
  EXPECT_EQ(d().cuMemCreate(&handle, 4096, &wanted, 0), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(d().cuMemCreate(&handle, 2 * kUnit, &wanted, 0), CUDA_SUCCESS);
  EXPECT_EQ(d().cuMemMap(pointer, 4 * kUnit, 0, handle, 0), CUDA_ERROR_INVALID_VALUE)
      << "more than there is";
  EXPECT_EQ(d().cuMemMap(pointer + 3 * kUnit, 2 * kUnit, 0, handle, 0), CUDA_ERROR_INVALID_VALUE)
      << "beyond what is reserved";
  ASSERT_EQ(d().cuMemMap(pointer, 2 * kUnit, 0, handle, 0), CUDA_SUCCESS);
  EXPECT_EQ(d().cuMemMap(pointer + kUnit, 2 * kUnit, 0, handle, 0), CUDA_ERROR_INVALID_VALUE)
      << "mapped already";
  EXPECT_EQ(d().cuMemSetAccess(pointer, 4 * kUnit, &access, 1), CUDA_ERROR_INVALID_VALUE)
      << "not all of it is mapped";
  ASSERT_EQ(d().cuMemSetAccess(pointer, 2 * kUnit, &access, 1), CUDA_SUCCESS);
  *words(pointer) = 9;
  EXPECT_EQ(d().cuMemAddressFree(pointer, 4 * kUnit), CUDA_ERROR_INVALID_VALUE) << "still mapped";
  EXPECT_EQ(d().cuMemUnmap(pointer, kUnit), CUDA_ERROR_INVALID_VALUE) << "a part";
  int fd = -1;
  ASSERT_EQ(
      d().cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
      CUDA_SUCCESS);
  EXPECT_EQ(d().cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_FABRIC, 0),
            CUDA_ERROR_INVALID_VALUE)
      << "not made for it";
  ASSERT_EQ(d().cuMemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(d().cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE) << "twice";
  EXPECT_EQ(control.used_bytes(1), 2 * kUnit) << "the mapping keeps it";
  ASSERT_EQ(
      d().cuMemImportFromShareableHandle(&other, reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
                                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
      CUDA_SUCCESS);
  ::close(fd);
  ASSERT_EQ(d().cuMemMap(pointer + 2 * kUnit, 2 * kUnit, 0, other, 0), CUDA_SUCCESS);
  ASSERT_EQ(d().cuMemSetAccess(pointer + 2 * kUnit, 2 * kUnit, &access, 1), CUDA_SUCCESS);
  EXPECT_EQ(*words(pointer + 2 * kUnit), 9u);
  int ordinal = -1;
  EXPECT_TRUE(on_device(words(pointer + 2 * kUnit), &ordinal));
  EXPECT_EQ(ordinal, 1) << "whose memory it is";
  ASSERT_EQ(d().cuMemRelease(other), CUDA_SUCCESS);
  ASSERT_EQ(d().cuMemUnmap(pointer, 4 * kUnit), CUDA_SUCCESS);
  EXPECT_EQ(control.used_bytes(1), 0u);
  EXPECT_EQ(d().cuMemAddressFree(pointer, kUnit), CUDA_ERROR_INVALID_VALUE) << "not the size";
  ASSERT_EQ(d().cuMemAddressFree(pointer, 4 * kUnit), CUDA_SUCCESS);
}

TEST_F(StandIn, DescriptorsOfOtherFilesAreNotImported) {
  const int fd = memfd_create("other", MFD_CLOEXEC);
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_EQ(d().cuMemImportFromShareableHandle(&handle,
                                               reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
                                               CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
            CUDA_ERROR_INVALID_VALUE);
  ::close(fd);
}

TEST_F(StandIn, WhatNoDeviceMayUseFaults) {
  CUdeviceptr pointer = 0;
  CUmemGenericAllocationHandle handle = 0;
  const CUmemAllocationProp wanted = properties();
  ASSERT_EQ(d().cuMemAddressReserve(&pointer, kUnit, 0, 0, 0), CUDA_SUCCESS);
  ASSERT_EQ(d().cuMemCreate(&handle, kUnit, &wanted, 0), CUDA_SUCCESS);
  ASSERT_EQ(d().cuMemMap(pointer, kUnit, 0, handle, 0), CUDA_SUCCESS);
  const pid_t child = fork();
  if (child == 0) {
    *words(pointer) = 1;
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) != 0);
  ASSERT_EQ(d().cuMemUnmap(pointer, kUnit), CUDA_SUCCESS);
  ASSERT_EQ(d().cuMemRelease(handle), CUDA_SUCCESS);
  ASSERT_EQ(d().cuMemAddressFree(pointer, kUnit), CUDA_SUCCESS);
}

TEST_F(StandIn, MemoryIsFinite) {
  size_t free_bytes = 0, total = 0;
  ASSERT_EQ(d().cuMemGetInfo(&free_bytes, &total), CUDA_SUCCESS);
  EXPECT_EQ(total, uint64_t{1} << 30);
  EXPECT_EQ(free_bytes, total - kUnit);
  CUmemGenericAllocationHandle handle = 0;
  const CUmemAllocationProp wanted = properties();
  EXPECT_EQ(d().cuMemCreate(&handle, free_bytes / kUnit * kUnit + kUnit, &wanted, 0),
            CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_EQ(d().cuMemCreate(&handle, free_bytes / kUnit * kUnit, &wanted, 0), CUDA_SUCCESS);
  CUdeviceptr more = 0;
  EXPECT_EQ(d().cuMemAlloc(&more, kUnit), CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_EQ(d().cuMemRelease(handle), CUDA_SUCCESS);
}

TEST_F(StandIn, ABatchCopiesInAnyOrderAndOnlyWhatIsIndependent) {
  if (!d().cuMemcpyBatchAsync_v2) GTEST_SKIP() << "this driver has no batches of this form";
  std::vector<CUdeviceptr> to, from;
  std::vector<size_t> sizes(8, 64), begins = {0};
  std::vector<CUmemcpyAttributes> attributes(1);
  for (unsigned i = 0; i < 8; i++) {
    words(memory)[16 * i] = i + 1;
    from.push_back(memory + 64 * i);
    to.push_back(memory + 4096 + 64 * i);
  }
  const auto run = [&](CUstream stream) {
    return d().cuMemcpyBatchAsync_v2(to.data(), from.data(), sizes.data(), 8, attributes.data(),
                                     begins.data(), 1, stream);
  };
  EXPECT_EQ(run(nullptr), CUDA_ERROR_INVALID_VALUE) << "not the default stream";
  ASSERT_EQ(run(a), CUDA_SUCCESS);
  ASSERT_EQ(d().cuStreamSynchronize(a), CUDA_SUCCESS);
  for (unsigned i = 0; i < 8; i++) EXPECT_EQ(words(to[i])[0], i + 1);
  to[3] = from[5];
  EXPECT_EQ(run(a), CUDA_ERROR_INVALID_VALUE) << "writes what another reads";
}

TEST_F(StandIn, AKernelHasTheArgumentsOfItsLaunch) {
  static const unsigned char image[16] = {0x50, 0xed, 0x55, 0xba};
  CUmodule module = nullptr;
  CUfunction add = nullptr, none = nullptr;
  EXPECT_NE(d().cuModuleLoadData(&module, "text"), CUDA_SUCCESS);
  ASSERT_EQ(d().cuModuleLoadData(&module, image), CUDA_SUCCESS);
  ASSERT_EQ(d().cuModuleGetFunction(&add, module, "add"), CUDA_SUCCESS);
  EXPECT_EQ(d().cuModuleGetFunction(&none, module, "none"), 500);
  unsigned more = 5;
  CUdeviceptr values = memory;
  void* arguments[] = {&values, &more};
  const uint64_t before = control.calls("kernel add");
  ASSERT_EQ(d().cuFuncLoad(add), CUDA_SUCCESS);  // so the launch need not wait for the gate
  close(a, 0);
  EXPECT_EQ(d().cuLaunchKernel(add, 2, 1, 1, 2048, 1, 1, 0, a, arguments, nullptr),
            CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(d().cuLaunchKernel(add, 2, 1, 1, 4, 1, 1, 0, a, arguments, nullptr), CUDA_SUCCESS);
  more = 0;
  gates[0] = 1;
  ASSERT_EQ(d().cuStreamSynchronize(a), CUDA_SUCCESS);
  EXPECT_EQ(words(memory)[7], 5u);
  EXPECT_EQ(words(memory)[8], 0u);
  EXPECT_EQ(control.calls("kernel add"), before + 1);
  ASSERT_EQ(d().cuModuleUnload(module), CUDA_SUCCESS);
}

// A launch that has to load the kernel may wait for the whole device, and over the stand-in it
// always does.
TEST_F(StandIn, AKernelIsLoadedByItsFirstLaunchWhichWaits) {
  static const unsigned char image[16] = {0x50, 0xed, 0x55, 0xba};
  CUmodule module = nullptr;
  CUfunction add = nullptr;
  ASSERT_EQ(d().cuModuleLoadData(&module, image), CUDA_SUCCESS);
  ASSERT_EQ(d().cuModuleGetFunction(&add, module, "add"), CUDA_SUCCESS);
  unsigned more = 5;
  CUdeviceptr values = memory;
  void* arguments[] = {&values, &more};
  close(a, 0);
  std::atomic<bool> launched{false};
  std::thread other([&] {
    const Current own(*device);
    EXPECT_EQ(d().cuLaunchKernel(add, 1, 1, 1, 4, 1, 1, 0, b, arguments, nullptr), CUDA_SUCCESS);
    launched = true;
  });
  const timespec a_while{0, 20'000'000};
  nanosleep(&a_while, nullptr);
  EXPECT_FALSE(launched) << "the other stream stands still";
  gates[0] = 1;
  other.join();
  ASSERT_EQ(d().cuModuleUnload(module), CUDA_SUCCESS);
}

TEST_F(StandIn, CallsFailWhenToldAndAreCounted) {
  CUevent event = nullptr;
  const uint64_t before = control.calls("cuEventCreate"), all = control.calls();
  control.fail("cuEventCreate", 2);
  ASSERT_EQ(d().cuEventCreate(&event, 0), CUDA_SUCCESS);
  ASSERT_EQ(d().cuEventDestroy(event), CUDA_SUCCESS);
  EXPECT_EQ(d().cuEventCreate(&event, 0), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(control.calls("cuEventCreate"), before + 2);
  EXPECT_EQ(control.calls(), all + 3);
}

TEST_F(StandIn, WithoutAContextOrAfterAForkNothingWorks) {
  current.reset();
  CUdeviceptr pointer = 0;
  EXPECT_EQ(d().cuMemAlloc(&pointer, 4), kInvalidContext);
  EXPECT_NE(control.broken_rules().find("cuMemAlloc_v2: no context"), std::string::npos);
  current.emplace(*device);
  const pid_t child = fork();
  if (child == 0) _exit(d().cuMemAlloc(&pointer, 4));
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 3);
}

// A stream waits for a value that another process writes, in memory that both map and each has
// registered.
TEST_F(StandIn, AnotherProcessEndsAWait) {
  auto* const shared = static_cast<uint32_t*>(
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ASSERT_EQ(d().cuMemHostRegister(shared, 4096,
                                  CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP),
            CUDA_SUCCESS);
  CUstreamBatchMemOpParams wait;
  wait.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
  wait.address = address_of(shared);
  wait.value64 = 1;
  ASSERT_EQ(d().cuStreamBatchMemOp(a, 1, &wait, 0), CUDA_SUCCESS);
  EXPECT_FALSE(idle(a));
  const pid_t child = fork();
  if (child == 0) {
    __atomic_store_n(shared, 1, __ATOMIC_RELEASE);
    _exit(0);
  }
  ASSERT_EQ(d().cuStreamSynchronize(a), CUDA_SUCCESS);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  ASSERT_EQ(d().cuMemHostUnregister(shared), CUDA_SUCCESS);
  munmap(shared, 4096);
}

}  // namespace
}  // namespace fsccl::cuda
