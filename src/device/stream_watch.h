// Streams end or somebody says why. What NCCL has put on a stream waits for other ranks with no deadline of its own: so an event is
// recorded behind each call, and the service thread looks whether it is there in time, and meanwhile whether a rank was lost. If
// not, end() is called once, which must free the stream.
#pragma once
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "cuda/device.h"

namespace fsccl {

class StreamWatch {
 public:
  struct Hooks {
    std::function<Status()> look;                // an error when waiting has become pointless
    std::function<void(const Status&)> end;      // must not block
    std::function<std::string()> describe_late;  // for the error's text: what is late
  };
  StreamWatch(const cuda::Device& device, int64_t timeout_ms, Hooks hooks);
  ~StreamWatch();
  StreamWatch(const StreamWatch&) = delete;

  // Everything put on the stream so far is to be over by the deadline. The caller holds a Current. A stream that is being captured
  // runs later and is not watched.
  Status follow(cuda::Stream stream);
  bool idle();  // all that was followed is over, as far as was seen, or somebody has said why not

 private:
  struct Followed {
    cuda::OwnedEvent event;
    Deadline deadline;
  };
  int64_t visit();  // in the service thread; how long it may sleep

  const cuda::Device& device_;
  const int64_t timeout_ms_;
  const Hooks hooks_;
  std::mutex mutex_;
  std::deque<Followed> followed_;         // oldest first
  std::vector<cuda::OwnedEvent> unused_;  // events are used again
  bool over_ = false;
  int hook_ = -1;
};

}  // namespace fsccl
