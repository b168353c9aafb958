// A call of XLA's typed FFI: what it asks for, and the operations of FSCCL that carry it out. The
// handlers for processors and for GPUs share it; they differ in when a call is complete.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

#include "group.h"
#include "xla_ffi.h"

namespace fsccl_jax {

enum Kind { kAllGather, kReduceScatter, kAllReduce, kBroadcast, kAllToAll };
constexpr int kExecute = 3, kMetadata = 1;

// Answers whether XLA asks for the handler's version, and tells it.
bool tells_version(const xla_ffi::Call& call);

xla_ffi::Error* error(const xla_ffi::Api* api, int code, const std::string& text);
// Codes of absl::Status.
constexpr int kInvalidArgument = 3, kFailedPrecondition = 9;
int code_of(fsccl_status_t status);

// An array of the call. Counts are in elements of FSCCL's type.
struct Array {
  void* from;
  void* to;
  fsccl_dtype_t dtype;
  size_t count;               // elements of type `from`
  std::vector<size_t> parts;  // elements of each rank
};

struct Request {
  int64_t group = 0;
  std::shared_ptr<Rank> rank;
  Kind kind{};
  int root = 0;
  std::string site;
  std::vector<Array> arrays;
  // these lie where the arrays are
  const uint32_t* place = nullptr;
  float* token = nullptr;  // its group's mark, and its number
};

// Fills the request in; an error where the call cannot be made.
xla_ffi::Error* read(const xla_ffi::Call& call, Request& request);

// Submits the operations of the call of this number (sites.h). They complete in order. With
// `stream` they are on a GPU's; else each has a work. Under the rank's lock.
fsccl_status_t submit(const Request& request, uint64_t call, void* stream,
                      std::vector<fsccl_work_t>* works);

// Returns FSCCL's text for a status that the last call of this thread returned.
std::string reason_of(const Request& request, fsccl_status_t status);

}  // namespace fsccl_jax
