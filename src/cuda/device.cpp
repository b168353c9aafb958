#include "cuda/device.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>

#include "base/immortal.h"

namespace fsccl::cuda {
namespace {

constexpr const char* kLate = "the GPU had not done all that is on a stream before the deadline";
constexpr int64_t kNapNs = 50'000;  // between two questions to the driver

}  // namespace

Result<Device> Device::look(int ordinal) {
  std::string why;
  const Driver* const driver = cuda::driver(&why);
  if (!driver) return fail(FSCCL_ERR_NOT_AVAILABLE, "there is no GPU to use: {}", why);
  int count = 0;
  FSCCL_TRY(cuda::check(*driver, "cuDeviceGetCount", driver->cuDeviceGetCount(&count)));
  if (ordinal < 0 || ordinal >= count)
    return fail(FSCCL_ERR_NOT_AVAILABLE,
                "device {} is not there: this process sees {} (CUDA_VISIBLE_DEVICES)", ordinal,
                count);
  Device made;
  made.driver_ = driver;
  made.ordinal_ = ordinal;
  const auto checked = [&](const char* what, CUresult code) { return made.check(what, code); };
  FSCCL_TRY(checked("cuDeviceGet", driver->cuDeviceGet(&made.device_, ordinal)));
  const auto attribute = [&](CUdevice_attribute which) {
    int value = 0;
    return driver->cuDeviceGetAttribute(&value, which, made.device_) == CUDA_SUCCESS ? value : 0;
  };
  if (!attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED))
    return fail(FSCCL_ERR_NOT_AVAILABLE,
                "device {} has no virtual memory management, which pools are made of", ordinal);
  char name[256] = "";
  FSCCL_TRY(checked("cuDeviceGetName", driver->cuDeviceGetName(name, sizeof name, made.device_)));
  made.name_ = name;
  size_t bytes = 0;
  FSCCL_TRY(checked("cuDeviceTotalMem", driver->cuDeviceTotalMem(&bytes, made.device_)));
  made.memory_bytes_ = bytes;
  FSCCL_TRY(checked("cuDeviceGetUuid", driver->cuDeviceGetUuid(made.uuid_, made.device_)));
  made.copy_engines_ = attribute(CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT);
  made.multiprocessors_ = attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  made.capability_ = 10 * attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) +
                     attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  made.posix_handles_ =
      attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) != 0;
  made.fabric_handles_ = attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED) != 0;
  made.direct_rdma_ = attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) != 0;
  made.wide_values_ = attribute(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS) != 0;
  return made;
}

Result<const Device*> Device::open(int ordinal) {
  static std::mutex mutex;
  // Devices are never destroyed, because streams and memory of the caller may outlive every object
  // of the library.
  static Immortal<std::map<int, const Device*>> kept;
  auto& devices = kept.get();
  const std::lock_guard lock(mutex);
  if (const auto found = devices.find(ordinal); found != devices.end()) return found->second;
  FSCCL_ASSIGN(Device looked, look(ordinal));
  FSCCL_TRY(looked.check("cuDevicePrimaryCtxRetain", looked.driver_->cuDevicePrimaryCtxRetain(
                                                         &looked.context_, looked.device_)));
  return devices.emplace(ordinal, new Device(std::move(looked))).first->second;
}

int device_count(std::string* why) {
  const Driver* const driver = cuda::driver(why);
  int count = 0;
  if (!driver) return 0;
  if (const CUresult code = driver->cuDeviceGetCount(&count); code != CUDA_SUCCESS) {
    *why = failed(*driver, "cuDeviceGetCount", code).text();
    return 0;
  }
  if (!count) *why = "this process sees no GPU (CUDA_VISIBLE_DEVICES)";
  return count;
}

bool devices_may_be_there() {
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (visible && !*visible) return false;
  // device files of a PC, of a Jetson, and of WSL
  constexpr const char* kFiles[] = {"/dev/nvidiactl", "/dev/nvmap", "/dev/dxg"};
  return std::any_of(std::begin(kFiles), std::end(kFiles),
                     [](const char* file) { return access(file, F_OK) == 0; });
}

Result<bool> Device::capturing(CUstream stream) const {
  int status = 0;
  const CUresult code = driver_->cuStreamIsCapturing(stream, &status);
  if (code == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) return true;
  FSCCL_TRY(check("cuStreamIsCapturing", code));
  return status != 0;
}

Status Device::put_values(std::vector<CUstreamBatchMemOpParams> operations, CUstream stream) const {
  for (size_t first = 0; first < operations.size(); first += kMaxBatchMemOps) {
    const auto count =
        static_cast<unsigned>(std::min<size_t>(operations.size() - first, kMaxBatchMemOps));
    FSCCL_TRY(check("cuStreamBatchMemOp",
                    driver_->cuStreamBatchMemOp(stream, count, &operations[first], 0)));
  }
  return success();
}

Result<OwnedStream> OwnedStream::create(const Device& device) {
  const Current current(device);
  CUstream stream = nullptr;
  FSCCL_TRY(device.check("cuStreamCreate", device.driver().cuStreamCreateWithPriority(
                                               &stream, CU_STREAM_NON_BLOCKING, 0)));
  return OwnedStream(device, stream);
}

OwnedStream::OwnedStream(OwnedStream&& other) noexcept
    : device_(other.device_), stream_(std::exchange(other.stream_, nullptr)) {}

OwnedStream& OwnedStream::operator=(OwnedStream&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(stream_, other.stream_);
  return *this;
}

OwnedStream::~OwnedStream() {
  if (!stream_) return;
  const Current current(*device_);
  (void)device_->driver().cuStreamDestroy(stream_);
}

Status OwnedStream::finish(Deadline deadline, const BreakCheck& broken) const {
  CUresult code = CUDA_ERROR_NOT_READY;
  const auto over = [&] {
    return (code = device_->driver().cuStreamQuery(stream_)) != CUDA_ERROR_NOT_READY;
  };
  FSCCL_ASSIGN(const bool in_time, wait_unless(broken, over, deadline, Naps(kNapNs)));
  return in_time ? device_->check("cuStreamQuery", code) : fail(FSCCL_ERR_TIMEOUT, "{}", kLate);
}

Result<OwnedEvent> OwnedEvent::create(const Device& device) {
  const Current current(device);
  CUevent event = nullptr;
  FSCCL_TRY(device.check("cuEventCreate",
                         device.driver().cuEventCreate(&event, CU_EVENT_DISABLE_TIMING)));
  return OwnedEvent(device, event);
}

OwnedEvent::OwnedEvent(OwnedEvent&& other) noexcept
    : device_(other.device_), event_(std::exchange(other.event_, nullptr)) {}

OwnedEvent& OwnedEvent::operator=(OwnedEvent&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(event_, other.event_);
  return *this;
}

OwnedEvent::~OwnedEvent() {
  if (!event_) return;
  const Current current(*device_);
  (void)device_->driver().cuEventDestroy(event_);
}

Status OwnedEvent::record(CUstream stream) const {
  return device_->check("cuEventRecord", device_->driver().cuEventRecord(event_, stream));
}

Status OwnedEvent::make_wait(CUstream stream) const {
  return device_->check("cuStreamWaitEvent",
                        device_->driver().cuStreamWaitEvent(stream, event_, 0));
}

bool OwnedEvent::complete() const {
  return device_->driver().cuEventQuery(event_) != CUDA_ERROR_NOT_READY;
}

Status OwnedEvent::finish(Deadline deadline, const BreakCheck& broken) const {
  CUresult code = CUDA_ERROR_NOT_READY;
  const auto over = [&] {
    return (code = device_->driver().cuEventQuery(event_)) != CUDA_ERROR_NOT_READY;
  };
  FSCCL_ASSIGN(const bool in_time, wait_unless(broken, over, deadline, Naps(kNapNs)));
  return in_time ? device_->check("cuEventQuery", code) : fail(FSCCL_ERR_TIMEOUT, "{}", kLate);
}

}  // namespace fsccl::cuda
