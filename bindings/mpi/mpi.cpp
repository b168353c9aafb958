// The functions of MPI that XLA calls, and the few that any program calls first, over the public
// header. Each is exported under the name for which MPItrampoline looks. Data types and operators
// that fsccl.h does not have are refused by name.
// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "comms.h"
#include "errors.h"
#include "fsccl_mpi.h"
#include "symbols.h"
#include "xla/results.h"

using namespace fsccl_mpi;

// This is MPI_Status of MPItrampoline's ABI 2.
struct MpiStatus {
  int theirs[6];
  int source, tag, error;
  int unused;
};
static_assert(sizeof(MpiStatus) == 40);

namespace {

struct Type {
  fsccl_dtype_t dtype;
  size_t parts;  // 2 for a complex number, 1 for others
};

bool type_of(uintptr_t handle, Type& type) {
  switch (handle) {
    case kBYTE:
    case kPACKED:
    case kCHAR:
    case kUNSIGNED_CHAR:
    case kUINT8_T:
      type = {FSCCL_UINT8, 1};
      return true;
    case kC_BOOL:
    case kCXX_BOOL:
      type = {FSCCL_BOOL, 1};
      return true;
    case kSIGNED_CHAR:
    case kINT8_T:
      type = {FSCCL_INT8, 1};
      return true;
    case kSHORT:
    case kINT16_T:
      type = {FSCCL_INT16, 1};
      return true;
    case kUNSIGNED_SHORT:
    case kUINT16_T:
      type = {FSCCL_UINT16, 1};
      return true;
    case kINT:
    case kINT32_T:
      type = {FSCCL_INT32, 1};
      return true;
    case kUNSIGNED:
    case kUINT32_T:
      type = {FSCCL_UINT32, 1};
      return true;
    case kLONG:
    case kLONG_LONG:
    case kLONG_LONG_INT:
    case kINT64_T:
      type = {FSCCL_INT64, 1};
      return true;
    case kUNSIGNED_LONG:
    case kUNSIGNED_LONG_LONG:
    case kUINT64_T:
      type = {FSCCL_UINT64, 1};
      return true;
    case kFLOAT:
      type = {FSCCL_FLOAT32, 1};
      return true;
    case kDOUBLE:
      type = {FSCCL_FLOAT64, 1};
      return true;
    case kC_COMPLEX:
    case kC_FLOAT_COMPLEX:
      type = {FSCCL_FLOAT32, 2};
      return true;
    case kC_DOUBLE_COMPLEX:
      type = {FSCCL_FLOAT64, 2};
      return true;
    default:
      return false;
  }
}

template <size_t N>
std::string name_of(const Name (&names)[N], uintptr_t handle) {
  for (const Name& name : names) {
    if (name.number == handle) return name.name;
  }
  return "the number " + std::to_string(handle);
}

// One call of MPI: its communicator and data type, or the error that it returns.
struct Call {
  Call(const char* name, uintptr_t comm_handle)
      : function(name), comm(find(comm_handle, name, &error)) {
    if (comm == nullptr) return;
    await(*comm);
    if (!comm->failed.empty()) error = refuse(comm->failed);
  }
  void wants(uintptr_t handle) {
    if (error != kSUCCESS || type_of(handle, type)) return;
    stop(name_of(kDatatypesNames, handle) +
         " is a data type that it does not carry: integers of 8 to 64 bits, float, double, their "
         "complex numbers and bytes are carried");
  }
  void wants_count(int count, const char* what) {
    if (error == kSUCCESS && count < 0) {
      stop(std::string(what) + " is " + std::to_string(count) +
           ": MPI counts in an int, so that a call has at most 2147483647 elements");
    }
  }
  void wants_op(uintptr_t handle) {
    if (error != kSUCCESS) return;
    if (handle == kSUM) {
      op = FSCCL_SUM;
    } else if (handle == kPROD && type.parts == 1) {
      op = FSCCL_PROD;
    } else if (handle == kMIN && type.parts == 1) {
      op = FSCCL_MIN;
    } else if (handle == kMAX && type.parts == 1) {
      op = FSCCL_MAX;
    } else {
      stop(name_of(kOperatorsNames, handle) + (type.parts == 2 ? " of complex numbers" : "") +
           " is an operator that it does not have: it sums, and multiplies and compares numbers "
           "that are not complex");
    }
  }
  void wants_peer(int peer) {
    if (error == kSUCCESS && (peer < 0 || peer >= comm->size || peer == comm->rank)) {
      stop("the other rank is " + std::to_string(peer) + ", and this is rank " +
           std::to_string(comm->rank) + " of " + std::to_string(comm->size) +
           ": name another rank; MPI_ANY_SOURCE and MPI_PROC_NULL are not carried");
    }
  }
  void stop(const std::string& text) { error = refuse(std::string(function) + ": " + text); }
  // Runs `work` as the only call on this communicator, unless there is an error already.
  template <typename Work>
  int run(Work work) {
    if (error != kSUCCESS) return error;
    const std::lock_guard guard(comm->issue);
    const fsccl_status_t status = work();
    return status >= FSCCL_OK ? kSUCCESS : failure(*comm, function, status);
  }
  size_t elements(int count) const { return static_cast<size_t>(count) * type.parts; }
  // Prepares the memory at `address`, to which the call will write `count` elements.
  void writes(void* address, size_t count) const {
    fsccl_xla::prepare_result(address, count * fsccl_dtype_size(type.dtype));
  }

  const char* function;
  int error = kSUCCESS;
  std::shared_ptr<Comm> comm;
  Type type = {FSCCL_UINT8, 1};
  fsccl_op_t op = FSCCL_SUM;
};

bool in_place(const void* address) { return reinterpret_cast<uintptr_t>(address) == kIN_PLACE; }

// A message in flight. Its address is MPI's request.
struct Message {
  std::shared_ptr<Comm> comm;
  fsccl_work_t work;
};

// Checks a message of `count` elements between this rank and `peer`.
Call message_call(const char* function, int count, uintptr_t type, int peer, int tag,
                  uintptr_t comm) {
  Call call(function, comm);
  call.wants(type);
  call.wants_count(count, "count");
  call.wants_peer(peer);
  if (call.error == kSUCCESS && tag == kANY_TAG)
    call.stop("MPI_ANY_TAG is not carried: name the tag");
  return call;
}

int begin_message(Call& call, void* address, int count, int peer, int tag, bool sends,
                  Message** request) {
  return call.run([&] {
    fsccl_work_t work = nullptr;
    if (!sends) call.writes(address, call.elements(count));
    const fsccl_status_t status = sends ? fsccl_send(address, call.elements(count), call.type.dtype,
                                                     peer, tag, call.comm->comm, nullptr, &work)
                                        : fsccl_recv(address, call.elements(count), call.type.dtype,
                                                     peer, tag, call.comm->comm, nullptr, &work);
    if (status < FSCCL_OK) return status;
    call.comm->messages.push_back(work);
    *request = new Message{call.comm, work};
    return status;
  });
}

// Waits for the message, and frees the request. It holds no lock meanwhile, so that another thread
// can issue what the peer of this message waits for.
int end_message(const char* function, const std::unique_ptr<Message>& message) {
  Comm& comm = *message->comm;
  const fsccl_status_t status = fsccl_work_wait(message->work, -1);
  const std::lock_guard guard(comm.issue);
  std::erase(comm.messages, message->work);
  return status == FSCCL_OK ? kSUCCESS : failure(comm, function, status);
}

int copy_text(const std::string& text, char* to, int* length) {
  std::memcpy(to, text.c_str(), text.size() + 1);
  *length = static_cast<int>(text.size());
  return kSUCCESS;
}

}  // namespace

extern "C" {

FSCCL_API int fsccl_mpi_missing(const char* name);
int fsccl_mpi_missing(const char* name) {
  return refuse(std::string(name) +
                " is a function of MPI that libfsccl_mpi does not have: it has those that XLA's "
                "CPU collectives call "
                "(docs/jax.md). A program that needs MPI itself has to use an MPI library");
}

FSCCL_API extern const int mpiabi_version_major = 2, mpiabi_version_minor = 10,
                           mpiabi_version_patch = 0;
FSCCL_API extern const int mpiwrapper_version_major = 2, mpiwrapper_version_minor = 10,
                           mpiwrapper_version_patch = 0;
FSCCL_API void mpiwrapper_export_fortran_constants_() {}

FSCCL_API int MPIABI_Init_thread(int*, char***, int, int* provided) {
  *provided = kTHREAD_SERIALIZED;
  return begin();
}
FSCCL_API int MPIABI_Query_thread(int* provided) {
  *provided = kTHREAD_SERIALIZED;
  return kSUCCESS;
}
FSCCL_API int MPIABI_Initialized(int* flag) {
  *flag = has_begun();
  return kSUCCESS;
}
FSCCL_API int MPIABI_Finalized(int* flag) {
  *flag = has_ended();
  return kSUCCESS;
}
FSCCL_API int MPIABI_Finalize() {
  end();
  return kSUCCESS;
}
FSCCL_API int MPIABI_Abort(uintptr_t, int code) {
  std::_Exit(code == 0 ? 1 : code);  // the peers of a process that ends like this see a death
}
// XLA calls this in order to keep MPI's calls in one thread. FSCCL takes them from any thread.
FSCCL_API int MPIABI_Is_thread_main(int* flag) {
  *flag = 1;
  return kSUCCESS;
}
FSCCL_API int MPIABI_Get_version(int* version, int* subversion) {
  *version = 3;
  *subversion = 1;
  return kSUCCESS;
}
FSCCL_API int MPIABI_Get_library_version(char* text, int* length) {
  int version = 0;
  fsccl_version(&version);
  return copy_text("FSCCL " + std::to_string(version / 10000) + "." +
                       std::to_string(version / 100 % 100) + "." + std::to_string(version % 100) +
                       ", the functions of MPI that XLA calls",
                   text, length);
}
FSCCL_API int MPIABI_Error_string(int code, char* text, int* length) {
  return copy_text(text_of(code), text, length);
}
FSCCL_API int MPIABI_Error_class(int code, int* error_class) {
  *error_class = code == kSUCCESS ? kSUCCESS : kERR_OTHER;
  return kSUCCESS;
}
FSCCL_API double MPIABI_Wtime() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
FSCCL_API double MPIABI_Wtick() { return 1e-9; }

// XLA asks for the rank and the number of ranks in its initialisation: they are told before the
// ranks are connected.
FSCCL_API int MPIABI_Comm_rank(uintptr_t handle, int* rank) {
  int error = kSUCCESS;
  const auto comm = find(handle, "MPI_Comm_rank", &error);
  *rank = comm != nullptr ? comm->rank : -1;
  return comm != nullptr && comm->rank < 0 ? refuse(comm->failed) : error;
}
FSCCL_API int MPIABI_Comm_size(uintptr_t handle, int* size) {
  int error = kSUCCESS;
  const auto comm = find(handle, "MPI_Comm_size", &error);
  *size = comm != nullptr ? comm->size : 0;
  return comm != nullptr && comm->rank < 0 ? refuse(comm->failed) : error;
}
FSCCL_API int MPIABI_Comm_split(uintptr_t comm, int color, int key, uintptr_t* result) {
  int error = kSUCCESS;
  const auto parent = find(comm, "MPI_Comm_split", &error);
  *result = kCOMM_NULL;
  return parent == nullptr ? error : split(parent, color, key, result);
}
FSCCL_API int MPIABI_Comm_free(uintptr_t* comm) {
  const int code = release(*comm);
  *comm = kCOMM_NULL;
  return code;
}

FSCCL_API int MPIABI_Barrier(uintptr_t comm) {
  Call call("MPI_Barrier", comm);
  return call.run([&] { return fsccl_barrier(call.comm->comm, nullptr, nullptr); });
}
FSCCL_API int MPIABI_Bcast(void* buffer, int count, uintptr_t type, int root, uintptr_t comm) {
  Call call("MPI_Bcast", comm);
  call.wants(type);
  call.wants_count(count, "count");
  return call.run([&] {
    call.writes(buffer, call.elements(count));
    return fsccl_broadcast(buffer, call.elements(count), call.type.dtype, root, call.comm->comm,
                           nullptr, nullptr);
  });
}
FSCCL_API int MPIABI_Allreduce(const void* send, void* recv, int count, uintptr_t type,
                               uintptr_t op, uintptr_t comm) {
  Call call("MPI_Allreduce", comm);
  call.wants(type);
  call.wants_op(op);
  call.wants_count(count, "count");
  return call.run([&] {
    call.writes(recv, call.elements(count));
    return fsccl_all_reduce(in_place(send) ? recv : send, recv, call.elements(count),
                            call.type.dtype, call.op, call.comm->comm, nullptr, nullptr);
  });
}
FSCCL_API int MPIABI_Allgather(const void* send, int send_count, uintptr_t send_type, void* recv,
                               int count, uintptr_t type, uintptr_t comm) {
  Call call("MPI_Allgather", comm);
  call.wants(type);
  call.wants_count(count, "recvcount");
  const bool own = in_place(send);
  if (call.error == kSUCCESS && !own && (send_count != count || send_type != type)) {
    call.stop("sendcount and sendtype (" + std::to_string(send_count) + ", " +
              name_of(kDatatypesNames, send_type) + ") differ from recvcount and recvtype (" +
              std::to_string(count) + ", " + name_of(kDatatypesNames, type) + "): give the same");
  }
  return call.run([&] {
    const size_t bytes = call.elements(count) * fsccl_dtype_size(call.type.dtype);
    const void* from =
        own ? static_cast<char*>(recv) + static_cast<size_t>(call.comm->rank) * bytes : send;
    call.writes(recv, static_cast<size_t>(call.comm->size) * call.elements(count));
    return fsccl_all_gather(from, recv, call.elements(count), call.type.dtype, call.comm->comm,
                            nullptr, nullptr);
  });
}
FSCCL_API int MPIABI_Reduce_scatter(const void* send, void* recv, const int* counts, uintptr_t type,
                                    uintptr_t op, uintptr_t comm) {
  Call call("MPI_Reduce_scatter", comm);
  call.wants(type);
  call.wants_op(op);
  if (call.error == kSUCCESS && in_place(send))
    call.stop("MPI_IN_PLACE is not carried here: give a buffer of its own");
  std::vector<size_t> parts;
  bool even = true;
  for (int rank = 0; call.error == kSUCCESS && rank < call.comm->size; ++rank) {
    call.wants_count(counts[rank], "a number in recvcounts");
    even = even && counts[rank] == counts[0];
    parts.push_back(call.elements(counts[rank]));
  }
  return call.run([&] {
    call.writes(recv, parts[static_cast<size_t>(call.comm->rank)]);
    return even ? fsccl_reduce_scatter(send, recv, parts[0], call.type.dtype, call.op,
                                       call.comm->comm, nullptr, nullptr)
                : fsccl_reduce_scatter_v(send, recv, parts.data(), call.type.dtype, call.op,
                                         call.comm->comm, nullptr, nullptr);
  });
}

FSCCL_API int MPIABI_Isend(const void* address, int count, uintptr_t type, int peer, int tag,
                           uintptr_t comm, Message** request) {
  Call call = message_call("MPI_Isend", count, type, peer, tag, comm);
  return begin_message(call, const_cast<void*>(address), count, peer, tag, true, request);
}
FSCCL_API int MPIABI_Irecv(void* address, int count, uintptr_t type, int peer, int tag,
                           uintptr_t comm, Message** request) {
  Call call = message_call("MPI_Irecv", count, type, peer, tag, comm);
  return begin_message(call, address, count, peer, tag, false, request);
}
FSCCL_API int MPIABI_Wait(Message** request, MpiStatus* status) {
  if (status != nullptr) *status = {};
  const std::unique_ptr<Message> message(std::exchange(*request, nullptr));
  return message == nullptr ? kSUCCESS : end_message("MPI_Wait", message);
}
// Both messages are checked before either begins.
FSCCL_API int MPIABI_Sendrecv(const void* send, int send_count, uintptr_t send_type, int to,
                              int send_tag, void* recv, int recv_count, uintptr_t recv_type,
                              int from, int recv_tag, uintptr_t comm, MpiStatus* status) {
  const char* const function = "MPI_Sendrecv";
  if (status != nullptr) *status = {};
  Call receive = message_call(function, recv_count, recv_type, from, recv_tag, comm);
  Call sending = message_call(function, send_count, send_type, to, send_tag, comm);
  if (receive.error != kSUCCESS || sending.error != kSUCCESS)
    return receive.error != kSUCCESS ? receive.error : sending.error;
  Message *first = nullptr, *second = nullptr;
  const int begun = begin_message(receive, recv, recv_count, from, recv_tag, false, &first);
  const std::unique_ptr<Message> received(first);
  if (begun != kSUCCESS) return begun;
  const int other =
      begin_message(sending, const_cast<void*>(send), send_count, to, send_tag, true, &second);
  const std::unique_ptr<Message> sent(second);
  if (other != kSUCCESS) return other;  // the receive has ended, too
  const int sent_code = end_message(function, sent), code = end_message(function, received);
  return sent_code != kSUCCESS ? sent_code : code;
}

}  // extern "C"
