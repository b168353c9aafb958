// Errors of MPI's functions. An error is a number, for which MPI_Error_string returns a text. XLA
// puts the text into the exception of Python.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <fsccl/fsccl.h>

#include <string>

#include "../last_error.h"

namespace fsccl_mpi {

using fsccl_bindings::last_error;

// Returns a number for `text`. Only the last 256 texts are kept, so a caller must ask for its text
// at once.
int refuse(const std::string& text);

// Returns the text of a number, cut to MPI's 1024 bytes.
std::string text_of(int code);

}  // namespace fsccl_mpi
