// The stand-in keeps the rules of CUDA that the library relies on, and refuses what CUDA does: else
// a test over it would say nothing. Of memory, kernels and calls; of streams in
// stand_in_streams_test.cpp.
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
  DevicePointer reserved = 0;
  ASSERT_EQ(d().reserve_addresses(&reserved, kUnit, 0, 0, 0), kSuccess);
  EXPECT_EQ(d().copy_async(reserved, memory, 4, a), kInvalidValue);
  EXPECT_EQ(d().copy_async(memory, memory + kUnit - 4, 8, a), kInvalidValue) << "beyond the end";
  EXPECT_NE(control.broken_rules(), "");
  ASSERT_EQ(d().free_addresses(reserved, kUnit), kSuccess);
}

TEST_F(StandIn, MemoryThatIsGoneWhenItsCopyRunsBreaksTheDevice) {
  DevicePointer pointer = 0;
  MemoryHandle handle = 0;
  const AllocationProperties wanted = properties();
  const AccessDescription access;
  ASSERT_EQ(d().reserve_addresses(&pointer, kUnit, 0, 0, 0), kSuccess);
  ASSERT_EQ(d().create_memory(&handle, kUnit, &wanted, 0), kSuccess);
  ASSERT_EQ(d().map_memory(pointer, kUnit, 0, handle, 0), kSuccess);
  EXPECT_EQ(d().copy_async(pointer, memory, 4, a), kInvalidValue) << "no access yet";
  ASSERT_EQ(d().set_access(pointer, kUnit, &access, 1), kSuccess);
  close(a, 0);
  ASSERT_EQ(d().copy_async(pointer, memory, 4, a), kSuccess);
  control.broken_rules();
  ASSERT_EQ(d().unmap_memory(pointer, kUnit), kSuccess);
  EXPECT_NE(control.broken_rules().find("that a stream has still to use"), std::string::npos);
  gates[0] = 1;
  EXPECT_EQ(d().stream_synchronize(a), kIllegalAddress);
  EXPECT_NE(control.broken_rules().find("not there any more"), std::string::npos);
  Event event = nullptr;
  EXPECT_EQ(d().event_create(&event, 0), kIllegalAddress) << "and so does everything that follows";
  control.break_device(0, 0);
  ASSERT_EQ(d().release_memory(handle), kSuccess);
  ASSERT_EQ(d().free_addresses(pointer, kUnit), kSuccess);
}

TEST_F(StandIn, VirtualMemoryKeepsItsRules) {
  DevicePointer pointer = 0;
  MemoryHandle handle = 0, other = 0;
  const AllocationProperties wanted = properties(1);
  const AccessDescription access;
  EXPECT_EQ(d().reserve_addresses(&pointer, kUnit + 4096, 0, 0, 0), kInvalidValue);
  ASSERT_EQ(d().reserve_addresses(&pointer, 4 * kUnit, 0, 0, 0), kSuccess);
  EXPECT_EQ(pointer % kUnit, 0u);
  EXPECT_EQ(d().create_memory(&handle, 4096, &wanted, 0), kInvalidValue);
  ASSERT_EQ(d().create_memory(&handle, 2 * kUnit, &wanted, 0), kSuccess);
  EXPECT_EQ(d().map_memory(pointer, 4 * kUnit, 0, handle, 0), kInvalidValue)
      << "more than there is";
  EXPECT_EQ(d().map_memory(pointer + 3 * kUnit, 2 * kUnit, 0, handle, 0), kInvalidValue)
      << "beyond what is reserved";
  ASSERT_EQ(d().map_memory(pointer, 2 * kUnit, 0, handle, 0), kSuccess);
  EXPECT_EQ(d().map_memory(pointer + kUnit, 2 * kUnit, 0, handle, 0), kInvalidValue)
      << "mapped already";
  EXPECT_EQ(d().set_access(pointer, 4 * kUnit, &access, 1), kInvalidValue)
      << "not all of it is mapped";
  ASSERT_EQ(d().set_access(pointer, 2 * kUnit, &access, 1), kSuccess);
  *words(pointer) = 9;
  EXPECT_EQ(d().free_addresses(pointer, 4 * kUnit), kInvalidValue) << "still mapped";
  EXPECT_EQ(d().unmap_memory(pointer, kUnit), kInvalidValue) << "a part";
  int fd = -1;
  ASSERT_EQ(d().export_memory(&fd, handle, kPosixHandle, 0), kSuccess);
  EXPECT_EQ(d().export_memory(&fd, handle, kFabricHandle, 0), kInvalidValue) << "not made for it";
  ASSERT_EQ(d().release_memory(handle), kSuccess);
  EXPECT_EQ(d().release_memory(handle), kInvalidValue) << "twice";
  EXPECT_EQ(control.used_bytes(1), 2 * kUnit) << "the mapping keeps it";
  ASSERT_EQ(
      d().import_memory(&other, reinterpret_cast<void*>(static_cast<intptr_t>(fd)), kPosixHandle),
      kSuccess);
  ::close(fd);
  ASSERT_EQ(d().map_memory(pointer + 2 * kUnit, 2 * kUnit, 0, other, 0), kSuccess);
  ASSERT_EQ(d().set_access(pointer + 2 * kUnit, 2 * kUnit, &access, 1), kSuccess);
  EXPECT_EQ(*words(pointer + 2 * kUnit), 9u);
  int ordinal = -1;
  EXPECT_TRUE(on_device(words(pointer + 2 * kUnit), &ordinal));
  EXPECT_EQ(ordinal, 1) << "whose memory it is";
  ASSERT_EQ(d().release_memory(other), kSuccess);
  ASSERT_EQ(d().unmap_memory(pointer, 4 * kUnit), kSuccess);
  EXPECT_EQ(control.used_bytes(1), 0u);
  EXPECT_EQ(d().free_addresses(pointer, kUnit), kInvalidValue) << "not the size";
  ASSERT_EQ(d().free_addresses(pointer, 4 * kUnit), kSuccess);
}

TEST_F(StandIn, DescriptorsOfOtherFilesAreNotImported) {
  const int fd = memfd_create("other", MFD_CLOEXEC);
  MemoryHandle handle = 0;
  EXPECT_EQ(
      d().import_memory(&handle, reinterpret_cast<void*>(static_cast<intptr_t>(fd)), kPosixHandle),
      kInvalidValue);
  ::close(fd);
}

TEST_F(StandIn, WhatNoDeviceMayUseFaults) {
  DevicePointer pointer = 0;
  MemoryHandle handle = 0;
  const AllocationProperties wanted = properties();
  ASSERT_EQ(d().reserve_addresses(&pointer, kUnit, 0, 0, 0), kSuccess);
  ASSERT_EQ(d().create_memory(&handle, kUnit, &wanted, 0), kSuccess);
  ASSERT_EQ(d().map_memory(pointer, kUnit, 0, handle, 0), kSuccess);
  const pid_t child = fork();
  if (child == 0) {
    *words(pointer) = 1;
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) != 0);
  ASSERT_EQ(d().unmap_memory(pointer, kUnit), kSuccess);
  ASSERT_EQ(d().release_memory(handle), kSuccess);
  ASSERT_EQ(d().free_addresses(pointer, kUnit), kSuccess);
}

TEST_F(StandIn, MemoryIsFinite) {
  size_t free_bytes = 0, total = 0;
  ASSERT_EQ(d().memory_info(&free_bytes, &total), kSuccess);
  EXPECT_EQ(total, uint64_t{1} << 30);
  EXPECT_EQ(free_bytes, total - kUnit);
  MemoryHandle handle = 0;
  const AllocationProperties wanted = properties();
  EXPECT_EQ(d().create_memory(&handle, free_bytes / kUnit * kUnit + kUnit, &wanted, 0),
            kOutOfMemory);
  ASSERT_EQ(d().create_memory(&handle, free_bytes / kUnit * kUnit, &wanted, 0), kSuccess);
  DevicePointer more = 0;
  EXPECT_EQ(d().allocate(&more, kUnit), kOutOfMemory);
  ASSERT_EQ(d().release_memory(handle), kSuccess);
}

TEST_F(StandIn, ABatchCopiesInAnyOrderAndOnlyWhatIsIndependent) {
  if (!d().copy_batch_v2) GTEST_SKIP() << "this driver has no batches of this form";
  std::vector<DevicePointer> to, from;
  std::vector<size_t> sizes(8, 64), begins = {0};
  std::vector<CopyAttributes> attributes(1);
  for (unsigned i = 0; i < 8; i++) {
    words(memory)[16 * i] = i + 1;
    from.push_back(memory + 64 * i);
    to.push_back(memory + 4096 + 64 * i);
  }
  const auto run = [&](Stream stream) {
    return d().copy_batch_v2(to.data(), from.data(), sizes.data(), 8, attributes.data(),
                             begins.data(), 1, stream);
  };
  EXPECT_EQ(run(nullptr), kInvalidValue) << "not the default stream";
  ASSERT_EQ(run(a), kSuccess);
  ASSERT_EQ(d().stream_synchronize(a), kSuccess);
  for (unsigned i = 0; i < 8; i++) EXPECT_EQ(words(to[i])[0], i + 1);
  to[3] = from[5];
  EXPECT_EQ(run(a), kInvalidValue) << "writes what another reads";
}

TEST_F(StandIn, AKernelHasTheArgumentsOfItsLaunch) {
  static const unsigned char image[16] = {0x50, 0xed, 0x55, 0xba};
  Module module = nullptr;
  Function add = nullptr, none = nullptr;
  EXPECT_NE(d().module_load(&module, "text"), kSuccess);
  ASSERT_EQ(d().module_load(&module, image), kSuccess);
  ASSERT_EQ(d().module_function(&add, module, "add"), kSuccess);
  EXPECT_EQ(d().module_function(&none, module, "none"), 500);
  unsigned more = 5;
  DevicePointer values = memory;
  void* arguments[] = {&values, &more};
  const uint64_t before = control.calls("kernel add");
  ASSERT_EQ(d().function_load(add), kSuccess);  // else the launch waits for the gate
  close(a, 0);
  EXPECT_EQ(d().launch(add, 2, 1, 1, 2048, 1, 1, 0, a, arguments, nullptr), kInvalidValue);
  ASSERT_EQ(d().launch(add, 2, 1, 1, 4, 1, 1, 0, a, arguments, nullptr), kSuccess);
  more = 0;
  gates[0] = 1;
  ASSERT_EQ(d().stream_synchronize(a), kSuccess);
  EXPECT_EQ(words(memory)[7], 5u);
  EXPECT_EQ(words(memory)[8], 0u);
  EXPECT_EQ(control.calls("kernel add"), before + 1);
  ASSERT_EQ(d().module_unload(module), kSuccess);
}

// Left to the launch, it may wait for the whole device: here it always does.
TEST_F(StandIn, AKernelIsLoadedByItsFirstLaunchWhichWaits) {
  static const unsigned char image[16] = {0x50, 0xed, 0x55, 0xba};
  Module module = nullptr;
  Function add = nullptr;
  ASSERT_EQ(d().module_load(&module, image), kSuccess);
  ASSERT_EQ(d().module_function(&add, module, "add"), kSuccess);
  unsigned more = 5;
  DevicePointer values = memory;
  void* arguments[] = {&values, &more};
  close(a, 0);
  std::atomic<bool> launched{false};
  std::thread other([&] {
    const Current own(*device);
    EXPECT_EQ(d().launch(add, 1, 1, 1, 4, 1, 1, 0, b, arguments, nullptr), kSuccess);
    launched = true;
  });
  const timespec a_while{0, 20'000'000};
  nanosleep(&a_while, nullptr);
  EXPECT_FALSE(launched) << "the other stream stands still";
  gates[0] = 1;
  other.join();
  ASSERT_EQ(d().module_unload(module), kSuccess);
}

TEST_F(StandIn, CallsFailWhenToldAndAreCounted) {
  Event event = nullptr;
  const uint64_t before = control.calls("cuEventCreate"), all = control.calls();
  control.fail("cuEventCreate", 2);
  ASSERT_EQ(d().event_create(&event, 0), kSuccess);
  ASSERT_EQ(d().event_destroy(event), kSuccess);
  EXPECT_EQ(d().event_create(&event, 0), kOutOfMemory);
  EXPECT_EQ(control.calls("cuEventCreate"), before + 2);
  EXPECT_EQ(control.calls(), all + 3);
}

TEST_F(StandIn, WithoutAContextOrAfterAForkNothingWorks) {
  current.reset();
  DevicePointer pointer = 0;
  EXPECT_EQ(d().allocate(&pointer, 4), kInvalidContext);
  EXPECT_NE(control.broken_rules().find("cuMemAlloc_v2: no context"), std::string::npos);
  current.emplace(*device);
  const pid_t child = fork();
  if (child == 0) _exit(d().allocate(&pointer, 4));
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 3);
}

// A stream waits for a value that another process writes: memory that both map and each has
// registered.
TEST_F(StandIn, AnotherProcessEndsAWait) {
  auto* const shared = static_cast<uint32_t*>(
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ASSERT_EQ(d().register_host(shared, 4096, kHostPortable | kHostMapped), kSuccess);
  MemoryOperation wait;
  wait.operation = kWaitValue32;
  wait.address = address_of(shared);
  wait.value = 1;
  ASSERT_EQ(d().stream_values(a, 1, &wait, 0), kSuccess);
  EXPECT_FALSE(idle(a));
  const pid_t child = fork();
  if (child == 0) {
    __atomic_store_n(shared, 1, __ATOMIC_RELEASE);
    _exit(0);
  }
  ASSERT_EQ(d().stream_synchronize(a), kSuccess);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  ASSERT_EQ(d().unregister_host(shared), kSuccess);
  munmap(shared, 4096);
}

}  // namespace
}  // namespace fsccl::cuda
