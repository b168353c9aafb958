// Says how many more files this process may open. The limit of open files (ulimit -n) is the first
// limit that a job meets. Calls of several ranks check it before they begin, because a rank that
// finds out in the middle leaves the others waiting.
#pragma once
#include <sys/resource.h>

#include "base/status.h"

namespace fsccl {

// Returns FSCCL_ERR_LIMIT, with the limit, when fewer than `count` descriptors are free. `purpose`
// follows "are needed to" in the text. The check does not know what other threads open afterwards.
Status check_descriptors(int count, const char* purpose);
// Returns the error of the other ranks where check_descriptors() failed on `rank`.
Status short_of_descriptors(int rank, const char* purpose);

// The number of descriptors that a rank takes for a while when it makes a communicator or a pool
// with others: for its memory, and for the connections by which the others fetch it.
inline constexpr int kDescriptorsToMake = 6;

// Raises the soft limit of open files by a few descriptors as long as this object lives, so that an
// error about descriptors can be sent. It does so if `wanted` is true and the hard limit permits
// it.
class MoreDescriptors {
 public:
  explicit MoreDescriptors(bool wanted);
  ~MoreDescriptors();
  MoreDescriptors(const MoreDescriptors&) = delete;
  MoreDescriptors& operator=(const MoreDescriptors&) = delete;

 private:
  rlimit before_ = {};
  bool raised_ = false;
};

}  // namespace fsccl
