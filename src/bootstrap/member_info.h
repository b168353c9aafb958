// What a rank tells the others about its process and its host.
#pragma once
#include "base/status.h"
#include "wire/messages.h"

namespace fsccl {

// Equal for processes that share the kernel and its name spaces for networks and processes (so that Unix sockets and process ids
// mean the same to both), or that have the same FSCCL_HOST_ID.
uint64_t host_number(const std::string& host_id);

// When a process started, in the kernel's ticks since boot; 0 if unknown. From the text of /proc/<pid>/stat.
uint64_t parse_start_time(const std::string& stat);
uint64_t start_time_of(int32_t pid);

// Rank, addresses and listener are left to the caller.
MemberRecord describe_process(const std::string& host_id);

}  // namespace fsccl
