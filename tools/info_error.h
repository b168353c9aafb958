// Prints errors of fsccl-info for calls of the library that failed.
#pragma once
#include <string>

#include "fsccl/fsccl.h"

// Returns the library's text for the last call of this thread that failed.
std::string last_error();
// Returns true if the call failed, and prints the library's text after `concerning`.
bool failed(fsccl_status_t status, const std::string& concerning = "");
