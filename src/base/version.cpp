#include "base/version.h"

#include <fsccl/fsccl.h>

namespace fsccl {

uint32_t library_version() { return FSCCL_VERSION; }

}  // namespace fsccl
