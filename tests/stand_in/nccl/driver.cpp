#include "driver.h"

#include <dlfcn.h>

namespace fsccl::stand_in_nccl {
namespace {

template <class Function>
Function* find(const char* name) {
  static void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  return library ? reinterpret_cast<Function*>(dlsym(library, name)) : nullptr;
}

}  // namespace

bool on_device(const void* memory) {
  static auto* const ask = find<int(void*, int, unsigned long long)>("cuPointerGetAttribute");
  unsigned type = 0;
  return ask && ask(&type, 2, reinterpret_cast<unsigned long long>(memory)) == 0 && type == 2;
}

bool launch(void* stream, void (*function)(void*), void* context) {
  static auto* const host = find<int(void*, void (*)(void*), void*)>("cuLaunchHostFunc");
  return host && host(stream, function, context) == 0;
}

}  // namespace fsccl::stand_in_nccl
