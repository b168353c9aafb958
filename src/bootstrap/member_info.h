// A rank's description of its process and its host, for the other ranks.
#pragma once
#include "base/fd.h"
#include "base/status.h"
#include "wire/messages.h"

namespace fsccl {

// Equal for processes that share the kernel and its name spaces for networks and processes (so that
// Unix sockets and process ids mean the same to both), or that have the same FSCCL_HOST_ID.
uint64_t host_number(const std::string& host_id);

// When a process started, in the kernel's ticks since boot; 0 if unknown. From the text of
// /proc/<pid>/stat.
uint64_t parse_start_time(const std::string& stat);
uint64_t start_time_of(int32_t pid);
// The state of a thread of a process of this host, a letter of proc(5): R runs or could, T is
// stopped; Z: its process has ended; X: that cannot be seen, for it has ended or is out of sight;
// 0: the process has no such thread.
char state_of(int32_t pid, uint64_t start_time, int32_t thread);
// Returns a descriptor that is readable once that thread of the process has ended. The threads of a
// killed process end before the system takes its memory and closes its connections, which lasts
// tens of milliseconds for a process of hundreds of megabytes. None where the process has no such
// thread, or the system no such descriptor (before Linux 6.9).
Fd end_of_thread(int32_t pid, uint64_t start_time, int32_t thread);

// Rank, addresses and listener are left to the caller.
MemberRecord describe_process(const std::string& host_id);

}  // namespace fsccl
