// The handler of XLA's typed FFI for processors. It submits the operations of a call and returns a
// future; FSCCL's callback completes it, so no thread waits.
//
// XLA runs calls that do not depend on each other in any order, with or without side effects. So
// each call also takes and gives a token, and its number (sites.h) is part of the operations'
// fingerprints: a call that does not follow the last one of its rank is an error at once (order.h),
// and calls that two ranks issue in different order are an error with both names before their
// results can be read.
// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "call.h"
#include "fsccl/insight.h"
#include "handoff.h"
#include "sites.h"

namespace fsccl_jax {
namespace {

constexpr int64_t kDriveMs = 100;

// A call that is under way.
struct Pending {
  const xla_ffi::Api* api = nullptr;
  xla_ffi::Future* future = nullptr;
  Request request;
  std::vector<fsccl_work_t> works;
};

// The end of a call: 0, or a code and the reason. The first reason of a group is that of all calls
// behind it.
int judge(const Pending& pending, fsccl_status_t status, std::string& reason) {
  if (status == FSCCL_OK) return 0;
  fsccl_work_error(pending.works.back());  // sets the text for this thread
  Rank& rank = *pending.request.rank;
  const std::lock_guard guard(rank.issue);
  if (rank.failed.empty()) rank.failed = reason_of(pending.request, status);
  reason = rank.failed;
  return code_of(status);
}

void complete(Pending* call, fsccl_status_t status) {
  const std::unique_ptr<Pending> pending(call);
  std::string reason;
  const int code = judge(*pending, status, reason);
  if (code == 0) {
    xla_ffi::FutureAvailable args{sizeof(args), nullptr, pending->future};
    pending->api->future_set_available(&args);
  } else {
    xla_ffi::FutureError args{sizeof(args), nullptr, pending->future,
                              error(pending->api, code, reason)};
    pending->api->future_set_error(&args);
  }
}

void done(void* context, fsccl_status_t status) {
  auto* pending = static_cast<Pending*>(context);
  hand_off([pending, status] { complete(pending, status); });
}

// Looks after a call for a moment, for a thread that runs sees the end sooner than the library's
// own, which has to be woken, on cores that XLA keeps busy. The callback is called here or there.
void look_after(fsccl_work_t last) { fsccl_work_wait(last, kDriveMs); }

// Nothing orders this call after the last one. All ranks run into that if they run one program; one
// that does not meets a barrier of this site instead of what it waits for.
xla_ffi::Error* refuse_unordered(const xla_ffi::Api* api, const Request& request) {
  Rank& rank = *request.rank;
  rank.failed =
      "FSCCL: \"" + request.site + "\" does not take the token that the call before it, \"" +
      rank.order.last_site() +
      "\", returned, so XLA runs the two in any order, and in another one on another rank. Give "
      "each call the token that the one before it returned, and begin a program with one "
      "group.token() [FSCCL_ERR_MISMATCH: ranks disagree on an operation]";
  fsccl_work_t work = nullptr;
  fsccl_comm_set_site(rank.comm, site_of(kUnordered));
  fsccl_barrier(rank.comm, nullptr, &work);
  return error(api, kFailedPrecondition, rank.failed);
}

// The call is made, in its place in the order of its rank.
xla_ffi::Error* issue(const xla_ffi::Call& call, Pending& pending) {
  const Request& request = pending.request;
  Rank& rank = *request.rank;
  xla_ffi::RunId run{sizeof(run), nullptr, call.context, 0};
  if (xla_ffi::Error* refused = call.api->run_id_get(&run)) return refused;
  const std::lock_guard guard(rank.issue);
  if (!rank.failed.empty()) return error(call.api, kFailedPrecondition, rank.failed);
  if (!rank.order.follows(request.token[1], run.id)) return refuse_unordered(call.api, request);
  const uint64_t site = site_of(request.site);
  if (site == 0)
    return error(
        call.api, kInvalidArgument,
        "FSCCL: another site has the number of \"" + request.site + "\": name it otherwise");
  request.token[1] = rank.order.next(request.token[1], run.id, request.site);
  const fsccl_status_t status =
      submit(request, call_of(site, rank.calls[site]++), nullptr, &pending.works);
  if (status >= FSCCL_OK) return nullptr;
  rank.failed = reason_of(request, status);
  // Operations that were submitted before still use this call's memory: all ranks end them before
  // this returns.
  fsccl_comm_abort(rank.comm);
  for (const fsccl_work_t work : pending.works) {
    if (work != nullptr) fsccl_work_wait(work, -1);
  }
  return error(call.api, code_of(status), rank.failed);
}

xla_ffi::Error* execute(xla_ffi::Call& call) {
  const xla_ffi::Api* api = call.api;
  auto pending = std::make_unique<Pending>();
  pending->api = api;
  if (xla_ffi::Error* refused = read(call, pending->request)) return refused;
  const Rank& rank = *pending->request.rank;
  if (*pending->request.place != static_cast<uint32_t>(rank.rank) ||
      pending->request.token[0] != mark_of(pending->request.group)) {
    return error(api, kInvalidArgument,
                 "FSCCL: rank " + std::to_string(rank.rank) + " has place " +
                     std::to_string(*pending->request.place) +
                     " on the axis, and a token that begins with " +
                     std::to_string(static_cast<int>(pending->request.token[0])) +
                     ": begin with the group's token(), and use the mesh with which it was joined");
  }
  if (xla_ffi::Error* refused = issue(call, *pending)) return refused;
  if (fsccl_work_test(pending->works.back()) == FSCCL_OK) return nullptr;
  xla_ffi::FutureCreate args{sizeof(args), nullptr, nullptr};
  if (xla_ffi::Error* refused = api->future_create(&args)) return refused;
  call.future = pending->future = args.future;
  const fsccl_work_t last = pending->works.back();
  const fsccl_status_t status = fsccl_work_callback(last, done, pending.get());
  if (status != FSCCL_OK) return error(api, code_of(status), reason_of(pending->request, status));
  pending.release();  // done() has it, or had
  hand_off([last] { look_after(last); });
  return nullptr;
}

}  // namespace
}  // namespace fsccl_jax

extern "C" FSCCL_API xla_ffi::Error* fsccl_jax_collective(xla_ffi::Call* call) {
  if (fsccl_jax::tells_version(*call)) return nullptr;
  return call->stage == fsccl_jax::kExecute ? fsccl_jax::execute(*call) : nullptr;
}

// A name of a call site, which programs will use: 0, or 1 where another has its number. XLA has
// traced the program, and other ranks may be in it before this one is.
extern "C" FSCCL_API int fsccl_jax_site(const char* name) {
  return fsccl_jax::site_of(name) == 0 ? 1 : 0;
}
