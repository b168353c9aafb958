// Functions by which a role of a test program prints the result of a call, for the test to read.
#pragma once
#include <fsccl/fsccl.h>

#include <cstdio>

namespace fsccl::testing {

inline fsccl_error_info_t last_error() {
  fsccl_error_info_t info = FSCCL_ERROR_INFO_INIT;
  fsccl_last_error(&info);
  return info;
}

// Prints, for example, "barrier: -50 peer 2 FSCCL_ERR_PEER_DEAD: rank 2 died", and returns 0 if the
// call succeeded.
inline int tell(const char* what, fsccl_status_t status) {
  const fsccl_error_info_t error = last_error();
  if (status >= 0)
    std::printf("%s: %d\n", what, status);
  else
    std::printf("%s: %d peer %d %s: %s\n", what, status, error.peer, fsccl_status_string(status),
                error.text);
  return status < 0;
}

// Returns whether the call succeeded, and prints its result only if it failed.
inline bool good(const char* what, fsccl_status_t status) {
  return status >= 0 || tell(what, status) == 0;
}

}  // namespace fsccl::testing
