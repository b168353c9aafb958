#include "transports/nccl/nccl_library.h"

#include <cstdlib>
#include <cstring>
#include <optional>

#include "base/immortal.h"
#include "base/loaded_library.h"

namespace fsccl::nccl {
namespace {

struct Loaded {
  Loaded() {
    // Under its soname the loader finds the copy that the process has already loaded, from whatever
    // path.
    Result<Library> found = load("libnccl.so.2");
    if (found.ok())
      library = found.take();
    else
      why = found.status().text();
  }
  std::optional<Library> library;
  std::string why;
};

fsccl_status_t status_of(ncclResult_t code) {
  switch (code) {
    case ncclInvalidArgument:
      return FSCCL_ERR_INVALID_ARGUMENT;
    case ncclInvalidUsage:
      return FSCCL_ERR_INVALID_STATE;
    case ncclRemoteError:
      return FSCCL_ERR_PEER_DEAD;
    case ncclTimeout:  // since 2.30
      return FSCCL_ERR_TIMEOUT;
    case ncclUnhandledCudaError:
    case ncclSystemError:
      return FSCCL_ERR_SYSTEM;
    default:
      return FSCCL_ERR_INTERNAL;
  }
}

}  // namespace

Result<Library> load(const char* file) {
  LoadedLibrary opened(file);
  if (!opened.loaded())
    return fail(FSCCL_ERR_NOT_AVAILABLE, "NCCL is not installed: {}", opened.why_not());
  Library found{};
#define FSCCL_NCCL_REQUIRED(name) opened.find(found.name, #name);
#define FSCCL_NCCL_OPTIONAL(name)
#include "transports/nccl/nccl_functions.def"
  if (opened.missing())
    return fail(FSCCL_ERR_NOT_AVAILABLE, "{} has no {}: install NCCL 2.19 or later", file,
                opened.missing());
#define FSCCL_NCCL_REQUIRED(name)
#define FSCCL_NCCL_OPTIONAL(name) opened.find(found.name, #name);
#include "transports/nccl/nccl_functions.def"
  if (const ncclResult_t code = found.ncclGetVersion(&found.version); code != ncclSuccess)
    return failed(found, "ncclGetVersion", code, nullptr);
  return found;
}

const Library* library(std::string* why) {
  static Immortal<Loaded> kept;
  const Loaded& loaded = kept.get();
  if (!loaded.library) *why = loaded.why;
  return loaded.library ? &*loaded.library : nullptr;
}

Status failed(const Library& library, const char* operation, ncclResult_t code, ncclComm_t comm) {
  const char* const text = library.ncclGetErrorString(code);
  const char* const words = library.ncclGetLastError(comm);
  return fail(status_of(code),
              "{}: {}{}{}; NCCL_DEBUG=WARN makes NCCL say more, FSCCL_DEVICE_TRANSPORT=staged does "
              "without it",
              operation, text ? text : "an unknown error", words && *words ? ": " : "",
              words ? words : "");
}

std::string windows_off() {
  for (const char* const name : {"NCCL_CUMEM_ENABLE", "NCCL_WIN_ENABLE"}) {
    const char* const value = std::getenv(name);
    char* end = nullptr;
    if (value && std::strtoll(value, &end, 0) == 0 && end != value)
      return fmt::format("{} is {}", name, value);
  }
  return "";
}

bool wants_copy_engines(int version) {
  const char* const value = std::getenv("NCCL_CTA_POLICY");
  if (!value) return false;
  char* end = nullptr;
  const long long number = std::strtoll(value, &end, 0);
  return (end != value && number == kCtaPolicyZero) ||
         (version >= 22900 && strcasestr(value, "ZERO"));
}

bool made_to_block() {
  const char* const value = std::getenv("NCCL_COMM_BLOCKING");
  return value && std::strtoll(value, nullptr, 0) == 1;
}

std::string version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace fsccl::nccl
