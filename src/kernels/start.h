// Chooses the variants that a process uses, when its first communicator begins. They are those that
// FSCCL_KERNELS names, else the winners of earlier races on this kind of processor (race_file.h),
// else the winners of a short race that is run at once. This race takes kProbeMs at most, or the
// time of one pass if that is longer, and its results are kept. A pass for which the time does not
// suffice keeps its default, and the next start races it. On processors that cannot flush their
// caches all passes keep their defaults.
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
  std::vector<Race> races;       // read from the file, or just run
};

// Parses the value of FSCCL_KERNELS: "auto", "default", or "pass=variant,pass=variant", where the
// passes that are not named keep their defaults. Sets *automatic if the words are "auto", and
// *choice to what the words name. An error names the wrong word and what could stand there.
Status parse_kernels(std::string_view words, KernelChoice* choice, bool* automatic);

// Chooses as the head of this file says. Races take `probe_ms` at most, or the time of
// the first of them if that is longer; 0 says that none is run.
// parse_kernels() must have accepted `words`. It never fails: if there is no memory, or nothing was
// measured, it returns the defaults.
KernelStart find_kernels(std::string_view words, int64_t probe_ms) noexcept;

// run_kernels() makes the whole process use a choice. running_kernels() returns the choice that was
// given to run_kernels() last.
void run_kernels(KernelStart start);
KernelStart running_kernels();

// Returns the choice as JSON for fsccl_explain(). With `races`, the JSON has the measured times
// too.
std::string kernels_json(const KernelStart& start, bool races);

}  // namespace fsccl
