// These functions let the ranks of a communicator come to one answer before they go on. Every
// function is collective and blocking. Every rank must call it, whatever went wrong on it, because
// the other ranks wait for it. An error of the communicator itself (a rank died, the deadline
// passed, an abort) is returned as it is. A call that uses several of these functions also has a
// Together (together.h), so that no rank waits for one that finds no memory between two of them.
#pragma once
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "comm/communicator.h"

namespace fsccl {

// Gathers the `bytes` bytes at `mine` of each rank into `all`, in rank order.
Status gather_bytes(Communicator& comm, const void* mine, void* all, uint64_t bytes);

// Returns the values of all ranks, in rank order.
template <class T>
Result<std::vector<T>> all_gather(Communicator& comm, const T& mine) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<T> all(static_cast<size_t>(comm.size()));
  FSCCL_TRY(gather_bytes(comm, &mine, all.data(), sizeof mine));
  return all;
}

// Returns the rows of all ranks, which have the same length, end to end in rank order.
template <class T>
Result<std::vector<T>> all_gather_rows(Communicator& comm, const std::vector<T>& mine) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<T> all(static_cast<size_t>(comm.size()) * mine.size());
  if (!mine.empty())
    FSCCL_TRY(gather_bytes(comm, mine.data(), all.data(), mine.size() * sizeof(T)));
  return all;
}

// Gives every rank the bytes that rank `root` passes.
Status broadcast_bytes(Communicator& comm, int root, void* bytes, uint64_t count);
template <class T>
Result<T> from_rank(Communicator& comm, int root, T mine) {
  static_assert(std::is_trivially_copyable_v<T>);
  FSCCL_TRY(broadcast_bytes(comm, root, &mine, sizeof mine));
  return mine;
}

// Returns success if every rank passes success. If not, a rank that failed gets its own error, and
// every other rank gets the error of the first rank that failed: its code, "rank R could not
// `what`: " and its text. If no rank failed, this takes one byte a rank. Texts are sent only if
// they are needed.
Status all_ok(Communicator& comm, Status mine, std::string_view what);

// Returns the first rank whose value differs from this rank's, or -1 if all ranks have the same
// value.
Result<int> first_that_differs(Communicator& comm, uint64_t mine);

}  // namespace fsccl
