// The system's close(), in a file of its own, so that a simulation can replace it.
#include <unistd.h>

#include "base/fd.h"

namespace fsccl {

void close_fd(int fd) { ::close(fd); }

}  // namespace fsccl
