// The cost of a plan's steps on this machine, as measured when a communicator starts
// (select/calibration.h), and from it the time of a whole plan. Two ranks stand for all: the root,
// or the rank with the most work, and the rank after it. The steps of the two are followed on two
// clocks that meet at the signals, so that rounds overlap as they do in fact. Times are in
// nanoseconds. All ranks of a communicator use the same costs, because they must choose alike.
#pragma once
#include <array>
#include <cstdint>
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

// Which copies of large pieces that go through slots take pages side by side (kernels/kernels.h)
// rather than in order: what is best differs between generations of processors.
enum class SideBySide : uint8_t { none, from_slots, both };
inline constexpr std::array<std::string_view, 3> kSideBySide{"none", "from_slots", "both"};

enum class CostsOrigin : uint8_t { table, calibration, tuning_file };

struct Costs {
  // until signals that were given at the same time are seen, by two ranks
  double exchange = 300;
  // part of the signal's time that either rank spends for each peer: between hosts a signal is a
  // message
  double message = 0;
  // from a buffer into a slot and from there into a buffer of another core
  Cost slot_cached{{60, 250, 11000}};
  Cost slot_streaming{{400, 700, 18000}};  // with stores that bypass the caches
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

  // Adds the properties of a communicator, whatever the source of the times.
  void apply_to(bool sends_messages, double ranks_per_core);

  // From how many bytes on a slot is better written past the caches. UINT64_MAX: never.
  uint64_t slot_streaming_from() const;
  double slot(uint64_t bytes) const;
  // Returns the time in which the system reads `bytes` of a peer's memory at a time, where a rank
  // moves `in_all` bytes.
  double reading(uint64_t bytes, uint64_t in_all) const;
  bool reading_pays(uint64_t bytes, uint64_t in_all) const {
    return can_read && reading(bytes, in_all) < slot(bytes);
  }
};

// Counts the bytes of operands that a plan reads and writes.
void count_bytes(const Plan& plan, uint64_t* read, uint64_t* written);

// Returns costs for a link that was not measured, from its latency and bandwidth, or from the
// typical values of its class.
Costs typical_costs(const topo::Connection& link);
Costs typical_costs(topo::LinkClass link);

struct Price {
  double ns = 0;  // from a common begin until both have ended
  // part of it in which the busier rank does not wait: the time of one of many calls in a row, if
  // ranks may run ahead
  double busy = 0;
};

// `reads`: published buffers are the ranks' own memory and are read by the system; else all ranks
// can touch them.
Price price(const std::array<Plan, 2>& plans, const Costs& costs, bool reads);

}  // namespace fsccl
