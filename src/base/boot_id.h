// Names the machine on which this process runs.
#pragma once
#include <unistd.h>

#include <string>

#include "base/small_file.h"

namespace fsccl {

// Returns a text that processes have in common if one boot of one kernel runs them, in whichever
// containers they are. Where /proc does not tell it, this is the host's name.
inline std::string boot_id() {
  const std::string boot = read_small_file("/proc/sys/kernel/random/boot_id");
  if (!boot.empty()) return boot;
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace fsccl
