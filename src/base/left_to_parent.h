// Descriptors in the child of a fork. The child's copy of a connection would keep it open after the
// parent has closed it or has ended, and the other side would not learn of that.
#pragma once
#include <fcntl.h>

#include "base/fd.h"

namespace fsccl {

// Replaces the child's copies by /dev/null. Their numbers stay taken, so that a later close by an
// owner closes nothing else. All of it is async-signal-safe.
class LeftToParent {
 public:
  void replace(int fd) const {
    if (null_.valid() && fd >= 0) dup3(null_.get(), fd, O_CLOEXEC);
  }

 private:
  Fd null_ = make_fd([] { return open("/dev/null", O_RDWR | O_CLOEXEC); });
};

}  // namespace fsccl
