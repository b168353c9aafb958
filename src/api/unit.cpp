// fsccl_unit_*.
#include <cstring>

#include "api/objects.h"
#include "api/unit_codecs.h"
#include "comm/together.h"
#include "fsccl/insight.h"
#include "unit/device/parameter_units.h"
#include "unit/host/host_unit.h"

using namespace fsccl;

namespace {

bool unit_float(fsccl_dtype_t dtype) { return dtype_valid(dtype) && dtype_float(dtype); }

Status read_param(const fsccl_param_t& given, size_t index, const fsccl_unit_config_t& config,
                  UnitSpec::Param* param) {
  param->name = given.name ? given.name : fmt::format("{}", index);
  auto wrong = [&](std::string what) {
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "parameter {} ('{}'): {}", index, param->name, what);
  };
  if (given.dims < 0 || given.dims > FSCCL_MAX_DIMS)
    return wrong(fmt::format("dims is {}, it is 0 .. {}", given.dims, FSCCL_MAX_DIMS));
  if (!dtype_valid(given.dtype))
    return wrong(fmt::format("dtype {} is not a fsccl_dtype_t", static_cast<int>(given.dtype)));
  if (given.flags & ~FSCCL_PARAM_FROZEN)
    return wrong(fmt::format("flags {:#x} has unknown bits", given.flags));
  param->dims.assign(given.shape, given.shape + given.dims);
  param->dtype = given.dtype;
  param->frozen = given.flags & FSCCL_PARAM_FROZEN;
  param->tied_to = given.tied_to;
  param->shard = given.shard;
  param->sharded_grad = given.sharded_grad;
  param->block_rows = given.block_rows;
  param->block_columns = given.block_columns;
  if (unit_float(given.dtype)) return success();
  if (given.dtype != config.wire_dtype || !param->frozen)
    return wrong(
        fmt::format("{} travels only as it is and without gradient: mark it FSCCL_PARAM_FROZEN and "
                    "put it in a unit with wire_dtype {}",
                    dtype_name(given.dtype), dtype_name(given.dtype)));
  return success();
}

// The objects that a unit is made on, which stay alive while the unit is being made.
struct UnitBase {
  Ref<Communicator> shard_comm, replicate_comm;
  Ref<Pool> pool;
};

Status read_handles(const fsccl_unit_config_t& config, UnitSpec* spec, UnitBase* base) {
  FSCCL_ASSIGN(base->shard_comm, comm_of(config.shard_comm));
  FSCCL_ASSIGN(base->pool, pool_of(config.pool));
  spec->shard_comm = base->shard_comm.get();
  spec->pool = base->pool.get();
  Communicator& pool_comm = spec->pool->comm();
  const bool on_host = spec->pool->memory() == FSCCL_MEMORY_HOST;
  if (config.replicate_comm) {
    FSCCL_ASSIGN(base->replicate_comm, comm_of(config.replicate_comm));
    spec->replicate_comm = base->replicate_comm.get();
    if (spec->pool->dry_run())
      return fail(
          FSCCL_ERR_INVALID_ARGUMENT,
          "a pool with dry_run takes units without a replicate_comm: rehearse one shard_comm");
  }
  for (int rank = 0; spec->replicate_comm && rank < spec->shard_comm->size(); rank++)
    if (rank != spec->shard_comm->rank() &&
        &spec->replicate_comm->context() == &spec->shard_comm->context() &&
        spec->replicate_comm->rank_of(spec->shard_comm->job_rank(rank)) >= 0)
      return fail(FSCCL_ERR_INVALID_ARGUMENT,
                  "rank {} of shard_comm is in replicate_comm, too: the two share this rank alone "
                  "(split by shard, and by replica)",
                  rank);
  for (int rank = 0; rank < spec->shard_comm->size(); rank++) {
    if (on_host && !spec->shard_comm->is_here(rank)) continue;  // its host has a pool of its own
    if (&pool_comm.context() != &spec->shard_comm->context() ||
        pool_comm.rank_of(spec->shard_comm->job_rank(rank)) < 0)
      return fail(FSCCL_ERR_INVALID_ARGUMENT,
                  "the pool was made on a communicator without rank {} of shard_comm: make it on "
                  "shard_comm or on its parent",
                  rank);
  }
  return success();
}

Status read_spec(const fsccl_unit_config_t* given, const fsccl_param_t* params, size_t count,
                 UnitSpec* spec, UnitBase* base) {
  if (!given)
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "config is NULL: a unit needs at least shard_comm and pool");
  fsccl_unit_config_t config;
  fsccl_unit_config_t defaults = FSCCL_UNIT_CONFIG_INIT;
  defaults.param_size = 0;  // a caller without the field has the struct of release 0.1
  FSCCL_TRY(read_config(given, defaults, &config));
  if (count && !params)
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "params is NULL though count is {}", count);
  if (count == 0 || count > 1u << 20)
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "a unit has 1 .. {} parameters, not {}", 1u << 20,
                count);
  FSCCL_TRY(read_handles(config, spec, base));
  if (config.sharing < FSCCL_SHARING_READ_ONLY || config.sharing > FSCCL_SHARING_COPY_ON_WRITE)
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "sharing {} is not a fsccl_sharing_t",
                static_cast<int>(config.sharing));
  if (config.keep < FSCCL_KEEP_NONE || config.keep > FSCCL_KEEP_BUDGET)
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "keep {} is not a fsccl_keep_t",
                static_cast<int>(config.keep));
  if (!dtype_valid(config.wire_dtype))
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "wire_dtype {} is not a fsccl_dtype_t",
                static_cast<int>(config.wire_dtype));
  if (!unit_float(config.reduce_dtype) || !unit_float(config.grad_dtype) ||
      !reduce_supported(config.reduce_dtype, config.grad_dtype, FSCCL_OP_SUM))
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "gradients of reduce_dtype {} cannot be reduced to grad_dtype {}: both are one of "
                "float16, bfloat16, float32, float64",
                dtype_name(config.reduce_dtype), dtype_name(config.grad_dtype));
  FSCCL_TRY(read_codecs(config, spec));
  spec->name = config.name ? config.name : "unit";
  spec->layout = config.layout;
  spec->wire_dtype = config.wire_dtype;
  spec->reduce_dtype = config.reduce_dtype;
  spec->grad_dtype = config.grad_dtype;
  spec->sharing = config.sharing;
  spec->keep = config.keep;
  spec->keep_budget_bytes = config.keep_budget_bytes;
  spec->marks_changes = config.marks_changes != 0;
  spec->by_parameter = config.by_parameter != 0;
  if (spec->by_parameter && (spec->keep != FSCCL_KEEP_NONE || spec->replicate_comm))
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "by_parameter = 1 goes with FSCCL_KEEP_NONE and without a replicate_comm");
  FSCCL_ASSIGN(const auto given_params,
               Elements<fsccl_param_t>::make(params, config.param_size, kParamSize,
                                             FSCCL_PARAM_INIT, "param_size"));
  spec->params.resize(count);
  for (size_t i = 0; i < count; i++)
    FSCCL_TRY(read_param(given_params[i], i, config, &spec->params[i]));
  for (size_t i = 0; i < count; i++)
    if (unit_float(spec->params[i].dtype) && !unit_float(config.wire_dtype))
      return fail(FSCCL_ERR_INVALID_ARGUMENT, "parameter {} ('{}') of {} cannot travel as {}", i,
                  spec->params[i].name, dtype_name(spec->params[i].dtype),
                  dtype_name(config.wire_dtype));
  return success();
}

Result<std::unique_ptr<Unit>> make_unit(UnitSpec spec) {
  Pool& pool = *spec.pool;
  if (pool.memory() == FSCCL_MEMORY_HOST) {
    FSCCL_ASSIGN(std::unique_ptr<Unit> unit,
                 HostUnit::create(std::move(spec), static_cast<HostPool&>(pool)));
    return unit;
  }
  auto& device_pool = static_cast<DevicePool&>(pool);
  if (spec.by_parameter) {
    FSCCL_ASSIGN(std::unique_ptr<Unit> unit, ParameterUnits::create(std::move(spec), device_pool));
    return unit;
  }
  FSCCL_ASSIGN(std::unique_ptr<Unit> unit, DeviceUnit::create(std::move(spec), device_pool));
  return unit;
}

// Sets *work, if wanted, to the operation that a unit submitted on one of its communicators.
void give_work(const Submitted& submitted, fsccl_work_t* work) {
  if (work && submitted.engine)
    *work = make_work(comm_of_engine(*submitted.engine), submitted.sequence);
}

}  // namespace

extern "C" {

fsccl_status_t fsccl_unit_create(const fsccl_unit_config_t* config, const fsccl_param_t* params,
                                 size_t count, fsccl_unit_t* unit) {
  return guarded("fsccl_unit_create", [&]() -> Status {
    if (!unit) return fail(FSCCL_ERR_INVALID_ARGUMENT, "unit is NULL");
    UnitSpec spec;
    UnitBase base;
    FSCCL_TRY(read_spec(config, params, count, &spec, &base));
    const Together together(*spec.shard_comm, spec.replicate_comm);
    FSCCL_ASSIGN(std::unique_ptr<Unit> made, make_unit(std::move(spec)));
    FSCCL_ASSIGN(const uint64_t bits, units.add(std::move(made)));
    *unit = reinterpret_cast<fsccl_unit_t>(bits);
    return success();
  });
}

fsccl_status_t fsccl_unit_destroy(fsccl_unit_t handle) {
  return guarded("fsccl_unit_destroy", [&]() -> Status {
    Deadline deadline = Deadline::never();
    {
      FSCCL_ASSIGN(const Ref<Unit> unit, unit_of(handle));
      FSCCL_TRY(unit->check_idle());
      deadline = unit->spec().shard_comm->deadline();
      FSCCL_TRY(unit->check_zones());
    }
    const auto may_end = [](Unit& unit) { return unit.check_idle(); };
    return units.end(bits_of(handle), deadline, may_end).take_status();
  });
}

fsccl_status_t fsccl_unit_unshard(fsccl_unit_t handle, fsccl_unshard_mode_t mode, void* stream,
                                  fsccl_work_t* work) {
  return guarded("fsccl_unit_unshard", [&]() -> Result<fsccl_status_t> {
    if (mode != FSCCL_UNSHARD_READ && mode != FSCCL_UNSHARD_WRITABLE)
      return fail(FSCCL_ERR_INVALID_ARGUMENT, "mode {} is not a fsccl_unshard_mode_t",
                  static_cast<int>(mode));
    fsccl_status_t state = FSCCL_OK;
    Submitted submitted;
    FSCCL_ASSIGN(const Ref<Unit> unit, unit_of(handle));
    FSCCL_TRY(
        unit->unshard(mode == FSCCL_UNSHARD_WRITABLE, stream, work == nullptr, &state, &submitted));
    give_work(submitted, work);
    return state;
  });
}

fsccl_status_t fsccl_unit_codec(fsccl_unit_t handle, fsccl_codec_report_t* report) {
  return guarded("fsccl_unit_codec", [&]() -> Status {
    FSCCL_TRY(check_output(report, "report", "FSCCL_CODEC_REPORT_INIT"));
    FSCCL_ASSIGN(const Ref<Unit> unit, unit_of(handle));
    fsccl_codec_report_t made = FSCCL_CODEC_REPORT_INIT;
    FSCCL_TRY(unit->codec_report(&made));
    fill_output(report, made);
    return success();
  });
}

fsccl_status_t fsccl_unit_reshard(fsccl_unit_t handle, void* stream) {
  return guarded("fsccl_unit_reshard", [&]() -> Status {
    FSCCL_ASSIGN(const Ref<Unit> unit, unit_of(handle));
    return unit->reshard(stream);
  });
}

fsccl_status_t fsccl_unit_release(fsccl_unit_t handle, size_t index, void* stream) {
  return guarded("fsccl_unit_release", [&]() -> Status {
    FSCCL_ASSIGN(const Ref<Unit> unit, unit_of(handle));
    return unit->release(index, stream);
  });
}

fsccl_status_t fsccl_unit_set_shards(fsccl_unit_t handle, void* const* shards) {
  return guarded("fsccl_unit_set_shards", [&]() -> Status {
    if (!shards)
      return fail(FSCCL_ERR_INVALID_ARGUMENT, "shards is NULL: it has one pointer per parameter");
    FSCCL_ASSIGN(const Ref<Unit> unit, unit_of(handle));
    return unit->set_shards(shards);
  });
}

fsccl_status_t fsccl_unit_mark_changed(fsccl_unit_t handle) {
  return guarded("fsccl_unit_mark_changed", [&]() -> Status {
    FSCCL_ASSIGN(const Ref<Unit> unit, unit_of(handle));
    unit->mark_changed();
    return success();
  });
}

fsccl_status_t fsccl_unit_param(fsccl_unit_t handle, size_t index, fsccl_view_t* view) {
  return guarded("fsccl_unit_param", [&]() -> Status {
    if (!view) return fail(FSCCL_ERR_INVALID_ARGUMENT, "view is NULL");
    FSCCL_ASSIGN(const Ref<Unit> unit, unit_of(handle));
    return unit->param(index, view);
  });
}

fsccl_status_t fsccl_unit_shard(fsccl_unit_t handle, size_t index, fsccl_view_t* view) {
  return guarded("fsccl_unit_shard", [&]() -> Status {
    if (!view) return fail(FSCCL_ERR_INVALID_ARGUMENT, "view is NULL");
    FSCCL_ASSIGN(const Ref<Unit> unit, unit_of(handle));
    return unit->shard(index, view);
  });
}

fsccl_status_t fsccl_unit_grad(fsccl_unit_t handle, size_t index, void* stream,
                               fsccl_view_t* view) {
  return guarded("fsccl_unit_grad", [&]() -> Status {
    if (!view) return fail(FSCCL_ERR_INVALID_ARGUMENT, "view is NULL");
    FSCCL_ASSIGN(const Ref<Unit> unit, unit_of(handle));
    return unit->grad(index, stream, view);
  });
}

fsccl_status_t fsccl_unit_sharded_grad(fsccl_unit_t handle, size_t index, fsccl_view_t* view) {
  return guarded("fsccl_unit_sharded_grad", [&]() -> Status {
    if (!view) return fail(FSCCL_ERR_INVALID_ARGUMENT, "view is NULL");
    FSCCL_ASSIGN(const Ref<Unit> unit, unit_of(handle));
    return unit->sharded_grad(index, view);
  });
}

fsccl_status_t fsccl_unit_reduce_grads(fsccl_unit_t handle, const fsccl_reduce_config_t* given,
                                       void* stream, fsccl_work_t* work) {
  return guarded("fsccl_unit_reduce_grads", [&]() -> Result<fsccl_status_t> {
    fsccl_reduce_config_t config;
    FSCCL_TRY(read_config(given, fsccl_reduce_config_t FSCCL_REDUCE_CONFIG_INIT, &config));
    ReduceRequest request;
    request.first = config.first;
    request.count = config.count;
    request.scale = config.scale;
    request.accumulate = config.accumulate != 0;
    request.defer_replicas = config.defer_replicas != 0;
    request.grads = config.grads;
    request.sharded_grads = config.sharded_grads;
    request.result = config.result;
    request.shard_ready = config.shard_ready;
    request.shard_ready_context = config.shard_ready_context;
    request.handle = handle;
    fsccl_status_t state = FSCCL_OK;
    Submitted submitted;
    FSCCL_ASSIGN(const Ref<Unit> unit, unit_of(handle));
    FSCCL_TRY(unit->reduce_grads(request, stream, work == nullptr, &state, &submitted));
    give_work(submitted, work);
    return state;
  });
}

fsccl_status_t fsccl_unit_broadcast_state(fsccl_unit_t handle, int root, void* stream,
                                          fsccl_work_t* work) {
  return guarded("fsccl_unit_broadcast_state", [&]() -> Result<fsccl_status_t> {
    fsccl_status_t state = FSCCL_OK;
    Submitted submitted;
    FSCCL_ASSIGN(const Ref<Unit> unit, unit_of(handle));
    FSCCL_TRY(unit->broadcast_state(root, stream, work == nullptr, &state, &submitted));
    give_work(submitted, work);
    return state;
  });
}

fsccl_status_t fsccl_unit_verify_replicas(fsccl_unit_t handle) {
  return guarded("fsccl_unit_verify_replicas", [&]() -> Status {
    FSCCL_ASSIGN(const Ref<Unit> unit, unit_of(handle));
    const Together together(*unit->spec().shard_comm, unit->spec().replicate_comm);
    return unit->verify_replicas();
  });
}

}  // extern "C"
