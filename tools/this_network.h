// Measures how much processor time TCP takes on this machine, for a forecast of ranks on several
// hosts.
#pragma once
#include <optional>

// Returns the processor time, in nanoseconds, of a KiB that goes through a connection of this
// machine to itself: the time of the sender and the receiver, including the work of the system for
// both. Pieces are as long as the messages of the library's transport. Returns nothing if the
// system has no TCP.
std::optional<double> measured_tcp_ns_per_kib();
