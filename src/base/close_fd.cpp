// The system's close(), in a file of its own: a simulation puts another in its place.
#include <unistd.h>

#include "base/fd.h"

namespace fsccl {

void close_fd(int fd) { ::close(fd); }

}  // namespace fsccl
