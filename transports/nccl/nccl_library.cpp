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
    // The soname finds the one that is in the process, from wherever that came.
    Result<Library> found = load("libnccl.so.2");
    if (found.ok())
      library = found.take();
    else
      why = found.status().text();
  }
  std::optional<Library> library;
  std::string why;
};

fsccl_status_t status_of(Code code) {
  switch (code) {
    case kInvalidArgument:
      return FSCCL_ERR_INVALID_ARGUMENT;
    case kInvalidUsage:
      return FSCCL_ERR_INVALID_STATE;
    case kRemoteError:
      return FSCCL_ERR_PEER_DEAD;
    case kTimeout:  // 2.30
      return FSCCL_ERR_TIMEOUT;
    case kUnhandledCudaError:
    case kSystemError:
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
  opened.find(found.get_version, "ncclGetVersion");
  opened.find(found.get_unique_id, "ncclGetUniqueId");
  opened.find(found.init_rank, "ncclCommInitRankConfig");
  opened.find(found.finalize, "ncclCommFinalize");
  opened.find(found.destroy, "ncclCommDestroy");
  opened.find(found.abort, "ncclCommAbort");
  opened.find(found.error_string, "ncclGetErrorString");
  opened.find(found.last_error, "ncclGetLastError");
  opened.find(found.async_error, "ncclCommGetAsyncError");
  opened.find(found.make_scaled_sum, "ncclRedOpCreatePreMulSum");
  opened.find(found.destroy_operator, "ncclRedOpDestroy");
  opened.find(found.reduce, "ncclReduce");
  opened.find(found.broadcast, "ncclBroadcast");
  opened.find(found.all_reduce, "ncclAllReduce");
  opened.find(found.reduce_scatter, "ncclReduceScatter");
  opened.find(found.all_gather, "ncclAllGather");
  opened.find(found.send, "ncclSend");
  opened.find(found.recv, "ncclRecv");
  opened.find(found.group_start, "ncclGroupStart");
  opened.find(found.group_end, "ncclGroupEnd");
  if (opened.missing())
    return fail(FSCCL_ERR_NOT_AVAILABLE, "{} has no {}: install NCCL 2.19 or later", file,
                opened.missing());
  opened.find(found.count, "ncclCommCount");
  opened.find(found.revoke, "ncclCommRevoke");
  opened.find(found.window_register, "ncclCommWindowRegister");
  opened.find(found.window_deregister, "ncclCommWindowDeregister");
  opened.find(found.all_to_all, "ncclAlltoAll");
  if (const Code code = found.get_version(&found.version); code != kSuccess)
    return failed(found, "ncclGetVersion", code, nullptr);
  return found;
}

const Library* library(std::string* why) {
  static Immortal<Loaded> kept;
  const Loaded& loaded = kept.get();
  if (!loaded.library) *why = loaded.why;
  return loaded.library ? &*loaded.library : nullptr;
}

Status failed(const Library& library, const char* operation, Code code, Comm comm) {
  const char* const text = library.error_string(code);
  const char* const words = library.last_error(comm);
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
  return (end != value && number == kZeroCtas) || (version >= 22900 && strcasestr(value, "ZERO"));
}

bool made_to_block() {
  const char* const value = std::getenv("NCCL_COMM_BLOCKING");
  return value && std::strtoll(value, nullptr, 0) == 1;
}

std::string version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace fsccl::nccl
