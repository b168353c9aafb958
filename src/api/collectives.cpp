// The plain collectives: a call becomes a CollectiveCall and runs. Errors of arguments are found here or in Collectives::run,
// before anything is sent.
#include "api/objects.h"

using namespace fsccl;

namespace {

inline fsccl_status_t run(const char* name, const CollectiveCall& call, fsccl_comm_t handle, void* stream, fsccl_work_t* work) {
  fsccl_status_t state = FSCCL_OK;
  const fsccl_status_t code = guarded(name, [&]() -> Status {
    Communicator* comm = live_comm(handle);
    if (!comm) [[unlikely]]
      return comm_of(handle).take_status();
    if (stream) [[unlikely]]
      return fail(FSCCL_ERR_NOT_AVAILABLE, "stream is not NULL: this release moves host memory only; pass NULL");
    Status status = comm->collectives().run(call, work == nullptr, &state);
    if (work && status.ok()) *work = make_work(handle, comm->engine().submitted());
    return status;
  });
  return code == FSCCL_OK ? state : code;
}

constexpr const char* kLater = "it comes with a later release";

}  // namespace

extern "C" {

fsccl_status_t fsccl_all_gather(const void* send, void* recv, size_t count, fsccl_dtype_t dtype, fsccl_comm_t comm, void* stream,
                                fsccl_work_t* work) {
  return run("fsccl_all_gather", {OpCode::all_gather, send, recv, count, dtype, FSCCL_SUM, -1}, comm, stream, work);
}

fsccl_status_t fsccl_reduce_scatter(const void* send, void* recv, size_t count, fsccl_dtype_t dtype, fsccl_op_t op,
                                    fsccl_comm_t comm, void* stream, fsccl_work_t* work) {
  return run("fsccl_reduce_scatter", {OpCode::reduce_scatter, send, recv, count, dtype, op, -1}, comm, stream, work);
}

fsccl_status_t fsccl_all_reduce(const void* send, void* recv, size_t count, fsccl_dtype_t dtype, fsccl_op_t op, fsccl_comm_t comm,
                                void* stream, fsccl_work_t* work) {
  return run("fsccl_all_reduce", {OpCode::all_reduce, send, recv, count, dtype, op, -1}, comm, stream, work);
}

fsccl_status_t fsccl_broadcast(void* buffer, size_t count, fsccl_dtype_t dtype, int root, fsccl_comm_t comm, void* stream,
                               fsccl_work_t* work) {
  return run("fsccl_broadcast", {OpCode::broadcast, nullptr, buffer, count, dtype, FSCCL_SUM, root}, comm, stream, work);
}

fsccl_status_t fsccl_barrier(fsccl_comm_t comm, void* stream, fsccl_work_t* work) {
  return run("fsccl_barrier", {}, comm, stream, work);
}

fsccl_status_t fsccl_all_gather_v(const void*, void*, const size_t*, const size_t*, fsccl_dtype_t, fsccl_comm_t, void*,
                                  fsccl_work_t*) {
  return not_available("fsccl_all_gather_v", kLater,
                       "pad to equal counts and use fsccl_all_gather, or use a unit, whose shards may be uneven");
}
fsccl_status_t fsccl_reduce_scatter_v(const void*, void*, const size_t*, fsccl_dtype_t, fsccl_op_t, fsccl_comm_t, void*,
                                      fsccl_work_t*) {
  return not_available("fsccl_reduce_scatter_v", kLater,
                       "pad to equal counts and use fsccl_reduce_scatter, or use a unit, whose shards may be uneven");
}
fsccl_status_t fsccl_reduce(const void*, void*, size_t, fsccl_dtype_t, fsccl_op_t, int, fsccl_comm_t, void*, fsccl_work_t*) {
  return not_available("fsccl_reduce", kLater, "use fsccl_all_reduce");
}
fsccl_status_t fsccl_gather(const void*, void*, size_t, fsccl_dtype_t, int, fsccl_comm_t, void*, fsccl_work_t*) {
  return not_available("fsccl_gather", kLater, "use fsccl_all_gather");
}
fsccl_status_t fsccl_scatter(const void*, void*, size_t, fsccl_dtype_t, int, fsccl_comm_t, void*, fsccl_work_t*) {
  return not_available("fsccl_scatter", kLater, "use fsccl_broadcast and read your part");
}
fsccl_status_t fsccl_all_to_all(const void*, void*, size_t, fsccl_dtype_t, fsccl_comm_t, void*, fsccl_work_t*) {
  return not_available("fsccl_all_to_all", kLater, "use fsccl_all_gather and read your parts");
}
fsccl_status_t fsccl_all_to_all_v(const void*, const size_t*, const size_t*, void*, const size_t*, const size_t*, fsccl_dtype_t,
                                  fsccl_comm_t, void*, fsccl_work_t*) {
  return not_available("fsccl_all_to_all_v", kLater, "use fsccl_all_gather and read your parts");
}
fsccl_status_t fsccl_send(const void*, size_t, fsccl_dtype_t, int, int, fsccl_comm_t, void*, fsccl_work_t*) {
  return not_available("fsccl_send", kLater, "split a communicator of the two ranks and use fsccl_broadcast");
}
fsccl_status_t fsccl_recv(void*, size_t, fsccl_dtype_t, int, int, fsccl_comm_t, void*, fsccl_work_t*) {
  return not_available("fsccl_recv", kLater, "split a communicator of the two ranks and use fsccl_broadcast");
}
fsccl_status_t fsccl_group_start(void) {
  return not_available("fsccl_group_start", kLater, "issue the operations one by one, each with a work");
}
fsccl_status_t fsccl_group_end(void) {
  return not_available("fsccl_group_end", kLater, "issue the operations one by one, each with a work");
}
fsccl_status_t fsccl_all_gather_list(const fsccl_tensor_t*, size_t, fsccl_comm_t, void*, fsccl_work_t*) {
  return not_available("fsccl_all_gather_list", kLater, "use a unit, or one fsccl_all_gather per tensor");
}
fsccl_status_t fsccl_reduce_scatter_list(const fsccl_tensor_t*, size_t, fsccl_op_t, fsccl_comm_t, void*, fsccl_work_t*) {
  return not_available("fsccl_reduce_scatter_list", kLater, "use a unit, or one fsccl_reduce_scatter per tensor");
}
fsccl_status_t fsccl_broadcast_list(const fsccl_tensor_t*, size_t, int, fsccl_comm_t, void*, fsccl_work_t*) {
  return not_available("fsccl_broadcast_list", kLater, "use one fsccl_broadcast per tensor");
}

}  // extern "C"
