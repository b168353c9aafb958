// How a call of the public header becomes an operation: it runs on device memory, joins a group,
// gets a work, or is waited for.
#pragma once
#include "api/device_calls.h"
#include "api/group.h"

namespace fsccl {

// Submits a call, a CollectiveCall or a ListCall, to `comm`, which `handle` names. Makes the work
// if one is wanted. An error changes nothing, because everything that may fail comes before the
// submission. `in_group` is what grouped() returns.
template <class Call>
inline Status submit(Communicator& comm, fsccl_comm_t handle, const Call& call, void* stream,
                     bool in_group, fsccl_work_t* work, fsccl_status_t* state) {
  if (on_device(call, stream)) [[unlikely]]
    return run_on_device(comm, call, stream, work);
  const bool later = work == nullptr && in_group;
  if (later) make_room_in_group();
  FSCCL_TRY(comm.run(call, work == nullptr && !later, state));
  if (work) *work = make_work(handle, comm.engine().submitted());
  if (later) {
    add_to_group(make_work(handle, comm.engine().submitted()));
    *state = FSCCL_OK;
  }
  return success();
}

}  // namespace fsccl
