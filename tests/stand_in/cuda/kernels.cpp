// The driver's functions for modules and launches. Kernels are functions of
// libfsccl_emulated_kernels.so, which lies beside this library, in the folder above, or at the path
// FSCCL_STAND_IN_KERNELS. `fsccl_emulated_NAME` runs the whole grid, and
// `fsccl_emulated_sizes_NAME` has the bytes of each argument, and 0 behind the last. Arguments are
// copied when a kernel is launched, as by the driver.
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <set>
#include <utility>

#include "memory.h"
#include "stream.h"

using namespace fsccl::stand_in;

namespace {

struct ModuleHandle {
  const void* image;
};
struct FunctionHandle {
  ModuleHandle* module;
  std::string name;
  void (*run)(const unsigned grid[3], const unsigned block[3], void** arguments);
  const unsigned* sizes;
  bool loaded;  // true if it was loaded onto the device
};

struct Modules {
  std::mutex mutex;
  std::set<ModuleHandle*> modules;
  std::set<FunctionHandle*> functions;
};
Modules& all() {
  static Modules* const all = new Modules;
  return *all;
}

void* kernels() {
  static void* const library = [] {
    if (const char* const path = std::getenv("FSCCL_STAND_IN_KERNELS"))
      return dlopen(path, RTLD_NOW | RTLD_LOCAL);
    Dl_info here;
    if (!dladdr(reinterpret_cast<void*>(&kernels), &here)) return static_cast<void*>(nullptr);
    std::string path = here.dli_fname;
    path.resize(path.rfind('/') + 1);
    const std::string file = "libfsccl_emulated_kernels.so";
    void* const beside = dlopen((path + file).c_str(), RTLD_NOW | RTLD_LOCAL);
    // The library of a stand-in that plays another driver is in a folder below.
    return beside ? beside : dlopen((path + "../" + file).c_str(), RTLD_NOW | RTLD_LOCAL);
  }();
  return library;
}

// Returns true for images that a driver takes: a fat binary, an ELF file, or the text of PTX.
bool loadable(const void* image) {
  static const unsigned char kFatBinary[4] = {0x50, 0xed, 0x55, 0xba};
  return image &&
         (std::memcmp(image, kFatBinary, 4) == 0 || std::memcmp(image, "\177ELF", 4) == 0 ||
          std::memcmp(image, "//", 2) == 0 || std::memcmp(image, ".ver", 4) == 0);
}

}  // namespace

extern "C" {

Code cuModuleLoadData(ModuleHandle** module, const void* image) {
  if (const Code code = enter("cuModuleLoadData", Needs::unhindered)) return code;
  if (!module || !loadable(image))
    return refuse("cuModuleLoadData", kInvalidImage, "%p is no image", image);
  *module = new ModuleHandle{image};
  const std::lock_guard lock(all().mutex);
  all().modules.insert(*module);
  count("modules", 1);
  return kSuccess;
}

Code cuModuleUnload(ModuleHandle* module) {
  if (const Code code = enter("cuModuleUnload", Needs::context)) return code;
  const std::lock_guard lock(all().mutex);
  if (!all().modules.erase(module))
    return refuse("cuModuleUnload", kInvalidHandle, "module %p", static_cast<void*>(module));
  std::erase_if(all().functions, [&](FunctionHandle* function) {
    const bool gone = function->module == module;
    if (gone) delete function;
    return gone;
  });
  count("modules", -1);
  delete module;
  return kSuccess;
}

Code cuModuleGetFunction(FunctionHandle** function, ModuleHandle* module, const char* name) {
  if (const Code code = enter("cuModuleGetFunction", Needs::context)) return code;
  const std::lock_guard lock(all().mutex);
  if (!function || !name || !all().modules.count(module))
    return refuse("cuModuleGetFunction", kInvalidHandle, "module %p", static_cast<void*>(module));
  if (!kernels()) return refuse("cuModuleGetFunction", kNotFound, "there are no emulated kernels");
  const std::string prefix = "fsccl_emulated_";
  FunctionHandle found{module, name, nullptr, nullptr, driver_version() < 12040};
  found.run = reinterpret_cast<decltype(found.run)>(dlsym(kernels(), (prefix + name).c_str()));
  found.sizes = static_cast<const unsigned*>(dlsym(kernels(), (prefix + "sizes_" + name).c_str()));
  if (!found.run || !found.sizes) return kNotFound;
  *function = new FunctionHandle(found);
  all().functions.insert(*function);
  return kSuccess;
}

Code cuFuncLoad(FunctionHandle* function) {
  if (const Code code = enter("cuFuncLoad", Needs::unhindered)) return code;
  const std::lock_guard lock(all().mutex);
  if (!all().functions.count(function))
    return refuse("cuFuncLoad", kInvalidHandle, "function %p", static_cast<void*>(function));
  function->loaded = true;
  return kSuccess;
}

// Takes only threads into account, of which a multiprocessor has 2048.
Code cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, FunctionHandle* function, int threads,
                                                 size_t) {
  constexpr const char* kName = "cuOccupancyMaxActiveBlocksPerMultiprocessor";
  if (const Code code = enter(kName, Needs::context)) return code;
  const std::lock_guard lock(all().mutex);
  if (!all().functions.count(function))
    return refuse(kName, kInvalidHandle, "function %p", static_cast<void*>(function));
  if (!blocks || threads < 1) return refuse(kName, kInvalidValue, "blocks of %d threads", threads);
  *blocks = threads > 1024 ? 0 : 2048 / threads;
  return kSuccess;
}

Code cuLaunchKernel(FunctionHandle* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                    unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                    StreamHandle handle, void** arguments, void** extra) {
  if (const Code code = enter("cuLaunchKernel", Needs::context)) return code;
  const auto stream = stream_of(handle);
  const std::lock_guard lock(all().mutex);
  if (!stream || !all().functions.count(function) || extra)
    return refuse("cuLaunchKernel", kInvalidHandle, "function %p, stream %p",
                  static_cast<void*>(function), handle);
  if (const Code code = usable("cuLaunchKernel", stream)) return code;
  const uint64_t threads = uint64_t{block_x} * block_y * block_z;
  if (!grid_x || !grid_y || !grid_z || grid_x > 0x7fffffffu || grid_y > 65535 || grid_z > 65535 ||
      !threads || threads > 1024 || block_z > 64 || shared_bytes > (48u << 10) ||
      (function->sizes[0] && !arguments))
    return refuse("cuLaunchKernel", kInvalidValue,
                  "%s: a grid of %u x %u x %u blocks of %llu threads, %u bytes shared",
                  function->name.c_str(), grid_x, grid_y, grid_z,
                  static_cast<unsigned long long>(threads), shared_bytes);
  std::vector<std::vector<std::max_align_t>> copies;
  for (size_t i = 0; function->sizes[i]; i++) {
    copies.emplace_back((function->sizes[i] + sizeof(std::max_align_t) - 1) /
                        sizeof(std::max_align_t));
    std::memcpy(copies.back().data(), arguments[i], function->sizes[i]);
  }
  // The driver may load a function only when it is first launched, and may wait for the whole
  // device then. The stand-in always waits.
  if (!std::exchange(function->loaded, true)) synchronise(stream->device);
  count_call("kernel " + function->name);
  count_call(function->name + "<<<" + std::to_string(grid_x) + ", " + std::to_string(block_x) +
             ">>>");
  submit(stream, {},
         [run = function->run, copies = std::move(copies), grid_x, grid_y, grid_z, block_x, block_y,
          block_z]() mutable {
           const unsigned grid[3] = {grid_x, grid_y, grid_z},
                          block[3] = {block_x, block_y, block_z};
           std::vector<void*> pointers;
           for (auto& copy : copies) pointers.push_back(copy.data());
           run(grid, block, pointers.data());
           return Code{kSuccess};
         });
  return kSuccess;
}

}  // extern "C"
