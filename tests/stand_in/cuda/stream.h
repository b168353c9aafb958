// A stream: a queue and a thread that works it off in order. What has to be done before (an event, or what the legacy default
// stream asks for) is a ticket: a stream and a number in it. Tickets are of work that was put before, so they cannot wait in a
// circle.
#pragma once
#include <atomic>
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

class Stream {
 public:
  using Work = std::function<Code()>;
  Stream(Device& on, bool blocks) : device(on), blocking(blocks) {}

  static std::shared_ptr<Stream> start(Device& device, bool blocking);
  void put(std::vector<Ticket> after, Work work, uint64_t number);
  void end();  // once the queue is empty
  bool done(uint64_t number);
  void wait(uint64_t number);

  Device& device;
  const bool blocking;  // against the legacy default stream
  uint64_t last = 0;    // the number of what was put last; under the device's order
  std::atomic<bool> capturing{false};

 private:
  struct Item {
    std::vector<Ticket> after;
    Work work;
  };
  static void run(const std::shared_ptr<Stream>& self);
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> queue_;
  uint64_t done_ = 0;
  bool ending_ = false;
};

using StreamHandle = void*;
// Null: there is none of this name. The legacy default stream is the current context's.
std::shared_ptr<Stream> stream_of(StreamHandle handle);

// Puts work on a stream, behind what the rules of the legacy default stream say too.
Ticket submit(const std::shared_ptr<Stream>& stream, std::vector<Ticket> after, Stream::Work work);

// Waits for everything that the device's streams were given.
void synchronise(Device& device);

}  // namespace fsccl::stand_in
