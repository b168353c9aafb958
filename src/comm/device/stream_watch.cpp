#include "comm/device/stream_watch.h"

#include <algorithm>

#include "base/reactor.h"

namespace fsccl {
namespace {

constexpr int64_t kPeriodNs = 50'000'000;

}  // namespace

Result<std::unique_ptr<StreamWatch>> StreamWatch::create(const cuda::Device& device,
                                                         int64_t timeout_ms, Hooks hooks) {
  std::unique_ptr<StreamWatch> made(new StreamWatch(device, timeout_ms, std::move(hooks)));
  const cuda::Current current(device);
  FSCCL_TRY(made->make_words());
  made->hook_ = Reactor::instance().add_hook([watch = made.get()] { return watch->visit(); });
  return made;
}

// Memory to which a stream may still write is never used for anything else.
StreamWatch::~StreamWatch() {
  if (hook_ >= 0) Reactor::instance().remove_hook(hook_);
  const bool over = std::all_of(followed_.begin(), followed_.end(),
                                [](const Followed& one) { return one.word.written(); });
  for (std::unique_ptr<cuda::HostMemory::Bytes>& bytes : memory_)
    if (!over) bytes->keep();
}

Status StreamWatch::make_words() {
  FSCCL_ASSIGN(auto bytes, cuda::HostMemory::of(device_).take(kWordsAtOnce * sizeof(uint32_t)));
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < kWordsAtOnce; i++) {
    uint32_t* const host = bytes->as<uint32_t>() + i;
    unused_.push_back(
        {host, bytes->device() + i * sizeof(uint32_t), __atomic_load_n(host, __ATOMIC_RELAXED)});
  }
  memory_.push_back(std::move(bytes));
  return success();
}

std::optional<StreamWatch::Word> StreamWatch::take_word() {
  const std::lock_guard lock(mutex_);
  if (unused_.empty()) return std::nullopt;
  const Word word = unused_.back();
  unused_.pop_back();
  return word;
}

// The lock is not held while the driver is called, because the service thread needs it, and the
// driver waits if the stream is full.
Status StreamWatch::follow(cuda::CUstream stream) {
  FSCCL_ASSIGN(const bool capturing, device_.capturing(stream));
  if (capturing) return success();
  std::optional<Word> word = take_word();
  if (!word) {
    FSCCL_TRY(make_words());
    word = take_word();
  }
  Status put = device_.put_values({{.operation = cuda::CU_STREAM_MEM_OP_WRITE_VALUE_32,
                                    .address = word->device,
                                    .value64 = word->value + 1}},
                                  stream);
  const std::lock_guard lock(mutex_);
  if (!put.ok()) {
    unused_.push_back(*word);
    return put;
  }
  word->value++;
  const bool first = followed_.empty();
  followed_.push_back({*word, Deadline::in_ms(timeout_ms_)});
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
    while (!followed_.empty() && followed_.front().word.written()) {
      unused_.push_back(followed_.front().word);
      followed_.pop_front();
    }
    if (over_ || followed_.empty()) return -1;
    trouble = hooks_.look();
    if (trouble.ok() && followed_.front().deadline.passed())
      trouble =
          fail(FSCCL_ERR_TIMEOUT,
               "{} was not over in {} ms: some rank has not put it on its stream, or its GPU hangs",
               hooks_.describe_late(), timeout_ms_);
    if (trouble.ok()) return kPeriodNs;
    over_ = true;
  }
  hooks_.end(trouble);
  return -1;
}

}  // namespace fsccl
