// Status codes as text, the calling thread's last error, and properties of the library that belong
// to no object.
#include <exception>
#include <new>

#include "api/guard.h"
#include "api/structs.h"
#include "base/dtype.h"
#include "base/version.h"

namespace fsccl {
namespace {

struct LastError {
  Error error;
  const char* fixed_text = nullptr;  // instead of the error's, when memory was short

  LastError() { error.code = FSCCL_OK; }
};

LastError& last_error() {
  static thread_local LastError last;
  return last;
}

void set_fixed(fsccl_status_t code, const char* text) noexcept {
  LastError& last = last_error();
  last.error.code = code;
  last.error.rank = last.error.peer = -1;
  last.error.sequence = 0;
  last.error.operation.clear();
  last.fixed_text = text;
}

}  // namespace

void set_last_error(const Status& status) noexcept {
  if (status.ok()) return;
  try {
    LastError& last = last_error();
    last.error = status.error();
    last.fixed_text = nullptr;
  } catch (const std::bad_alloc&) {
    set_fixed(status.code(), "memory is too short to tell more");
  }
}

fsccl_status_t record_error(const char* operation, Status status) noexcept {
  set_last_error(status);
  LastError& last = last_error();
  try {
    if (last.error.operation.empty()) last.error.operation = operation;
  } catch (const std::bad_alloc&) {
    last.error.operation.clear();
  }
  return status.code();
}

fsccl_status_t record_exception(const char* operation) noexcept {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    set_fixed(FSCCL_ERR_OUT_OF_MEMORY,
              "the system gave no memory for the library's own data; free some, or raise the limit "
              "of the container");
    return FSCCL_ERR_OUT_OF_MEMORY;
  } catch (const std::exception& exception) {
    try {
      return record_error(
          operation,
          fail(FSCCL_ERR_INTERNAL, "unexpected exception: {}; please report it", exception.what()));
    } catch (...) {
      set_fixed(FSCCL_ERR_INTERNAL, "unexpected exception; please report it");
    }
  } catch (...) {
    set_fixed(FSCCL_ERR_INTERNAL, "unexpected exception of an unknown type; please report it");
  }
  return FSCCL_ERR_INTERNAL;
}

}  // namespace fsccl

extern "C" {

const char* fsccl_status_string(fsccl_status_t status) {
  switch (status) {
    case FSCCL_OK:
      return "FSCCL_OK: success";
    case FSCCL_IN_PROGRESS:
      return "FSCCL_IN_PROGRESS: submitted, not complete";
    case FSCCL_ERR_INVALID_ARGUMENT:
      return "FSCCL_ERR_INVALID_ARGUMENT: a value is out of range, NULL, overlapping or "
             "inconsistent";
    case FSCCL_ERR_INVALID_HANDLE:
      return "FSCCL_ERR_INVALID_HANDLE: the handle is NULL, destroyed or of another kind";
    case FSCCL_ERR_INVALID_STATE:
      return "FSCCL_ERR_INVALID_STATE: the call is not allowed at this moment";
    case FSCCL_ERR_NOT_AVAILABLE:
      return "FSCCL_ERR_NOT_AVAILABLE: not in this release, build or machine";
    case FSCCL_ERR_VERSION:
      return "FSCCL_ERR_VERSION: versions of header, library or ranks do not fit";
    case FSCCL_ERR_CONFIG:
      return "FSCCL_ERR_CONFIG: a configuration value is not accepted";
    case FSCCL_ERR_FORKED:
      return "FSCCL_ERR_FORKED: the process forked after the handle was made";
    case FSCCL_ERR_OUT_OF_MEMORY:
      return "FSCCL_ERR_OUT_OF_MEMORY: not enough memory, or a pool's limit";
    case FSCCL_ERR_LIMIT:
      return "FSCCL_ERR_LIMIT: a limit is too low";
    case FSCCL_ERR_SYSTEM:
      return "FSCCL_ERR_SYSTEM: a system call failed";
    case FSCCL_ERR_LINK:
      return "FSCCL_ERR_LINK: a connection between two ranks failed";
    case FSCCL_ERR_PROTOCOL:
      return "FSCCL_ERR_PROTOCOL: received bytes that are not of this library";
    case FSCCL_ERR_PEER_DEAD:
      return "FSCCL_ERR_PEER_DEAD: another rank has died or left";
    case FSCCL_ERR_MISMATCH:
      return "FSCCL_ERR_MISMATCH: ranks disagree on an operation";
    case FSCCL_ERR_AUTH:
      return "FSCCL_ERR_AUTH: a peer could not prove that it belongs to the job";
    case FSCCL_ERR_TIMEOUT:
      return "FSCCL_ERR_TIMEOUT: a deadline passed";
    case FSCCL_ERR_ABORTED:
      return "FSCCL_ERR_ABORTED: the communicator was aborted";
    case FSCCL_ERR_COMM_FAILED:
      return "FSCCL_ERR_COMM_FAILED: an earlier operation of the communicator failed";
    case FSCCL_ERR_INTERNAL:
      return "FSCCL_ERR_INTERNAL: a defect of the library";
  }
  return "unknown status: not a value of fsccl_status_t";
}

fsccl_status_t fsccl_last_error(fsccl_error_info_t* info) {
  // An error of this call is not recorded, because it would overwrite the error that the caller
  // asks for.
  if (info == nullptr || !fsccl::has_size_of_a_struct(*info)) return FSCCL_ERR_INVALID_ARGUMENT;
  const fsccl::LastError& last = fsccl::last_error();
  fsccl_error_info_t made = FSCCL_ERROR_INFO_INIT;
  made.code = last.error.code;
  made.rank = last.error.rank;
  made.peer = last.error.peer;
  made.sequence = last.error.sequence;
  made.operation = last.error.operation.c_str();
  made.text = last.fixed_text != nullptr ? last.fixed_text : last.error.text.c_str();
  fsccl::fill_output(info, made);
  return FSCCL_OK;
}

fsccl_status_t fsccl_version(int* version) {
  return fsccl::guarded("fsccl_version", [&]() -> fsccl::Status {
    if (version == nullptr) return fsccl::fail(FSCCL_ERR_INVALID_ARGUMENT, "version is NULL");
    *version = static_cast<int>(fsccl::library_version());
    return fsccl::success();
  });
}

size_t fsccl_dtype_size(fsccl_dtype_t dtype) {
  return fsccl::dtype_valid(dtype) ? fsccl::dtype_size(dtype) : 0;
}

}  // extern "C"
