#include "cuda/driver.h"

#include <optional>

#include "base/loaded_library.h"

namespace fsccl::cuda {
namespace {

constexpr int kOldest = 12000;

struct Loaded {
  std::optional<Driver> driver;
  std::string why;
};

// Looks up every required function. library.missing() names the first one that the driver lacks.
void find_required(LoadedLibrary& library, Driver& driver) {
#define FSCCL_CUDA_REQUIRED(name, symbol) library.find(driver.name, #symbol);
#define FSCCL_CUDA_OPTIONAL(name, symbol)
#include "cuda/driver_functions.def"
}

void find_optional(LoadedLibrary& library, Driver& driver) {
#define FSCCL_CUDA_REQUIRED(name, symbol)
#define FSCCL_CUDA_OPTIONAL(name, symbol) library.find(driver.name, #symbol);
#include "cuda/driver_functions.def"
}

Loaded load() {
  LoadedLibrary library("libcuda.so.1");
  if (!library.loaded())
    return {std::nullopt, fmt::format("NVIDIA's driver is not installed: {}", library.why_not())};
  // The driver opens descriptors in any of its calls, and so does NCCL, which needs the driver.
  take_standard_numbers_for_good();
  Driver found{};
  find_required(library, found);
  if (library.missing())
    return {std::nullopt,
            fmt::format("libcuda.so.1 has no {}: install a driver for CUDA 12.0 or later",
                        library.missing())};
  find_optional(library, found);
  CUresult code = found.cuDriverGetVersion(&found.version);
  if (code == CUDA_SUCCESS && found.version < kOldest)
    return {std::nullopt, fmt::format("the driver is for CUDA {}.{}: install one for 12.0 or later",
                                      found.version / 1000, found.version % 1000 / 10)};
  if (code == CUDA_SUCCESS) code = found.cuInit(0);
  if (code != CUDA_SUCCESS) return {std::nullopt, failed(found, "cuInit", code).text()};
  return {found, ""};
}

}  // namespace

const Driver* driver(std::string* why) {
  static const Loaded loaded = load();
  if (!loaded.driver) *why = loaded.why;
  return loaded.driver ? &*loaded.driver : nullptr;
}

Status failed(const Driver& driver, const char* operation, CUresult code) {
  const char *name = nullptr, *text = nullptr;
  if (driver.cuGetErrorName(code, &name) != CUDA_SUCCESS || !name) name = "an unknown error";
  if (driver.cuGetErrorString(code, &text) != CUDA_SUCCESS || !text) text = "no text";
  const fsccl_status_t status = code == CUDA_ERROR_OUT_OF_MEMORY ? FSCCL_ERR_OUT_OF_MEMORY
                                : code == CUDA_ERROR_NO_DEVICE || code == CUDA_ERROR_NOT_SUPPORTED
                                    ? FSCCL_ERR_NOT_AVAILABLE
                                    : FSCCL_ERR_SYSTEM;
  return fail(status, "{}: {} ({})", operation, name, text);
}

}  // namespace fsccl::cuda
