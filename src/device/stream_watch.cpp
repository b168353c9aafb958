#include "device/stream_watch.h"

#include "base/reactor.h"

namespace fsccl {
namespace {

constexpr int64_t kPeriodNs = 50'000'000;

}  // namespace

StreamWatch::StreamWatch(const cuda::Device& device, int64_t timeout_ms, Hooks hooks)
    : device_(device), timeout_ms_(timeout_ms), hooks_(std::move(hooks)) {
  hook_ = Reactor::instance().add_hook([this] { return visit(); });
}

StreamWatch::~StreamWatch() {
  if (hook_ >= 0) Reactor::instance().remove_hook(hook_);
}

Status StreamWatch::follow(cuda::Stream stream) {
  FSCCL_ASSIGN(const bool capturing, device_.capturing(stream));
  if (capturing) return success();
  const std::unique_lock lock(mutex_);
  if (unused_.empty()) {
    FSCCL_ASSIGN(cuda::OwnedEvent made, cuda::OwnedEvent::create(device_));
    unused_.push_back(std::move(made));
  }
  FSCCL_TRY(unused_.back().record(stream));
  const bool first = followed_.empty();
  followed_.push_back({std::move(unused_.back()), Deadline::in_ms(timeout_ms_)});
  unused_.pop_back();
  if (first) Reactor::instance().kick();
  return success();
}

bool StreamWatch::idle() {
  const std::lock_guard lock(mutex_);
  return over_ || followed_.empty();
}

int64_t StreamWatch::visit() {
  Status trouble;
  {
    const std::lock_guard lock(mutex_);
    const cuda::Current current(device_);
    while (!followed_.empty() && followed_.front().event.complete()) {
      unused_.push_back(std::move(followed_.front().event));
      followed_.pop_front();
    }
    if (over_ || followed_.empty()) return -1;
    trouble = hooks_.look();
    if (trouble.ok() && followed_.front().deadline.passed())
      trouble = fail(FSCCL_ERR_TIMEOUT, "{} was not over in {} ms: some rank has not put it on its stream, or its GPU hangs",
                     hooks_.describe_late(), timeout_ms_);
    if (trouble.ok()) return kPeriodNs;
    over_ = true;
  }
  hooks_.end(trouble);
  return -1;
}

}  // namespace fsccl
