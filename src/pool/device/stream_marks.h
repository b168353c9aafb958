// Marks in the work of streams. A mark stands for all work that had been put on a stream when the
// mark was set. Other streams can wait for it, and so can the host. Streams have numbers, and the
// marks of a stream are ordered: a wait for a mark is also a wait for the earlier marks of the
// stream.
//
// A mark gets an event of CUDA only if a wait for it is possible: while a pool knows only one
// stream, set() only increments a counter. Events are reused. If the marks of a stream stay open
// for long, only the youngest kMostEvents have an event. A wait for an older mark then waits for
// the next mark that has one. That is more work than was asked for, but it was put on the stream
// before the wait. A stream must live while other streams are used with the pool (PyTorch's streams
// are never destroyed). When the pool ends, the stream may have been destroyed.
//
// A stream that is being captured gets no event: the event would belong to the graph, and a stream
// that waits for it would join the capture. The marks of such a stream are open until the capture
// is over.
//
// One thread at a time may call the functions.
#pragma once
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "cuda/device.h"

namespace fsccl {

struct StreamMark {
  uint32_t stream = 0;
  uint64_t sequence = 0;  // 0: nothing
};

class StreamMarks {
 public:
  static constexpr size_t kMostEvents = 64;  // events of a stream
  static constexpr size_t kMostStreams = 1024;

  explicit StreamMarks(const cuda::Device& device) : device_(device) {}

  // While this lives, the device's context is current for all calls of one thread. Without it each
  // call makes the context current.
  class Calls {
   public:
    explicit Calls(StreamMarks& marks) : marks_(marks) {
      if (marks.in_calls_) return;
      current_.emplace(marks.device_);
      marks.in_calls_ = true;
    }
    ~Calls() {
      if (current_) marks_.in_calls_ = false;
    }
    Calls(const Calls&) = delete;
    Calls& operator=(const Calls&) = delete;

   private:
    StreamMarks& marks_;
    std::optional<cuda::Current> current_;
  };

  // Returns the number of the stream, and gives it one if it is new.
  Result<uint32_t> number(cuda::CUstream stream);
  // Returns the error that number() would return for the stream, and does nothing else.
  Status check(cuda::CUstream stream) const;
  // Returns the number of the stream if it has one.
  std::optional<uint32_t> known(cuda::CUstream stream) const;
  cuda::CUstream stream(uint32_t number) const { return streams_[number].stream; }
  size_t streams() const { return streams_.size(); }

  Result<StreamMark> set(uint32_t stream);
  // Orders the next work of `stream` behind the mark. Nothing is done if it is ordered already.
  // Returns FSCCL_ERR_NOT_AVAILABLE if one of the two streams is being captured.
  Status make_wait(uint32_t stream, const StreamMark& mark);
  bool known_over(const StreamMark& mark) const {
    return mark.sequence <= streams_[mark.stream].over;
  }
  void look(uint32_t stream);      // looks which marks are over
  Status record(uint32_t stream);  // gives the last mark an event, even if there is one stream
  Status record_all();
  // Waits for all marks; returns false at the deadline. The host waits only when memory goes back
  // to the system.
  Result<bool> wait_for_all(Deadline deadline);
  // Does the same for the last time, when streams may have been destroyed. If a stream has no event
  // behind its last mark, its state is then known only through the context. The context cannot be
  // waited for during a capture, so this is an error then.
  // waited for during a capture: an error.
  Result<bool> finish(Deadline deadline);
  size_t events() const;  // the number of events that exist

 private:
  struct Recorded {
    uint64_t sequence;
    cuda::OwnedEvent event;
  };
  struct Stream {
    cuda::CUstream stream = nullptr;
    uint64_t marks = 0, over = 0;
    std::deque<Recorded> events;  // later than `over`, in order
    // By number of a stream: the mark of that stream behind which this one is ordered.
    std::vector<uint64_t> known;
  };
  Result<bool> wait_for_context(Deadline deadline) const;
  void drop_first(Stream& stream);

  const cuda::Device& device_;
  std::deque<Stream> streams_;
  bool in_calls_ = false;
  // the stream that known() found last, which is mostly the next one as well
  mutable uint32_t last_known_ = 0;
  std::vector<cuda::OwnedEvent> unused_;
};

}  // namespace fsccl
