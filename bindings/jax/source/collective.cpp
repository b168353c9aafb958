// The handler of XLA's typed FFI for all collectives. It submits the operation and returns a
// future; FSCCL's callback completes it, so no thread waits.
//
// XLA runs calls that do not depend on each other in any order, with or without side effects. So
// each call also takes and gives a token, and before it tells what its site is: 128 bytes that are
// gathered ahead of the operation, and compared on every rank before the result can be read. Calls
// of equal size that two ranks issue in different order are an error with both names.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <numeric>
#include <string_view>
#include <vector>

#include "fsccl/insight.h"
#include "group.h"
#include "handoff.h"
#include "xla_ffi.h"

namespace fsccl_jax {
namespace {

enum Kind { kAllGather, kReduceScatter, kAllReduce, kBroadcast, kAllToAll };
constexpr int kExecute = 3, kMetadata = 1;
constexpr int64_t kDriveMs = 5;
constexpr size_t kLargeBytes = 256 << 10;
// Codes of absl::Status.
constexpr int kInvalidArgument = 3, kDeadline = 4, kFailedPrecondition = 9, kInternal = 13,
              kUnavailable = 14;

struct Site {
  uint64_t call;  // of this site, from 0
  char name[120];
};
static_assert(sizeof(Site) == 128);

// A call that is under way.
struct Pending {
  const xla_ffi::Api* api = nullptr;
  xla_ffi::Future* future = nullptr;
  std::shared_ptr<Rank> rank;
  Site mine{};
  std::vector<Site> sites;  // of all ranks
  std::vector<fsccl_work_t> works;
  std::vector<std::vector<size_t>> counts;
};

xla_ffi::Error* error(const xla_ffi::Api* api, int code, const std::string& text) {
  xla_ffi::ErrorCreate args{sizeof(xla_ffi::ErrorCreate), nullptr, text.c_str(), code};
  return api->error_create(&args);
}

int code_of(fsccl_status_t status) {
  switch (status) {
    case FSCCL_ERR_INVALID_ARGUMENT:
      return kInvalidArgument;
    case FSCCL_ERR_TIMEOUT:
      return kDeadline;
    case FSCCL_ERR_MISMATCH:
      return kFailedPrecondition;
    case FSCCL_ERR_PEER_DEAD:
    case FSCCL_ERR_LINK:
      return kUnavailable;
    default:
      return kInternal;
  }
}

// "" where all ranks are at this call; else both names.
std::string differing_site(const Pending& pending) {
  for (size_t rank = 0; rank < pending.sites.size(); ++rank) {
    const Site& theirs = pending.sites[rank];
    if (std::memcmp(&theirs, &pending.mine, sizeof(Site)) == 0) continue;
    if (theirs.name[0] == 0) return "";  // it has not said, for its call failed
    return "rank " + std::to_string(pending.rank->rank) + " is at call " +
           std::to_string(pending.mine.call) + " of \"" + pending.mine.name + "\", and rank " +
           std::to_string(rank) + " at call " + std::to_string(theirs.call) + " of \"" +
           theirs.name +
           "\": XLA runs calls in another order there, for nothing orders them. Give each call the "
           "token that the one before it "
           "returned, or run the same program on all ranks [FSCCL_ERR_MISMATCH: ranks disagree on "
           "an operation]";
  }
  return "";
}

// The end of a call: 0, or a code and the reason.
int judge(Pending& pending, fsccl_status_t status, std::string& reason) {
  const std::string differs = differing_site(pending);
  int code = 0;
  if (!differs.empty()) {
    reason = "FSCCL: " + differs;
    code = kFailedPrecondition;
  } else if (status != FSCCL_OK) {
    fsccl_work_error(pending.works.back());  // sets the text for this thread
    reason = "FSCCL: \"" + std::string(pending.mine.name) + "\": " + last_error(status);
    code = code_of(status);
  }
  for (fsccl_work_t work : pending.works) fsccl_work_release(work);
  if (code != 0) {
    const std::lock_guard guard(pending.rank->issue);
    if (pending.rank->failed.empty()) pending.rank->failed = reason;
  }
  return code;
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

// Looks after a call for a moment itself, for a thread that runs sees the end sooner than one that
// has to be woken, on cores that XLA keeps busy. Then the library's own thread goes on, and calls
// back.
void drive(Pending* pending) {
  const fsccl_work_t last = pending->works.back();
  fsccl_status_t status = fsccl_work_wait(last, kDriveMs);
  if (status == FSCCL_IN_PROGRESS) {
    status = fsccl_work_callback(last, done, pending);
    if (status == FSCCL_OK) return;
  }
  complete(pending, status);
}

struct Type {
  fsccl_dtype_t dtype;
  size_t parts;  // a complex number is two
  bool reduces;
};

bool type_of(int xla, Type& type) {
  switch (xla) {
    case 1:
      type = {FSCCL_BOOL, 1, true};
      return true;
    case 2:
      type = {FSCCL_INT8, 1, true};
      return true;
    case 3:
      type = {FSCCL_INT16, 1, true};
      return true;
    case 4:
      type = {FSCCL_INT32, 1, true};
      return true;
    case 5:
      type = {FSCCL_INT64, 1, true};
      return true;
    case 6:
      type = {FSCCL_UINT8, 1, true};
      return true;
    case 7:
      type = {FSCCL_UINT16, 1, true};
      return true;
    case 8:
      type = {FSCCL_UINT32, 1, true};
      return true;
    case 9:
      type = {FSCCL_UINT64, 1, true};
      return true;
    case 10:
      type = {FSCCL_FLOAT16, 1, true};
      return true;
    case 11:
      type = {FSCCL_FLOAT32, 1, true};
      return true;
    case 12:
      type = {FSCCL_FLOAT64, 1, true};
      return true;
    case 16:
      type = {FSCCL_BFLOAT16, 1, true};
      return true;
    case 15:
      type = {FSCCL_FLOAT32, 2, true};
      return true;
    case 18:
      type = {FSCCL_FLOAT64, 2, true};
      return true;
    case 19:
      type = {FSCCL_FLOAT8_E5M2, 1, false};
      return true;
    case 20:
      type = {FSCCL_FLOAT8_E4M3, 1, false};
      return true;
    default:
      return false;
  }
}

const void* attribute(const xla_ffi::Attributes& attributes, std::string_view name) {
  for (int64_t i = 0; i < attributes.size; ++i) {
    if (std::string_view(attributes.names[i]->data, attributes.names[i]->size) == name)
      return attributes.values[i];
  }
  return nullptr;
}

int64_t number(const xla_ffi::Attributes& attributes, std::string_view name) {
  const auto* scalar = static_cast<const xla_ffi::Scalar*>(attribute(attributes, name));
  return scalar == nullptr ? 0 : *static_cast<const int64_t*>(scalar->value);
}

size_t elements(const xla_ffi::Buffer& buffer) {
  size_t count = 1;
  for (int64_t i = 0; i < buffer.rank; ++i) count *= static_cast<size_t>(buffer.dims[i]);
  return count;
}

// Submits the call's operations. Only the last one's completion is asked for: they complete in
// order.
fsccl_status_t submit(Pending& pending, const xla_ffi::Call& call, Kind kind,
                      const std::vector<Type>& types) {
  const fsccl_comm_t comm = pending.rank->comm;
  const auto next = [&pending] { return &pending.works.emplace_back(nullptr); };
  fsccl_status_t status = fsccl_all_gather(&pending.mine, pending.sites.data(), sizeof(Site),
                                           FSCCL_UINT8, comm, nullptr, next());
  if (status < FSCCL_OK) return status;
  const int root = static_cast<int>(number(call.attributes, "root"));
  if (kind == kAllReduce || kind == kAllToAll) {
    for (size_t i = 0; i < types.size() && status >= FSCCL_OK; ++i) {
      const xla_ffi::Buffer& from = *call.arguments.buffers[i];
      void* to = call.results.buffers[i]->data;
      const size_t count = elements(from) * types[i].parts;
      status =
          kind == kAllReduce
              ? fsccl_all_reduce(from.data, to, count, types[i].dtype, FSCCL_SUM, comm, nullptr,
                                 next())
              : fsccl_all_to_all(from.data, to, count / static_cast<size_t>(pending.rank->ranks),
                                 types[i].dtype, comm, nullptr, next());
    }
    return status;
  }
  // Small arrays go in one exchange. A list that does not fit one goes through slots, so a large
  // array goes by itself, which is read where it lies. The counts decide, which all ranks have
  // alike.
  std::vector<fsccl_tensor_t> list;
  std::vector<size_t> large;
  for (size_t i = 0; i < types.size(); ++i) {
    const xla_ffi::Buffer& from = *call.arguments.buffers[i];
    const std::vector<size_t>& parts = pending.counts[i];
    void* const to = call.results.buffers[i]->data;
    const size_t size = fsccl_dtype_size(types[i].dtype);
    if (kind == kBroadcast && pending.rank->rank == root && to != from.data)
      std::memcpy(to, from.data, parts[0] * size);
    if (std::accumulate(parts.begin(), parts.end(), size_t{0}) * size > kLargeBytes) {
      large.push_back(i);
    } else {
      list.push_back({from.data, to, parts.data(), types[i].dtype});
    }
  }
  if (!list.empty() && kind == kAllGather)
    status = fsccl_all_gather_list(list.data(), list.size(), comm, nullptr, next());
  if (!list.empty() && kind == kReduceScatter) {
    status = fsccl_reduce_scatter_list(list.data(), list.size(), FSCCL_SUM, comm, nullptr, next());
  }
  if (!list.empty() && kind == kBroadcast)
    status = fsccl_broadcast_list(list.data(), list.size(), root, comm, nullptr, next());
  for (size_t place = 0; place < large.size() && status >= FSCCL_OK; ++place) {
    const size_t i = large[place];
    const void* const from = call.arguments.buffers[i]->data;
    void* const to = call.results.buffers[i]->data;
    const std::vector<size_t>& parts = pending.counts[i];
    const bool even = std::equal(parts.begin() + 1, parts.end(), parts.begin());
    const fsccl_dtype_t dtype = types[i].dtype;
    if (kind == kAllGather) {
      status =
          even ? fsccl_all_gather(from, to, parts[0], dtype, comm, nullptr, next())
               : fsccl_all_gather_v(from, to, parts.data(), nullptr, dtype, comm, nullptr, next());
    } else if (kind == kReduceScatter) {
      status =
          even ? fsccl_reduce_scatter(from, to, parts[0], dtype, FSCCL_SUM, comm, nullptr, next())
               : fsccl_reduce_scatter_v(from, to, parts.data(), dtype, FSCCL_SUM, comm, nullptr,
                                        next());
    } else {
      status = fsccl_broadcast(to, parts[0], dtype, root, comm, nullptr, next());
    }
  }
  return status;
}

// The types and counts of the operands; "" or what is wrong with them.
std::string operands(Pending& pending, const xla_ffi::Call& call, Kind kind,
                     std::vector<Type>& types) {
  const size_t leaves = static_cast<size_t>(call.arguments.size) - 1,
               ranks = static_cast<size_t>(pending.rank->ranks);
  const auto* counts = static_cast<const xla_ffi::Array*>(attribute(call.attributes, "counts"));
  if (counts == nullptr || counts->size != leaves * ranks ||
      call.results.size != call.arguments.size) {
    return "the call is for " +
           std::to_string(counts == nullptr ? 0 : counts->size / std::max<size_t>(leaves, 1)) +
           " ranks, and the group has " + std::to_string(ranks) +
           ": use the mesh with which it was joined";
  }
  for (size_t leaf = 0; leaf < leaves; ++leaf) {
    const xla_ffi::Buffer& from = *call.arguments.buffers[leaf];
    xla_ffi::Buffer& to = *call.results.buffers[leaf];
    Type type{};
    if (!type_of(from.dtype, type))
      return "operand " + std::to_string(leaf) + " has a type that FSCCL does not carry";
    if (!type.reduces && (kind == kReduceScatter || kind == kAllReduce)) {
      return "operand " + std::to_string(leaf) +
             " is an 8-bit float, which is gathered and broadcast, not reduced: cast it to "
             "bfloat16";
    }
    types.push_back(type);
    std::vector<size_t>& parts = pending.counts.emplace_back();
    for (size_t rank = 0; rank < ranks; ++rank) {
      parts.push_back(
          static_cast<size_t>(static_cast<const int64_t*>(counts->data)[leaf * ranks + rank]) *
          type.parts);
    }
    if (kind == kReduceScatter) {  // what an uneven part leaves of its array is zero
      const size_t size = fsccl_dtype_size(type.dtype),
                   own = parts[static_cast<size_t>(pending.rank->rank)];
      std::memset(static_cast<char*>(to.data) + own * size, 0,
                  (elements(to) * type.parts - own) * size);
    }
  }
  return "";
}

xla_ffi::Error* execute(xla_ffi::Call& call) {
  const xla_ffi::Api* api = call.api;
  xla_ffi::DeviceOrdinal device{sizeof(device), nullptr, call.context, 0};
  if (xla_ffi::Error* refused = api->device_ordinal_get(&device)) return refused;
  auto pending = std::make_unique<Pending>();
  pending->api = api;
  pending->rank = find(number(call.attributes, "group"), device.ordinal);
  if (pending->rank == nullptr) {
    return error(api, kFailedPrecondition,
                 "FSCCL: device " + std::to_string(device.ordinal) +
                     " is in no group: call fsccl_jax.join(mesh) with the mesh that the program "
                     "uses, and keep "
                     "what it returns");
  }
  Rank& rank = *pending->rank;
  const Kind kind = static_cast<Kind>(number(call.attributes, "kind"));
  const xla_ffi::Buffer& token = *call.arguments.buffers[call.arguments.size - 1];
  const float place = *static_cast<const float*>(token.data);
  if (place != static_cast<float>(rank.rank)) {
    return error(api, kInvalidArgument,
                 "FSCCL: rank " + std::to_string(rank.rank) + " has place " +
                     std::to_string(static_cast<int>(place)) +
                     " on the axis: begin with the group's token(), and use the mesh with which it "
                     "was joined");
  }
  std::vector<Type> types;
  if (const std::string wrong = operands(*pending, call, kind, types); !wrong.empty())
    return error(api, kInvalidArgument, "FSCCL: " + wrong);
  *static_cast<float*>(call.results.buffers[call.results.size - 1]->data) = place;
  const auto* site = static_cast<const xla_ffi::Span*>(attribute(call.attributes, "site"));
  const std::string name(site->data, std::min(site->size, sizeof(Site::name) - 1));
  {
    const std::lock_guard guard(rank.issue);
    if (!rank.failed.empty()) return error(api, kFailedPrecondition, rank.failed);
    std::memcpy(pending->mine.name, name.data(), name.size());
    pending->mine.call = rank.calls[name]++;
    pending->sites.resize(static_cast<size_t>(rank.ranks));
    const fsccl_status_t status = submit(*pending, call, kind, types);
    if (status < FSCCL_OK) {
      rank.failed = "FSCCL: \"" + name + "\": " + last_error(status);
      // Operations that were submitted before still use this call's memory: all ranks end them
      // before this returns.
      fsccl_comm_abort(rank.comm);
      for (const fsccl_work_t work : pending->works) {
        if (work != nullptr) fsccl_work_wait(work, -1);
      }
      return error(api, code_of(status), rank.failed);
    }
  }
  if (fsccl_work_test(pending->works.back()) == FSCCL_OK) {  // small, and everybody was there
    std::string reason;
    const int code = judge(*pending, FSCCL_OK, reason);
    return code == 0 ? nullptr : error(api, code, reason);
  }
  xla_ffi::FutureCreate args{sizeof(args), nullptr, nullptr};
  if (xla_ffi::Error* refused = api->future_create(&args)) return refused;
  call.future = pending->future = args.future;
  hand_off([handed = pending.release()] { drive(handed); });
  return nullptr;
}

}  // namespace
}  // namespace fsccl_jax

extern "C" FSCCL_API xla_ffi::Error* fsccl_jax_collective(xla_ffi::Call* call) {
  if (call->extension != nullptr && call->extension->type == fsccl_jax::kMetadata) {
    xla_ffi::Metadata& metadata =
        *reinterpret_cast<xla_ffi::MetadataExtension*>(call->extension)->metadata;
    metadata.version.major = xla_ffi::kMajor;
    metadata.version.minor = xla_ffi::kMinor;
    metadata.traits = 0;
    metadata.state_type = 0;
    return nullptr;
  }
  return call->stage == fsccl_jax::kExecute ? fsccl_jax::execute(*call) : nullptr;
}
