// CUDA's numbers and types that the stand-in needs, written after cuda.h without including it. They
// are declared apart from src/cuda/driver.h on purpose, so that a mistake there does not get into
// the stand-in. tests/unit/cuda/abi_test.cpp compares the library's declarations with cuda.h.
#pragma once
#include <cstddef>
#include <cstdint>

namespace fsccl::stand_in {

using Code = int;
enum : Code {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidImage = 200,
  kInvalidContext = 201,
  kInvalidHandle = 400,
  kIllegalState = 401,
  kNotFound = 500,
  kNotReady = 600,
  kCaptureUnsupported = 900,
  kCaptureIsolation = 905,
  kCaptureImplicit = 906,
  kCapturedEvent = 907,
  kIllegalAddress = 700,
  kAlreadyRegistered = 712,
  kNotRegistered = 713,
  kLaunchFailed = 719,
  kNotPermitted = 800,
  kNotSupported = 801,
};

struct Location {
  int type, id;
};
inline constexpr int kOnDevice = 1;

struct AllocationProperties {
  int type, handles;
  Location location;
  void* windows;
  unsigned char compression, gpu_direct_rdma;
  unsigned short usage;
  unsigned char reserved[4];
};
inline constexpr int kPinned = 1, kPosixHandle = 1, kFabricHandle = 8;

struct AccessDescription {
  Location location;
  int flags;  // 0: none, 1: read, 3: read and write
};

struct CopyAttributes {
  int source_order;  // the source is read: 1: in stream order, 2: during the call, 3: at any time
  Location source_hint, destination_hint;
  unsigned flags;
};

struct MemoryOperation {
  int operation;  // 1: wait for 32 bits, 4: for 64 bits; 2, 5: write them; 6: barrier
  unsigned long long address;
  uint64_t value;
  // A wait has its condition here. 0: (signed)(*address - value) >= 0, 1: *address == value,
  // 2: *address & value. In a write 1 means that there is no barrier before it.
  unsigned flags;
  unsigned long long alias;
  uint64_t rest;
};

using DevicePointer = unsigned long long;
using MemoryHandle = unsigned long long;

}  // namespace fsccl::stand_in
