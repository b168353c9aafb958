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
  FSCCL_TRY(cuda::check(*driver, "cuDeviceGetCount", driver->device_count(&count)));
  if (ordinal < 0 || ordinal >= count)
    return fail(FSCCL_ERR_NOT_AVAILABLE,
                "device {} is not there: this process sees {} (CUDA_VISIBLE_DEVICES)", ordinal,
                count);
  Device made;
  made.driver_ = driver;
  made.ordinal_ = ordinal;
  const auto checked = [&](const char* what, Code code) { return made.check(what, code); };
  FSCCL_TRY(checked("cuDeviceGet", driver->device_get(&made.device_, ordinal)));
  const auto attribute = [&](Attribute which) {
    int value = 0;
    return driver->device_attribute(&value, which, made.device_) == kSuccess ? value : 0;
  };
  if (!attribute(Attribute::virtual_memory))
    return fail(FSCCL_ERR_NOT_AVAILABLE,
                "device {} has no virtual memory management, which pools are made of", ordinal);
  char name[256] = "";
  FSCCL_TRY(checked("cuDeviceGetName", driver->device_name(name, sizeof name, made.device_)));
  made.name_ = name;
  size_t bytes = 0;
  FSCCL_TRY(checked("cuDeviceTotalMem", driver->device_memory(&bytes, made.device_)));
  made.memory_bytes_ = bytes;
  FSCCL_TRY(checked("cuDeviceGetUuid", driver->device_uuid(made.uuid_, made.device_)));
  made.copy_engines_ = attribute(Attribute::copy_engines);
  made.multiprocessors_ = attribute(Attribute::multiprocessors);
  made.capability_ =
      10 * attribute(Attribute::capability_major) + attribute(Attribute::capability_minor);
  made.posix_handles_ = attribute(Attribute::posix_handles) != 0;
  made.fabric_handles_ = attribute(Attribute::fabric_handles) != 0;
  made.direct_rdma_ = attribute(Attribute::direct_rdma) != 0;
  made.wide_values_ = attribute(Attribute::stream_values_64) != 0;
  return made;
}

Result<const Device*> Device::open(int ordinal) {
  static std::mutex mutex;
  // Kept, like what is in it: streams and memory of the caller's may outlive everything of the
  // library.
  static Immortal<std::map<int, const Device*>> kept;
  auto& devices = kept.get();
  const std::lock_guard lock(mutex);
  if (const auto found = devices.find(ordinal); found != devices.end()) return found->second;
  FSCCL_ASSIGN(Device looked, look(ordinal));
  FSCCL_TRY(looked.check("cuDevicePrimaryCtxRetain",
                         looked.driver_->primary_retain(&looked.context_, looked.device_)));
  return devices.emplace(ordinal, new Device(std::move(looked))).first->second;
}

int device_count(std::string* why) {
  const Driver* const driver = cuda::driver(why);
  int count = 0;
  if (!driver) return 0;
  if (const Code code = driver->device_count(&count); code != kSuccess) {
    *why = failed(*driver, "cuDeviceGetCount", code).text();
    return 0;
  }
  if (!count) *why = "this process sees no GPU (CUDA_VISIBLE_DEVICES)";
  return count;
}

bool devices_may_be_there() {
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (visible && !*visible) return false;
  // of a PC, of a Jetson, of WSL
  constexpr const char* kFiles[] = {"/dev/nvidiactl", "/dev/nvmap", "/dev/dxg"};
  return std::any_of(std::begin(kFiles), std::end(kFiles),
                     [](const char* file) { return access(file, F_OK) == 0; });
}

Result<bool> Device::capturing(Stream stream) const {
  int status = 0;
  const Code code = driver_->stream_capturing(stream, &status);
  if (code == kCapturedBeside) return true;
  FSCCL_TRY(check("cuStreamIsCapturing", code));
  return status != 0;
}

Status Device::put_values(std::vector<MemoryOperation> operations, Stream stream) const {
  for (size_t first = 0; first < operations.size(); first += kMostMemoryOperations) {
    const auto count =
        static_cast<unsigned>(std::min<size_t>(operations.size() - first, kMostMemoryOperations));
    FSCCL_TRY(
        check("cuStreamBatchMemOp", driver_->stream_values(stream, count, &operations[first], 0)));
  }
  return success();
}

Result<OwnedStream> OwnedStream::create(const Device& device) {
  const Current current(device);
  Stream stream = nullptr;
  FSCCL_TRY(device.check("cuStreamCreate",
                         device.driver().stream_create(&stream, kNonBlockingStream, 0)));
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
  (void)device_->driver().stream_destroy(stream_);
}

Status OwnedStream::finish(Deadline deadline, const BreakCheck& broken) const {
  Code code = kNotReady;
  const auto over = [&] { return (code = device_->driver().stream_query(stream_)) != kNotReady; };
  FSCCL_ASSIGN(const bool in_time, wait_unless(broken, over, deadline, Naps(kNapNs)));
  return in_time ? device_->check("cuStreamQuery", code) : fail(FSCCL_ERR_TIMEOUT, "{}", kLate);
}

Result<OwnedEvent> OwnedEvent::create(const Device& device) {
  const Current current(device);
  Event event = nullptr;
  FSCCL_TRY(device.check("cuEventCreate", device.driver().event_create(&event, kEventWithoutTime)));
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
  (void)device_->driver().event_destroy(event_);
}

Status OwnedEvent::record(Stream stream) const {
  return device_->check("cuEventRecord", device_->driver().event_record(event_, stream));
}

Status OwnedEvent::make_wait(Stream stream) const {
  return device_->check("cuStreamWaitEvent",
                        device_->driver().stream_wait_event(stream, event_, 0));
}

bool OwnedEvent::complete() const { return device_->driver().event_query(event_) != kNotReady; }

Status OwnedEvent::finish(Deadline deadline, const BreakCheck& broken) const {
  Code code = kNotReady;
  const auto over = [&] { return (code = device_->driver().event_query(event_)) != kNotReady; };
  FSCCL_ASSIGN(const bool in_time, wait_unless(broken, over, deadline, Naps(kNapNs)));
  return in_time ? device_->check("cuEventQuery", code) : fail(FSCCL_ERR_TIMEOUT, "{}", kLate);
}

}  // namespace fsccl::cuda
