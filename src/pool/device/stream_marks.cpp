#include "pool/device/stream_marks.h"

#include <algorithm>
#include <atomic>
#include <memory>

#include "base/wait.h"

namespace fsccl {
namespace {

constexpr int64_t kMarkNapNs = 50'000;
constexpr uintptr_t kLegacyStream = 1, kStreamOfThread = 2;  // special handles of CUDA

}  // namespace

std::optional<uint32_t> StreamMarks::known(cuda::CUstream stream) const {
  if (reinterpret_cast<uintptr_t>(stream) == kLegacyStream) stream = nullptr;
  if (last_known_ < streams_.size() && streams_[last_known_].stream == stream) return last_known_;
  for (uint32_t s = 0; s < streams_.size(); s++)
    if (streams_[s].stream == stream) return last_known_ = s;
  return std::nullopt;
}

Status StreamMarks::check(cuda::CUstream stream) const {
  if (known(stream)) return success();
  if (reinterpret_cast<uintptr_t>(stream) == kStreamOfThread)
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "cudaStreamPerThread is another stream in every thread, which the pool cannot tell "
                "apart: give it a stream that was "
                "created");
  if (streams_.size() == kMostStreams)
    return fail(FSCCL_ERR_LIMIT,
                "{} would be the stream number {} of the pool: use fewer, or use them again",
                static_cast<void*>(stream), kMostStreams + 1);
  return success();
}

Result<uint32_t> StreamMarks::number(cuda::CUstream stream) {
  if (reinterpret_cast<uintptr_t>(stream) == kLegacyStream) stream = nullptr;
  if (const std::optional<uint32_t> known = this->known(stream)) return *known;
  FSCCL_TRY(check(stream));
  if (streams_.size() == 1) FSCCL_TRY(record(0));  // from now on streams wait for marks
  streams_.emplace_back().stream = stream;
  return static_cast<uint32_t>(streams_.size() - 1);
}

void StreamMarks::drop_first(Stream& stream) {
  unused_.push_back(std::move(stream.events.front().event));
  stream.events.pop_front();
}

// Records an event for the stream's last mark, unless the stream is being captured.
Status StreamMarks::record(uint32_t number) {
  Stream& stream = streams_[number];
  if (stream.marks == stream.over ||
      (!stream.events.empty() && stream.events.back().sequence == stream.marks))
    return success();
  const Calls calls(*this);
  FSCCL_ASSIGN(const bool capturing, device_.capturing(stream.stream));
  if (capturing) return success();
  if (stream.events.size() >= kMostEvents) look(number);
  if (stream.events.size() >= kMostEvents) drop_first(stream);
  if (unused_.empty()) {
    FSCCL_ASSIGN(cuda::OwnedEvent made, cuda::OwnedEvent::create(device_));
    unused_.push_back(std::move(made));
  }
  FSCCL_TRY(unused_.back().record(stream.stream));
  stream.events.push_back({stream.marks, std::move(unused_.back())});
  unused_.pop_back();
  return success();
}

Result<StreamMark> StreamMarks::set(uint32_t number) {
  Stream& stream = streams_[number];
  stream.marks++;
  if (streams_.size() > 1) FSCCL_TRY(record(number));
  return StreamMark{number, stream.marks};
}

Status StreamMarks::make_wait(uint32_t number, const StreamMark& mark) {
  if (mark.stream == number || known_over(mark)) return success();
  Stream &waiter = streams_[number], &other = streams_[mark.stream];
  waiter.known.resize(std::max<size_t>(waiter.known.size(), streams_.size()));
  uint64_t& known = waiter.known[mark.stream];
  if (known >= mark.sequence) return success();
  FSCCL_TRY(record(mark.stream));  // a captured stream's mark has no event yet
  const auto event = std::lower_bound(
      other.events.begin(), other.events.end(), mark.sequence,
      [](const Recorded& recorded, uint64_t sequence) { return recorded.sequence < sequence; });
  const Calls calls(*this);
  FSCCL_ASSIGN(const bool capturing, device_.capturing(waiter.stream));
  if (capturing || event == other.events.end()) {
    look(mark.stream);  // the stream cannot wait, but the mark may be over already
    if (known_over(mark)) return success();
    return fail(FSCCL_ERR_NOT_AVAILABLE,
                "memory was used last by stream {}, and stream {} is being captured: neither can "
                "wait for the other meanwhile",
                static_cast<void*>(other.stream),
                static_cast<void*>(capturing ? waiter.stream : other.stream));
  }
  FSCCL_TRY(event->event.make_wait(waiter.stream));
  known = event->sequence;
  return success();
}

// Looks for the last mark that is over. It asks for the youngest event first, because events of a
// stream complete in order, and to ask for one costs about as much as to record one.
void StreamMarks::look(uint32_t number) {
  Stream& stream = streams_[number];
  if (stream.events.empty()) return;
  const Calls calls(*this);
  const bool all = stream.events.back().event.complete();
  while (!stream.events.empty() && (all || stream.events.front().event.complete())) {
    stream.over = stream.events.front().sequence;
    drop_first(stream);
  }
}

Status StreamMarks::record_all() {
  for (uint32_t s = 0; s < streams_.size(); s++) FSCCL_TRY(record(s));
  return success();
}

Result<bool> StreamMarks::wait_for_all(Deadline deadline) {
  FSCCL_TRY(record_all());
  for (uint32_t s = 0; s < streams_.size(); s++) {
    const auto over = [&] {
      look(s);
      return streams_[s].over >= streams_[s].marks;
    };
    FSCCL_ASSIGN(const bool in_time,
                 wait_unless([&] { return record(s); }, over, deadline, Naps(kMarkNapNs)));
    if (!in_time) return false;
  }
  return true;
}

Result<bool> StreamMarks::finish(Deadline deadline) {
  const auto there = [](const Stream& stream) {  // the stream or an event can be waited for
    return cuda::is_legacy(stream.stream) || stream.marks == stream.over ||
           (!stream.events.empty() && stream.events.back().sequence == stream.marks);
  };
  return std::all_of(streams_.begin(), streams_.end(), there) ? wait_for_all(deadline)
                                                              : wait_for_context(deadline);
}

// Waits for the whole context, because streams that have been destroyed take no events. The
// driver's call has no deadline, so it runs in a thread of its own.
Result<bool> StreamMarks::wait_for_context(Deadline deadline) const {
  constexpr cuda::CUresult kWaits = -1;
  const auto outcome = std::make_shared<std::atomic<cuda::CUresult>>(kWaits);
  Thread thread;
  {
    const SignalsBlocked blocked;
    FSCCL_TRY(thread.start([outcome, &device = device_] {
      const cuda::Current current(device);
      *outcome = device.driver().cuCtxSynchronize();
    }));
  }
  const auto over = [&] { return *outcome != kWaits; };
  if (wait_until(over, deadline, kNothingBreaks, Naps(kMarkNapNs)) == WaitEnd::late) {
    thread.leave();
    return false;
  }
  thread.join();
  FSCCL_TRY(device_.check("cuCtxSynchronize", *outcome));
  return true;
}

size_t StreamMarks::events() const {
  size_t sum = unused_.size();
  for (const Stream& stream : streams_) sum += stream.events.size();
  return sum;
}

}  // namespace fsccl
