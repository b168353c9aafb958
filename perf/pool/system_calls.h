// Counts the system calls of a piece of work. The work runs in a child process that this one traces
// (ptrace), so each call stops the child.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>

namespace fsccl::perf {

// `work` calls begin() and end() around the counted part, and returns true if it succeeded. The
// result is empty if tracing is not allowed here or the work failed.
struct CallCounter {
  std::function<void()> begin, end;
};
std::optional<uint64_t> count_system_calls(const std::function<bool(const CallCounter&)>& work);

}  // namespace fsccl::perf
