// Errors as values. A Status is one pointer. It is null for success, so success costs one register.
// An error owns its code, its text with advice, and the ranks that it concerns. Result<T> is a T or
// a Status. The library throws nothing on purpose. Where the standard library throws, src/api
// returns a status to the caller, and a thread that serves communicators fails them.
#pragma once
#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "fsccl/fsccl.h"

namespace fsccl {

struct Error {
  fsccl_status_t code = FSCCL_ERR_INTERNAL;
  std::string text;
  std::string operation;
  int rank = -1;
  int peer = -1;
  uint64_t sequence = 0;
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  explicit Status(Error error) : error_(new Error(std::move(error))) {}
  Status(Status&&) = default;
  Status& operator=(Status&&) = default;

  bool ok() const { return !error_; }
  fsccl_status_t code() const { return error_ ? error_->code : FSCCL_OK; }
  const Error& error() const { return *error_; }  // only when !ok()
  const std::string& text() const { return error_->text; }
  Status clone() const { return error_ ? Status(*error_) : Status(); }

  // Adds information that the place of the failure did not have.
  Status&& with_operation(std::string operation) && {
    if (error_) error_->operation = std::move(operation);
    return std::move(*this);
  }
  Status&& with_peer(int rank, int peer) && {
    if (error_) error_->rank = rank, error_->peer = peer;
    return std::move(*this);
  }

 private:
  // The end of an error is no part of the functions that return one.
  struct End {
    [[gnu::cold]] void operator()(Error* error) const;
  };
  std::unique_ptr<Error, End> error_;
};

inline Status success() { return {}; }

// Returns whether this process, its system or a limit of it lacks something: the group of codes of
// resources (fsccl.h), which ends before those of links.
inline bool is_shortage(fsccl_status_t code) {
  return code <= FSCCL_ERR_OUT_OF_MEMORY && code > FSCCL_ERR_LINK;
}

template <class... Args>
[[gnu::cold]] Status fail(fsccl_status_t code, fmt::format_string<Args...> text, Args&&... args) {
  Error error;
  error.code = code;
  error.text = fmt::format(text, std::forward<Args>(args)...);
  return Status(std::move(error));
}
// Makes the error of a failed system call and appends the text of `error_number`.
[[gnu::cold]] Status fail_errno(int error_number, const std::string& what);
// Returns advice on a failed call, such as "; raise the limit of open files (ulimit -n)", or an
// empty text.
std::string advice_for(int error_number);
// Returns the code, as the functions of transport.h do, and writes as much of the error's text as
// fits to text[capacity].
fsccl_status_t report(const Status& status, char* text, size_t capacity);

template <class T>
class [[nodiscard]] Result {
 public:
  // NOLINT: implicit, so that functions return either
  Result(T value) : value_(std::move(value)) {}
  Result(Status status) : status_(std::move(status)) {}  // NOLINT
  bool ok() const { return value_.has_value(); }
  T& value() { return *value_; }
  const T& value() const { return *value_; }
  T take() { return std::move(*value_); }
  const Status& status() const { return status_; }
  Status take_status() { return std::move(status_); }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace fsccl

// Returns from the calling function if `expression` (a Status) is an error.
#define FSCCL_TRY(expression)                            \
  do {                                                   \
    ::fsccl::Status fsccl_try_status = (expression);     \
    if (!fsccl_try_status.ok()) return fsccl_try_status; \
  } while (0)

// FSCCL_ASSIGN(auto x, f()) sets x to the value of the Result f(), or returns its status from the
// calling function.
#define FSCCL_CONCAT_(a, b) a##b
#define FSCCL_CONCAT(a, b) FSCCL_CONCAT_(a, b)
#define FSCCL_ASSIGN(variable, expression) \
  FSCCL_ASSIGN_(variable, expression, FSCCL_CONCAT(fsccl_result_, __LINE__))
#define FSCCL_ASSIGN_(variable, expression, name) \
  auto name = (expression);                       \
  if (!name.ok()) return name.take_status();      \
  variable = name.take()
