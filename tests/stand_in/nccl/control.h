// The control of the stand-in for NCCL, for tests. It finds the functions in the libnccl.so.2 that
// the library under test uses.
#pragma once
#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace fsccl::stand_in_nccl {

class Control {
 public:
  Control() : library_(dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL)) {}
  // Returns false if there is no NCCL, or the real one.
  bool there() const { return library_ && dlsym(library_, "fsccl_stand_in_nccl_calls"); }
  // Returns the number of calls of a function in this process. The name may be "ncclAllGather", or
  // "ncclAllGather by copy engines".
  uint64_t calls(const char* function) const {
    return reinterpret_cast<uint64_t (*)(const char*)>(
        dlsym(library_, "fsccl_stand_in_nccl_calls"))(function);
  }
  // Returns a line for each rule that was broken, and forgets them.
  std::string broken_rules() const {
    char text[8192];
    reinterpret_cast<size_t (*)(char*, size_t)>(
        dlsym(library_, "fsccl_stand_in_nccl_broken_rules"))(text, sizeof text);
    return text;
  }

 private:
  void* library_;
};

}  // namespace fsccl::stand_in_nccl
