// The driver's functions for streams, events, and functions of the host in a stream.
#include <algorithm>
#include <set>

#include "stream.h"

using namespace fsccl::stand_in;

namespace {

struct Event {
  Device* device = nullptr;
  Ticket recorded;
  bool in_capture = false;
};
using EventHandle = Event*;

// Guards the table of events, and the work that each event stands for.
std::mutex& events_mutex() {
  static std::mutex* const mutex = new std::mutex;
  return *mutex;
}
std::set<EventHandle>& events() {
  static auto* const events = new std::set<EventHandle>;
  return *events;
}

// Finds the work that the event stands for. Returns false if there is no such event.
bool find(EventHandle event, Device** device, Ticket* recorded, bool* in_capture = nullptr) {
  const std::lock_guard lock(events_mutex());
  if (!events().count(event)) return false;
  *device = event->device;
  *recorded = event->recorded;
  if (in_capture) *in_capture = event->in_capture;
  return true;
}

}  // namespace

extern "C" {

Code cuStreamCreateWithPriority(StreamHandle* handle, unsigned flags, int) {
  if (const Code code = enter("cuStreamCreateWithPriority", Needs::context)) return code;
  if (!handle || flags > 1)
    return refuse("cuStreamCreateWithPriority", kInvalidValue, "flags %u", flags);
  Device& device = *current();
  const auto stream = Stream::start(device, flags == 0);
  const std::lock_guard lock(device.order);
  device.streams.push_back(stream);
  count("streams", 1);
  *handle = stream.get();
  return kSuccess;
}

Code cuStreamDestroy_v2(StreamHandle handle) {
  if (const Code code = enter("cuStreamDestroy_v2", Needs::context)) return code;
  const auto stream = stream_of(handle);
  if (!stream || stream == stream->device.null_stream)
    return refuse("cuStreamDestroy_v2", kInvalidHandle, "stream %p", handle);
  const std::lock_guard lock(stream->device.order);
  auto& all = stream->device.streams;
  all.erase(std::remove(all.begin(), all.end(), stream), all.end());
  std::erase_if(stream->device.ended, [](const auto& one) { return one->idle(); });
  stream->device.ended.push_back(stream);
  count("streams", -1);
  stream->end();
  return kSuccess;
}

Code cuStreamSynchronize(StreamHandle handle) {
  if (const Code code = enter("cuStreamSynchronize", Needs::unhindered)) return code;
  const auto stream = stream_of(handle);
  if (!stream) return refuse("cuStreamSynchronize", kInvalidHandle, "stream %p", handle);
  if (stream->capturing)
    return refuse("cuStreamSynchronize", kCaptureUnsupported, "of a stream that is being captured");
  uint64_t last = 0;
  {
    const std::lock_guard lock(stream->device.order);
    last = stream->last;
  }
  stream->wait(last);
  return stream->device.broken;
}

Code cuStreamQuery(StreamHandle handle) {
  if (const Code code = enter("cuStreamQuery", Needs::unhindered)) return code;
  const auto stream = stream_of(handle);
  if (!stream) return refuse("cuStreamQuery", kInvalidHandle, "stream %p", handle);
  if (stream->capturing)
    return refuse("cuStreamQuery", kCaptureUnsupported, "of a stream that is being captured");
  const std::lock_guard lock(stream->device.order);
  const bool done = stream->done(stream->last);
  if (const Code code = stream->device.broken) return code;
  return done ? kSuccess : kNotReady;
}

Code cuStreamIsCapturing(StreamHandle handle, int* status) {
  if (const Code code = enter("cuStreamIsCapturing")) return code;
  if (!status || !stream_of(handle))
    return refuse("cuStreamIsCapturing", kInvalidHandle, "stream %p", handle);
  if (in_capture_of_another(stream_of(handle))) return kCaptureImplicit;
  *status = stream_of(handle)->capturing ? 1 : 0;
  return kSuccess;
}

Code cuStreamWaitEvent(StreamHandle handle, EventHandle event, unsigned flags) {
  if (const Code code = enter("cuStreamWaitEvent", Needs::context)) return code;
  const auto stream = stream_of(handle);
  Device* device = nullptr;
  Ticket recorded;
  bool in_capture = false;
  if (!stream || flags > 1 || !find(event, &device, &recorded, &in_capture))
    return refuse("cuStreamWaitEvent", kInvalidHandle, "stream %p, event %p", handle,
                  static_cast<void*>(event));
  if (const Code code = usable("cuStreamWaitEvent", stream)) return code;
  if (stream->capturing && recorded.stream && !in_capture)
    return refuse("cuStreamWaitEvent", kCaptureIsolation,
                  "a stream that is being captured, an event from before");
  if (recorded.stream) submit(stream, {recorded}, nullptr);
  return kSuccess;
}

Code cuLaunchHostFunc(StreamHandle handle, void (*function)(void*), void* context) {
  if (const Code code = enter("cuLaunchHostFunc", Needs::context)) return code;
  const auto stream = stream_of(handle);
  if (!stream || !function) return refuse("cuLaunchHostFunc", kInvalidHandle, "stream %p", handle);
  if (const Code code = usable("cuLaunchHostFunc", stream)) return code;
  submit(stream, {}, [=] {
    const InHostFunction here;
    function(context);
    return kSuccess;
  });
  return kSuccess;
}

Code cuEventCreate(EventHandle* handle, unsigned flags) {
  if (const Code code = enter("cuEventCreate", Needs::context)) return code;
  if (!handle || flags > 3) return refuse("cuEventCreate", kInvalidValue, "flags %u", flags);
  auto* const event = new Event;
  event->device = current();
  const std::lock_guard lock(events_mutex());
  events().insert(event);
  count("events", 1);
  *handle = event;
  return kSuccess;
}

Code cuEventDestroy_v2(EventHandle event) {
  if (const Code code = enter("cuEventDestroy_v2", Needs::context)) return code;
  const std::lock_guard lock(events_mutex());
  if (!events().erase(event))
    return refuse("cuEventDestroy_v2", kInvalidHandle, "event %p", static_cast<void*>(event));
  count("events", -1);
  delete event;
  return kSuccess;
}

Code cuEventRecord(EventHandle event, StreamHandle handle) {
  if (const Code code = enter("cuEventRecord", Needs::context)) return code;
  const auto stream = stream_of(handle);
  const std::lock_guard lock(events_mutex());
  if (!stream || !events().count(event) || event->device != &stream->device)
    return refuse("cuEventRecord", kInvalidHandle, "event %p, stream %p, or of two devices",
                  static_cast<void*>(event), handle);
  if (const Code code = usable("cuEventRecord", stream)) return code;
  event->recorded = submit(stream, {}, nullptr);
  event->in_capture = stream->capturing;
  return kSuccess;
}

Code cuEventQuery(EventHandle event) {
  if (const Code code = enter("cuEventQuery")) return code;
  if (const Code code = hindered("cuEventQuery")) return code;
  if (current()) wait_for_driver(*current());
  Device* device = nullptr;
  Ticket recorded;
  bool in_capture = false;
  if (!find(event, &device, &recorded, &in_capture))
    return refuse("cuEventQuery", kInvalidHandle, "event %p", static_cast<void*>(event));
  if (in_capture)
    return refuse("cuEventQuery", kCapturedEvent, "an event that was recorded into a graph");
  const bool done = !recorded.stream || recorded.stream->done(recorded.number);
  if (const Code code = device->broken) return code;
  return done ? kSuccess : kNotReady;
}

Code cuEventSynchronize(EventHandle event) {
  if (const Code code = enter("cuEventSynchronize", Needs::unhindered)) return code;
  Device* device = nullptr;
  Ticket recorded;
  bool in_capture = false;
  if (!find(event, &device, &recorded, &in_capture))
    return refuse("cuEventSynchronize", kInvalidHandle, "event %p", static_cast<void*>(event));
  if (in_capture)
    return refuse("cuEventSynchronize", kCapturedEvent, "an event that was recorded into a graph");
  if (recorded.stream) recorded.stream->wait(recorded.number);
  return device->broken;
}

}  // extern "C"
