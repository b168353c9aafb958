// A shared library that FSCCL uses if it is there, and whose functions it finds by name at run
// time. The library stays loaded, so that the threads and handlers that it starts never outlive its
// code.
#pragma once
#include <dlfcn.h>

#include <string>

#include "base/fd.h"

namespace fsccl {

class LoadedLibrary {
 public:
  explicit LoadedLibrary(const char* file) {
    const StandardNumbersTaken taken;  // code that starts with a library may open descriptors
    handle_ = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (handle_) return;
    const char* const text = dlerror();
    why_not_ = text ? text : file;
  }
  bool loaded() const { return handle_ != nullptr; }
  const std::string& why_not() const { return why_not_; }  // the system's words

  // Returns null if the library has no function of this name, or is not there.
  template <class Function>
  void find(Function*& function, const char* name) {
    function = handle_ ? reinterpret_cast<Function*>(dlsym(handle_, name)) : nullptr;
    if (!function && !missing_) missing_ = name;
  }
  const char* missing() const { return missing_; }  // the first name not found; null if all were

 private:
  void* handle_ = nullptr;
  const char* missing_ = nullptr;
  std::string why_not_;
};

}  // namespace fsccl
