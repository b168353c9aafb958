// Errors of MPI's functions: a number whose text MPI_Error_string gives, which XLA puts into the
// exception of Python. SPDX-License-Identifier: Apache-2.0
#pragma once
#include <fsccl/fsccl.h>

#include <string>

#include "../last_error.h"

namespace fsccl_mpi {

using fsccl_bindings::last_error;

// A number for `text`. The last 256 texts are kept; a caller asks for its own at once.
int refuse(const std::string& text);

// The text of a number, cut to MPI's 1024 bytes.
std::string text_of(int code);

}  // namespace fsccl_mpi
