// What fsccl-info says when a call of the library failed.
#pragma once
#include <string>

#include "fsccl/fsccl.h"

// Whether it did; then the library's words are printed, after `concerning`.
bool failed(fsccl_status_t status, const std::string& concerning = "");
