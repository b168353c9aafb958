// NCCL's functions for collectives, messages and groups. The arguments of a call are checked and
// kept until the group ends, and then the operations are put on their streams.
#include <algorithm>

#include "driver.h"
#include "handles.h"

using namespace fsccl::stand_in_nccl;

namespace {

struct Pending {
  ncclComm* handle;
  void* stream;
  std::vector<Operation> operations;
};
struct Group {
  int depth = 0;
  int error = kSuccess;
  std::vector<Pending> pending;
};
thread_local Group group;

// The job that this thread began last. All communicators of a group share one job.
thread_local std::shared_ptr<Job> last_job;

struct Launched {
  std::shared_ptr<Comm> comm;  // keeps the communicator, also after the handle was freed
  ncclComm* handle;
  std::vector<Operation> operations;
};

void run_launched(void* context) {
  const std::unique_ptr<Launched> launched(static_cast<Launched*>(context));
  run(*launched->comm, launched->operations);
  launched->handle->outstanding--;
}

int end_group() {
  const std::vector<Pending> pending = std::move(group.pending);
  const int error = group.error;
  group = {};
  if (error != kSuccess) return error;
  int result = kSuccess;
  for (const Pending& one : pending)
    for (const Pending& other : pending)
      if (one.handle == other.handle && capturing(one.stream) != capturing(other.stream))
        return broken("a group on streams of which some are captured and some are not");
  if (std::any_of(pending.begin(), pending.end(),
                  [&](const Pending& one) { return one.handle != pending[0].handle; }))
    (void)called("ncclGroupEnd of several communicators", -1);
  for (const Pending& one : pending) {
    Comm& comm = *one.handle->comm;
    if (comm.stopped) return broken("a group ends on a communicator that was stopped");
    one.handle->outstanding++;
    auto launched =
        std::make_unique<Launched>(Launched{one.handle->comm, one.handle, one.operations});
    if (!launch(one.stream, run_launched, launched.get())) {
      one.handle->outstanding--;
      set_last_error("cuLaunchHostFunc failed");
      return kUnhandledCudaError;
    }
    (void)launched.release();
    if (comm.blocking) continue;
    comm.settling = true;
    if (result != kInProgress) begin_job(comm);
    comm.group_job = last_job;
    result = kInProgress;
  }
  return result;
}

int checked_buffers(const Operation& op, const Comm& comm) {
  const auto ranks = static_cast<size_t>(comm.ranks);
  const size_t bytes = op.count * size_of(op.type);
  using Kind = Operation::Kind;
  const bool parted_in = op.kind == Kind::reduce_scatter || op.kind == Kind::all_to_all;
  const bool parted_out = op.kind == Kind::all_gather || op.kind == Kind::all_to_all;
  const bool root = op.root == comm.rank;
  const bool reads = op.kind == Kind::recv ? false : op.kind != Kind::broadcast || root;
  const bool writes = op.kind == Kind::send ? false : op.kind != Kind::reduce || root;
  const size_t in = parted_in ? bytes * ranks : bytes, out = parted_out ? bytes * ranks : bytes;
  const auto whole = [](const void* memory, size_t size) {
    return on_device(memory) && on_device(static_cast<const char*>(memory) + size - 1);
  };
  if (bytes && ((reads && !whole(op.send, in)) || (writes && !whole(op.recv, out))))
    return broken(std::string(name_of(op.kind)) +
                  ": a buffer that is not, or not as a whole, memory of a device");
  return kSuccess;
}

int issue(Operation op, ncclComm* handle, void* stream) {
  const char* const name = name_of(op.kind);
  if (const int bad = check(handle, name); bad != kSuccess) return bad;
  Comm& comm = *handle->comm;
  if (comm.job == kInProgress)
    return broken(std::string(name) + " before the communicator is ready");
  if (comm.stopped)
    return broken(std::string(name) + " on a communicator that was aborted or revoked");
  if (comm.error != kSuccess) return comm.error;
  if (const int bad = check_job(comm, name); bad != kSuccess) return bad;
  if (op.type < 0 || op.type >= kTypes)
    return broken(std::string(name) + " of a type that is none");
  if (op.root < -1 || op.root >= comm.ranks)
    return broken(std::string(name) + " with a root or peer that is none");
  if (op.operation_kind >= kMade) {
    const auto made = comm.operators.find(op.operation_kind);
    if (made == comm.operators.end() || made->second.second != op.type)
      return broken(std::string(name) +
                    " with an operator that was not made for this communicator and type");
    op.scale = made->second.first;
  }
  const Fault fault = called(name, comm.rank);
  if (fault == Fault::error) {
    set_last_error("injected by FSCCL_STAND_IN_NCCL_FAIL");
    return kSystemError;
  }
  op.hangs = fault == Fault::hang;
  op.fails = fault == Fault::async;
  if (const int bad = checked_buffers(op, comm); bad != kSuccess) return bad;
  const bool gathers = op.kind == Operation::Kind::all_gather;
  const size_t part = op.count * size_of(op.type);
  const uint64_t to =
      comm.place_of(op.recv, gathers ? part * static_cast<size_t>(comm.ranks) : part);
  if (op.recv && !comm.windows.empty()) op.place = to;
  const size_t whole = gathers ? part * static_cast<size_t>(comm.ranks) : part;
  const bool symmetric = gathers || op.kind == Operation::Kind::reduce_scatter ||
                         op.kind == Operation::Kind::all_reduce;
  if (symmetric && ((op.recv && comm.leaves_window(op.recv, whole)) ||
                    (op.send && comm.leaves_window(op.send, part))))
    return broken(std::string(name) + ": a buffer begins in a window and ends outside of it");
  const bool in_windows = symmetric && to != kNoPlace && comm.place_of(op.send, part) != kNoPlace;
  const bool by_copy_engines =
      in_windows && gathers && comm.zero_ctas && comm.one_host && version() >= 22800;
  if (by_copy_engines) (void)called("ncclAllGather by copy engines", comm.rank);
  op.endless = by_copy_engines || (in_windows && version() < 22900);
  const auto same = std::find_if(
      group.pending.begin(), group.pending.end(),
      [&](const Pending& one) { return one.handle == handle && one.stream == stream; });
  if (same == group.pending.end())
    group.pending.push_back({handle, stream, {op}});
  else
    same->operations.push_back(op);
  return group.depth ? static_cast<int>(kSuccess) : end_group();
}

int put(const Operation& op, ncclComm* handle, void* stream) {
  const int code = issue(op, handle, stream);
  if (code != kSuccess && code != kInProgress && group.depth) group.error = code;
  return code;
}

Operation make(Operation::Kind kind, const void* send, void* recv, size_t count, int type) {
  Operation op;
  op.kind = kind;
  op.send = static_cast<const char*>(send);
  op.recv = static_cast<char*>(recv);
  op.count = count;
  op.type = static_cast<Type>(type);
  return op;
}

}  // namespace

namespace fsccl::stand_in_nccl {
namespace {
std::mutex handles_mutex;
std::vector<std::unique_ptr<ncclComm>>& handles() {
  static auto* const all = new std::vector<std::unique_ptr<ncclComm>>;
  return *all;
}
}  // namespace

ncclComm* new_handle(std::shared_ptr<Comm> comm) {
  const std::lock_guard lock(handles_mutex);
  handles().push_back(std::make_unique<ncclComm>());
  handles().back()->comm = std::move(comm);
  return handles().back().get();
}

void begin_job(Comm& comm) { last_job = comm.group_job = std::make_shared<Job>(); }

int check_job(const Comm& comm, const char* function) {
  if (version() >= 22700 || !last_job || last_job->joined || comm.group_job == last_job)
    return kSuccess;
  return broken(
      std::string(function) +
      " while a job of the thread's on another communicator is not joined (ncclCommCount does so)");
}

void forget(ncclComm* handle) {
  const std::lock_guard lock(handles_mutex);
  handle->comm = nullptr;
}

int check(ncclComm* handle, const char* function) {
  const std::lock_guard lock(handles_mutex);
  for (const auto& one : handles())
    if (one.get() == handle)
      return one->comm ? static_cast<int>(kSuccess)
                       : static_cast<int>(
                             broken(std::string(function) + " on a communicator that was freed"));
  return broken(std::string(function) + " on no communicator");
}

}  // namespace fsccl::stand_in_nccl

extern "C" {

int ncclGroupStart() {
  group.depth++;
  return kSuccess;
}

int ncclGroupEnd() {
  if (!group.depth) return broken("ncclGroupEnd without ncclGroupStart");
  return --group.depth ? static_cast<int>(kSuccess) : end_group();
}

int ncclAllGather(const void* send, void* recv, size_t count, int type, ncclComm* comm,
                  void* stream) {
  return put(make(Operation::Kind::all_gather, send, recv, count, type), comm, stream);
}

int ncclReduceScatter(const void* send, void* recv, size_t count, int type, int operation_kind,
                      ncclComm* comm, void* stream) {
  Operation op = make(Operation::Kind::reduce_scatter, send, recv, count, type);
  op.operation_kind = operation_kind;
  return put(op, comm, stream);
}

int ncclAllReduce(const void* send, void* recv, size_t count, int type, int operation_kind,
                  ncclComm* comm, void* stream) {
  Operation op = make(Operation::Kind::all_reduce, send, recv, count, type);
  op.operation_kind = operation_kind;
  return put(op, comm, stream);
}

int ncclReduce(const void* send, void* recv, size_t count, int type, int operation_kind, int root,
               ncclComm* comm, void* stream) {
  Operation op = make(Operation::Kind::reduce, send, recv, count, type);
  op.operation_kind = operation_kind;
  op.root = root;
  return put(op, comm, stream);
}

int ncclBroadcast(const void* send, void* recv, size_t count, int type, int root, ncclComm* comm,
                  void* stream) {
  Operation op = make(Operation::Kind::broadcast, send, recv, count, type);
  op.root = root;
  return put(op, comm, stream);
}

int ncclAlltoAll(const void* send, void* recv, size_t count, int type, ncclComm* comm,
                 void* stream) {
  return put(make(Operation::Kind::all_to_all, send, recv, count, type), comm, stream);
}

int ncclSend(const void* send, size_t count, int type, int peer, ncclComm* comm, void* stream) {
  Operation op = make(Operation::Kind::send, send, nullptr, count, type);
  op.root = peer;
  return put(op, comm, stream);
}

int ncclRecv(void* recv, size_t count, int type, int peer, ncclComm* comm, void* stream) {
  Operation op = make(Operation::Kind::recv, nullptr, recv, count, type);
  op.root = peer;
  return put(op, comm, stream);
}

}  // extern "C"
