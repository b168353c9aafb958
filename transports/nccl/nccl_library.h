// NCCL in this process: libnccl.so.2 is loaded at run time when it is installed. If the process has
// NCCL already, because a framework brought its own, that copy is used: two copies in one process
// would not know of each other. nccl_features.h says what follows from an old version.
#pragma once
#include <string>

#include "base/status.h"
#include "transports/nccl/nccl_api.h"

namespace fsccl::nccl {

// The functions of NCCL under NCCL's names.
struct Library {
#define FSCCL_NCCL_REQUIRED(name) decltype(&api::name) name;
#define FSCCL_NCCL_OPTIONAL(name) decltype(&api::name) name;  // may be null
#include "transports/nccl/nccl_functions.def"

  int version;  // 10000 * major + 100 * minor + patch
};

// Loads NCCL from this file, which stays loaded.
Result<Library> load(const char* file);
// Returns libnccl.so.2, which is loaded once. Returns null when there is none; *why says the
// reason.
const Library* library(std::string* why);

// Returns "operation: text of the code (NCCL's own words)" and what to do. `comm` may be null.
[[gnu::cold]] Status failed(const Library& library, const char* operation, ncclResult_t code,
                            ncclComm_t comm);

// Returns the setting that switches windows off in this process, such as "NCCL_WIN_ENABLE is 0", or
// an empty text. With such a setting NCCL takes a window for memory of this rank alone and reports
// no error. NCCL copies the settings of its configuration files into the environment when it
// starts, so this function sees them only after that.
std::string windows_off();

// Says whether NCCL_CTA_POLICY asks for copy engines in this process, as this version of NCCL reads
// it. The variable has precedence over the configuration of a communicator.
bool wants_copy_engines(int version);

// Says whether NCCL_COMM_BLOCKING asks for blocking communicators in this process. The variable has
// precedence over the configuration of a communicator.
bool made_to_block();

// "2.28.9"
std::string version_text(int version);

}  // namespace fsccl::nccl
