// The options of an engine.
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
  std::shared_ptr<Channel> channel;  // it is closed when the last reference ends
  uint32_t first_tick = 1;
  int rank = 0, ranks = 1;
  bool oversubscribed = false;  // more ranks than cores run, so waits do not spin
  int64_t timeout_ms = 0;
  int64_t spin_ns = 0;
  // slot_stores.h uses these three.
  uint64_t slot_streaming_from = UINT64_MAX;
  SideBySide side_by_side = SideBySide::none;
  double copy_rate = 0;
  std::string name;
  const ArenaTable* arenas = nullptr;
  Recorder* recorder = nullptr;    // the flight recorder; may be null
  uint16_t recorded_as = 0;        // the number by which the recorder names this communicator
  std::vector<int> members;        // ranks of the job, by rank
  const Job* job = nullptr;        // knows which ranks are silent; may be null
  std::vector<bool> same_process;  // by rank: it is a thread of this process
  // If this engine connects two ranks of another engine, that engine. It shares the board of the
  // other engine, and fails together with it.
  Engine* inside = nullptr;
  // The number of each rank in messages. If it is empty, these are the ranks themselves.
  std::vector<int> numbers;
  bool checksum = false;  // checksums.h

  // Returns the number of a rank in messages. -1 stands for no rank and stays -1.
  int known_as(int peer) const {
    return peer < 0 || numbers.empty() ? peer : numbers[static_cast<size_t>(peer)];
  }
};

}  // namespace fsccl
