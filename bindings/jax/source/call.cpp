#include "call.h"

#include <algorithm>
#include <numeric>
#include <string_view>

#include "fsccl/insight.h"
#include "sites.h"
#include "xla/results.h"

namespace fsccl_jax {
namespace {

constexpr size_t kLargeBytes = 256 << 10;
constexpr int kDeadline = 4, kInternal = 13, kUnavailable = 14;

struct Type {
  int xla;  // its number in XLA
  fsccl_dtype_t dtype;
  size_t parts;  // a complex number is two
};
constexpr Type kTypes[] = {
    {1, FSCCL_BOOL, 1},         {2, FSCCL_INT8, 1},         {3, FSCCL_INT16, 1},
    {4, FSCCL_INT32, 1},        {5, FSCCL_INT64, 1},        {6, FSCCL_UINT8, 1},
    {7, FSCCL_UINT16, 1},       {8, FSCCL_UINT32, 1},       {9, FSCCL_UINT64, 1},
    {10, FSCCL_FLOAT16, 1},     {11, FSCCL_FLOAT32, 1},     {12, FSCCL_FLOAT64, 1},
    {15, FSCCL_FLOAT32, 2},     {16, FSCCL_BFLOAT16, 1},    {18, FSCCL_FLOAT64, 2},
    {19, FSCCL_FLOAT8_E5M2, 1}, {20, FSCCL_FLOAT8_E4M3, 1},
};

bool is_8_bit_float(fsccl_dtype_t dtype) {
  return dtype == FSCCL_FLOAT8_E5M2 || dtype == FSCCL_FLOAT8_E4M3;
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

// The arrays of the call; "" or what is wrong with them.
std::string read_arrays(const xla_ffi::Call& call, Request& request) {
  const size_t leaves = static_cast<size_t>(call.results.size) - 1,
               ranks = static_cast<size_t>(request.rank->ranks);
  const auto* counts = static_cast<const xla_ffi::Array*>(attribute(call.attributes, "counts"));
  if (counts == nullptr || counts->size != leaves * ranks ||
      call.arguments.size != call.results.size + 1) {
    return "the call is for " +
           std::to_string(counts == nullptr ? 0 : counts->size / std::max<size_t>(leaves, 1)) +
           " ranks, and the group has " + std::to_string(ranks) +
           ": use the mesh with which it was joined";
  }
  for (size_t leaf = 0; leaf < leaves; ++leaf) {
    const xla_ffi::Buffer& from = *call.arguments.buffers[leaf];
    const auto* const type = std::find_if(std::begin(kTypes), std::end(kTypes),
                                          [&](const Type& one) { return one.xla == from.dtype; });
    if (type == std::end(kTypes))
      return "operand " + std::to_string(leaf) + " has a type that FSCCL does not carry";
    if (is_8_bit_float(type->dtype) &&
        (request.kind == kReduceScatter || request.kind == kAllReduce)) {
      return "operand " + std::to_string(leaf) +
             " is an 8-bit float, which is gathered and broadcast, not reduced: cast it to "
             "bfloat16";
    }
    Array& array = request.arrays.emplace_back(Array{from.data,
                                                     call.results.buffers[leaf]->data,
                                                     type->dtype,
                                                     elements(from) * type->parts,
                                                     {}});
    const auto* const own = static_cast<const int64_t*>(counts->data) + leaf * ranks;
    for (size_t rank = 0; rank < ranks; ++rank)
      array.parts.push_back(static_cast<size_t>(own[rank]) * type->parts);
  }
  return "";
}

class Submission {
 public:
  Submission(const Request& request, void* stream, std::vector<fsccl_work_t>* works)
      : request_(request), comm_(request.rank->comm), stream_(stream), works_(works) {}

  fsccl_status_t run() {
    std::vector<fsccl_tensor_t> list;
    std::vector<const Array*> alone;
    for (const Array& array : request_.arrays) {
      if (goes_in_list(array))
        list.push_back({array.from, array.to, array.parts.data(), array.dtype});
      else
        alone.push_back(&array);
    }
    // The root of a broadcast waits for nobody, and would not see that others are elsewhere.
    fsccl_status_t status = request_.kind == kBroadcast && works_ != nullptr
                                ? fsccl_barrier(comm_, stream_, next())
                                : FSCCL_OK;
    if (!list.empty() && status >= FSCCL_OK) status = submit_list(list);
    for (size_t i = 0; i < alone.size() && status >= FSCCL_OK; ++i) {
      if (works_ != nullptr) prepare(*alone[i]);
      status = submit_one(*alone[i]);
    }
    return status;
  }

 private:
  // Small arrays go in one exchange. A list that does not fit one goes through slots, so a large
  // array goes by itself, which is read where it lies. The counts decide, which all ranks have
  // alike.
  bool goes_in_list(const Array& array) const {
    if (request_.kind == kAllReduce || request_.kind == kAllToAll) return false;
    return std::accumulate(array.parts.begin(), array.parts.end(), size_t{0}) *
               fsccl_dtype_size(array.dtype) <=
           kLargeBytes;
  }

  fsccl_work_t* next() { return works_ == nullptr ? nullptr : &works_->emplace_back(nullptr); }

  fsccl_status_t submit_list(const std::vector<fsccl_tensor_t>& list) {
    if (request_.kind == kAllGather)
      return fsccl_all_gather_list(list.data(), list.size(), comm_, stream_, next());
    if (request_.kind == kReduceScatter)
      return fsccl_reduce_scatter_list(list.data(), list.size(), FSCCL_SUM, comm_, stream_, next());
    return fsccl_broadcast_list(list.data(), list.size(), request_.root, comm_, stream_, next());
  }

  // The result of a call on processors.
  void prepare(const Array& array) const {
    const size_t whole = std::accumulate(array.parts.begin(), array.parts.end(), size_t{0});
    const size_t count = request_.kind == kAllGather ? whole
                         : request_.kind == kReduceScatter
                             ? array.parts[static_cast<size_t>(request_.rank->rank)]
                             : array.count;
    fsccl_xla::prepare_result(array.to, count * fsccl_dtype_size(array.dtype));
  }

  fsccl_status_t submit_one(const Array& array) {
    const auto& [from, to, dtype, count, parts] = array;
    const bool even = std::equal(parts.begin() + 1, parts.end(), parts.begin());
    switch (request_.kind) {
      case kAllReduce:
        return fsccl_all_reduce(from, to, count, dtype, FSCCL_SUM, comm_, stream_, next());
      case kAllToAll:
        return fsccl_all_to_all(from, to, parts[0], dtype, comm_, stream_, next());
      case kBroadcast:
        return fsccl_broadcast(to, parts[0], dtype, request_.root, comm_, stream_, next());
      case kAllGather:
        return even ? fsccl_all_gather(from, to, parts[0], dtype, comm_, stream_, next())
                    : fsccl_all_gather_v(from, to, parts.data(), nullptr, dtype, comm_, stream_,
                                         next());
      default:
        return even ? fsccl_reduce_scatter(from, to, parts[0], dtype, FSCCL_SUM, comm_, stream_,
                                           next())
                    : fsccl_reduce_scatter_v(from, to, parts.data(), dtype, FSCCL_SUM, comm_,
                                             stream_, next());
    }
  }

  const Request& request_;
  const fsccl_comm_t comm_;
  void* const stream_;
  std::vector<fsccl_work_t>* const works_;
};

}  // namespace

bool tells_version(const xla_ffi::Call& call) {
  if (call.extension == nullptr || call.extension->type != kMetadata) return false;
  xla_ffi::Metadata& metadata =
      *reinterpret_cast<xla_ffi::MetadataExtension*>(call.extension)->metadata;
  metadata.version.major = xla_ffi::kMajor;
  metadata.version.minor = xla_ffi::kMinor;
  metadata.traits = 0;
  metadata.state_type = 0;
  return true;
}

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

xla_ffi::Error* read(const xla_ffi::Call& call, Request& request) {
  const xla_ffi::Api* api = call.api;
  xla_ffi::DeviceOrdinal device{sizeof(device), nullptr, call.context, 0};
  if (xla_ffi::Error* refused = api->device_ordinal_get(&device)) return refused;
  request.group = number(call.attributes, "group");
  request.rank = find(request.group, device.ordinal);
  if (request.rank == nullptr) {
    return error(api, kFailedPrecondition,
                 "FSCCL: device " + std::to_string(device.ordinal) +
                     " is in no group: call fsccl_jax.join(mesh) with the mesh that the program "
                     "uses, and keep what it returns");
  }
  request.kind = static_cast<Kind>(number(call.attributes, "kind"));
  request.root = static_cast<int>(number(call.attributes, "root"));
  const auto* site = static_cast<const xla_ffi::Span*>(attribute(call.attributes, "site"));
  request.site = std::string(site->data, site->size);
  const xla_ffi::Buffer* const* const last = call.arguments.buffers + call.arguments.size;
  request.place = static_cast<const uint32_t*>(last[-2]->data);
  request.token = static_cast<float*>(last[-1]->data);
  if (const std::string wrong = read_arrays(call, request); !wrong.empty())
    return error(api, kInvalidArgument, "FSCCL: " + wrong);
  return nullptr;
}

fsccl_status_t submit(const Request& request, uint64_t call, void* stream,
                      std::vector<fsccl_work_t>* works) {
  const fsccl_status_t status = fsccl_comm_set_site(request.rank->comm, call);
  return status < FSCCL_OK ? status : Submission(request, stream, works).run();
}

std::string reason_of(const Request& request, fsccl_status_t status) {
  return "FSCCL: \"" + request.site + "\": " + with_names(last_error(status));
}

}  // namespace fsccl_jax
