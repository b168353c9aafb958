// Errors of MPI's functions: a number whose text MPI_Error_string gives, which XLA puts into the exception of Python.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <fsccl/fsccl.h>

#include <string>

namespace fsccl_mpi {

// The calling thread's last error of the library, as a sentence with its name.
std::string last_error(fsccl_status_t status);

// A number for `text`. The last 256 texts are kept; a caller asks for its own at once.
int refuse(const std::string& text);

// The text of a number, cut to MPI's 1024 bytes.
std::string text_of(int code);

}  // namespace fsccl_mpi
