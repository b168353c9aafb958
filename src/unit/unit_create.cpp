// Making a unit: compare definitions, lay out, find storage for the shards, make plans and tables.
#include <algorithm>
#include <cstring>

#include "base/hash.h"
#include "base/round_up.h"
#include "engine/progress.h"
#include "unit/unit.h"

namespace fsccl {
namespace {

uint64_t hash_param(const UnitSpec::Param& param) {
  uint64_t hash = mix_hash(static_cast<uint64_t>(param.dtype), static_cast<uint64_t>(param.dims.size()));
  for (const int64_t dim : param.dims) hash = mix_hash(hash, static_cast<uint64_t>(dim));
  hash = mix_hash(mix_hash(hash, param.block_rows), param.block_columns);
  return mix_hash(hash, uint64_t{param.frozen} << 32 | static_cast<uint32_t>(param.tied_to));
}

uint64_t hash_settings(const UnitSpec& spec) {
  uint64_t hash = mix_hash(static_cast<uint64_t>(spec.layout), static_cast<uint64_t>(spec.wire_dtype));
  hash = mix_hash(hash, static_cast<uint64_t>(spec.reduce_dtype) << 32 | static_cast<uint64_t>(spec.grad_dtype));
  hash = mix_hash(hash, static_cast<uint64_t>(spec.sharing) << 32 | static_cast<uint64_t>(spec.keep));
  hash = mix_hash(hash, spec.keep_budget_bytes);
  return mix_hash(hash, uint64_t{spec.by_parameter} << 2 | uint64_t{spec.marks_changes} << 1 | (spec.replicate_comm != nullptr));
}

}  // namespace

Status gather(Communicator& comm, const void* mine, void* all, uint64_t bytes) {
  CollectiveCall call;
  call.op = OpCode::all_gather;
  call.input = mine;
  call.output = all;
  call.count = bytes;
  fsccl_status_t state;
  return comm.collectives().run(call, true, &state);
}

template <class Visit>
void Unit::each_slot_key(const Visit& visit) const {
  for (size_t k = 0; k < slots_.size(); k++) visit(slots_.key(k), UseKind::kParameters);
  for (size_t k = 0; k < grads_.size(); k++) visit(grads_.key(k), UseKind::kGradients);
}

Result<std::unique_ptr<Unit>> Unit::create(UnitSpec spec) {
  std::unique_ptr<Unit> unit(new Unit(std::move(spec)));
  std::vector<ParamShape> shapes;
  for (const UnitSpec::Param& param : unit->spec_.params)
    shapes.push_back({param.dims, param.tied_to, param.block_rows, param.block_columns});
  FSCCL_ASSIGN(Layout layout, Layout::make(unit->spec_.layout, std::move(shapes), unit->comm().size()));
  unit->layout_ = std::make_unique<Layout>(std::move(layout));
  for (size_t i = 0; i < unit->count(); i++)
    if (unit->layout_->tied(i)) unit->spec_.params[i].frozen = unit->spec_.params[unit->layout_->owner(i)].frozen;
  FSCCL_TRY(unit->compare_definitions());

  unit->key_ = unit->pool().next_unit_key();
  unit->pool_host_ = unit->pool().rank_of_job(unit->comm().job_rank(0));
  unit->make_slots();
  unit->make_plans();
  if (unit->pool().watch()) unit->name_slots();
  unit->counted_ = true;  // from here on the destructor undoes
  unit->comm().dependents++;
  if (unit->spec_.replicate_comm) unit->spec_.replicate_comm->dependents++;
  const uint64_t slot = unit->wire_map_.bytes;
  unit->keep_ = unit->spec_.keep == FSCCL_KEEP_ALWAYS ||
                (unit->spec_.keep == FSCCL_KEEP_BUDGET && unit->pool().kept_bytes + slot <= unit->spec_.keep_budget_bytes);
  if (unit->keep_) {
    unit->pool().kept_bytes += slot;
    unit->kept_slot_ = {unit->slots_.part(), unit->slots_.key(0), 0, [u = unit.get()] {
                          u->slots_.withdrawn();
                          u->contents_valid_ = false;
                        }};
    if (slot) unit->pool().kept_slots.push_back(&unit->kept_slot_);
  }
  unit->each_slot_key([u = unit.get()](uint64_t key, UseKind kind) { u->pool().journal().name_slot(key, kind, u->spec_.name); });
  unit->pool().units.emplace(unit->key_, [u = unit.get()] { return u->holdings(); });
  Status placed = unit->place_shards();
  if (placed.ok() && unit->copies_on_write()) placed = unit->pool().make_private_view(unit->pool_host_);
  FSCCL_TRY(unit->agree(std::move(placed)));
  unit->make_tables();
  if (unit->spec_.replicate_comm) FSCCL_TRY(unit->exchange_shards());
  return unit;
}

Unit::~Unit() {
  if (!counted_) return;
  if (unsharded_ && !writable_) drop_writes();
  for (SlotSet* slots : {&slots_, &writable_slots_, &grads_}) slots->abandon();
  if (spec_.replicate_comm && reduced_once_) Progress::instance().settle();  // the service thread may sleep on shards_summed_
  for (const Reduced& last : reduced_)                                       // its communicator failed: nobody else will say so
    if (engine().completed() < last.sequence) pool().done(last.position);
  if (shard_block_) (void)pool().free(shard_block_).ok();
  if (grad_block_) (void)pool().free(grad_block_).ok();
  each_slot_key([&](uint64_t key, UseKind) { pool().journal().forget_slot(key); });
  if (keep_) {
    pool().kept_bytes -= wire_map_.bytes;
    std::erase(pool().kept_slots, &kept_slot_);
  }
  pool().units.erase(key_);
  comm().dependents--;
  if (spec_.replicate_comm) spec_.replicate_comm->dependents--;
}

// Debug mode: what is to be said of them.
void Unit::name_slots() {
  const auto name = [&](const SlotSet& slots, const SlotMap& map, const char* what, auto element_bytes) {
    for (size_t k = 0; k < slots.size(); k++) {
      std::vector<SlotWatch::Piece> pieces;
      for (size_t i = 0; i < count(); i++) {
        const uint64_t bytes = layout_->numel(i) * element_bytes(i);
        if (layout_->tied(i) || !bytes || map.slot_of(i) != k) continue;
        pieces.push_back({map.offset[i], map.offset[i] + bytes, spec_.params[i].name});
      }
      std::sort(pieces.begin(), pieces.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
      pool().watch()->name(slots.key(k), fmt::format("{} of unit '{}'", what, spec_.name), std::move(pieces));
    }
  };
  name(slots_, wire_map_, "parameters", [&](size_t i) { return dtype_size(wire_dtypes_[i]); });
  name(grads_, grad_map_, "gradients", [&](size_t i) { return has_grad(i) ? dtype_size(spec_.reduce_dtype) : 0; });
}

std::string Unit::holdings() const {
  return fmt::format("unit '{}'{}{}", spec_.name,
                     unsharded_          ? " (its parameters are unsharded)"
                     : slots_.any_held() ? " (keeps its slot)"
                                         : "",
                     grads_.any_held() ? " (its gradients are not reduced)" : "");
}

// All ranks must have described the same unit; where they did not, the first parameter that differs is named.
Status Unit::compare_definitions() {
  struct Summary {
    uint64_t hash, params, shard;
  };
  std::vector<uint64_t> hashes(count() + 1);
  hashes[0] = hash_settings(spec_);
  for (size_t i = 0; i < count(); i++) hashes[i + 1] = hash_param(spec_.params[i]);
  definition_hash_ = 0;
  for (const uint64_t hash : hashes) definition_hash_ = mix_hash(definition_hash_, hash);
  for (Communicator* comm : {spec_.shard_comm, spec_.replicate_comm}) {
    if (!comm) continue;
    const auto ranks = static_cast<size_t>(comm->size());
    const Summary mine{definition_hash_, count(),
                       comm == spec_.replicate_comm ? static_cast<uint64_t>(spec_.shard_comm->rank()) : 0};
    std::vector<Summary> all(ranks);
    FSCCL_TRY(gather(*comm, &mine, all.data(), sizeof mine));
    const auto odd = std::find_if(all.begin(), all.end(), [&](const Summary& other) { return other.params != all[0].params; });
    if (odd != all.end())
      return fail(FSCCL_ERR_MISMATCH, "ranks disagree on unit '{}': rank 0 has {} parameters, rank {} has {}", spec_.name,
                  all[0].params, odd - all.begin(), odd->params);
    const auto stranger = std::find_if(all.begin(), all.end(), [&](const Summary& other) { return other.shard != all[0].shard; });
    if (stranger != all.end())
      return fail(FSCCL_ERR_MISMATCH,
                  "replicas of unit '{}' hold different shards: rank 0 of replicate_comm is rank {} of its shard_comm, rank {} is "
                  "rank {}; a replicate_comm joins the ranks that hold the same shard",
                  spec_.name, all[0].shard, stranger - all.begin(), stranger->shard);
    if (std::all_of(all.begin(), all.end(), [&](const Summary& other) { return other.hash == all[0].hash; })) continue;
    std::vector<uint64_t> table(ranks * hashes.size());
    FSCCL_TRY(gather(*comm, hashes.data(), table.data(), hashes.size() * sizeof hashes[0]));
    for (size_t rank = 1; rank < ranks; rank++)
      for (size_t i = 0; i < hashes.size(); i++) {
        if (table[rank * hashes.size() + i] == table[i]) continue;
        if (i == 0)
          return fail(FSCCL_ERR_MISMATCH,
                      "ranks disagree on unit '{}': rank 0 and rank {} gave other settings (layout, dtypes, sharing, keep, slots "
                      "or replicas)",
                      spec_.name, rank);
        return fail(FSCCL_ERR_MISMATCH,
                    "ranks disagree on unit '{}': parameter {} ('{}' here) has another shape, block, dtype, tie or flag on rank 0 "
                    "than on rank {}",
                    spec_.name, i - 1, spec_.params[i - 1].name, rank);
      }
  }
  return success();
}

// All ranks succeeded so far, or all fail.
Status Unit::agree(Status mine) {
  uint8_t failed = mine.ok() ? 0 : 1;
  for (Communicator* comm : {spec_.shard_comm, spec_.replicate_comm}) {
    if (!comm) continue;
    std::vector<uint8_t> all(static_cast<size_t>(comm->size()));
    FSCCL_TRY(gather(*comm, &failed, all.data(), 1));
    const auto first = std::find(all.begin(), all.end(), 1);
    if (first == all.end()) continue;
    failed = 1;
    if (mine.ok())
      mine = fail(FSCCL_ERR_OUT_OF_MEMORY, "rank {} of '{}' could not place its shards of unit '{}'; its own error says why",
                  first - all.begin(), comm->name(), spec_.name);
  }
  return mine;
}

void Unit::make_slots() {
  std::vector<size_t> wire_sizes, grad_sizes;
  for (size_t i = 0; i < count(); i++) {
    const UnitSpec::Param& owner = spec_.params[layout_->owner(i)];
    const bool castable = cast_supported(spec_.wire_dtype, owner.dtype);
    wire_dtypes_.push_back(castable ? spec_.wire_dtype : owner.dtype);  // what cannot be cast travels as it is
    wire_sizes.push_back(dtype_size(wire_dtypes_.back()));
    grad_sizes.push_back(has_grad(i) ? dtype_size(spec_.reduce_dtype) : 0);
  }
  const auto map = [&](const std::vector<size_t>& sizes) {
    return spec_.by_parameter ? make_slots_by_parameter(*layout_, sizes) : make_slot_map(*layout_, sizes);
  };
  wire_map_ = map(wire_sizes);
  grad_map_ = map(grad_sizes);
  const int own = pool().rank();
  if (shared()) writable_slots_ = SlotSet(pool(), Part::own, own, key_, SlotSet::Role::parameters, wire_map_.slots);
  slots_ = SlotSet(pool(), shared() ? Part::shared : Part::own, shared() ? pool_host_ : own, key_, SlotSet::Role::parameters,
                   wire_map_.slots);
  grads_ = SlotSet(pool(), Part::own, own, key_, SlotSet::Role::gradients, grad_map_.slots);
  reduced_.resize(grads_.size());
}

void Unit::make_plans() {
  UnitShape shape;
  shape.layout = layout_.get();
  shape.rank = comm().rank();
  for (size_t i = 0; i < count(); i++) shape.shard_dtype.push_back(spec_.params[layout_->owner(i)].dtype);
  reduce_shape_ = shape;
  shape.slot = wire_map_;
  shape.slot_dtype = wire_dtypes_;
  unshard_plan_ = PlannedUnit(shared() ? unshard_shared(shape) : unshard_private(shape, false));
  writable_plan_ = PlannedUnit(unshard_private(shape, true));
  if (spec_.keep != FSCCL_KEEP_NONE) kept_plan_ = PlannedUnit(unshard_kept(shape));
  reduce_shape_.slot = grad_map_;
  reduce_shape_.slot_dtype.assign(count(), spec_.reduce_dtype);
  reduce_shape_.grad_dtype.assign(count(), spec_.grad_dtype);
  std::vector<size_t> params;
  for (size_t i = 0; i < count(); i++)
    if (has_grad(i) && !layout_->tied(i)) params.push_back(i);
  wanted_.reserve(count());
  alone_.resize(count());
  make_reduction(params);
  if (!spec_.by_parameter) return;
  for (const size_t i : params) alone_[i] = params.size() == 1 ? &reductions_.front() : &make_reduction({i});
}

// Shards and reduced gradients are the caller's memory, or pieces of one block each in the pool.
Status Unit::place_shards() {
  const int rank = comm().rank();
  auto place = [&](auto wanted, auto callers, auto element_bytes, std::vector<std::byte*>& places, std::byte*& block) -> Status {
    uint64_t bytes = 0;
    std::vector<uint64_t> offsets(count(), SlotMap::kAbsent);
    for (size_t i = 0; i < count(); i++) {
      const uint64_t size = layout_->piece(rank, i).count * element_bytes(i);
      if (layout_->tied(i) || !wanted(i) || !size || callers(i)) continue;
      offsets[i] = bytes;
      bytes += round_up(size, 64);
    }
    if (bytes) {
      FSCCL_ASSIGN(void* memory, pool().alloc(bytes, nullptr, 1, {UseKind::kShards, spec_.name}));
      block = static_cast<std::byte*>(memory);
      if (!pool().dry_run()) std::memset(block, 0, bytes);
    }
    places.resize(count());
    for (size_t i = 0; i < count(); i++) {
      const size_t owner = layout_->owner(i);
      places[i] = offsets[owner] != SlotMap::kAbsent ? block + offsets[owner] : static_cast<std::byte*>(callers(owner));
    }
    return success();
  };
  FSCCL_TRY(place([](size_t) { return true; }, [&](size_t i) { return spec_.params[i].shard; },
                  [&](size_t i) { return dtype_size(spec_.params[i].dtype); }, shards_, shard_block_));
  return place([&](size_t i) { return has_grad(i); }, [&](size_t i) { return spec_.params[i].sharded_grad; },
               [&](size_t) { return dtype_size(spec_.grad_dtype); }, sharded_grads_, grad_block_);
}

void Unit::make_tables() {
  for (int rank = 0; rank < comm().size(); rank++) {
    const int pool_rank = pool().rank_of_job(comm().job_rank(rank));
    regions_.push_back({pool().address(Part::own, pool_rank, 0), 0});
    releases_.push_back(pool().release_line(pool_rank));
    pool().add_sharer(pool_rank);
  }
  unshard_bindings_.resize(slots_.size() + count());
  for (size_t i = 0; i < count(); i++) unshard_bindings_[slots_.size() + i].base = shards_[i];
  if (!spec_.replicate_comm) return;
  CollectiveCall call;
  call.op = OpCode::all_reduce;
  call.dtype = spec_.grad_dtype;
  uint64_t block_elements = 0;  // gaps between its pieces are zeros
  for (size_t i = 0; i < count(); i++) {
    const uint64_t elements = layout_->piece(comm().rank(), i).count;
    if (!has_grad(i) || layout_->tied(i) || !elements) continue;
    call.input = call.output = sharded_grads_[i];
    call.count = elements;
    if (spec_.params[i].sharded_grad) replica_sums_.push_back(call);
    if (!spec_.params[i].sharded_grad)
      block_elements = static_cast<uint64_t>(sharded_grads_[i] - grad_block_) / dtype_size(spec_.grad_dtype) + elements;
  }
  call.input = call.output = grad_block_;
  call.count = block_elements;
  if (block_elements || replica_sums_.empty()) replica_sums_.push_back(call);
}

// Where every replica's shards are, for broadcast_state.
Status Unit::exchange_shards() {
  Communicator& replicas = *spec_.replicate_comm;
  if (replicas.engine().mirrored()) return success();  // nobody reaches another's memory: broadcast_state sends a list
  const auto ranks = static_cast<size_t>(replicas.size());
  const ArenaTable& arenas = replicas.context().arenas();
  std::vector<Location> mine(count());
  std::vector<uint64_t> bytes(count());
  for (size_t i = 0; i < count(); i++) {
    bytes[i] = layout_->tied(i) ? 0 : layout_->piece(comm().rank(), i).count * dtype_size(spec_.params[i].dtype);
    if (!shards_[i]) continue;
    if (arenas.locate(shards_[i], bytes[i], &mine[i]) && arenas.reaches(mine[i].arena, replicas.members())) continue;
    mine[i] = {reinterpret_cast<uint64_t>(shards_[i]), kPrivate};
  }
  std::vector<Location> all(ranks * count());
  FSCCL_TRY(gather(replicas, mine.data(), all.data(), count() * sizeof(Location)));
  replica_shards_.resize(count() * ranks);
  for (size_t i = 0; i < count(); i++)
    for (size_t rank = 0; rank < ranks; rank++) {
      const Location& location = all[rank * count() + i];
      Remote& remote = replica_shards_[i * ranks + rank];
      if (location.arena >= kFirstArena) remote.mapped = arenas.resolve(location, bytes[i]);
      if (location.arena == kPrivate && replicas.engine().options().same_process[rank])
        remote.mapped = reinterpret_cast<std::byte*>(location.address);
      if (location.arena == kPrivate) remote.address = location.address;
      if (bytes[i] && !remote.mapped && (location.arena != kPrivate || !replicas.engine().single_copy()))
        return fail(FSCCL_ERR_NOT_AVAILABLE,
                    "the shard of parameter '{}' of unit '{}' on replica {} cannot be reached: let the unit allocate its shards "
                    "(shard = NULL) from a pool made on a communicator of all ranks",
                    spec_.params[i].name, spec_.name, rank);
    }
  broadcast_bindings_.resize(count());
  for (size_t i = 0; i < count(); i++) broadcast_bindings_[i] = {shards_[i], &replica_shards_[i * ranks], 0, {}};
  for (size_t root = 0; root < ranks; root++) {
    broadcast_plans_.emplace_back(broadcast_shards(bytes, replicas.rank(), replicas.size(), static_cast<int>(root)));
  }
  return success();
}

}  // namespace fsccl
