// The boundary of every public function: it turns a Status into a code and the thread's last error,
// and exceptions of the standard library into a Status. On success it costs the test of two
// registers. The floating-point mode inside is the default one, so that all ranks compute the same
// prices and choose the same plan. Threads that are started inside begin with this mode.
#pragma once
#include <exception>
#include <type_traits>
#include <utility>

#include "base/status.h"
#include "kernels/float_mode.h"

namespace fsccl {

// Makes `status`, an error, the last one of this thread. It never throws: if memory is short, it
// keeps the code and a fixed text.
void set_last_error(const Status& status) noexcept;

// Like the above, but names the operation if the error does not; returns the code.
[[gnu::cold]] fsccl_status_t record_error(const char* operation, Status status) noexcept;
// Converts the exception that is being handled.
[[gnu::cold]] fsccl_status_t record_exception(const char* operation) noexcept;

// Runs f, which returns a Status, or a Result<fsccl_status_t> when there is progress to report.
template <class F>
inline fsccl_status_t guarded(const char* operation, F&& f) {
  const DefaultFloatMode mode;
  try {
    auto outcome = std::forward<F>(f)();
    if constexpr (std::is_same_v<decltype(outcome), Status>) {
      if (outcome.ok()) [[likely]]
        return FSCCL_OK;
      return record_error(operation, std::move(outcome));
    } else {
      if (outcome.ok()) [[likely]]
        return outcome.value();
      return record_error(operation, outcome.take_status());
    }
  } catch (...) {
    if (!std::current_exception()) throw;  // no exception of C++: the thread is being cancelled
    return record_exception(operation);
  }
}

}  // namespace fsccl
