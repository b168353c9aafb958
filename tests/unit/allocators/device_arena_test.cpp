// Tests the arena of a GPU over the stand-in driver: its memory grows, is mapped by another process
// and is given back, and wrong requests are refused.
#include "allocators/cuda/device_arena.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <cstdlib>
#include <cstring>
#include <optional>

#include "tests/stand_in/cuda/control.h"

namespace fsccl {
namespace {

constexpr uint64_t kUnit = 2 << 20;
// The argument with which this program starts itself as a peer: it adopts the two segments that are
// named, checks their contents and changes them.
constexpr char kPeer[] = "--peer";

const cuda::Device& device(int ordinal = 0) {
  Result<const cuda::Device*> opened = cuda::Device::open(ordinal);
  if (!opened.ok()) std::abort();
  return *opened.value();
}

uint64_t moved(const DeviceArena& arena, uint64_t offset, uint64_t* host, bool read) {
  const cuda::Current current(arena.device());
  const auto there = arena.base() + offset, here = reinterpret_cast<cuda::CUdeviceptr>(host);
  const cuda::Driver& driver = arena.device().driver();
  EXPECT_EQ(driver.cuMemcpyAsync(read ? here : there, read ? there : here, sizeof *host, nullptr),
            cuda::CUDA_SUCCESS);
  EXPECT_EQ(driver.cuStreamSynchronize(nullptr), cuda::CUDA_SUCCESS);
  return *host;
}
uint64_t read(const DeviceArena& arena, uint64_t offset) {
  uint64_t value = 0;
  return moved(arena, offset, &value, true);
}
void write(const DeviceArena& arena, uint64_t offset, uint64_t value) {
  moved(arena, offset, &value, false);
}

DeviceArena reserved(uint64_t bytes, const cuda::Device& on = device()) {
  Result<DeviceArena> made = DeviceArena::reserve(on, bytes);
  if (!made.ok()) std::abort();
  return made.take();
}
#define EXPECT_GOOD(expression)            \
  do {                                     \
    const Status good = (expression);      \
    EXPECT_TRUE(good.ok()) << good.text(); \
  } while (0)
#define EXPECT_BAD(expression, status, words)                           \
  do {                                                                  \
    const Status bad = (expression);                                    \
    EXPECT_EQ(bad.code(), status);                                      \
    EXPECT_NE(bad.text().find(words), std::string::npos) << bad.text(); \
  } while (0)

class Arena : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(control.there()); }
  void TearDown() override {
    EXPECT_EQ(control.leaks(), "");
    EXPECT_EQ(control.used_bytes(0) + control.used_bytes(1), 0u);
    unsetenv("FSCCL_STAND_IN_ATTRIBUTES");
    control.broken_rules();
  }
  const stand_in::Control control;
};

TEST_F(Arena, SegmentsLieEndToEndAndGoInTheEnd) {
  DeviceArena arena = reserved(5 * kUnit - 1);
  EXPECT_EQ(arena.address_bytes(), 5 * kUnit);
  EXPECT_EQ(arena.bytes(), 0u);
  EXPECT_EQ(control.used_bytes(0), 0u) << "addresses take no memory";
  EXPECT_GOOD(arena.grow(1));
  EXPECT_GOOD(arena.grow(2 * kUnit));
  EXPECT_GOOD(arena.grow(kUnit + 1));
  EXPECT_EQ(arena.bytes(), 5 * kUnit);
  EXPECT_EQ(arena.segments(), 3u);
  EXPECT_EQ(arena.segment_bytes(2), 2 * kUnit);
  EXPECT_EQ(control.used_bytes(0), 5 * kUnit);
  write(arena, kUnit - 4, 0x1122334455667788);  // across a border of segments
  EXPECT_EQ(read(arena, kUnit - 4), 0x1122334455667788u);
  EXPECT_BAD(arena.grow(1), FSCCL_ERR_OUT_OF_MEMORY, "addresses");
  EXPECT_EQ(arena.shrink(3 * kUnit + 1), 0u) << "the last segment begins below";
  EXPECT_EQ(arena.shrink(3 * kUnit), 2 * kUnit);
  EXPECT_EQ(arena.bytes(), 3 * kUnit);
  EXPECT_EQ(control.used_bytes(0), 3 * kUnit);
  EXPECT_EQ(read(arena, kUnit - 4), 0x1122334455667788u);
  DeviceArena other = std::move(arena);
  arena = reserved(kUnit);
  arena = std::move(other);
  EXPECT_EQ(read(arena, kUnit - 4), 0x1122334455667788u);
  EXPECT_EQ(control.broken_rules(), "");
}

TEST_F(Arena, AnErrorAnywhereChangesNothing) {
  DeviceArena arena = reserved(4 * kUnit);
  EXPECT_GOOD(arena.grow(kUnit));
  const std::string before = control.leaks();
  Result<Fd> fd = arena.export_segment(0);
  ASSERT_TRUE(fd.ok());
  const auto copy = [&] { return Fd(dup(fd.value().get())); };
  for (const char* function : {"cuMemCreate", "cuMemMap", "cuMemSetAccess"}) {
    control.fail(function);
    EXPECT_BAD(arena.grow(kUnit), FSCCL_ERR_OUT_OF_MEMORY,
               function == std::string("cuMemCreate") ? "are free" : function);
    EXPECT_EQ(control.leaks(), before) << function;
    EXPECT_EQ(control.used_bytes(0), kUnit) << function;
    EXPECT_EQ(arena.bytes(), kUnit);
    EXPECT_EQ(arena.segments(), 1u);
  }
  for (const char* function : {"cuMemImportFromShareableHandle", "cuMemMap", "cuMemSetAccess"}) {
    control.fail(function, 1, 1);
    EXPECT_BAD(arena.adopt(copy(), kUnit), FSCCL_ERR_SYSTEM, function);
    EXPECT_EQ(control.leaks(), before) << function;
    EXPECT_EQ(arena.segments(), 1u);
  }
  control.fail("cuMemExportToShareableHandle");
  EXPECT_FALSE(arena.export_segment(0).ok());
  for (const char* function : {"cuMemGetAllocationGranularity", "cuMemAddressReserve"}) {
    control.fail(function);
    EXPECT_FALSE(DeviceArena::reserve(device(), kUnit).ok());
  }
  EXPECT_EQ(control.leaks(), before);
  EXPECT_GOOD(arena.grow(kUnit));
  EXPECT_EQ(control.broken_rules(), "");
}

TEST_F(Arena, AFullDeviceSaysHowMuchIsFree) {
  DeviceArena arena = reserved(64 << 20), wide = reserved(uint64_t{1} << 40);
  EXPECT_GOOD(arena.grow(30 << 20));  // the device has 32 MiB
  EXPECT_BAD(wide.grow(4 << 20), FSCCL_ERR_OUT_OF_MEMORY,
             "device 0 has no 4194304 bytes more: 2097152 of 33554432 are free");
  EXPECT_BAD(wide.grow(~uint64_t{0}), FSCCL_ERR_OUT_OF_MEMORY, "addresses");
  EXPECT_GOOD(wide.grow(kUnit));
  EXPECT_FALSE(DeviceArena::reserve(device(), ~uint64_t{0}).ok());
}

// Starts this program as a peer that is handed two segments, of kUnit and 2 * kUnit bytes, and
// returns its exit status.
int peer(const std::string& first, const std::string& second) {
  const pid_t child = fork();
  if (child == 0) {
    execl("/proc/self/exe", "peer", kPeer, first.c_str(), second.c_str(), nullptr);
    _exit(100);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 101;
}

// Returns the text by which a peer is told of a segment: the number of a descriptor that it
// inherits, or a fabric handle in hexadecimal digits.
std::string told(Fd& fd) {
  EXPECT_EQ(fcntl(fd.get(), F_GETFD), FD_CLOEXEC);
  EXPECT_EQ(fcntl(fd.get(), F_SETFD, 0), 0);
  return std::to_string(fd.get());
}
std::string told(const cuda::CUmemFabricHandle& handle) {
  std::string text = "x";
  for (const unsigned char byte : handle.data) text += fmt::format("{:02x}", byte);
  return text;
}
Status adopt(DeviceArena& arena, const std::string& text, uint64_t bytes) {
  if (text[0] != 'x') return arena.adopt(Fd(std::atoi(text.c_str())), bytes);
  cuda::CUmemFabricHandle handle;
  for (size_t i = 0; i < sizeof handle.data; i++)
    handle.data[i] = static_cast<unsigned char>(std::stoi(text.substr(1 + 2 * i, 2), nullptr, 16));
  return arena.adopt(handle, bytes);
}

int run_as_peer(char** segments) {
  DeviceArena arena = reserved(4 * kUnit);
  if (!adopt(arena, segments[0], kUnit).ok()) return 1;
  if (!adopt(arena, segments[1], 2 * kUnit).ok()) return 2;
  if (arena.bytes() != 3 * kUnit || stand_in::Control().used_bytes(0) != 0) return 3;
  // A rank cannot export a segment that it has adopted.
  if (arena.export_segment(0).take_status().code() != FSCCL_ERR_NOT_AVAILABLE) return 4;
  if (read(arena, 8) != 11 || read(arena, 2 * kUnit) != 12) return 5;
  write(arena, kUnit, 13);
  return 0;
}

TEST_F(Arena, AnotherProcessMapsItAtTheSameOffsets) {
  DeviceArena arena = reserved(3 * kUnit);
  EXPECT_GOOD(arena.grow(kUnit));
  EXPECT_GOOD(arena.grow(2 * kUnit));
  write(arena, 8, 11);
  write(arena, 2 * kUnit, 12);
  Result<Fd> first = arena.export_segment(0), second = arena.export_segment(1);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(peer(told(first.value()), told(second.value())), 0);
  EXPECT_EQ(read(arena, kUnit), 13u);
  EXPECT_EQ(arena.export_to_fabric(0).take_status().code(), FSCCL_ERR_NOT_AVAILABLE);
}

TEST_F(Arena, AFabricHandleDoesTheSameWhereHostsShareOne) {
  setenv("FSCCL_STAND_IN_ATTRIBUTES", "128=1", 1);
  DeviceArena arena = reserved(3 * kUnit, device(1));  // nobody else opens it
  EXPECT_GOOD(arena.grow(kUnit));
  EXPECT_GOOD(arena.grow(2 * kUnit));
  write(arena, 8, 11);
  write(arena, 2 * kUnit, 12);
  const Result<cuda::CUmemFabricHandle> first = arena.export_to_fabric(0),
                                        second = arena.export_to_fabric(1);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(peer(told(first.value()), told(second.value())), 0);
  EXPECT_EQ(read(arena, kUnit), 13u);
  EXPECT_TRUE(arena.export_segment(0).ok()) << "both ways";
  cuda::CUmemFabricHandle wrong = first.value();
  wrong.data[0] ^= 1;
  DeviceArena other = reserved(3 * kUnit, device(1));
  EXPECT_BAD(other.adopt(wrong, kUnit), FSCCL_ERR_SYSTEM, "cuMemImportFromShareableHandle");
  EXPECT_EQ(control.broken_rules(), "");
}

// The GPU supports fabric handles, but this process has no rights to any domain of the fabric.
TEST_F(Arena, WithoutRightsToTheFabricThereAreDescriptors) {
  setenv("FSCCL_STAND_IN_ATTRIBUTES", "128=1", 1);
  DeviceArena arena = reserved(kUnit, device(1));
  unsetenv("FSCCL_STAND_IN_ATTRIBUTES");
  EXPECT_GOOD(arena.grow(kUnit));
  EXPECT_TRUE(arena.export_segment(0).ok());
  EXPECT_EQ(arena.export_to_fabric(0).take_status().code(), FSCCL_ERR_NOT_AVAILABLE);
}

TEST_F(Arena, WhatAPeerSaysOfItsMemoryIsChecked) {
  DeviceArena mine = reserved(4 * kUnit), arena = reserved(8 * kUnit);
  EXPECT_GOOD(mine.grow(2 * kUnit));
  const auto segment = [&] { return mine.export_segment(0).take(); };
  EXPECT_BAD(arena.adopt(segment(), 4 * kUnit), FSCCL_ERR_SYSTEM, "cuMemMap");
  EXPECT_BAD(arena.adopt(segment(), 2 * kUnit + 4096), FSCCL_ERR_PROTOCOL,
             "not a multiple of 2097152");
  EXPECT_BAD(arena.adopt(segment(), 0), FSCCL_ERR_PROTOCOL, "0 bytes");
  EXPECT_BAD(arena.adopt(segment(), uint64_t{1} << 63), FSCCL_ERR_OUT_OF_MEMORY, "addresses");
  EXPECT_BAD(arena.adopt(Fd(memfd_create("foreign", MFD_CLOEXEC)), 2 * kUnit), FSCCL_ERR_SYSTEM,
             "another rank's memory");
  EXPECT_BAD(arena.adopt(Fd(), 2 * kUnit), FSCCL_ERR_SYSTEM, "another rank's memory");
  EXPECT_EQ(arena.segments(), 0u);
  EXPECT_GOOD(arena.adopt(segment(), 2 * kUnit));
  write(mine, kUnit, 5);
  EXPECT_EQ(read(arena, kUnit), 5u);
  mine = reserved(kUnit);
  EXPECT_EQ(read(arena, kUnit), 5u) << "the mapping keeps it";
}

}  // namespace
}  // namespace fsccl

int main(int argc, char** argv) {
  if (argc == 4 && std::string(argv[1]) == fsccl::kPeer) return fsccl::run_as_peer(argv + 2);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
