// The decisions of the seed about a simulated job, before it runs.
#pragma once
#include <cstdint>
#include <string>

#include "select/select.h"
#include "transports/sim/network.h"

namespace fsccl::sim {

// The trouble of a job, beside the weather of its network and pauses of its ranks.
enum class Trouble : uint8_t {
  none,
  death,     // ranks die, between two messages or in the middle of a signal to all
  cut,       // nothing passes between two ranks any more
  mismatch,  // a rank calls something else
  garbled,   // headers of messages have wrong bits
  stopped,   // a rank does nothing for longer than the timeout
  // Bytes arrive wrong, in headers, in their payloads and in slots in memory. All ranks use
  // checksums.
  damaged,
  aborted,  // a rank gives up
};
inline constexpr const char* kTroubles[] = {"none",    "death",   "cut",     "mismatch",
                                            "garbled", "stopped", "damaged", "aborted"};

struct Setting {
  int ranks = 2, ops = 8, depth = 1;
  bool network = false, pieces = false, can_read = false, one_process = false, arenas = false,
       checksum = false;
  size_t slot_bytes = 0;
  Weather weather;
  int64_t latest_ns = 0;
  double damage = 0;  // damage of signals in shared memory
  double pauses = 0;  // pauses between a rank's acts
  Trouble trouble = Trouble::none;
  int deaths = 0;
  std::string rules;
  SelectOptions select;
  uint64_t streaming_bytes = 0, cache_bytes = 0;
};

Setting random_setting(World& world);
std::string describe(const Setting& setting);

}  // namespace fsccl::sim
