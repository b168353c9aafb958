// The options that an engine is made with.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "plan/cost.h"
#include "transports/channel.h"

namespace fsccl {

class ArenaTable;
class Engine;
class Job;
class Recorder;

struct EngineOptions {
  std::shared_ptr<Channel> channel;  // it is closed when its last holder ends
  uint32_t first_tick = 1;
  int rank = 0, ranks = 1;
  bool oversubscribed = false;  // more ranks than cores: do not spin
  int64_t timeout_ms = 0;
  int64_t spin_ns = 0;
  uint64_t slot_streaming_from = UINT64_MAX;  // for slot_stores.h, as the next two
  SideBySide side_by_side = SideBySide::none;
  double copy_rate = 0;
  std::string name;
  const ArenaTable* arenas = nullptr;
  Recorder* recorder = nullptr;    // the flight recorder; may be null
  uint16_t recorded_as = 0;        // the number by which the recorder names this communicator
  std::vector<int> members;        // ranks of the job, by rank
  const Job* job = nullptr;        // knows which ranks are silent; may be null
  std::vector<bool> same_process;  // by rank: its private memory is this process's
  // An engine may connect two ranks of another one. Then these are that engine, whose board it
  // shares and which it fails with.
  Engine* inside = nullptr;
  // The number of each rank in messages; empty: its own.
  std::vector<int> numbers;
  bool checksum = false;  // checksums.h

  // Returns the number of a rank in messages; -1, which is no rank, stays.
  int known_as(int peer) const {
    return peer < 0 || numbers.empty() ? peer : numbers[static_cast<size_t>(peer)];
  }
};

}  // namespace fsccl
