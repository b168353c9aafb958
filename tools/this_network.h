// Measures what TCP takes of this machine's processors, for a forecast of ranks on several hosts.
#pragma once
#include <optional>

// Returns the processor time, in nanoseconds, of a KiB that goes through a connection to this
// machine itself: that of the sender and of the receiver together, with the system's work for both.
// Pieces are as long as the messages of the library's transport. Nothing where the system has no
// TCP.
std::optional<double> measured_tcp_ns_per_kib();
