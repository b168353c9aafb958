// A unit whose ranks are on several hosts. Each host has slots of its own, which its ranks fill and fold as those of a unit on one
// host do; between hosts each byte crosses once, over the lanes (engine/hosts.h):
//
//   unshard        the ranks of a host gather what they hold in its slots; the ranks of a lane exchange that for what other hosts
//                  hold; then all of the host wait for its lanes, or pull from who has it, where slots are each rank's own
//   reduce_grads   the ranks of a host fold their gradients, each the pieces of its lane's ranks, scaled, in its own gradient slot;
//                  the ranks of a lane sum these over hosts; then each rank takes its sum from the slot, into its sharded gradient
//
// So a sum is rounded to reduce_dtype on each host and between hosts, and its order is that of the ranks of a host, then of hosts.
// FSCCL_REPRODUCIBLE=placement, and FSCCL_HIERARCHY=off, sum in rank order over all ranks instead, for more bytes between hosts.
#include <algorithm>
#include <numeric>

#include "base/config.h"
#include "base/hash.h"
#include "unit/unit.h"

namespace fsccl {

Communicator& Unit::here() const { return span_ ? span_->hosts->host() : comm(); }

// Collective, blocking. From here on *unshard is of the ranks of this host, and so is reduce_shape_.
Status Unit::span_hosts(UnitShape* unshard) {
  FSCCL_ASSIGN(Hosts * hosts, comm().hosts());
  const ConfigRef settings = config();
  span_ = std::make_unique<HostSpan>();
  HostSpan& span = *span_;
  span.hosts = hosts;
  span.by_hosts = settings->reproducible == Reproducible::kRun && settings->hierarchy != HierarchyMode::kOff;
  const Hosts::Seat seat = hosts->seat();
  // Of each rank of the host, the ranks of the shard_comm that it acts for: itself; those of other hosts that its lane brings;
  // those whose sums go by its lane.
  std::vector<std::vector<int>> own(hosts->here()), brought(hosts->here()), summed(hosts->here());
  span.holders.assign(hosts->seats().size(), -1);
  for (size_t rank = 0; rank < hosts->seats().size(); rank++) {
    const auto [host, place] = hosts->seats()[rank];
    const size_t lane = hosts->lane_of(rank);
    const int layout_rank = static_cast<int>(rank);
    if (host == seat.host) own[place] = {layout_rank};
    if (host != seat.host) brought[lane].push_back(layout_rank);
    summed[lane].push_back(layout_rank);
    if (hosts->lane() && lane == seat.place) span.holders[rank] = static_cast<int>(host);
  }
  span.sums_among = hosts->lane();
  span.carrier = static_cast<int>(seat.place % hosts->lanes());
  span.carries = hosts->here() > hosts->lanes();
  span.nothing.name = "between_hosts";
  span.nothing.rank = comm().rank();
  span.nothing.ranks = comm().size();

  unshard->rank = static_cast<int>(seat.place);
  if (Communicator* const lane = hosts->lane()) span.parameters = LaneExchange(*unshard, span.holders, lane->size(), lane->rank());
  unshard->holds = std::move(brought);
  span.spread = PlannedUnit(unshard_spread(*unshard));
  unshard->holds = std::move(own);
  span.entered = PlannedUnit(unshard_kept(*unshard));
  reduce_shape_.rank = unshard->rank;
  reduce_shape_.holds = std::move(summed);
  if (span.by_hosts) return success();
  span.sums_among = &comm();
  span.carrier = static_cast<int>(seat.place);
  span.carries = false;
  std::iota(span.holders.begin(), span.holders.end(), 0);
  return success();
}

void Unit::plan_reduction(GradReduction& reduction) const {
  reduction.planned = PlannedUnit(span_ ? reduce_partials(reduce_shape_) : fsccl::reduce_grads(reduce_shape_));
  if (const Communicator* const among = span_ ? span_->sums_among : nullptr)
    reduction.between_hosts = LaneExchange(reduce_shape_, span_->holders, among->size(), among->rank());
}

// The next stage, one of the ranks of this host.
Status Unit::on_host(const PlannedUnit& planned, const Binding* bindings, const OperationSettings& settings,
                     const Fingerprint& fingerprint, Chain* chain) {
  Operation* op = nullptr;
  fsccl_status_t state;
  FSCCL_TRY(here().engine().acquire(&op, settings, fingerprint));
  run_plan(*op, planned, bindings);
  chain->follow(*op);
  FSCCL_TRY(here().engine().submit(*op, false, &state));
  chain->passed(here().engine());
  return success();
}

// ... or of the ranks of a lane, or of all.
Status Unit::exchange(LaneExchange& pieces, Communicator& among, ListKind kind, const SlotSet& slots,
                      const Fingerprint& fingerprint, Chain* chain) {
  if (pieces.empty()) return success();
  struct Context {
    const Chain& chain;
    const Fingerprint& fingerprint;
    bool dry_run;
  } const context{*chain, fingerprint, pool().dry_run()};
  // Ranks that disagree are told what they called, not what it is made of.
  const auto prepare = [](Operation& op, const void* given) {
    const auto& [before, called, dry_run] = *static_cast<const Context*>(given);
    const Fingerprint list = op.fingerprint;
    op.fingerprint = called;
    op.fingerprint.sequence = list.sequence;
    op.fingerprint.history = mix_hash(called.history, list.history);
    op.dry_run = dry_run;
    before.follow(op);
  };
  FSCCL_TRY(pieces.run(among, kind, slots, {prepare, &context}));
  chain->passed(among.engine());
  return success();
}

// moves: not if the slots have it all still.
Status Unit::gather_between_hosts(const PlannedUnit& first, bool moves, bool writable, uint64_t released, Chain* chain) {
  Fingerprint fingerprint;
  fill_fingerprint(&fingerprint, OpCode::unshard, layout_->total(), static_cast<uint8_t>((writable ? 1 : 0) | (moves ? 0 : 2)));
  FSCCL_TRY(on_host(first, unshard_bindings_.data(), gather_settings(released), fingerprint, chain));
  if (!moves) return success();
  const SlotSet& slots = writable && shared() ? writable_slots_ : slots_;
  if (Communicator* const lane = span_->hosts->lane())
    FSCCL_TRY(exchange(span_->parameters, *lane, ListKind::all_gather, slots, fingerprint, chain));
  fingerprint.flags |= 4;  // the last stage
  const PlannedUnit& last = writable || !shared() ? span_->spread : span_->entered;
  return on_host(last, unshard_bindings_.data(), {}, fingerprint, chain);
}

Status Unit::sum_between_hosts(GradReduction& reduction, Fingerprint fingerprint, double scale, Chain* chain) {
  if (span_->by_hosts) {
    OperationSettings scaled;
    scaled.scale = scale;
    FSCCL_TRY(on_host(reduction.planned, reduction.bindings.data(), scaled, fingerprint, chain));
  }
  if (Communicator* const among = span_->sums_among)
    FSCCL_TRY(exchange(reduction.between_hosts, *among, ListKind::reduce_scatter, grads_, fingerprint, chain));
  if (!span_->carries) return success();
  fingerprint.flags |= 4;
  return on_host(span_->entered, reduction.bindings.data(), {}, fingerprint, chain);
}

void Unit::end_between_hosts(Operation& op, const Chain& chain) const {
  op.plan = &span_->nothing;
  op.dry_run = pool().dry_run();
  chain.follow(op);
}

// Takes this rank's sums from the slots where they are.
Completion Unit::hosts_summed(Operation& op) {
  const GradReduction& reduction = reduction_of(op);
  Unit& unit = unit_of(op);
  const HostSpan& span = *unit.span_;
  for (size_t k = 0; k < reduction.params.size(); k++) {
    const size_t i = reduction.params[k];
    const Piece piece = unit.layout_->piece(unit.comm().rank(), i);
    if (!piece.count) continue;
    const Binding& slot = reduction.bindings[unit.spec_.by_parameter ? k : 0];
    const uint64_t at = unit.grad_map_.offset[i] + piece.begin * dtype_size(unit.spec_.reduce_dtype);
    const void* const source = unit.regions_[static_cast<size_t>(span.carrier)].mapped + slot.table_offset + at;
    Reduce fold{};
    fold.sources = &source;
    fold.n = 1;
    fold.from = unit.spec_.reduce_dtype;
    fold.dst = unit.sharded_grads_[i];
    fold.to = unit.spec_.grad_dtype;
    fold.count = piece.count;
    fold.scale = span.by_hosts ? 1 : op.scale;
    fold.accumulate = op.accumulate;
    fold.norm = op.want_norm ? &op.norm : nullptr;
    if (!op.dry_run) reduce(fold);
    shard_ready(op, i);
  }
  return shards_summed(op);
}

}  // namespace fsccl
