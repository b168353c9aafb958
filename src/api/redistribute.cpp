// fsccl_redistribute.
#include "redistribute/redistribute.h"
#include "api/objects.h"
#include "comm/together.h"
#include "cuda/pointer.h"
#include "fsccl/redistribute.h"

using namespace fsccl;

namespace {

constexpr size_t kMostBuffers = size_t{1} << 24;

Result<RedistributionRequest> read_request(const fsccl_redistribute_config_t* given,
                                           const fsccl_redistributed_t* buffers, size_t count) {
  if (!given)
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "config is NULL: it says what is dealt out, and how");
  fsccl_redistribute_config_t config;
  fsccl_redistribute_config_t defaults = FSCCL_REDISTRIBUTE_CONFIG_INIT;
  defaults.param_size = defaults.buffer_size = 0;  // as a caller without these fields has them
  FSCCL_TRY(read_config(given, defaults, &config));
  if (!config.params || config.count == 0 || config.count > 1u << 20)
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "1 .. {} parameters at params, not {} at {}", 1u << 20,
                config.count, static_cast<const void*>(config.params));
  if ((count && !buffers) || count > kMostBuffers)
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "0 .. {} buffers, not {} at {}", kMostBuffers, count,
                static_cast<const void*>(buffers));
  FSCCL_ASSIGN(const auto params,
               Elements<fsccl_param_t>::make(config.params, config.param_size, kParamSize,
                                             FSCCL_PARAM_INIT, "param_size"));
  FSCCL_ASSIGN(const auto pieces,
               Elements<fsccl_redistributed_t>::make(buffers, config.buffer_size,
                                                     kRedistributedSize, {}, "buffer_size"));
  RedistributionRequest request;
  request.from = config.from;
  request.to = config.to;
  request.version = config.version;
  request.limit_bytes = config.limit_bytes;
  for (size_t i = 0; i < config.count; i++) {
    const fsccl_param_t param = params[i];
    if (param.dims < 0 || param.dims > FSCCL_MAX_DIMS)
      return fail(FSCCL_ERR_INVALID_ARGUMENT, "parameter {}: dims is {}, it is 0 .. {}", i,
                  param.dims, FSCCL_MAX_DIMS);
    request.params.push_back({{param.shape, param.shape + param.dims},
                              param.tied_to,
                              param.block_rows,
                              param.block_columns});
    request.names.emplace_back(param.name ? param.name : "");
  }
  for (size_t k = 0; k < count; k++) {
    int device = 0;
    const fsccl_redistributed_t piece = pieces[k];
    if (cuda::on_device(piece.from, &device) || cuda::on_device(piece.to, &device))
      return fail(FSCCL_ERR_NOT_AVAILABLE,
                  "buffer {} is memory of GPU {}: in this release what is dealt out anew lies in "
                  "host memory; copy it there",
                  k, device);
    request.buffers.push_back(piece);
  }
  return request;
}

}  // namespace

extern "C" {

fsccl_status_t fsccl_redistribute(const fsccl_redistribute_config_t* config,
                                  const fsccl_redistributed_t* buffers, size_t count,
                                  fsccl_comm_t handle, uint64_t* version) {
  return guarded("fsccl_redistribute", [&]() -> Status {
    FSCCL_ASSIGN(const Ref<Communicator> comm, comm_of(handle));
    const Together together(*comm);
    FSCCL_ASSIGN(const uint64_t dealt, redistribute(*comm, read_request(config, buffers, count)));
    if (version) *version = dealt;
    return success();
  });
}

}  // extern "C"
