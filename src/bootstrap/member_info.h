// A rank's description of its process and its host, for the other ranks.
#pragma once
#include "base/fd.h"
#include "base/status.h"
#include "wire/messages.h"

namespace fsccl {

// Returns a number that is equal for processes that share the kernel and its namespaces for
// networks and processes (so that Unix sockets and process ids mean the same to both), or that have
// the same FSCCL_HOST_ID.
uint64_t host_number(const std::string& host_id);

// Return when a process started, in the kernel's ticks since boot, or 0 if that is unknown. `stat`
// is the text of /proc/<pid>/stat.
uint64_t parse_start_time(const std::string& stat);
uint64_t start_time_of(int32_t pid);
// Returns the state of a thread of a process of this host, a letter of proc(5). R: it, or the first
// thread of its process, runs or could run. T or t: it is stopped. Z: its process has ended. X: its
// process cannot be seen, because it has ended or is in another namespace. 0: the process has no
// such thread any more, or this process cannot look now. Any other letter: it sleeps.
char state_of(int32_t pid, uint64_t start_time, int32_t thread);
// Returns a descriptor that is readable once that thread of the process has ended. The threads of a
// killed process end before the system takes its memory and closes its connections, which lasts
// tens of milliseconds for a process of hundreds of megabytes. Returns no descriptor if the process
// has no such thread or the system has no such descriptors (Linux before 6.9).
Fd end_of_thread(int32_t pid, uint64_t start_time, int32_t thread);

// Describes this process, and gives its listener a random name. Rank, addresses and ports are left
// to the caller.
MemberRecord describe_process(const std::string& host_id);

}  // namespace fsccl
