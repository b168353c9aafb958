// Which variants a process takes when its first communicator begins: those that FSCCL_KERNELS
// names, else the winners of an earlier race on this kind of processor (race_file.h), else those of
// a short race at once, which takes at most kProbeMs and is kept for the next start. A pass that
// the time does not suffice for keeps its default, as all passes do on processors that cannot flush
// their caches.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "kernels/race.h"

namespace fsccl {

inline constexpr int64_t kProbeMs = 20;

// The kernels that a process runs with, and the reason.
struct KernelStart {
  KernelChoice choice = default_kernels();
  std::string from = "default";  // or "setting", "file", "probes", "rank 0"
  std::string file;              // where races are kept; empty: nowhere
  std::vector<Race> races;       // found in the file or by the probes
};

// "auto", "default", or "pass=variant,pass=variant": the other passes then keep their defaults.
// Sets *choice, unless the words are "auto". An error names what is wrong and what is known.
Status parse_kernels(std::string_view words, KernelChoice* choice, bool* automatic);

// `may_probe`: whether to race now where no earlier race is known. `words` must have been accepted.
// Never fails: where anything is missing, the defaults hold.
KernelStart find_kernels(std::string_view words, bool may_probe) noexcept;

// The process goes on with it; running_kernels() is what it went on with last.
void run_kernels(KernelStart start);
KernelStart running_kernels();

// For fsccl_explain(): the choice; with `races`, what it follows from as well.
std::string kernels_json(const KernelStart& start, bool races);

}  // namespace fsccl
