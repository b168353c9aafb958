// Calls of functions that the program has given. An exception of C++ that leaves one ends there, is
// logged, and counts as an answer: nothing of the library is left half done. A thread that is
// cancelled goes on to end.
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
    if (!std::current_exception()) throw;  // no exception of C++: the thread is being cancelled
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
