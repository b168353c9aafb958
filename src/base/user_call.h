// Calls functions that the program has given. If such a function throws a C++ exception, the
// exception ends there, is logged and gives an answer, so no function of the library is left half
// way. If the thread is cancelled in the function, the cancellation goes on.
#pragma once
#include <exception>
#include <utility>

#include "base/log.h"

namespace fsccl {

// Calls the function and returns its answer, or `instead` if the function throws. `what` is the
// function's name in the log.
template <class Answer, class Call>
Answer call_user(const char* what, Answer instead, Call&& call) {
  try {
    return std::forward<Call>(call)();
  } catch (const std::exception& exception) {
    FSCCL_LOG(kError, "an exception left the program's {}: {}", what, exception.what());
  } catch (...) {
    if (!std::current_exception()) throw;  // not a C++ exception: the thread is being cancelled
    FSCCL_LOG(kError, "an exception left the program's {}", what);
  }
  return instead;
}
template <class Call>
void call_user(const char* what, Call&& call) {
  (void)call_user(what, 0, [&] {
    std::forward<Call>(call)();
    return 0;
  });
}

}  // namespace fsccl
