// The seat of a process is where on its host it may run, in enough detail to tell the distance of
// two processes. Every rank can afford to find it out at its start: it takes a few small files of
// /sys, while discover() would take milliseconds.
#pragma once
#include <cstdint>
#include <span>

#include "topo/connection.h"

namespace fsccl::topo {

struct Seat {
  static constexpr int16_t kSeveral = -1;  // it may move, or nothing is known
  int16_t package = kSeveral, numa = kSeveral, cache = kSeveral;
};

// Returns the seat of a process that may run on these processors. Bit k of word w stands for
// processor 64 w + k.
Seat seat_of(std::span<const uint64_t> processors);
// Returns the class of the link between two seats of one host.
LinkClass between(const Seat& a, const Seat& b);

}  // namespace fsccl::topo
