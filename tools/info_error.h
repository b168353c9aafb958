// Prints errors of fsccl-info for calls of the library that failed.
#pragma once
#include <string>

#include "fsccl/fsccl.h"

// Returns true if the call failed, and prints the library's text after `concerning`.
bool failed(fsccl_status_t status, const std::string& concerning = "");
