// The results of a race on this processor, kept for later starts (base/kept_file.h):
//   {"fsccl_kernels": 1, "processor": "..", "microcode": "..", "by": "probes",
//    "library": "0.1.0 (gcc 12.2.0, optimization 3, sanitizers none)",
//    "races": {"copy_past": {"nt@avx3": [19.1, 19.3, 19.0], ..}, ..}}
// The times are ns for each KiB read and written, one for each repeat; the choice follows from them
// (winner_of()). The file is not trusted: a file of another machine or another user, or in another
// form, is ignored, and any other file can only choose among variants that give the same bits.
#pragma once
#include <string>
#include <vector>

#include "base/status.h"
#include "kernels/race.h"

namespace fsccl {

struct RaceKey {
  std::string processor, microcode, library;

  bool operator==(const RaceKey&) const = default;
};
RaceKey race_key();  // the key of this machine and this build

struct RaceRecord {
  RaceKey key;
  std::string by;  // "probes" at a start, or "race": fsccl-perf race
  std::vector<Race> races;
};

// Returns the winners of the races. Passes without a race keep their defaults.
KernelChoice choice_of(const std::vector<Race>& races);

// Returns the member "races" alone, an object with a member for each pass.
std::string races_json(const std::vector<Race>& races);
std::string to_json(const RaceRecord& record);
Result<RaceRecord> parse_races(const std::string& text, const std::string& source);

std::string race_file_path(const RaceKey& key);  // empty where nothing can be kept
// Accepts only races of exactly this key.
Result<RaceRecord> load_races(const std::string& path, const RaceKey& key);
Status save_races(const std::string& path, const RaceRecord& record);

}  // namespace fsccl
