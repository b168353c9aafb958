#include "stream.h"

#include <algorithm>
#include <thread>

namespace fsccl::stand_in {
namespace {

constexpr size_t kMostUnfinished = 512;  // a GPU's queue has room for some more
constexpr std::chrono::milliseconds kLook{5}, kMostStood{200};

}  // namespace

std::shared_ptr<Stream> Stream::start(Device& device, bool blocking) {
  auto stream = std::make_shared<Stream>(device, blocking);
  std::thread(run, stream).detach();  // never joined, because its work may wait for ever
  return stream;
}

void Stream::put(std::vector<Ticket> after, Work work, uint64_t number,
                 std::vector<Range> touched) {
  const std::lock_guard lock(mutex_);
  last = number;
  queue_.push_back({std::move(after), std::move(work), std::move(touched)});
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

bool Stream::wait_for(uint64_t number, std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, time, [&] { return done_ >= number; });
}

bool Stream::idle() { return unfinished() == 0; }

size_t Stream::unfinished() {
  const std::lock_guard lock(mutex_);
  return queue_.size();
}

bool Stream::touches(Range range) {
  const std::lock_guard lock(mutex_);
  return std::any_of(queue_.begin(), queue_.end(), [&](const Item& item) {
    return std::any_of(item.touched.begin(), item.touched.end(), [&](const Range& one) {
      return one.begin < range.begin + range.bytes && range.begin < one.begin + one.bytes;
    });
  });
}

// A stream counts as waiting for another one also in the moment before it finds that it need not
// wait. So streams may seem to wait in a circle for a moment, and the number of steps is limited.
bool Stream::stands() {
  constexpr int kMostStreams = 1000;
  Stream* stream = this;
  std::shared_ptr<Stream> behind;
  for (int i = 0; i < kMostStreams; i++) {
    if (stream->waits_for_value) return true;
    std::shared_ptr<Stream> next;
    {
      const std::lock_guard lock(stream->mutex_);
      next = stream->behind_;
    }
    if (!next) return false;
    behind = std::move(next);
    stream = behind.get();
  }
  return false;
}

// Carries out the stream's work. After an error no work of the device is carried out any more, but
// its tickets are completed, so calls that wait for it go on and return the error.
void Stream::run(const std::shared_ptr<Stream>& self) {
  for (;;) {
    std::vector<Ticket> after;
    Work work;
    {
      std::unique_lock lock(self->mutex_);
      self->changed_.wait(lock, [&] { return self->ending_ || !self->queue_.empty(); });
      if (self->queue_.empty()) return;
      after = std::move(self->queue_.front().after);
      work = std::move(self->queue_.front().work);
    }
    const auto stand_behind = [&](std::shared_ptr<Stream> other) {
      const std::lock_guard lock(self->mutex_);
      self->behind_ = std::move(other);
    };
    for (const Ticket& ticket : after) {
      stand_behind(ticket.stream);
      ticket.stream->wait(ticket.number);
    }
    stand_behind(nullptr);
    if (work && self->device.broken == kSuccess)
      if (const Code code = work()) self->device.broken = code;
    after.clear();
    work = nullptr;
    const std::lock_guard lock(self->mutex_);
    self->queue_.pop_front();
    self->done_++;
    self->changed_.notify_all();
  }
}

Ticket submit(const std::shared_ptr<Stream>& stream, std::vector<Ticket> after, Stream::Work work,
              std::vector<Range> touched) {
  Device& device = stream->device;
  const std::lock_guard lock(device.order);
  if (stream == device.null_stream) {
    for (const auto& other : device.streams)
      if (other->blocking) after.push_back({other, other->last});
  } else if (stream->blocking && device.null_stream) {
    after.push_back({device.null_stream, device.null_stream->last});
  }
  after.erase(std::remove_if(after.begin(), after.end(),
                             [&](const Ticket& ticket) {
                               return !ticket.stream || ticket.stream == stream || !ticket.number;
                             }),
              after.end());
  const uint64_t number = stream->last + 1;
  stream->put(std::move(after), std::move(work), number, std::move(touched));
  if (stream->unfinished() >= kMostUnfinished && stream->stands())
    refuse("work in a stream", kInvalidValue,
           "%zu pieces of it wait: one more, and the call would wait, too", kMostUnfinished);
  return {stream, number};
}

bool in_capture_of_another(const std::shared_ptr<Stream>& stream) {
  Device& device = stream->device;
  const std::lock_guard lock(device.order);
  return stream == device.null_stream &&
         std::any_of(device.streams.begin(), device.streams.end(),
                     [](const auto& other) { return other->blocking && other->capturing; });
}

Code usable(const char* function, const std::shared_ptr<Stream>& stream) {
  return in_capture_of_another(stream)
             ? refuse(function, kCaptureImplicit,
                      "the default stream, while one that blocks is captured")
             : Code{kSuccess};
}

std::vector<std::shared_ptr<Stream>> streams_of(Device& device) {
  const std::lock_guard lock(device.order);
  std::vector<std::shared_ptr<Stream>> all = device.streams;
  all.insert(all.end(), device.ended.begin(), device.ended.end());
  if (device.null_stream) all.push_back(device.null_stream);
  return all;
}

void synchronise(Device& device) {
  for (const auto& stream : streams_of(device)) {
    uint64_t last = 0;
    {
      const std::lock_guard lock(device.order);
      last = stream->last;
    }
    stream->wait(last);
  }
}

void occupy(const char* function, const Ticket& until) {
  Occupied& occupied = until.stream->device.occupied;
  const auto say = [&](bool now) {
    const std::lock_guard lock(occupied.mutex);
    occupied.now = now;
    occupied.changed.notify_all();
  };
  const auto others = [&] {
    const std::lock_guard lock(occupied.mutex);
    return occupied.held_up > 0;
  };
  say(true);
  for (std::chrono::milliseconds stood{0}; !until.stream->wait_for(until.number, kLook);) {
    stood = until.stream->stands() && others() ? stood + kLook : std::chrono::milliseconds{0};
    if (stood < kMostStood) continue;
    refuse(function, kInvalidValue,
           "ordinary host memory, on a stream that waits for a value: calls of other threads wait "
           "for this one, and may be those "
           "that the value needs");
    break;
  }
  say(false);
  until.stream->wait(until.number);
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
