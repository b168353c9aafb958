// Ends streams that wait for a lost rank. Work that NCCL has put on a stream waits for other ranks
// without a deadline of its own. Behind each call the stream therefore writes a value to a word in
// memory of the host, and the service thread looks whether the value comes in time, and whether a
// rank was lost meanwhile. If so, end() is called once, which must free the stream.
//
// The service thread only reads memory. It does not ask the driver for an event: while another
// thread waits in the driver, such a question may wait, too, and with it every deadline, socket and
// heartbeat of the process.
#pragma once
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "cuda/device.h"
#include "cuda/host_memory.h"

namespace fsccl {

class StreamWatch {
 public:
  struct Hooks {
    std::function<Status()> look;                // returns an error if waiting is useless now
    std::function<void(const Status&)> end;      // must not block
    std::function<std::string()> describe_late;  // returns a text for the error: what is late
  };
  static Result<std::unique_ptr<StreamWatch>> create(const cuda::Device& device, int64_t timeout_ms,
                                                     Hooks hooks);
  ~StreamWatch();
  StreamWatch(const StreamWatch&) = delete;

  // Requires that everything that was put on the stream so far is over by the deadline. The caller
  // holds a Current, and one thread at a time calls it. A stream that is being captured runs later
  // and is not watched.
  Status follow(cuda::CUstream stream);
  // Returns true if everything that was followed is over, as far as this was seen, or if end() was
  // called.
  bool idle();

 private:
  static constexpr size_t kWordsAtOnce = 1024;
  struct Word {
    uint32_t* host = nullptr;
    cuda::CUdeviceptr device = 0;
    uint32_t value = 0;  // the value that the word has or will have; it grows by one each time
    bool written() const { return __atomic_load_n(host, __ATOMIC_ACQUIRE) == value; }
  };
  struct Followed {
    Word word;
    Deadline deadline;
  };
  StreamWatch(const cuda::Device& device, int64_t timeout_ms, Hooks hooks)
      : device_(device), timeout_ms_(timeout_ms), hooks_(std::move(hooks)) {}
  Status make_words();
  std::optional<Word> take_word();
  int64_t visit();  // runs in the service thread, and returns how long that may sleep

  const cuda::Device& device_;
  const int64_t timeout_ms_;
  const Hooks hooks_;
  std::mutex mutex_;
  std::deque<Followed> followed_;  // oldest first
  std::vector<Word> unused_;
  std::vector<std::unique_ptr<cuda::HostMemory::Bytes>> memory_;  // memory of the words
  bool over_ = false;
  int hook_ = -1;
};

}  // namespace fsccl
