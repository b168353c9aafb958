// The creation of a unit on host memory: its definition (unit_definition.h), then its slots, plans,
// storage of shards, and tables.
#include <algorithm>
#include <cstring>

#include "engine/progress.h"
#include "fsccl/codec.h"
#include "unit/host/host_unit.h"

namespace fsccl {
template <class Visit>
void HostUnit::each_slot_key(const Visit& visit) const {
  for (size_t k = 0; k < slots_.size(); k++) visit(slots_.key(k), UseKind::kParameters);
  for (size_t k = 0; k < grads_.size(); k++) visit(grads_.key(k), UseKind::kGradients);
}

Result<std::unique_ptr<HostUnit>> HostUnit::create(UnitSpec spec, HostPool& pool) {
  std::unique_ptr<HostUnit> unit(new HostUnit(std::move(spec), pool));
  FSCCL_ASSIGN(unit->definition_, UnitDefinition::make(unit->spec_));
  unit->key_ = unit->pool().next_unit_key();
  if (!unit->comm().one_host() || unit->spec_.codes_everywhere())
    FSCCL_TRY(unit->span_hosts(&unit->definition_.unshard_shape));
  unit->shared_owner_ = unit->pool().rank_of_job(unit->host_comm().job_rank(0));
  unit->make_slots();
  unit->make_plans(unit->definition_.unshard_shape);
  if (unit->pool().watch()) unit->name_slots();
  unit->counted_ = true;  // from here on the destructor undoes the creation
  unit->comm().dependents++;
  if (unit->spec_.replicate_comm) unit->spec_.replicate_comm->dependents++;
  const uint64_t slot = unit->definition_.wire_map.bytes;
  unit->keep_ = unit->promise_kept(slot);
  if (unit->keep_) {
    unit->kept_slot_ = {unit->slots_.part(), unit->slots_.key(0), 0, [u = unit.get()] {
                          u->slots_.withdrawn();
                          u->contents_valid_ = false;
                        }};
    if (slot) unit->pool().kept_slots.push_back(&unit->kept_slot_);
  }
  unit->each_slot_key([u = unit.get()](uint64_t key, UseKind kind) {
    u->pool().journal().name_slot(key, kind, u->spec_.name);
  });
  unit->pool().units.emplace(unit->key_, [u = unit.get()] { return u->holdings(); });
  Status placed = unit->place_shards();
  if (placed.ok() && unit->copies_on_write())
    placed = unit->pool().make_private_view(unit->shared_owner_);
  if (placed.ok()) placed = unit->make_sums_apart();
  FSCCL_TRY(agree_on_shards(unit->spec_, std::move(placed)));
  unit->make_tables();
  if (unit->spec_.replicate_comm) FSCCL_TRY(agree_on_shards(unit->spec_, unit->exchange_shards()));
  return unit;
}

HostUnit::~HostUnit() {
  if (!counted_) return;
  await_failed();
  if (unsharded_ && !writable_) drop_writes();
  for (SlotSet* slots : {&slots_, &writable_slots_, &grads_}) slots->abandon();
  // The service thread may sleep on shards_summed_.
  if (spec_.replicate_comm && reduced_once_) Progress::instance().end_old_sleeps();
  // If the communicator has failed, no operation marks the positions as done.
  for (const Reduced& last : reduced_)
    if (summing().completed() < last.sequence) pool().done(last.position);
  if (shards_.block) (void)pool().free(shards_.block).ok();
  if (sharded_grads_.block) (void)pool().free(sharded_grads_.block).ok();
  each_slot_key([&](uint64_t key, UseKind) { pool().journal().forget_slot(key); });
  if (keep_) {
    pool().kept_bytes -= definition_.wire_map.bytes;
    std::erase(pool().kept_slots, &kept_slot_);
  }
  pool().units.erase(key_);
  comm().dependents--;
  if (spec_.replicate_comm) spec_.replicate_comm->dependents--;
}

// Names the slots for errors, in debug mode.
void HostUnit::name_slots() {
  const auto name = [&](const SlotSet& slots, const SlotMap& map, const char* what,
                        auto element_bytes) {
    for (size_t k = 0; k < slots.size(); k++) {
      std::vector<SlotWatch::NamedRange> pieces;
      for (size_t i = 0; i < count(); i++) {
        const uint64_t bytes = layout().numel(i) * element_bytes(i);
        if (layout().tied(i) || !bytes || map.slot_of(i) != k) continue;
        pieces.push_back({map.offset[i], map.offset[i] + bytes, spec_.params[i].name});
      }
      std::sort(pieces.begin(), pieces.end(),
                [](const auto& a, const auto& b) { return a.begin < b.begin; });
      pool().watch()->name(slots.key(k), fmt::format("{} of unit '{}'", what, spec_.name),
                           std::move(pieces));
    }
  };
  name(slots_, definition_.wire_map, "parameters",
       [&](size_t i) { return dtype_size(definition_.wire_dtypes[i]); });
  name(grads_, definition_.grad_map, "gradients",
       [&](size_t i) { return has_grad(i) ? dtype_size(spec_.reduce_dtype) : 0; });
}

std::string HostUnit::holdings() const {
  return fmt::format("unit '{}'{}{}", spec_.name,
                     unsharded_          ? " (its parameters are unsharded)"
                     : slots_.any_held() ? " (keeps its slot)"
                                         : "",
                     grads_.any_held() ? " (its gradients are not reduced)" : "");
}

void HostUnit::make_slots() {
  const int own = pool().rank();
  if (shared())
    writable_slots_ = SlotSet(pool(), engine(), PartKind::own, own, key_, SlotSet::Role::parameters,
                              definition_.wire_map.slots);
  slots_ = SlotSet(pool(), engine(), shared() ? PartKind::shared : PartKind::own,
                   shared() ? shared_owner_ : own, key_, SlotSet::Role::parameters,
                   definition_.wire_map.slots);
  grads_ = SlotSet(pool(), engine(), PartKind::own, own, key_, SlotSet::Role::gradients,
                   definition_.grad_map.slots);
  reduced_.resize(grads_.size());
}

void HostUnit::make_plans(const UnitShape& shape) {
  // The caller may write to a private slot when its plan has ended. On several hosts the last stage
  // waits for the peers that read it.
  unshard_plan_ = PlannedUnit(shared() ? unshard_shared(shape) : unshard_private(shape, !span_));
  writable_plan_ = PlannedUnit(unshard_private(shape, true));
  if (spec_.keep != FSCCL_KEEP_NONE) barrier_plan_ = PlannedUnit(unshard_barrier(shape));
  std::vector<size_t> params;
  for (size_t i = 0; i < count(); i++)
    if (has_grad(i) && !layout().tied(i)) params.push_back(i);
  wanted_.reserve(count());
  alone_.resize(count());
  make_reduction(params);
  if (!spec_.by_parameter) return;
  for (const size_t i : params)
    alone_[i] = params.size() == 1 ? &reductions_.front() : &make_reduction({i});
}

Status HostUnit::place_shards() {
  const auto allocate = [this](uint64_t bytes) -> Result<std::byte*> {
    FSCCL_ASSIGN(void* memory, pool().alloc(bytes, 1, {UseKind::kShards, spec_.name}));
    if (!pool().dry_run()) std::memset(memory, 0, bytes);
    return static_cast<std::byte*>(memory);
  };
  FSCCL_ASSIGN(shards_, fsccl::place_shards(spec_, layout(), allocate));
  FSCCL_ASSIGN(sharded_grads_, fsccl::place_sharded_grads(spec_, layout(), allocate));
  return span_ ? place_codecs() : success();
}

Status HostUnit::place_codecs() {
  if (pool().dry_run()) return success();
  if (spec_.reduce_codec.kind != FSCCL_CODEC_NONE && span_->sums_among) {
    span_->coded_sums.resize(grads_.size());
    for (size_t k = 0; k < grads_.size(); k++) {
      const GradReduction* const alone = spec_.by_parameter ? alone_[k] : &reductions_.front();
      if (!alone || alone->between_hosts.empty()) continue;
      FSCCL_ASSIGN(span_->coded_sums[k],
                   CodedSum::create(pool(), *span_->sums_among, alone->between_hosts,
                                    spec_.reduce_codec, spec_.grad_dtype, spec_.name));
    }
  }
  Communicator* const lane = span_->hosts->lane();
  if (spec_.gather_codec.kind == FSCCL_CODEC_NONE || !lane || span_->parameters.empty())
    return success();
  FSCCL_ASSIGN(span_->coded, CodedGather::create(pool(), *lane, span_->parameters,
                                                 spec_.gather_codec, spec_.name));
  return success();
}

void HostUnit::make_tables() {
  for (int rank = 0; rank < host_comm().size(); rank++) {
    const int pool_rank = pool().rank_of_job(host_comm().job_rank(rank));
    regions_.push_back({pool().address(PartKind::own, pool_rank, 0), 0});
    releases_.push_back(pool().release_line(pool_rank));
    pool().add_sharer(pool_rank);
  }
  unshard_bindings_.resize(slots_.size() + count());
  for (size_t i = 0; i < count(); i++)
    unshard_bindings_[slots_.size() + i].base = shards_.places[i];
  if (!spec_.replicate_comm) return;
  CollectiveCall call;
  call.op = OpCode::all_reduce;
  call.dtype = spec_.grad_dtype;
  uint64_t block_elements = 0;  // the block is summed as a whole; gaps between its pieces are zeros
  for (size_t i = 0; i < count(); i++) {
    const uint64_t elements = layout().piece(comm().rank(), i).count;
    if (!has_grad(i) || layout().tied(i) || !elements) continue;
    call.input = call.output = sharded_grads_.places[i];
    call.count = elements;
    if (spec_.params[i].sharded_grad) replica_sums_.push_back(call);
    if (!spec_.params[i].sharded_grad)
      block_elements = static_cast<uint64_t>(sharded_grads_.places[i] - sharded_grads_.block) /
                           dtype_size(spec_.grad_dtype) +
                       elements;
  }
  call.input = call.output = sharded_grads_.block;
  call.count = block_elements;
  if (block_elements || replica_sums_.empty()) replica_sums_.push_back(call);
}

// Exchanges the addresses of the shards of all replicas, for broadcast_state.
Status HostUnit::exchange_shards() {
  Communicator& replicas = *spec_.replicate_comm;
  // With mirrored slots no rank can touch another's memory, and broadcast_state sends a list of
  // tensors.
  if (replicas.engine().mirrored()) return success();
  const auto ranks = static_cast<size_t>(replicas.size());
  const ArenaTable& arenas = replicas.context().arenas();
  std::vector<Location> mine(count());
  std::vector<uint64_t> bytes(count());
  for (size_t i = 0; i < count(); i++) {
    bytes[i] = layout().tied(i)
                   ? 0
                   : layout().piece(comm().rank(), i).count * dtype_size(spec_.params[i].dtype);
    if (!shards_.places[i]) continue;
    if (arenas.locate(shards_.places[i], bytes[i], &mine[i]) &&
        arenas.reaches(mine[i].arena, replicas.members()))
      continue;
    mine[i] = {reinterpret_cast<uint64_t>(shards_.places[i]), kPrivate};
  }
  FSCCL_ASSIGN(const std::vector<Location> all, all_gather_rows(replicas, mine));
  replica_shards_.resize(count() * ranks);
  for (size_t i = 0; i < count(); i++)
    for (size_t rank = 0; rank < ranks; rank++) {
      const Location& location = all[rank * count() + i];
      Remote& remote = replica_shards_[i * ranks + rank];
      if (location.arena >= kFirstArena) remote.mapped = arenas.resolve(location, bytes[i]);
      if (location.arena == kPrivate && replicas.engine().options().same_process[rank])
        remote.mapped = reinterpret_cast<std::byte*>(location.address);
      if (location.arena == kPrivate) remote.address = location.address;
      if (bytes[i] && !remote.mapped &&
          (location.arena != kPrivate || !replicas.engine().single_copy()))
        return fail(FSCCL_ERR_NOT_AVAILABLE,
                    "the shard of parameter '{}' of unit '{}' on replica {} cannot be reached: let "
                    "the unit allocate its shards "
                    "(shard = NULL) from a pool made on a communicator of all ranks",
                    spec_.params[i].name, spec_.name, rank);
    }
  broadcast_bindings_.resize(count());
  for (size_t i = 0; i < count(); i++)
    broadcast_bindings_[i] = {shards_.places[i], &replica_shards_[i * ranks], 0, {}};
  for (size_t root = 0; root < ranks; root++) {
    broadcast_plans_.emplace_back(
        fsccl::broadcast_shards(bytes, replicas.rank(), replicas.size(), static_cast<int>(root)));
  }
  return success();
}

}  // namespace fsccl
