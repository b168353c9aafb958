// Where on its host a process may run, as far as it says how far two of them are from each other.
// Cheap enough for every rank to find out when it starts: a few small files of /sys, where
// discover() would take milliseconds.
#pragma once
#include <cstdint>
#include <span>

#include "topo/connection.h"

namespace fsccl::topo {

struct Seat {
  static constexpr int16_t kSeveral = -1;  // it may move, or nothing is known
  int16_t package = kSeveral, numa = kSeveral, cache = kSeveral;
};

// Returns the seat of a process that may run on these processors: bit k of word w is processor 64 w
// + k.
Seat seat_of(std::span<const uint64_t> processors);
// Returns the class of the link between two seats of one host.
LinkClass between(const Seat& a, const Seat& b);

}  // namespace fsccl::topo
