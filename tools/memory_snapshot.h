// A memory snapshot as fsccl_pool_snapshot() writes it in JSON. It is read from a file that may be
// wrong, so every value is checked, and an error names the place in the file and what was expected
// there.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fsccl::trace {

inline constexpr uint64_t kMostFileBytes = uint64_t{256} << 20;

struct MemoryEvent {
  enum class Action : uint8_t { kTaken, kGivenBack, kRefused, kGrown, kReleased };
  Action action{};
  uint64_t time_us = 0, address = 0, bytes = 0;
  uint32_t owner = 0;  // index in MemorySnapshot::owners
};
struct MemoryPart {
  std::string name;
  uint64_t address = 0, bytes = 0;
  uint64_t reserved_bytes = 0;  // by this rank
  uint64_t planned_bytes = 0, live_bound_bytes = 0, clique_bound_bytes = 0;
};
struct MemoryUse {
  std::string kind, unit;
  uint64_t stream = 0, live_bytes = 0, peak_bytes = 0, allocations = 0, frees = 0,
           allocated_bytes = 0;
};
struct LiveMemory {
  uint64_t address = 0, bytes = 0;
  uint32_t owner = 0;
};

struct MemorySnapshot {
  std::string pool;
  uint64_t rank = 0, ranks = 0, shared_host = 0;
  bool dry_run = false;
  uint64_t time_us = 0;
  uint64_t limit_bytes = 0, reserved_bytes = 0, live_peak_bytes = 0;
  uint64_t plan_hits = 0, plan_misses = 0, growths = 0, steps = 0, events_lost = 0;
  std::vector<MemoryPart> parts;  // parts of a pool: shared slots, own slots, blocks
  std::vector<MemoryUse> uses;
  std::vector<uint64_t> step_times_us;
  std::vector<std::string> owners;  // "unit layers.3, parameters"
  std::vector<LiveMemory> live;     // slots and blocks at the time of writing
  std::vector<MemoryEvent> events;  // in the order of time
};

// `source` names the text in errors.
std::optional<MemorySnapshot> parse_memory_snapshot(std::string_view text,
                                                    const std::string& source, std::string* error);
std::optional<MemorySnapshot> read_memory_snapshot(const std::string& path, std::string* error);

}  // namespace fsccl::trace
