// What the steps of plans take on this machine, as measured when a communicator starts
// (select/calibration.h), and from that what a whole plan will take. Two ranks stand for all: the
// root, or whoever has most to do, and the one after it, as one of the others; their steps are
// followed on two clocks that meet at the signals, so that rounds in which one rank is ahead of the
// other overlap as they do in fact. Times in nanoseconds. The same on all ranks of a communicator:
// they must choose alike.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>

#include "plan/plan.h"
#include "topo/connection.h"

namespace fsccl {

// Of moving bytes: measured at a few sizes, straight lines between and beyond.
struct Cost {
  static constexpr std::array<uint64_t, 3> kSizes{256, 2048, 131072};
  std::array<double, kSizes.size()> ns{};
  double at(uint64_t bytes) const;
};

// Which copies of large pieces that go through slots take pages side by side (kernels/kernels.h)
// rather than in order: what is best differs between generations of processors.
enum class SideBySide : uint8_t { none, from_slots, both };
inline constexpr std::array<std::string_view, 3> kSideBySide{"none", "from_slots", "both"};

enum class CostsOrigin : uint8_t { table, calibration, tuning_file };

struct Costs {
  // until signals that were given at the same time are seen, by two ranks
  double exchange = 300;
  // of that, what either of them does for each peer: between hosts a signal is a message
  double message = 0;
  // from a buffer into a slot and from there into a buffer of another core
  Cost slot_cached{{60, 250, 11000}};
  Cost slot_streaming{{400, 700, 18000}};  // likewise, with stores that bypass the caches
  Cost read{{1200, 1400, 15000}};          // from a peer's private memory, by the system
  double copy_per_byte = 0.04;             // between memory that both can touch
  SideBySide side_by_side = SideBySide::none;
  bool can_read = false;
  // signals come as messages, which are there when somebody wants them; a line in memory that ranks
  // share is then fetched from another core, so that each wait takes an exchange by itself
  bool by_messages = false;
  // ranks to a core. More than one: who waits gives up its core, so that each wait takes an
  // exchange, too, and what a rank does takes as many times as long
  double sharers = 1;
  CostsOrigin origin = CostsOrigin::table;

  // What is known of a communicator, wherever the times are from.
  void apply_to(bool sends_messages, double ranks_per_core);

  // From how many bytes on a slot is better written past the caches. UINT64_MAX: never.
  uint64_t slot_streaming_from() const;
  double slot(uint64_t bytes) const;
  // Of so many bytes of a peer's memory at a time, by the system, where a rank moves `in_all`.
  double reading(uint64_t bytes, uint64_t in_all) const;
  bool reading_pays(uint64_t bytes, uint64_t in_all) const {
    return can_read && reading(bytes, in_all) < slot(bytes);
  }
};

// What a plan moves, in bytes of operands.
void count_bytes(const Plan& plan, uint64_t* read, uint64_t* written);

// What stands in where nothing is measured: from the latency and the bandwidth of a link, or those
// that are typical of its class.
Costs typical_costs(const topo::Connection& link);
Costs typical_costs(topo::LinkClass link);

struct Price {
  double ns = 0;  // from a common begin until both have ended
  // of that, what the busier one does not wait: what it takes of many in a row, if ranks may run
  // ahead
  double busy = 0;
};

// `reads`: published buffers are the ranks' own memory and are read by the system; else all ranks
// can touch them.
Price price(const std::array<Plan, 2>& plans, const Costs& costs, bool reads);

}  // namespace fsccl
