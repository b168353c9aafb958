// The driver's functions for itself, for its devices, and for texts of its errors.
#include <cstdio>
#include <cstring>

#include "driver.h"

using namespace fsccl::stand_in;

namespace {

struct Words {
  Code code;
  const char *name, *text;
};
constexpr Words kWords[] = {
    {kSuccess, "CUDA_SUCCESS", "no error"},
    {kInvalidValue, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {kNotInitialized, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {kNoDevice, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {kInvalidDevice, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {kInvalidImage, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {kInvalidContext, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {kInvalidHandle, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {kNotFound, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {kNotReady, "CUDA_ERROR_NOT_READY", "device not ready"},
    {kIllegalAddress, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {kAlreadyRegistered, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     "part or all of the requested memory range is already mapped"},
    {kNotRegistered, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
     "pointer does not correspond to a registered memory region"},
    {kLaunchFailed, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {kNotPermitted, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {kNotSupported, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
};

const Words* words_of(Code code) {
  for (const Words& words : kWords)
    if (words.code == code) return &words;
  return nullptr;
}

}  // namespace

extern "C" {

Code cuInit(unsigned flags) {
  if (const Code code = enter("cuInit", Needs::nothing)) return code;
  if (flags) return kInvalidValue;
  if (devices().empty()) return kNoDevice;
  return initialise();
}

Code cuDriverGetVersion(int* version) {
  if (const Code code = enter("cuDriverGetVersion", Needs::nothing)) return code;
  *version = driver_version();
  return kSuccess;
}

Code cuGetErrorName(Code code, const char** name) {
  const Words* const words = words_of(code);
  *name = words ? words->name : nullptr;
  return words ? kSuccess : kInvalidValue;
}

Code cuGetErrorString(Code code, const char** text) {
  const Words* const words = words_of(code);
  *text = words ? words->text : nullptr;
  return words ? kSuccess : kInvalidValue;
}

Code cuDeviceGetCount(int* count) {
  if (const Code code = enter("cuDeviceGetCount")) return code;
  *count = static_cast<int>(devices().size());
  return kSuccess;
}

Code cuDeviceGet(int* device, int ordinal) {
  if (const Code code = enter("cuDeviceGet")) return code;
  if (!device_at(ordinal)) return refuse("cuDeviceGet", kInvalidDevice, "device %d", ordinal);
  *device = ordinal;
  return kSuccess;
}

Code cuDeviceGetName(char* name, int capacity, int device) {
  if (const Code code = enter("cuDeviceGetName")) return code;
  if (!device_at(device) || capacity < 1)
    return refuse("cuDeviceGetName", kInvalidDevice, "device %d", device);
  std::snprintf(name, static_cast<size_t>(capacity), "stand-in for a GPU");
  return kSuccess;
}

Code cuDeviceTotalMem_v2(size_t* bytes, int device) {
  if (const Code code = enter("cuDeviceTotalMem_v2")) return code;
  if (!device_at(device)) return refuse("cuDeviceTotalMem_v2", kInvalidDevice, "device %d", device);
  *bytes = device_at(device)->bytes;
  return kSuccess;
}

Code cuDeviceGetAttribute(int* value, int which, int device) {
  if (const Code code = enter("cuDeviceGetAttribute")) return code;
  if (!device_at(device))
    return refuse("cuDeviceGetAttribute", kInvalidDevice, "device %d", device);
  return attribute(which, value, *device_at(device))
             ? kSuccess
             : refuse("cuDeviceGetAttribute", kInvalidValue, "attribute %d", which);
}

// Returns the same identifier in every process of the host.
Code cuDeviceGetUuid_v2(unsigned char* uuid, int device) {
  if (const Code code = enter("cuDeviceGetUuid_v2")) return code;
  if (!device_at(device)) return refuse("cuDeviceGetUuid_v2", kInvalidDevice, "device %d", device);
  std::memcpy(uuid, "fsccl stand-in\0", 16);
  uuid[15] = static_cast<unsigned char>(device_at(device)->physical);
  return kSuccess;
}

Code cuDeviceCanAccessPeer(int* can, int device, int peer) {
  if (const Code code = enter("cuDeviceCanAccessPeer")) return code;
  if (!device_at(device) || !device_at(peer))
    return refuse("cuDeviceCanAccessPeer", kInvalidDevice, "%d, %d", device, peer);
  *can = device != peer;
  return kSuccess;
}

}  // extern "C"
