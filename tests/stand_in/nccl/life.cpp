// NCCL's functions that make communicators in the background, close and abort them, and those for
// windows.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>

#include "driver.h"
#include "handles.h"

using namespace fsccl::stand_in_nccl;

namespace fsccl::stand_in_nccl {

int version() {
  const char* const text = std::getenv("FSCCL_STAND_IN_NCCL_VERSION");
  return text ? std::atoi(text) : 22809;
}

size_t size_of(Type type) {
  constexpr size_t kSizes[kTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
  return kSizes[type];
}

const char* name_of(Operation::Kind kind) {
  constexpr const char* kNames[] = {"ncclAllGather", "ncclReduceScatter", "ncclAllReduce",
                                    "ncclReduce",    "ncclBroadcast",     "ncclAlltoAll",
                                    "ncclSend",      "ncclRecv"};
  return kNames[static_cast<int>(kind)];
}

bool Comm::meet(uint64_t value, std::vector<uint64_t>* all) {
  const uint64_t number = ++meetings * 2;
  const auto come = [&](uint64_t moment) {
    for (int q = 0; q < ranks; q++)
      if (!wait_until([&] { return region->meetings[q].number >= moment; }, [&] { return over(); }))
        return false;
    return true;
  };
  region->meetings[rank].value = value;
  region->meetings[rank].number = number;
  if (!come(number)) return false;
  all->clear();
  for (int q = 0; q < ranks; q++) all->push_back(region->meetings[q].value);
  region->meetings[rank].number = number + 1;  // this rank has read all values
  return come(number + 1);
}

uint64_t Comm::place_of(const void* memory, size_t bytes) const {
  const auto* const first = static_cast<const char*>(memory);
  for (size_t i = 0; i < windows.size(); i++) {
    const Window& one = windows[i];
    if (first >= one.base && first + bytes <= one.base + one.bytes)
      return (i + 1) << 48 | static_cast<uint64_t>(first - one.base);
  }
  return kNoPlace;
}

bool Comm::leaves_window(const void* memory, size_t bytes) const {
  const auto* const first = static_cast<const char*>(memory);
  for (const Window& one : windows)
    if (first >= one.base && first < one.base + one.bytes && first + bytes > one.base + one.bytes)
      return true;
  return false;
}

Code in_background(Comm& comm, std::function<int()> job) {
  comm.job = kInProgress;
  comm.threads.emplace_back([&comm, work = std::move(job)] { comm.job = work(); });
  if (!comm.blocking) return kInProgress;
  comm.threads.back().join();
  comm.threads.pop_back();
  return static_cast<Code>(comm.job.load());
}

}  // namespace fsccl::stand_in_nccl

namespace {

// Waits for the threads of the communicator. After that only streams that have not come to its
// operations yet refer to it, and they keep it alive.
void close_down(ncclComm* handle) {
  for (std::thread& thread : handle->comm->threads) thread.join();
  handle->comm->threads.clear();
  forget(handle);
}

}  // namespace

extern "C" {

int ncclGetVersion(int* version) {
  *version = fsccl::stand_in_nccl::version();
  return kSuccess;
}

int ncclCommCount(ncclComm* handle, int* ranks) {
  if (const int bad = check(handle, "ncclCommCount"); bad != kSuccess) return bad;
  if (handle->comm->job == kInProgress)
    return broken("ncclCommCount before the communicator is ready");
  if (const std::shared_ptr<Job> job = std::move(handle->comm->group_job)) job->joined = true;
  *ranks = handle->comm->ranks;
  return kSuccess;
}

const char* ncclGetErrorString(int code) {
  constexpr const char* kTexts[] = {"no error",
                                    "unhandled cuda error",
                                    "unhandled system error",
                                    "internal error",
                                    "invalid argument",
                                    "invalid usage",
                                    "remote process exited or there was a network error",
                                    "NCCL operation in progress"};
  return code >= 0 && code < 8 ? kTexts[code] : "unknown result code";
}

int ncclGetUniqueId(UniqueId* id) {
  if (called("ncclGetUniqueId", -1) != Fault::none) return kSystemError;
  *id = make_region();
  return id->bytes[0] ? kSuccess : kSystemError;
}

int ncclCommInitRankConfig(ncclComm** made, int ranks, UniqueId id, int rank, Config* config) {
  if (config->magic != kMagic || config->size < sizeof(Config))
    return broken("a config without its magic number, or too short");
  const Fault fault = called("ncclCommInitRankConfig", rank);
  if (fault == Fault::error) {
    set_last_error("injected by FSCCL_STAND_IN_NCCL_FAIL");
    return kSystemError;
  }
  if (ranks < 1 || ranks > kMostRanks || rank < 0 || rank >= ranks)
    return broken("a rank that is none");
  std::shared_ptr<Region> region = open_region(id);
  if (!region)
    return broken("a unique id that ncclGetUniqueId did not make, or whose process is gone");
  auto comm = std::make_shared<Comm>();
  comm->region = std::move(region);
  comm->rank = rank;
  comm->ranks = ranks;
  const char* const blocks = std::getenv("NCCL_COMM_BLOCKING");
  comm->blocking = blocks ? std::atoi(blocks) == 1 : config->blocking != 0;
  comm->zero_ctas = config->cta_policy == kZeroCtas;
  if (const char* const policy = std::getenv("NCCL_CTA_POLICY"))
    comm->zero_ctas = std::atoi(policy) == kZeroCtas;
  if (config->most_ctas >= 1)
    (void)called(
        ("ncclCommInitRankConfig with maxCTAs " + std::to_string(config->most_ctas)).c_str(), rank);
  *made = new_handle(comm);
  if (!comm->blocking) begin_job(*comm);
  return in_background(*comm, [comm = comm.get(), fault] {
    Region& shared = *comm->region;
    uint32_t none = 0;
    const auto size = static_cast<uint32_t>(comm->ranks);
    if (!shared.ranks.compare_exchange_strong(none, size) && none != size)
      return static_cast<int>(broken("ranks differ in their number"));
    const char* const host = std::getenv("NCCL_HOSTID");
    shared.hosts[comm->rank] = host ? std::hash<std::string>()(host) | 1 : 0;
    if (fault != Fault::hang) shared.arrived++;
    const bool here = wait_until([&] { return fault != Fault::hang && shared.arrived >= size; },
                                 [&] { return comm->over(); });
    for (int q = 0; q < comm->ranks; q++)
      comm->one_host = comm->one_host && shared.hosts[q] == shared.hosts[0];
    return static_cast<int>(here ? kSuccess : kInternalError);
  });
}

int ncclCommGetAsyncError(ncclComm* handle, int* code) {
  if (const int bad = check(handle, "ncclCommGetAsyncError"); bad != kSuccess) return bad;
  Comm& comm = *handle->comm;
  *code = comm.settling.exchange(false) ? static_cast<int>(kInProgress) : comm.job.load();
  if (*code == kSuccess) *code = comm.error;
  return kSuccess;
}

int ncclCommFinalize(ncclComm* handle) {
  if (const int bad = check(handle, "ncclCommFinalize"); bad != kSuccess) return bad;
  if (handle->comm->stopped) return broken("ncclCommFinalize after ncclCommRevoke");
  if (handle->comm->job == kInProgress)
    return broken("ncclCommFinalize before the communicator is ready");
  if (!handle->comm->blocking) begin_job(*handle->comm);
  // Like the real function, this waits in the background for operations on streams. The caller does
  // not wait.
  return in_background(*handle->comm, [handle] {
    return static_cast<int>(
        wait_until([&] { return handle->outstanding == 0; }, [&] { return handle->comm->over(); })
            ? kSuccess
            : kInternalError);
  });
}

int ncclCommDestroy(ncclComm* handle) {
  if (const int bad = check(handle, "ncclCommDestroy"); bad != kSuccess) return bad;
  (void)called("ncclCommDestroy", handle->comm->rank);
  close_down(handle);
  return kSuccess;
}

int ncclCommAbort(ncclComm* handle) {
  if (const int bad = check(handle, "ncclCommAbort"); bad != kSuccess) return bad;
  (void)called("ncclCommAbort", handle->comm->rank);
  handle->comm->stopped = true;
  if (handle->comm->group_job) handle->comm->group_job->joined = true;
  // Like the real function, this waits for the device, and so for copy engines.
  (void)wait_until([&] { return handle->comm->endless == 0; }, [] { return false; });
  close_down(handle);
  return kSuccess;
}

int ncclCommRevoke(ncclComm* handle, int flags) {
  if (const int bad = check(handle, "ncclCommRevoke"); bad != kSuccess) return bad;
  (void)called("ncclCommRevoke", handle->comm->rank);
  if (flags) return broken("ncclCommRevoke with flags");
  if (handle->comm->job != kSuccess || handle->comm->error != kSuccess)
    return broken(
        "ncclCommRevoke in the middle of a call or after an error: NCCL then uses what it has "
        "freed");
  handle->comm->stopped = true;
  // The communicator is in progress until none of its operations runs any more, as in NCCL.
  return in_background(*handle->comm, [handle] {
    return static_cast<int>(
        wait_until([&] { return handle->outstanding == 0; }, [] { return false; })
            ? kSuccess
            : kInternalError);
  });
}

// If the window is refused, the communicator keeps that error, and NCCL accepts no further call on
// it. Like the real function (2.27 to 2.30), this one does not report work in the background: it
// returns success, and only the communicator's state says that it is in progress.
int ncclCommWindowRegister(ncclComm* handle, void* memory, size_t bytes, void** window, int flags) {
  if (const int bad = check(handle, "ncclCommWindowRegister"); bad != kSuccess) return bad;
  const std::shared_ptr<Comm> comm = handle->comm;
  if (comm->error != kSuccess) return comm->error;
  if (comm->job == kInProgress)
    return broken("ncclCommWindowRegister before the communicator is ready");
  if (called("ncclCommWindowRegister", comm->rank) != Fault::none) {
    set_last_error("injected by FSCCL_STAND_IN_NCCL_FAIL");
    comm->error = kSystemError;
    return kSystemError;
  }
  if (reinterpret_cast<uintptr_t>(memory) % kWindowAlignment)
    return broken("a window that is not aligned to 4096 bytes");
  if (flags != kSymmetric) return broken("a window that is not symmetric");
  const Backing backing = backing_of(memory, bytes);
  if (backing == Backing::none) return broken("a window on memory of the host");
  if (backing == Backing::other)
    return broken("a window on memory that is not the driver's virtual memory");
  if (backing == Backing::several)
    return broken(
        "a window on several pieces of memory, of which NCCL before 2.30.7 takes the first");
  *window = nullptr;
  const Code begun = in_background(*comm, [comm = comm.get(), memory, bytes, window] {
    std::vector<uint64_t> sizes;
    if (!comm->meet(bytes, &sizes)) return static_cast<int>(kInternalError);
    for (const uint64_t size : sizes)
      if (size != bytes) return static_cast<int>(broken("windows of different sizes"));
    comm->windows.push_back({static_cast<const char*>(memory), bytes});
    *window = memory;
    return static_cast<int>(kSuccess);
  });
  return begun == kInProgress ? static_cast<int>(kSuccess) : static_cast<int>(begun);
}

int ncclCommWindowDeregister(ncclComm* handle, void* window) {
  if (const int bad = check(handle, "ncclCommWindowDeregister"); bad != kSuccess) return bad;
  (void)called("ncclCommWindowDeregister", handle->comm->rank);
  for (Comm::Window& one : handle->comm->windows)
    if (one.base == window && one.bytes) {
      one.bytes = 0;
      return kSuccess;
    }
  return broken("ncclCommWindowDeregister of no window");
}

int ncclRedOpCreatePreMulSum(int* made, void* scale, int type, int residence, ncclComm* handle) {
  if (const int bad = check(handle, "ncclRedOpCreatePreMulSum"); bad != kSuccess) return bad;
  if (residence != 1) return broken("a scale that is not on the host");
  double value = 0;
  if (type == kFloat64) {
    std::memcpy(&value, scale, sizeof value);
  } else if (type == kFloat32) {
    float narrow;
    std::memcpy(&narrow, scale, sizeof narrow);
    value = static_cast<double>(narrow);
  } else if (type == kFloat16) {
    _Float16 narrow;
    std::memcpy(&narrow, scale, sizeof narrow);
    value = static_cast<double>(narrow);
  } else if (type == kBfloat16) {
    uint32_t bits = 0;
    std::memcpy(reinterpret_cast<char*>(&bits) + 2, scale, 2);
    float narrow;
    std::memcpy(&narrow, &bits, sizeof narrow);
    value = static_cast<double>(narrow);
  } else {
    return broken("a scaled sum of integers");
  }
  *made = handle->comm->next_operator++;
  handle->comm->operators[*made] = {value, static_cast<Type>(type)};
  return kSuccess;
}

int ncclRedOpDestroy(int made, ncclComm* handle) {
  if (const int bad = check(handle, "ncclRedOpDestroy"); bad != kSuccess) return bad;
  return handle->comm->operators.erase(made)
             ? kSuccess
             : static_cast<int>(broken("ncclRedOpDestroy of no operator"));
}

}  // extern "C"
