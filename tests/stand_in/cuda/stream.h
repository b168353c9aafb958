// A stream is a queue and a thread that carries out its work in order. Work for which other work
// must wait (because of an event, or the rules of the legacy default stream) is named by a ticket:
// a stream and a number in it. Tickets name work that was put before, so they cannot wait in a
// circle.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "abi.h"
#include "driver.h"

namespace fsccl::stand_in {

struct Ticket {
  std::shared_ptr<Stream> stream;
  uint64_t number = 0;
};

// Memory that work touches. The memory that kernels touch is not known.
struct Range {
  uint64_t begin = 0, bytes = 0;
};

class Stream {
 public:
  using Work = std::function<Code()>;
  Stream(Device& on, bool blocks) : device(on), blocking(blocks) {}

  static std::shared_ptr<Stream> start(Device& device, bool blocking);
  void put(std::vector<Ticket> after, Work work, uint64_t number, std::vector<Range> touched);
  void end();  // ends the thread once the queue is empty
  bool done(uint64_t number);
  void wait(uint64_t number);
  bool wait_for(uint64_t number, std::chrono::milliseconds time);
  bool idle();
  size_t unfinished();
  bool touches(Range range);  // returns true if work in the queue touches the range
  bool stands();              // returns true if it waits for a value, or for a stream that does

  Device& device;
  const bool blocking;  // it and the legacy default stream wait for each other
  uint64_t last = 0;    // the number of the last work that was put; guarded by the device's order
  std::atomic<bool> capturing{false};
  std::atomic<bool> waits_for_value{false};

 private:
  struct Item {
    std::vector<Ticket> after;
    Work work;
    std::vector<Range> touched;
  };
  static void run(const std::shared_ptr<Stream>& self);
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> queue_;  // the first item is being carried out
  std::shared_ptr<Stream> behind_;
  uint64_t done_ = 0;
  bool ending_ = false;
};

using StreamHandle = void*;
// Returns null if there is no stream of this name. The legacy default stream is the current
// context's.
std::shared_ptr<Stream> stream_of(StreamHandle handle);

// Puts work on a stream, also behind what the rules of the legacy default stream require.
Ticket submit(const std::shared_ptr<Stream>& stream, std::vector<Ticket> after, Stream::Work work,
              std::vector<Range> touched = {});
// Returns true if the stream is the legacy default one while a blocking stream is captured.
bool in_capture_of_another(const std::shared_ptr<Stream>& stream);
// Returns an error if in_capture_of_another(stream), because nothing can be put on it then.
Code usable(const char* function, const std::shared_ptr<Stream>& stream);

// Waits for everything that the device's streams were given.
void synchronise(Device& device);
// Returns all streams of a device, including those that were destroyed.
std::vector<std::shared_ptr<Stream>> streams_of(Device& device);
// Waits for the work inside the driver, which other threads of the process cannot enter meanwhile.
void occupy(const char* function, const Ticket& until);

}  // namespace fsccl::stand_in
