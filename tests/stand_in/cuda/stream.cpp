#include "stream.h"

#include <algorithm>
#include <thread>

namespace fsccl::stand_in {

std::shared_ptr<Stream> Stream::start(Device& device, bool blocking) {
  auto stream = std::make_shared<Stream>(device, blocking);
  std::thread(run, stream).detach();  // the process may end with work that waits for ever
  return stream;
}

void Stream::put(std::vector<Ticket> after, Work work, uint64_t number) {
  const std::lock_guard lock(mutex_);
  last = number;
  queue_.push_back({std::move(after), std::move(work)});
  changed_.notify_all();
}

void Stream::end() {
  const std::lock_guard lock(mutex_);
  ending_ = true;
  changed_.notify_all();
}

bool Stream::done(uint64_t number) {
  const std::lock_guard lock(mutex_);
  return done_ >= number;
}

void Stream::wait(uint64_t number) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_ >= number; });
}

// After an error nothing of the device runs any more, but what waits for it goes on, and learns of it.
void Stream::run(const std::shared_ptr<Stream>& self) {
  for (;;) {
    Item item;
    {
      std::unique_lock lock(self->mutex_);
      self->changed_.wait(lock, [&] { return self->ending_ || !self->queue_.empty(); });
      if (self->queue_.empty()) return;
      item = std::move(self->queue_.front());
      self->queue_.pop_front();
    }
    for (const Ticket& ticket : item.after) ticket.stream->wait(ticket.number);
    if (item.work && self->device.broken == kSuccess)
      if (const Code code = item.work()) self->device.broken = code;
    item = {};
    const std::lock_guard lock(self->mutex_);
    self->done_++;
    self->changed_.notify_all();
  }
}

Ticket submit(const std::shared_ptr<Stream>& stream, std::vector<Ticket> after, Stream::Work work) {
  Device& device = stream->device;
  const std::lock_guard lock(device.order);
  if (stream == device.null_stream) {
    for (const auto& other : device.streams)
      if (other->blocking) after.push_back({other, other->last});
  } else if (stream->blocking && device.null_stream) {
    after.push_back({device.null_stream, device.null_stream->last});
  }
  after.erase(std::remove_if(after.begin(), after.end(),
                             [&](const Ticket& ticket) { return !ticket.stream || ticket.stream == stream || !ticket.number; }),
              after.end());
  const uint64_t number = stream->last + 1;
  stream->put(std::move(after), std::move(work), number);
  return {stream, number};
}

void synchronise(Device& device) {
  std::vector<Ticket> all;
  {
    const std::lock_guard lock(device.order);
    for (const auto& stream : device.streams) all.push_back({stream, stream->last});
    if (device.null_stream) all.push_back({device.null_stream, device.null_stream->last});
  }
  for (const Ticket& ticket : all) ticket.stream->wait(ticket.number);
}

std::shared_ptr<Stream> stream_of(StreamHandle handle) {
  const uint64_t value = reinterpret_cast<uint64_t>(handle);
  if (value <= 1) {  // null, or CU_STREAM_LEGACY
    Device* const device = current();
    if (!device) return nullptr;
    const std::lock_guard lock(device->order);
    if (!device->null_stream) device->null_stream = Stream::start(*device, true);
    return device->null_stream;
  }
  for (Device* const device : devices()) {
    const std::lock_guard lock(device->order);
    for (const auto& stream : device->streams)
      if (stream.get() == handle) return stream;
  }
  return nullptr;
}

}  // namespace fsccl::stand_in
