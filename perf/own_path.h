// The path by which this program was started, with which it can start itself again. It is not
// /proc/self/exe, because a process started by that is called "exe" in lists of processes, and a
// container may have no /proc.
#pragma once
#include <sys/auxv.h>

namespace fsccl::perf {

inline const char* own_path() { return reinterpret_cast<const char*>(getauxval(AT_EXECFN)); }

}  // namespace fsccl::perf
