// How far streams have got. A mark stands for all that a stream had been given when it was set;
// other streams wait for it, and so can the host. Streams have numbers, and marks of one stream
// follow one another: who waits for one has waited for those before.
//
// A mark is an event of CUDA only where somebody may wait: while a pool knows one stream alone,
// set() only increments a counter. Events are used again; of a stream whose marks stay open for
// long only the youngest kMostEvents have one, and an older mark is then waited for by the next one
// that has: a little more than was asked for, and still nothing that was put on the stream later
// than the wait. So a stream must live while others are used with the pool (PyTorch's live for
// ever); at the end it may be gone.
//
// A stream that is being captured gets no event: the event would belong to the graph, and a stream
// that waits for it would join the capture. The marks of such a stream are open until the capture
// is over.
//
// One thread at a time.
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

  // While this lives, the device's context is current for all calls of one thread: else each makes
  // it current for itself.
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

  // The number of the stream, which is new perhaps.
  Result<uint32_t> number(cuda::CUstream stream);
  std::optional<uint32_t> known(cuda::CUstream stream) const;  // it is not new
  cuda::CUstream stream(uint32_t number) const { return streams_[number].stream; }
  size_t streams() const { return streams_.size(); }

  Result<StreamMark> set(uint32_t stream);
  // Orders the next work of `stream` behind the mark. Nothing is done if it is ordered already.
  // Returns FSCCL_ERR_NOT_AVAILABLE if one of the two streams is being captured.
  Status make_wait(uint32_t stream, const StreamMark& mark);
  bool known_over(const StreamMark& mark) const {
    return mark.sequence <= streams_[mark.stream].over;
  }
  void look(uint32_t stream);      // how far it has got
  Status record(uint32_t stream);  // so that a later look can tell, also where it is alone
  Status record_all();
  // Waits for everything; false at the deadline. The host does so when memory goes back to the
  // system, and never else.
  Result<bool> wait_for_all(Deadline deadline);
  // The same for the last time, when streams may have been destroyed. The state of a stream without
  // an event behind its last mark is then known only through the context, which cannot be waited
  // for during a capture: an error.
  Result<bool> finish(Deadline deadline);
  size_t events() const;  // that exist

 private:
  struct Recorded {
    uint64_t sequence;
    cuda::OwnedEvent event;
  };
  struct Stream {
    cuda::CUstream stream = nullptr;
    uint64_t marks = 0, over = 0;
    std::deque<Recorded> events;  // later than `over`, in order
    // by number of a stream: the mark of it that this one is ordered behind
    std::vector<uint64_t> known;
  };
  Result<bool> wait_for_context(Deadline deadline) const;
  void drop_first(Stream& stream);

  const cuda::Device& device_;
  std::deque<Stream> streams_;
  bool in_calls_ = false;
  // which known() found last: mostly it is asked for that one again
  mutable uint32_t last_known_ = 0;
  std::vector<cuda::OwnedEvent> unused_;
};

}  // namespace fsccl
