// The cost model: it predicts the time of a plan from the costs of its steps on this machine, which
// are measured when a communicator starts (select/calibration.h). Two ranks stand for all: the
// root, or the rank with the most work, and the rank after it. The model simulates the steps of the
// two with a clock for each, and the clocks synchronize at the signals, so rounds overlap as they
// do when the plan runs. Times are in nanoseconds. All ranks of a communicator use the same costs,
// because they must choose the same plans.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "plan/plan.h"
#include "topo/connection.h"

namespace fsccl {

// The cost of moving bytes: measured at a few sizes, with straight lines between and beyond them.
struct Cost {
  static constexpr std::array<uint64_t, 3> kSizes{256, 2048, 131072};
  std::array<double, kSizes.size()> ns{};
  double at(uint64_t bytes) const;
};

// A rank that reads and writes at least this many bytes, a quarter of most last-level caches, is
// limited by the bandwidth of memory.
inline constexpr uint64_t kPastCachesBytes = 8u << 20;

// A rank's working set is what it reads and writes in a plan. `past_caches`: it is larger than the
// caches hold for long. `in_memory`: most of it is in no cache.
enum class WorkingSet : uint8_t { in_caches, past_caches, in_memory };
// `moved`: the bytes that a rank reads and writes. `own`: how many of them belong to copies within
// its own memory, which a call in place does not make.
WorkingSet working_set(uint64_t moved, uint64_t own = 0);

// Which copies of large pieces through slots copy several pages side by side (kernels/kernels.h)
// instead of one after the other. The best choice differs between generations of processors.
enum class SideBySide : uint8_t { none, from_slots, both };
inline constexpr std::array<std::string_view, 3> kSideBySide{"none", "from_slots", "both"};

enum class CostsOrigin : uint8_t { table, calibration, tuning_file };

struct Costs {
  // The time in which two ranks that signal each other at once see each other's signals.
  double exchange = 300;
  // The part of `exchange` in which each of the two ranks works, for each peer. Between hosts it is
  // not 0, because a signal is a message.
  double message = 0;
  // The copy from a buffer to a slot, and the copy from there to a buffer of another core.
  Cost slot_cached{{60, 250, 11000}};
  Cost slot_streaming{{400, 700, 18000}};  // the same with stores that bypass the caches
  Cost read{{1200, 1400, 15000}};          // a read of a peer's private memory by the system
  // If the bytes are not in the caches, a read takes so many times as long as the copies through
  // slots. 0: it was not measured, and a read takes kUnmeasured times as long as in the caches. The
  // library's stores bypass the caches there. The system's stores do not: each cache line is
  // fetched before it is overwritten, which is a third pass over memory.
  static constexpr double kLeastToSlots = 0.4, kMostToSlots = 2.2, kUnmeasured = 1.5;
  double read_to_slots = 0;
  // A read of bytes that the peer has written in the same call takes so many times as long: they
  // lie modified in the cache of the peer's core, which has to hand them over line by line. It
  // counts only in the caches.
  static constexpr double kLeastWritten = 1, kMostWritten = 2.75;
  double read_written = kLeastWritten;
  double copy_per_byte = 0.04;  // a copy between memory that both ranks can touch
  // A byte that a rank reads or writes in its own memory, which no link carries. Without it, a copy
  // within this memory takes as long as one between ranks.
  std::optional<double> own_per_byte;
  SideBySide side_by_side = SideBySide::none;
  bool can_read = false;
  bool can_write = false;  // the system also writes to peers' private memory
  // Signals are messages, which are received in the background: a wait for a signal that has come
  // takes no time. In shared memory each wait takes the time of an exchange, because the signal
  // line is then fetched from another core.
  bool by_messages = false;
  // Ranks per core. If there are more than one, a rank that waits gives up its core, so each wait
  // takes the time of an exchange as well, and all work takes `sharers` times as long.
  double sharers = 1;
  CostsOrigin origin = CostsOrigin::table;

  // Adds the properties of a communicator, whatever the source of the times.
  void apply_to(bool sends_messages, double ranks_per_core);

  // Returns the size from which on a slot is better written past the caches, or UINT64_MAX.
  uint64_t slot_streaming_from() const;
  double slot(uint64_t bytes) const;
  // Returns the time of a copy within a rank's own memory.
  double own_copy(uint64_t bytes_read, uint64_t bytes_written) const;
  // Returns the time of one system call that reads `bytes` of a peer's memory in a plan with this
  // working set. `written` says that the peer has written them in this plan.
  double reading(uint64_t bytes, WorkingSet set, bool written = false) const;
  bool reading_pays(uint64_t bytes, WorkingSet set) const {
    return can_read && reading(bytes, set) < slot(bytes);
  }
  // Returns true if a rank may write to the private memory of others. It does not where ranks share
  // cores: another rank can use the core meanwhile, and need not wait until the writer has it.
  bool may_write() const { return can_read && can_write && sharers <= 1; }
};

// Counts the bytes of operands that a plan reads and writes.
void count_bytes(const Plan& plan, uint64_t* read, uint64_t* written);

// Returns costs for a link that was not measured, from its latency and bandwidth, or from the
// typical values of its class. `sockets`: messages pass through the system's TCP.
Costs typical_costs(const topo::Connection& link, bool sockets = false);
Costs typical_costs(topo::LinkClass link, bool sockets = false);

struct Price {
  double ns = 0;  // from a common begin until both ranks have ended
  // The part of `ns` in which the busier rank does not wait. If ranks may run ahead, each of many
  // successive calls takes this time.
  double busy = 0;
};

// Predicts the time of a plan. `reads` says that the buffers that peers touch are private memory,
// which the system reads. Otherwise all ranks can touch them.
Price price(const std::array<Plan, 2>& plans, const Costs& costs, bool reads);

}  // namespace fsccl
