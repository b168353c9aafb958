// The plain collectives: a call becomes a CollectiveCall and runs. Errors of arguments are found
// here or in Collectives::run, before anything is sent.
#include "api/submit.h"

using namespace fsccl;

namespace {

// This is a function of its own, so that what it calls becomes a part of it, once for all calls.
template <class Call>
[[gnu::noinline]] fsccl_status_t run(const char* name, const Call& call, fsccl_comm_t handle,
                                     void* stream, fsccl_work_t* work) {
  fsccl_status_t state = FSCCL_OK;
  const fsccl_status_t code = guarded(name, [&]() -> Status {
    // This comes before the look-up, so that both find the variables of the thread together.
    const bool in_group = grouped();
    Ref<Communicator> comm = live_comm(handle);
    if (!comm) [[unlikely]] {
      // The communicator may have become ready since.
      FSCCL_ASSIGN(comm, comm_of(handle));
    }
    return submit(*comm, handle, call, stream, in_group, work, &state);
  });
  return code == FSCCL_OK ? state : code;
}

}  // namespace

extern "C" {

fsccl_status_t fsccl_all_gather(const void* send, void* recv, size_t count, fsccl_dtype_t dtype,
                                fsccl_comm_t comm, void* stream, fsccl_work_t* work) {
  return run<CollectiveCall>("fsccl_all_gather",
                             {OpCode::all_gather, send, recv, count, dtype, FSCCL_SUM, -1}, comm,
                             stream, work);
}

fsccl_status_t fsccl_reduce_scatter(const void* send, void* recv, size_t count, fsccl_dtype_t dtype,
                                    fsccl_op_t op, fsccl_comm_t comm, void* stream,
                                    fsccl_work_t* work) {
  return run<CollectiveCall>("fsccl_reduce_scatter",
                             {OpCode::reduce_scatter, send, recv, count, dtype, op, -1}, comm,
                             stream, work);
}

fsccl_status_t fsccl_all_reduce(const void* send, void* recv, size_t count, fsccl_dtype_t dtype,
                                fsccl_op_t op, fsccl_comm_t comm, void* stream,
                                fsccl_work_t* work) {
  return run<CollectiveCall>("fsccl_all_reduce",
                             {OpCode::all_reduce, send, recv, count, dtype, op, -1}, comm, stream,
                             work);
}

fsccl_status_t fsccl_broadcast(void* buffer, size_t count, fsccl_dtype_t dtype, int root,
                               fsccl_comm_t comm, void* stream, fsccl_work_t* work) {
  return run<CollectiveCall>("fsccl_broadcast",
                             {OpCode::broadcast, nullptr, buffer, count, dtype, FSCCL_SUM, root},
                             comm, stream, work);
}

fsccl_status_t fsccl_barrier(fsccl_comm_t comm, void* stream, fsccl_work_t* work) {
  return run<CollectiveCall>("fsccl_barrier", {}, comm, stream, work);
}

fsccl_status_t fsccl_all_gather_v(const void* send, void* recv, const size_t* counts,
                                  const size_t* displacements, fsccl_dtype_t dtype,
                                  fsccl_comm_t comm, void* stream, fsccl_work_t* work) {
  return run<CollectiveCall>(
      "fsccl_all_gather_v",
      {OpCode::all_gather_v, send, recv, 0, dtype, FSCCL_SUM, -1, counts, displacements}, comm,
      stream, work);
}

fsccl_status_t fsccl_reduce_scatter_v(const void* send, void* recv, const size_t* counts,
                                      fsccl_dtype_t dtype, fsccl_op_t op, fsccl_comm_t comm,
                                      void* stream, fsccl_work_t* work) {
  return run<CollectiveCall>(
      "fsccl_reduce_scatter_v",
      {OpCode::reduce_scatter_v, send, recv, 0, dtype, op, -1, counts, nullptr}, comm, stream,
      work);
}

fsccl_status_t fsccl_reduce(const void* send, void* recv, size_t count, fsccl_dtype_t dtype,
                            fsccl_op_t op, int root, fsccl_comm_t comm, void* stream,
                            fsccl_work_t* work) {
  return run<CollectiveCall>("fsccl_reduce", {OpCode::reduce, send, recv, count, dtype, op, root},
                             comm, stream, work);
}

fsccl_status_t fsccl_gather(const void* send, void* recv, size_t count, fsccl_dtype_t dtype,
                            int root, fsccl_comm_t comm, void* stream, fsccl_work_t* work) {
  return run<CollectiveCall>("fsccl_gather",
                             {OpCode::gather, send, recv, count, dtype, FSCCL_SUM, root}, comm,
                             stream, work);
}

fsccl_status_t fsccl_scatter(const void* send, void* recv, size_t count, fsccl_dtype_t dtype,
                             int root, fsccl_comm_t comm, void* stream, fsccl_work_t* work) {
  return run<CollectiveCall>("fsccl_scatter",
                             {OpCode::scatter, send, recv, count, dtype, FSCCL_SUM, root}, comm,
                             stream, work);
}

fsccl_status_t fsccl_all_to_all(const void* send, void* recv, size_t count, fsccl_dtype_t dtype,
                                fsccl_comm_t comm, void* stream, fsccl_work_t* work) {
  return run<CollectiveCall>("fsccl_all_to_all",
                             {OpCode::all_to_all, send, recv, count, dtype, FSCCL_SUM, -1}, comm,
                             stream, work);
}

fsccl_status_t fsccl_all_to_all_v(const void* send, const size_t* send_counts,
                                  const size_t* send_displacements, void* recv,
                                  const size_t* recv_counts, const size_t* recv_displacements,
                                  fsccl_dtype_t dtype, fsccl_comm_t comm, void* stream,
                                  fsccl_work_t* work) {
  return run<CollectiveCall>("fsccl_all_to_all_v",
                             {OpCode::all_to_all_v, send, recv, 0, dtype, FSCCL_SUM, -1,
                              send_counts, send_displacements, recv_counts, recv_displacements},
                             comm, stream, work);
}

fsccl_status_t fsccl_all_gather_list(const fsccl_tensor_t* list, size_t tensors, fsccl_comm_t comm,
                                     void* stream, fsccl_work_t* work) {
  return run<ListCall>("fsccl_all_gather_list", {list, tensors, ListKind::all_gather, FSCCL_SUM, 0},
                       comm, stream, work);
}
fsccl_status_t fsccl_reduce_scatter_list(const fsccl_tensor_t* list, size_t tensors, fsccl_op_t op,
                                         fsccl_comm_t comm, void* stream, fsccl_work_t* work) {
  return run<ListCall>("fsccl_reduce_scatter_list",
                       {list, tensors, ListKind::reduce_scatter, op, 0}, comm, stream, work);
}
fsccl_status_t fsccl_broadcast_list(const fsccl_tensor_t* list, size_t tensors, int root,
                                    fsccl_comm_t comm, void* stream, fsccl_work_t* work) {
  return run<ListCall>("fsccl_broadcast_list",
                       {list, tensors, ListKind::broadcast, FSCCL_SUM, root}, comm, stream, work);
}

}  // extern "C"
