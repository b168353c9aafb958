// CUDA's numbers and types as the stand-in needs them, after cuda.h and without it. Declared apart
// from src/cuda/driver.h on purpose: what stands in for the driver must not take over a mistake of
// its user. tests/unit/cuda/abi_test.cpp compares the user's.
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
  int source_order;  // 1: of the stream, 2: during the call, 3: any
  Location source_hint, destination_hint;
  unsigned flags;
};

struct MemoryOperation {
  int operation;  // a wait: 1 (32 bits), 4 (64); a write: 2, 5; 6: a barrier
  unsigned long long address;
  uint64_t value;
  // wait: 0: (signed)(*address - value) >= 0, 1: ==, 2: *address & value; write: 1: no barrier
  // before it
  unsigned flags;
  unsigned long long alias;
  uint64_t rest;
};

using DevicePointer = unsigned long long;
using MemoryHandle = unsigned long long;

}  // namespace fsccl::stand_in
