#include "unit/device/parameter_units.h"

#include <algorithm>
#include <array>

#include "comm/chain.h"
#include "cuda/pointer.h"
#include "fsccl/insight.h"
#include "unit/codec_metrics.h"

namespace fsccl {

Result<std::unique_ptr<ParameterUnits>> ParameterUnits::create(UnitSpec spec, DevicePool& pool) {
  std::unique_ptr<ParameterUnits> made(new ParameterUnits(std::move(spec)));
  FSCCL_ASSIGN(made->definition_, UnitDefinition::make(made->spec_));
  for (size_t i = 0; i < made->count(); i++) {
    std::unique_ptr<DeviceUnit>& unit = made->units_.emplace_back();
    if (made->layout().tied(i)) continue;
    UnitSpec one = made->spec_;
    one.name = fmt::format("{}.{}", one.name, made->spec_.params[i].name);
    one.params = {made->spec_.params[i]};
    one.by_parameter = false;
    one.layout_of = &made->layout();
    one.parameter = i;
    FSCCL_ASSIGN(unit, DeviceUnit::create(std::move(one), pool));
  }
  made->note_places();
  return made;
}

// Notes where shards and gradients are for the base class, which reports the places to callers.
void ParameterUnits::note_places() {
  shards_.places.assign(count(), nullptr);
  sharded_grads_.places.assign(count(), nullptr);
  for (size_t i = 0; i < count(); i++) {
    fsccl_view_t view{};
    if (unit(i).shard(0, &view).ok()) shards_.places[i] = static_cast<std::byte*>(view.data);
    if (has_grad(i) && unit(i).sharded_grad(0, &view).ok())
      sharded_grads_.places[i] = static_cast<std::byte*>(view.data);
  }
}

// Adds up the reports of the units. A gather of all of them counts as one, but each gradient's
// reduction counts, as in a unit on host memory.
Status ParameterUnits::codec_report(fsccl_codec_report_t* report) const {
  if (spec_.gather_codec.kind == FSCCL_CODEC_NONE && spec_.reduce_codec.kind == FSCCL_CODEC_NONE)
    return Unit::codec_report(report);
  *report = fsccl_codec_report_t FSCCL_CODEC_REPORT_INIT;
  DeviceUnit::SharedBytes shared;
  for (const std::unique_ptr<DeviceUnit>& unit : units_) {
    if (!unit) continue;
    fsccl_codec_report_t one = FSCCL_CODEC_REPORT_INIT;
    FSCCL_TRY(unit->codec_report(&one));
    const DeviceUnit::SharedBytes with_others = unit->shared_codec_bytes();
    shared.gathers = std::max(shared.gathers, with_others.gathers);
    shared.reductions = std::max(shared.reductions, with_others.reductions);
    add_counts(report, one);
    report->gathers = report->coded = std::max(report->gathers, one.gathers);
    // A unit that is made meanwhile may have enlarged the shared bytes after the report.
    report->state_bytes += one.state_bytes - std::min(one.state_bytes, with_others.gathers);
    report->reduce_state_bytes +=
        one.reduce_state_bytes - std::min(one.reduce_state_bytes, with_others.reductions);
    report->bound = std::max(report->bound, one.bound);
  }
  report->state_bytes += shared.gathers;
  report->reduce_state_bytes += shared.reductions;
  report->gather_codec = spec_.gather_codec.name();
  report->reduce_codec = spec_.reduce_codec.name();
  return success();
}

// A call for one parameter also tells of codes of others that could not be decoded.
Status ParameterUnits::begin_call(void* stream) {
  for (const std::unique_ptr<DeviceUnit>& unit : units_)
    if (unit) unit->look();
  // All units have the same pool and check the same things of the stream. They check it again in
  // their own calls.
  for (const std::unique_ptr<DeviceUnit>& unit : units_)
    if (unit) {
      FSCCL_TRY(unit->begin_call(stream));
      break;
    }
  stream_ = stream;
  return success();
}

// Runs operate() for each of the units. After the first unit the other ranks count on this one. So
// an error fails the communicator, unless it is that of a slot that all ranks are refused.
Status ParameterUnits::run_each(std::span<const size_t> units,
                                FunctionRef<Status(size_t)> operate) const {
  Status refused;
  Chain chain;
  Status ran = chain.run(std::array{&engine()}, [&]() -> Status {
    for (const size_t i : units) {
      Status status = operate(i);
      if (status.ok() || units_[i]->step() == DeviceUnit::Step::begun) chain.begin();
      if (status.ok()) continue;
      if (units_[i]->step() != DeviceUnit::Step::refused) return status;
      refused = std::move(status);
      break;
    }
    return success();
  });
  FSCCL_TRY(std::move(ran));
  return refused;
}

// Gathers all parameters. If a slot is refused, all ranks give back the slots of the parameters
// that were gathered before.
Status ParameterUnits::gather(bool writable, bool wait, fsccl_status_t* state,
                              Submitted* submitted) {
  std::vector<size_t> untied;
  for (size_t i = 0; i < count(); i++)
    if (units_[i]) untied.push_back(i);
  for (const size_t i : untied) {
    if (changed_) units_[i]->mark_changed();
    FSCCL_TRY(units_[i]->prepare_gather());
  }
  size_t gathered = 0;
  Status status = run_each(untied, [&](size_t i) -> Status {
    FSCCL_TRY(units_[i]->unshard(writable, stream_, wait, state, submitted));
    gathered++;
    return success();
  });
  if (!status.ok()) {
    for (size_t k = 0; k < gathered; k++) (void)units_[untied[k]]->reshard(stream_).ok();
    return status;
  }
  unsharded_ = true;
  changed_ = false;
  *state = FSCCL_OK;
  return success();
}

Status ParameterUnits::give_back_params() {
  unsharded_ = false;
  Status first;
  for (const std::unique_ptr<DeviceUnit>& unit : units_) {
    if (!unit || !unit->unsharded()) continue;
    if (Status status = unit->reshard(stream_); first.ok()) first = std::move(status);
  }
  return first;
}

Status ParameterUnits::give_back_param(size_t index) {
  return unit(index).unsharded() ? unit(index).reshard(stream_) : was_released(index);
}

// Each slot by parameter begins with its parameter.
Result<std::byte*> ParameterUnits::param_slot(size_t index) {
  if (!unit(index).unsharded()) return was_released(index);
  fsccl_view_t view{};
  FSCCL_TRY(unit(index).param(0, &view));
  return static_cast<std::byte*>(view.data);
}

Result<std::byte*> ParameterUnits::grad_slot(size_t index, void* stream) {
  fsccl_view_t view{};
  FSCCL_TRY(unit(index).grad(0, stream, &view));
  return static_cast<std::byte*>(view.data);
}

bool ParameterUnits::holds_grad(size_t index) const { return unit_of(index).gradient_slot().held; }

// Returns the request to reduce the gradient of one parameter alone.
ReduceRequest ParameterUnits::request_of(size_t index, const ReduceRequest& request) {
  ReduceRequest one = request;
  one.first = one.count = 0;
  one.grads = request.grads ? request.grads + index : nullptr;
  one.sharded_grads = request.sharded_grads ? request.sharded_grads + index : nullptr;
  return one;
}

// Reduces one parameter's gradient. Its result, if one is wanted, goes to request.result.
Status ParameterUnits::sum_grad(size_t index, const ReduceRequest& request, bool wait,
                                fsccl_status_t* state, Submitted* submitted) {
  struct Ready {
    const ReduceRequest* request;
    size_t index;
  } ready{&request, index};
  ReduceRequest one = request_of(index, request);
  one.shard_ready_context = &ready;
  if (request.shard_ready)
    one.shard_ready = [](void* context, fsccl_unit_t handle, size_t) {
      const auto& [of, parameter] = *static_cast<const Ready*>(context);
      of->shard_ready(of->shard_ready_context, handle, parameter);
    };
  return unit(index).reduce_grads(one, stream_, wait, state, submitted);
}

// Reduces several gradients. The host adds their sums of squares, in the order of the parameters.
Status ParameterUnits::sum_grads(const ReduceRequest& request, bool wait, fsccl_status_t* state,
                                 Submitted* submitted) {
  FSCCL_TRY(want(request));
  FSCCL_TRY(check_grads(request));
  int ordinal = -1;
  if (request.result && wanted_.size() != 1 && cuda::on_device(request.result, &ordinal))
    return fail(
        FSCCL_ERR_NOT_AVAILABLE,
        "unit '{}' has a slot for each parameter: the result of a reduction of {} gradients "
        "goes to host memory; reduce one at a time for results in memory of the GPU",
        spec_.name, wanted_.size());
  fsccl_reduce_result_t whole{0, 1}, part{0, 1};
  ReduceRequest one = request;
  const bool summed = request.result && wanted_.size() != 1;
  if (summed) one.result = &part;
  for (const size_t i : wanted_)
    if (Status ready = unit(i).prepare_reduce(request_of(i, one)); !ready.ok()) {
      note_places();
      return ready;
    }
  Status reduced = run_each(wanted_, [&](size_t i) -> Status {
    FSCCL_TRY(sum_grad(i, one, wait, state, submitted));
    whole.norm_squared += part.norm_squared;
    whole.finite &= part.finite;
    return success();
  });
  if (request.sharded_grads) note_places();  // also of units that moved before an error
  FSCCL_TRY(std::move(reduced));
  if (summed) *request.result = whole;
  reduced_once_ = true;
  if (!spec_.marks_changes) changed_ = true;
  *state = FSCCL_OK;
  return success();
}

Status ParameterUnits::check_reduced(size_t index) {
  unit(index).look();
  return engine().failed() ? engine().failure() : success();
}

Status ParameterUnits::move_shards(void* const* shards) {
  Status moved;
  for (size_t i = 0; i < count() && moved.ok(); i++)
    if (units_[i] && shards[i]) moved = units_[i]->set_shards(shards + i);
  note_places();
  return moved;
}

// Units by parameter have no replicas (api/unit.cpp).
Status ParameterUnits::broadcast_shards(int, bool, fsccl_status_t*, Submitted*) {
  return fail(FSCCL_ERR_INTERNAL, "unit '{}' by parameter has replicas", spec_.name);
}
Result<std::vector<uint64_t>> ParameterUnits::hash_shards() {
  return fail(FSCCL_ERR_INTERNAL, "unit '{}' by parameter has replicas", spec_.name);
}

}  // namespace fsccl
