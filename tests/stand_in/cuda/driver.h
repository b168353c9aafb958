// The functions with which every call of the stand-in begins. They count the call, make it fail if
// a test wants that, and refuse it if CUDA would. A caller that breaks a rule gets CUDA's error.
// The stand-in also adds a line to the list of broken rules, because callers may ignore an error.
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

// A call that copies from or to ordinary host memory occupies the driver until it is done, so calls
// of other threads wait. But if the stream waits for a value, one of these calls may be needed for
// the value to come. So they wait only for a while: then a rule is broken, and they go on.
struct Occupied {
  std::mutex mutex;
  std::condition_variable changed;
  bool now = false;
  int held_up = 0;  // the number of calls that wait
};

// A GPU with its primary context. Devices live until the process ends.
struct Device {
  int ordinal = 0;
  int physical = 0;  // its number without CUDA_VISIBLE_DEVICES, the same in every process
  uint64_t bytes = 0;
  std::atomic<uint64_t> used{0};
  std::atomic<int> retained{0};
  std::atomic<Code> broken{kSuccess};  // the error of work that failed; later calls fail with it
  std::mutex order;                    // guards the order of work on its streams
  std::vector<std::shared_ptr<Stream>> streams;
  // Streams that were destroyed, and may still have work to do.
  std::vector<std::shared_ptr<Stream>> ended;
  std::shared_ptr<Stream> null_stream;
  Occupied occupied;

  // Takes memory of the device into account. Returns false if the device has not enough left.
  bool charge(uint64_t amount);
  void refund(uint64_t amount) { used -= amount; }
};

const std::vector<Device*>& devices();
Device* device_at(int ordinal);  // returns null if there is no such device
bool attribute(int which, int* value, const Device& device);
int driver_version();

// The conditions of a call. `unhindered` is `context`, and hindered() must allow the call, too.
enum class Needs { nothing, initialised, context, unhindered };
// Returns the code that the call has to return at once, or kSuccess if it may go on.
Code enter(const char* function, Needs needs = Needs::initialised);
Code initialise();
// Returns the device whose context is the thread's. After enter() with Needs::context there is one.
Device* current();

// Notes that a rule was broken, and returns the code.
[[gnu::format(printf, 3, 4)]] Code refuse(const char* function, Code code, const char* format, ...);

// Returns the number of streams that are being captured, in global mode as PyTorch does. While
// there is one, some calls are refused to all threads that are not in relaxed mode themselves.
std::atomic<int>& captures();
Code hindered(const char* function);
// Waits until no other thread occupies the driver.
void wait_for_driver(Device& device);

// Forbids calls of this thread while the object lives, because it runs a function of
// cuLaunchHostFunc().
class InHostFunction {
 public:
  InHostFunction();
  ~InHostFunction();
};

// Adds `more` to the number of existing objects of this kind.
void count(const char* kind, int more);
void count_call(const std::string& name);

}  // namespace fsccl::stand_in
