// The beginning of every call of the stand-in: it is counted, may be told to fail, and is refused
// where CUDA would refuse it. A caller that breaks a rule gets CUDA's error for it, and a line in
// the list of broken rules, because callers may ignore an error.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdarg>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "abi.h"

namespace fsccl::stand_in {

class Stream;

// A call that copies from or to ordinary host memory keeps the driver to itself until it is
// through: calls of other threads wait for that. Only for a while where the stream waits for a
// value, for whose coming one of them may have to be made: then a rule is broken, and they go on.
struct Occupied {
  std::mutex mutex;
  std::condition_variable changed;
  bool now = false;
  int held_up = 0;  // calls
};

// A GPU with its primary context. All live until the process ends.
struct Device {
  int ordinal = 0;
  int physical = 0;  // behind CUDA_VISIBLE_DEVICES: the same to every process
  uint64_t bytes = 0;
  std::atomic<uint64_t> used{0};
  std::atomic<int> retained{0};
  std::atomic<Code> broken{kSuccess};  // by work that failed: every later call does, too
  std::mutex order;                    // guards the order of work on its streams
  std::vector<std::shared_ptr<Stream>> streams;
  // that were destroyed, and may still have something to do
  std::vector<std::shared_ptr<Stream>> ended;
  std::shared_ptr<Stream> null_stream;
  Occupied occupied;

  // Returns false if the device has not so much memory left.
  bool charge(uint64_t amount);
  void refund(uint64_t amount) { used -= amount; }
};

const std::vector<Device*>& devices();
Device* device_at(int ordinal);  // null: no such
bool attribute(int which, int* value, const Device& device);
int driver_version();

// unhindered: as context, and not hindered().
enum class Needs { nothing, initialised, context, unhindered };
// Returns the code that the call has to return at once, or kSuccess if it may go on.
Code enter(const char* function, Needs needs = Needs::initialised);
Code initialise();
// Returns the device whose context is the thread's. After enter() with Needs::context there is one.
Device* current();

// Notes that a rule was broken, and returns the code.
[[gnu::format(printf, 3, 4)]] Code refuse(const char* function, Code code, const char* format, ...);

// Streams that are being captured, in global mode as PyTorch's are. Meanwhile some calls are
// refused to all threads that are not in relaxed mode themselves.
std::atomic<int>& captures();
Code hindered(const char* function);
// Waits until no other thread occupies the driver.
void wait_for_driver(Device& device);

// Meanwhile calls of this thread are not permitted: it runs a function of launch_host.
class InHostFunction {
 public:
  InHostFunction();
  ~InHostFunction();
};

// How many of this kind exist. The text of those that should not be left when everything was given
// back.
void count(const char* kind, int more);
void count_call(const std::string& name);

}  // namespace fsccl::stand_in
