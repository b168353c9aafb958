// The name of the build that runs.
#pragma once
#include <string>

namespace fsccl {

// Returns the version of the library with the compiler and the options that decide how fast its
// code is, as in "0.1.0 (gcc 12.2.0, optimization 3, sanitizers none)". A build must not use the
// times that another one has measured.
std::string library_build();

}  // namespace fsccl
