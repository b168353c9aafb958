#include "driver.h"

#include <pthread.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <sstream>
#include <utility>

#include "control.h"
#include "stream.h"

namespace fsccl::stand_in {
namespace {

struct Failure {
  std::string function;
  int calls_left;
  Code code;
};

struct State {
  std::mutex mutex;
  std::map<std::string, uint64_t> calls;
  std::map<std::string, int64_t> live;
  std::vector<Failure> failures;
  std::vector<std::string> broken_rules;
  std::vector<std::string> waiting;  // functions that wait for the device, as they may in a driver
  std::atomic<bool> initialised{false}, forked{false};
};

thread_local std::vector<Device*> contexts;
thread_local bool in_host_function = false;
thread_local int capture_mode = 0;  // 0: global; 2: relaxed

std::vector<std::string> words(const char* variable, char separator) {
  std::vector<std::string> found;
  const char* const text = std::getenv(variable);
  std::stringstream stream(text ? text : "");
  for (std::string word; std::getline(stream, word, separator);) found.push_back(word);
  return found;
}

State* make_state() {
  auto* const made = new State;
  made->waiting = words("FSCCL_STAND_IN_WAITS", ',');
  for (const std::string& word : words("FSCCL_STAND_IN_FAIL", ',')) {
    char function[64] = "";
    int nth = 0, code = kOutOfMemory;
    if (std::sscanf(word.c_str(), "%63[^:]:%d:%d", function, &nth, &code) >= 2)
      made->failures.push_back({function, nth, code});
  }
  return made;
}

State& state() {
  static State* const state = [] {
    pthread_atfork(nullptr, nullptr, [] { stand_in::state().forked = true; });
    return make_state();
  }();  // never destroyed, because threads of streams may outlive static objects
  return *state;
}

uint64_t number(const char* variable, uint64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text && *text ? std::strtoull(text, nullptr, 10) : otherwise;
}

std::vector<Device*> make_devices() {
  const int there = static_cast<int>(number("FSCCL_STAND_IN_GPUS", 2));
  std::vector<int> visible;
  if (std::getenv("CUDA_VISIBLE_DEVICES")) {
    for (const std::string& word : words("CUDA_VISIBLE_DEVICES", ',')) {
      const int physical = std::atoi(word.c_str());
      if (word.empty() || physical < 0 || physical >= there) break;
      visible.push_back(physical);
    }
  } else {
    for (int i = 0; i < there; i++) visible.push_back(i);
  }
  std::vector<Device*> made;
  for (const int physical : visible) {
    auto* const device = new Device;
    device->ordinal = static_cast<int>(made.size());
    device->physical = physical;
    device->bytes = number("FSCCL_STAND_IN_GPU_BYTES", uint64_t{1} << 30);
    made.push_back(device);
  }
  return made;
}

Code planned_failure(State& s, const char* function) {
  for (auto failure = s.failures.begin(); failure != s.failures.end(); ++failure)
    if (failure->function == function && --failure->calls_left == 0) {
      const Code code = failure->code;
      s.failures.erase(failure);
      return code;
    }
  return kSuccess;
}

}  // namespace

bool Device::charge(uint64_t amount) {
  uint64_t before = used;
  while (amount <= bytes - before)
    if (used.compare_exchange_weak(before, before + amount)) return true;
  return false;
}

const std::vector<Device*>& devices() {
  static const std::vector<Device*>* const all = new std::vector<Device*>(make_devices());
  return *all;
}

Device* device_at(int ordinal) {
  return ordinal >= 0 && ordinal < static_cast<int>(devices().size())
             ? devices()[static_cast<size_t>(ordinal)]
             : nullptr;
}

int driver_version() { return static_cast<int>(number("FSCCL_STAND_IN_VERSION", 13000)); }

bool attribute(int which, int* value, const Device& device) {
  static const std::map<int, int> usual = {{16, 4},  {34, 0},  {40, 2},  {50, 0},  {75, 9}, {76, 0},
                                           {102, 1}, {103, 1}, {110, 1}, {122, 1}, {128, 0}};
  for (const std::string& word : words("FSCCL_STAND_IN_ATTRIBUTES", ',')) {
    int number = 0, meant = 0;
    if (std::sscanf(word.c_str(), "%d=%d", &number, &meant) == 2 && number == which) {
      *value = meant;
      return true;
    }
  }
  const auto found = usual.find(which);
  if (which == 33) *value = 0x10 + device.physical;  // the PCI bus
  if (found != usual.end()) *value = found->second;
  return which == 33 || found != usual.end();
}

Code initialise() {
  state().initialised = true;
  return kSuccess;
}

Code enter(const char* function, Needs needs) {
  State& s = state();
  // CUDA does not survive fork(), and neither would the stand-in's locks.
  if (s.forked) return kNotInitialized;
  {
    const std::lock_guard lock(s.mutex);
    s.calls[function]++;
    if (const Code code = planned_failure(s, function)) return code;
  }
  if (needs == Needs::nothing) return kSuccess;
  if (!s.initialised) return refuse(function, kNotInitialized, "before cuInit");
  if (in_host_function)
    return refuse(function, kNotPermitted, "from a function that runs in a stream");
  if (current() && std::find(s.waiting.begin(), s.waiting.end(), function) != s.waiting.end())
    synchronise(*current());
  if (needs == Needs::initialised) return kSuccess;
  if (const Code code = needs == Needs::unhindered ? hindered(function) : Code{kSuccess})
    return code;
  if (!current()) return refuse(function, kInvalidContext, "no context is current");
  wait_for_driver(*current());
  return current()->broken;
}

void wait_for_driver(Device& device) {
  Occupied& occupied = device.occupied;
  std::unique_lock lock(occupied.mutex);
  occupied.held_up++;
  occupied.changed.wait(lock, [&] { return !occupied.now; });
  occupied.held_up--;
}

Code hindered(const char* function) {
  if (!captures() || capture_mode == 2) return kSuccess;
  return refuse(function, kCaptureUnsupported,
                "while a stream is being captured, and not in relaxed mode: the capture is lost");
}

std::atomic<int>& captures() {
  static std::atomic<int> count{0};
  return count;
}

Device* current() { return contexts.empty() ? nullptr : contexts.back(); }

Code refuse(const char* function, Code code, const char* format, ...) {
  char text[512];
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  const std::string line = std::string(function) + ": " + text;
  if (std::getenv("FSCCL_STAND_IN_VERBOSE"))
    std::fprintf(stderr, "stand-in for CUDA: %s (error %d)\n", line.c_str(), code);
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.broken_rules.push_back(line);
  return code;
}

InHostFunction::InHostFunction() { in_host_function = true; }
InHostFunction::~InHostFunction() { in_host_function = false; }

void count(const char* kind, int more) {
  const std::lock_guard lock(state().mutex);
  state().live[kind] += more;
}

void count_call(const std::string& name) {
  const std::lock_guard lock(state().mutex);
  state().calls[name]++;
}

}  // namespace fsccl::stand_in

using namespace fsccl::stand_in;

extern "C" {

Code cuDevicePrimaryCtxRetain(Device** context, int device) {
  if (const Code code = enter("cuDevicePrimaryCtxRetain")) return code;
  Device* const found = device_at(device);
  if (!context || !found)
    return refuse("cuDevicePrimaryCtxRetain", kInvalidDevice, "device %d", device);
  found->retained++;
  *context = found;
  return kSuccess;
}

Code cuDevicePrimaryCtxRelease_v2(int device) {
  if (const Code code = enter("cuDevicePrimaryCtxRelease_v2")) return code;
  Device* const found = device_at(device);
  if (!found) return refuse("cuDevicePrimaryCtxRelease_v2", kInvalidDevice, "device %d", device);
  if (!found->retained)
    return refuse("cuDevicePrimaryCtxRelease_v2", kInvalidContext,
                  "released more often than retained");
  found->retained--;
  return kSuccess;
}

Code cuCtxPushCurrent_v2(Device* context) {
  if (const Code code = enter("cuCtxPushCurrent_v2")) return code;
  if (std::find(devices().begin(), devices().end(), context) == devices().end() ||
      !context->retained)
    return refuse("cuCtxPushCurrent_v2", kInvalidContext, "not a context that is retained");
  contexts.push_back(context);
  return kSuccess;
}

Code cuCtxPopCurrent_v2(Device** context) {
  if (const Code code = enter("cuCtxPopCurrent_v2")) return code;
  if (contexts.empty())
    return refuse("cuCtxPopCurrent_v2", kInvalidContext, "no context is current");
  if (context) *context = contexts.back();
  contexts.pop_back();
  return kSuccess;
}

Code cuThreadExchangeStreamCaptureMode(int* mode) {
  if (const Code code = enter("cuThreadExchangeStreamCaptureMode")) return code;
  if (!mode || *mode < 0 || *mode > 2)
    return refuse("cuThreadExchangeStreamCaptureMode", kInvalidValue, "a mode that is none");
  std::swap(*mode, capture_mode);
  return kSuccess;
}

uint64_t fsccl_stand_in_calls(const char* name) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (name) return s.calls.count(name) ? s.calls[name] : 0;
  uint64_t all = 0;
  for (const auto& [function, calls] : s.calls) all += calls;
  return all;
}

void fsccl_stand_in_fail(const char* function, int nth, int code) {
  const std::lock_guard lock(state().mutex);
  state().failures.push_back({function, nth, code});
}

void fsccl_stand_in_break(int ordinal, int code) {
  if (Device* const device = device_at(ordinal)) device->broken = code;
}

int64_t fsccl_stand_in_live(const char* kind) {
  const std::lock_guard lock(state().mutex);
  return state().live.count(kind) ? state().live[kind] : 0;
}

uint64_t fsccl_stand_in_used_bytes(int ordinal) {
  const Device* const device = device_at(ordinal);
  return device ? device->used.load() : 0;
}

size_t fsccl_stand_in_leaks(char* text, size_t capacity) {
  std::string all;
  const std::lock_guard lock(state().mutex);
  for (const auto& [kind, live] : state().live)
    if (live && kind != "modules") all += std::to_string(live) + " " + kind + "\n";
  std::snprintf(text, capacity, "%s", all.c_str());
  return all.size();
}

size_t fsccl_stand_in_broken_rules(char* text, size_t capacity, int forget) {
  std::string all;
  const std::lock_guard lock(state().mutex);
  for (const std::string& line : state().broken_rules) all += line + "\n";
  if (forget) state().broken_rules.clear();
  std::snprintf(text, capacity, "%s", all.c_str());
  return all.size();
}

}  // extern "C"
