// How many calls of the system a piece of work makes: it runs in a child process that this one
// traces (ptrace), and each stop at a call is counted.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>

namespace fsccl::perf {

// `work` calls begin() and end() around what is counted, and returns whether it succeeded. Nothing
// when tracing is not allowed here, or the work failed.
struct CallCounter {
  std::function<void()> begin, end;
};
std::optional<uint64_t> count_system_calls(const std::function<bool(const CallCounter&)>& work);

}  // namespace fsccl::perf
