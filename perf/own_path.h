// The path under which this program was started, for those that start it again. Not /proc/self/exe:
// a process started by that is called "exe" in lists of processes, and a container may have no
// /proc.
#pragma once
#include <sys/auxv.h>

namespace fsccl::perf {

inline const char* own_path() { return reinterpret_cast<const char*>(getauxval(AT_EXECFN)); }

}  // namespace fsccl::perf
