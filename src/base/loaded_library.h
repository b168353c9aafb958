// A library that is used when it is there: its functions are found by name at run time. Stays
// loaded, so that what it has started (threads, handlers) never outlives its code.
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

  // Null when the library has none of this name, or is not there.
  template <class Function>
  void find(Function*& function, const char* name) {
    function = handle_ ? reinterpret_cast<Function*>(dlsym(handle_, name)) : nullptr;
    if (!function && !missing_) missing_ = name;
  }
  const char* missing() const { return missing_; }  // the first that was not found; null: none

 private:
  void* handle_ = nullptr;
  const char* missing_ = nullptr;
  std::string why_not_;
};

}  // namespace fsccl
