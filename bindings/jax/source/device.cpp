// The handler of XLA's typed FFI for GPUs. It puts the operations of a call on the stream that XLA
// passes, behind what XLA has put there before; what XLA puts there next is behind them. XLA issues
// the calls of a device one after the other, in the order of its program, so nothing can change
// places on one rank, and the token, which lies in the device's memory, is not looked at.
// SPDX-License-Identifier: Apache-2.0
#include "call.h"
#include "sites.h"

namespace fsccl_jax {
namespace {

xla_ffi::Error* execute_on_stream(const xla_ffi::Call& call) {
  Request request;
  if (xla_ffi::Error* refused = read(call, request)) return refused;
  xla_ffi::StreamGet stream{sizeof(stream), nullptr, call.context, nullptr};
  if (xla_ffi::Error* refused = call.api->stream_get(&stream)) return refused;
  Rank& rank = *request.rank;
  const std::lock_guard guard(rank.issue);
  if (!rank.failed.empty()) return error(call.api, kFailedPrecondition, rank.failed);
  const uint64_t site = site_of(request.site);
  const fsccl_status_t status =
      submit(request, call_of(site, rank.calls[site]++), stream.stream, nullptr);
  if (status >= FSCCL_OK) return nullptr;
  rank.failed = reason_of(request, status);
  fsccl_comm_abort(rank.comm);
  return error(call.api, code_of(status), rank.failed);
}

}  // namespace
}  // namespace fsccl_jax

extern "C" FSCCL_API xla_ffi::Error* fsccl_jax_device_collective(xla_ffi::Call* call) {
  if (fsccl_jax::tells_version(*call)) return nullptr;
  return call->stage == fsccl_jax::kExecute ? fsccl_jax::execute_on_stream(*call) : nullptr;
}
