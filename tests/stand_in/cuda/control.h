// The control of the stand-in for CUDA's driver, for tests. The functions are exported by the
// stand-in alone: StandIn finds them in the libcuda.so.1 that the library under test uses.
#pragma once
#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <string>

extern "C" {
// Returns the number of calls since the process began: of a function such as "cuMemCreate", of
// launches named as "kernel NAME" or "NAME<<<BLOCKS, THREADS>>>", or of all if `name` is null.
uint64_t fsccl_stand_in_calls(const char* name);
// Makes the nth call from now (1: the next) return `code`.
void fsccl_stand_in_fail(const char* function, int nth, int code);
// Makes calls behave as if work on the device had failed with this code, or with 0 as if it had not
// failed.
void fsccl_stand_in_break(int ordinal, int code);
// Returns the number of existing objects of a kind: "handles", "mappings", "reservations",
// "allocations", "registrations", "streams", "events", "modules", "graphs".
int64_t fsccl_stand_in_live(const char* kind);
uint64_t fsccl_stand_in_used_bytes(int ordinal);
// Writes lines like "3 events" for all that exists except modules, and returns the text's size.
size_t fsccl_stand_in_leaks(char* text, size_t capacity);
// Writes a line for each rule of the driver that a call broke.
size_t fsccl_stand_in_broken_rules(char* text, size_t capacity, int forget);
}

namespace fsccl::stand_in {

class Control {
 public:
  Control() : library_(dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) {}
  // Returns false if there is no driver, or a real one.
  bool there() const { return library_ && dlsym(library_, "fsccl_stand_in_calls"); }
  // With a real driver the functions below return 0 or an empty text. Functions that change
  // something may be called with the stand-in only.
  uint64_t calls(const char* name = nullptr) const {
    return there() ? find<decltype(fsccl_stand_in_calls)>("fsccl_stand_in_calls")(name) : 0;
  }
  void fail(const char* function, int nth = 1, int code = 2) const {
    find<decltype(fsccl_stand_in_fail)>("fsccl_stand_in_fail")(function, nth, code);
  }
  void break_device(int ordinal, int code) const {
    find<decltype(fsccl_stand_in_break)>("fsccl_stand_in_break")(ordinal, code);
  }
  int64_t live(const char* kind) const {
    return there() ? find<decltype(fsccl_stand_in_live)>("fsccl_stand_in_live")(kind) : 0;
  }
  uint64_t used_bytes(int ordinal) const {
    return there() ? find<decltype(fsccl_stand_in_used_bytes)>("fsccl_stand_in_used_bytes")(ordinal)
                   : 0;
  }
  std::string leaks() const {
    char text[1024] = "";
    if (there()) find<decltype(fsccl_stand_in_leaks)>("fsccl_stand_in_leaks")(text, sizeof text);
    return text;
  }
  // Returns the broken rules, and forgets them.
  std::string broken_rules() const {
    char text[8192] = "";
    if (there())
      find<decltype(fsccl_stand_in_broken_rules)>("fsccl_stand_in_broken_rules")(text, sizeof text,
                                                                                 1);
    return text;
  }

 private:
  template <class Function>
  Function* find(const char* name) const {
    return reinterpret_cast<Function*>(dlsym(library_, name));
  }
  void* library_;
};

}  // namespace fsccl::stand_in
