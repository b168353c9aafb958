// Takes the place of src/base/version.cpp: makes a library of another version in which nothing else
// differs.
#include <fsccl/fsccl.h>

namespace fsccl {

uint32_t library_version() { return FSCCL_VERSION + 1; }

}  // namespace fsccl
