// The error output of fsccl-info when a call of the library failed.
#pragma once
#include <string>

#include "fsccl/fsccl.h"

// Returns true if the call failed, and prints the library's text after `concerning`.
bool failed(fsccl_status_t status, const std::string& concerning = "");
