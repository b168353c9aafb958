// The creation and the end of a unit on a GPU, and its memory.
#include "unit/device/device_unit.h"

#include <algorithm>

#include "cuda/pointer.h"
#include "fsccl/insight.h"
#include "unit/device/coded_device_gather.h"
#include "unit/device/coded_device_sum.h"
#include "unit/host/slot_set.h"

namespace fsccl {
namespace {

uint64_t slot_key(uint64_t unit, bool gradients) {
  return unit << SlotSet::kIndexBits | (gradients ? 1 : 0);
}

}  // namespace

Result<std::unique_ptr<DeviceUnit>> DeviceUnit::create(UnitSpec spec, DevicePool& pool) {
  std::unique_ptr<DeviceUnit> unit(new DeviceUnit(std::move(spec), pool));
  FSCCL_ASSIGN(unit->definition_, UnitDefinition::make(unit->spec_));
  unit->key_ = pool.next_unit_key();
  unit->rank_in_pool_ = pool.comm().rank();
  unit->parameters_.key = slot_key(unit->key_, false);
  unit->parameters_.bytes = unit->definition_.wire_map.bytes;
  unit->gradients_.key = slot_key(unit->key_, true);
  unit->gradients_.bytes = std::max(unit->definition_.grad_map.bytes,
                                    ReplicaSum::slot_bytes(unit->spec_, unit->layout()));
  for (size_t i = 0; i < unit->count(); i++)
    unit->reduces_here_ = unit->reduces_here_ || unit->has_sharded_grad(i);

  FSCCL_ASSIGN(unit->mover_, DeviceMover::create({unit->spec_, unit->definition_, pool}));
  unit->counted_ = true;  // from here on the destructor undoes the creation
  unit->comm().dependents++;
  pool.add_unit(unit->key_, unit->spec_.name);
  pool.name_slot(unit->parameters_.key, UseKind::kParameters, unit->spec_.name);
  pool.name_slot(unit->gradients_.key, UseKind::kGradients, unit->spec_.name);
  unit->keep_ = unit->promise_kept(unit->parameters_.bytes);
  Status placed = unit->join_replicas();  // it may fail on some ranks only
  if (placed.ok()) placed = unit->place();
  FSCCL_TRY(agree_on_shards(unit->spec_, std::move(placed)));
  return unit;
}

DeviceUnit::~DeviceUnit() {
  if (!counted_) return;
  for (Slot* slot : {&parameters_, &gradients_})
    if (slot->held) (void)give_back(*slot).ok();
  leave_replicas();
  mover_.reset();  // waits for the streams
  for (std::byte* block : {shards_.block, sharded_grads_.block})
    if (block) (void)pool_.free(block, stream_).ok();
  (void)pool_.note_end(stream_).ok();
  if (keep_) pool_.kept_bytes -= parameters_.bytes;
  for (const Slot* slot : {&parameters_, &gradients_}) pool_.forget_slot(slot->key);
  pool_.remove_unit(key_);
  comm().dependents--;
}

// Places shards and gradients, and makes all that depends on their places.
Status DeviceUnit::place() {
  const cuda::Device& device = pool_.device();
  for (size_t i = 0; i < count(); i++) {
    if (layout().tied(i) || !layout().piece(comm().rank(), i).count) continue;
    FSCCL_TRY(check_device_memory(spec_.params[i].shard, "shard", i));
    if (has_grad(i))
      FSCCL_TRY(check_device_memory(spec_.params[i].sharded_grad, "sharded gradient", i));
  }
  const cuda::OwnedStream& stream = pool_.own_stream();  // the caller names another stream later
  const auto allocate = [&](uint64_t bytes) -> Result<std::byte*> {
    FSCCL_ASSIGN(void* memory, pool_.alloc(bytes, stream.get(), 64));
    const cuda::Current current(device);
    Status filled = device.check("cuMemsetD8Async", device.driver().cuMemsetD8Async(
                                                        reinterpret_cast<cuda::CUdeviceptr>(memory),
                                                        0, bytes, stream.get()));
    if (filled.ok()) filled = stream.finish(Deadline::never());  // the stream has no other work
    if (filled.ok()) return static_cast<std::byte*>(memory);
    (void)pool_.free(memory, stream.get()).ok();
    return filled;
  };
  FSCCL_ASSIGN(shards_, place_shards(spec_, layout(), allocate));
  FSCCL_ASSIGN(sharded_grads_, place_sharded_grads(spec_, layout(), allocate));
  if (keep_) {
    FSCCL_ASSIGN(read_, cuda::OwnedEvent::create(device));
  }
  {
    const cuda::Current current(device);
    FSCCL_ASSIGN(for_host_, cuda::HostMemory::of(device).take(bytes_for_host()));
  }
  FSCCL_TRY(name_shards(shards_.places));
  FSCCL_TRY(name_sharded_grads(sharded_grads_.places));
  return reserve_pack();
}

Status DeviceUnit::name_shards(std::vector<std::byte*> places) {
  shards_named_ = false;
  FSCCL_TRY(mover_->place_shards(places));
  shards_.places = std::move(places);
  shards_named_ = true;
  return success();
}

Status DeviceUnit::name_sharded_grads(std::vector<std::byte*> places) {
  sharded_grads_named_ = false;
  FSCCL_TRY(mover_->place_sharded_grads(places));
  sharded_grads_.places = std::move(places);
  if (replica_sum_) FSCCL_TRY(replica_sum_->place(sharded_grads_));
  sharded_grads_named_ = true;
  return success();
}

Status DeviceUnit::check_named(bool named) const {
  if (named) return success();
  return fail(
      FSCCL_ERR_OUT_OF_MEMORY,
      "unit '{}' has no tables since its memory moved: the device had none for them; name it again",
      spec_.name);
}

// Checks a pointer that the caller gives. Null stands for the unit's own memory.
Status DeviceUnit::check_device_memory(const void* pointer, const char* what, size_t index) const {
  int ordinal = -1;
  if (!pointer || (cuda::on_device(pointer, &ordinal) && ordinal == pool_.device().ordinal()))
    return success();
  return fail(FSCCL_ERR_INVALID_ARGUMENT,
              "{} of parameter {} ('{}') of unit '{}' is at {}, which is {}: it must be memory of "
              "device {}",
              what, index, spec_.params[index].name, spec_.name, pointer,
              ordinal < 0 ? "host memory" : fmt::format("memory of device {}", ordinal),
              pool_.device().ordinal());
}

Status DeviceUnit::no_work() const {
  return fail(FSCCL_ERR_NOT_AVAILABLE,
              "operations of unit '{}' are put on its stream and have no work: give NULL, and "
              "record an event on the stream",
              spec_.name);
}

// Checks the caller's stream before any work is put on it. A stream that is being captured is
// refused: streams write and wait for values that are new in every operation, and the pool may move
// slots, but a graph would repeat the values and places of the step in which it was captured.
Status DeviceUnit::begin_call(void* given) {
  auto* const stream = static_cast<cuda::CUstream>(given);
  const cuda::Current current(pool_.device());
  step_ = Step::none;
  FSCCL_TRY(pool_.check_stream(stream));  // not amid an operation, on which other ranks count
  FSCCL_ASSIGN(const bool capturing, pool_.device().capturing(stream));
  if (!capturing) {
    stream_ = stream;
    return success();
  }
  return fail(FSCCL_ERR_NOT_AVAILABLE,
              "the stream of unit '{}' is being captured: its signals to peers and the places of "
              "its slots are others in every "
              "step, and a graph would repeat those of now. Capture what is computed with the "
              "parameters, and call units' functions "
              "outside of the capture",
              spec_.name);
}

Status DeviceUnit::codec_report(fsccl_codec_report_t* report) const {
  if (spec_.gather_codec.kind == FSCCL_CODEC_NONE && spec_.reduce_codec.kind == FSCCL_CODEC_NONE)
    return Unit::codec_report(report);
  *report = fsccl_codec_report_t FSCCL_CODEC_REPORT_INIT;
  if (const CodedDeviceGather* const gather = mover_->coded_gather()) gather->report(report);
  if (const CodedDeviceSum* const sum = mover_->coded_sum()) sum->report(report);
  report->gather_codec = spec_.gather_codec.name();
  report->reduce_codec = spec_.reduce_codec.name();
  return success();
}

DeviceUnit::SharedBytes DeviceUnit::shared_codec_bytes() const {
  const CodedDeviceGather* const gather = mover_->coded_gather();
  const CodedDeviceSum* const sum = mover_->coded_sum();
  return {gather ? gather->room_bytes() : 0, sum ? sum->room_bytes() : 0};
}

// A unit by parameter is made of such units (parameter_units.h), each of which has one slot.
Status DeviceUnit::give_back_param(size_t) {
  return fail(FSCCL_ERR_INTERNAL, "unit '{}' has one slot for all parameters", spec_.name);
}

}  // namespace fsccl
