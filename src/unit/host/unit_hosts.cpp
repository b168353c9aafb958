// A unit whose ranks are on several hosts. Each host has slots of its own, which its ranks fill and
// reduce as those of a unit on one host do; between hosts each byte crosses once, over the lanes
// (comm/hosts.h):
//
//   unshard        the ranks of a host gather what they hold in its slots; the ranks of a lane
//                  exchange that for what other hosts hold; then all of the host wait for its
//                  lanes, or pull from who has it, where slots are each rank's own
//   reduce_grads   the ranks of a host reduce their gradients, each the pieces of its lane's ranks,
//                  in its own gradient slot; the ranks of a lane sum these over hosts; then each
//                  rank takes its sum from the slot, scales it, and puts it into its sharded
//                  gradient
//
// Sums between hosts are in the accumulator's type (fp32, fp64 for fp64), so that they are rounded
// where those of one host are: at the end. Where that is not the gradients' type they lie behind
// the gradients in the slot, which is longer by them: by what the ranks of a lane hold of the unit.
// Their order is that of the ranks of a host, then of hosts.
//
// FSCCL_REPRODUCIBLE=placement, and FSCCL_HIERARCHY=off, sum in rank order over all ranks instead,
// with the bits of one host: each rank's gradients, in their own type, go to whoever sums them into
// its sharded gradients. That is more bytes between hosts where these have several ranks, and what
// is done in any case where each has one.
#include <algorithm>
#include <numeric>

#include "base/config.h"
#include "base/hash.h"
#include "base/round_up.h"
#include "fsccl/codec.h"
#include "fsccl/insight.h"
#include "unit/host/host_unit.h"

namespace fsccl {

Communicator& HostUnit::host_comm() const { return span_ ? span_->hosts->host() : comm(); }

// Collective, blocking. From here on *unshard is of the ranks of this host, and so is
// definition_.reduce_shape.
Status HostUnit::span_hosts(UnitShape* unshard) {
  FSCCL_ASSIGN(Hosts * hosts, comm().hosts());
  const ConfigRef settings = config();
  span_ = std::make_unique<HostSpan>();
  HostSpan& span = *span_;
  span.hosts = hosts;
  span.by_hosts = settings->reproducible == Reproducible::kRun &&
                  settings->hierarchy != HierarchyMode::kOff &&
                  // else hosts have one rank each, whose gradient is the host's sum
                  hosts->count() < hosts->places().size();
  const Hosts::Place own_place = hosts->own_place();
  // For each rank of the host, the ranks of the shard_comm that it acts for: itself; ranks of other
  // hosts that its lane brings; ranks whose sums go by its lane.
  std::vector<std::vector<int>> own(hosts->host_size()), brought(hosts->host_size()),
      summed(hosts->host_size());
  span.holders.assign(hosts->places().size(), -1);
  for (size_t rank = 0; rank < hosts->places().size(); rank++) {
    const auto [host, index] = hosts->places()[rank];
    const size_t lane = hosts->lane_of(rank);
    const int layout_rank = static_cast<int>(rank);
    if (host == own_place.host) own[index] = {layout_rank};
    // A codec that loses something changes what the ranks of this host hold, too.
    if (host != own_place.host || spec_.gather_codec.loses()) brought[lane].push_back(layout_rank);
    summed[lane].push_back(layout_rank);
    if (hosts->lane() && lane == own_place.index) span.holders[rank] = static_cast<int>(host);
  }
  span.sums_among = hosts->lane();
  span.sum_owner = static_cast<int>(own_place.index % hosts->lanes());
  span.has_laneless_ranks = hosts->host_size() > hosts->lanes();
  span.empty_plan.name = "between_hosts";
  span.empty_plan.rank = comm().rank();
  span.empty_plan.ranks = comm().size();

  unshard->rank = static_cast<int>(own_place.index);
  if (Communicator* const lane = hosts->lane())
    span.parameters = LaneExchange(*unshard, LaneExchange::Kind::parameters, span.holders,
                                   lane->size(), lane->rank());
  unshard->holds = std::move(brought);
  span.pull = PlannedUnit(unshard_pull(*unshard));
  unshard->holds = std::move(own);
  span.host_barrier = PlannedUnit(unshard_barrier(*unshard));
  definition_.reduce_shape.rank = unshard->rank;
  definition_.reduce_shape.holds = std::move(summed);
  if (!span.by_hosts) {
    span.sums_among = &comm();
    span.sum_owner = static_cast<int>(own_place.index);
    span.has_laneless_ranks = false;
    std::iota(span.holders.begin(), span.holders.end(), 0);
    return success();
  }
  place_sums();
  return success();
}

// Places the sums, the same on all ranks. The sums of one rank lie one behind the other, by the
// rank that gets them, so that they cross in few pieces.
void HostUnit::place_sums() {
  const HostSpan& span = *span_;
  const auto& places = span.hosts->places();
  SumOffsets& sums = definition_.reduce_shape.sums;
  sums.dtype = accumulator_of(spec_.reduce_dtype, spec_.grad_dtype);
  sums.offset.assign(count(), std::vector<uint64_t>(places.size()));
  const bool in_place = sums.dtype == spec_.reduce_dtype;
  const uint64_t size = dtype_size(sums.dtype);
  // For each lane, by host: the ranks of the layout whose pieces it sums.
  std::vector<std::vector<std::vector<int>>> lanes(
      span.hosts->lanes(), std::vector<std::vector<int>>(span.hosts->count()));
  for (size_t rank = 0; rank < places.size(); rank++)
    lanes[span.hosts->lane_of(rank)][places[rank].host].push_back(static_cast<int>(rank));
  std::vector<uint64_t> longest = definition_.grad_map.slots;
  for (const auto& of_hosts : lanes) {
    std::vector<uint64_t> end = definition_.grad_map.slots;
    for (const std::vector<int>& ranks : of_hosts)
      for (size_t i = 0; i < count(); i++)
        for (const int rank : ranks) {
          if (!has_grad(i) || layout().tied(i)) continue;
          const Piece piece = layout().piece(rank, i);
          uint64_t& next = end[definition_.grad_map.slot_of(i)];
          sums.offset[i][static_cast<size_t>(rank)] =
              in_place ? definition_.grad_map.offset[i] + piece.begin * size : next;
          next += in_place ? 0 : piece.count * size;
        }
    for (size_t k = 0; k < end.size(); k++) longest[k] = std::max(longest[k], round_up(end[k], 64));
  }
  definition_.grad_map.slots = longest;
  definition_.grad_map.bytes = std::accumulate(longest.begin(), longest.end(), uint64_t{0});
  definition_.reduce_shape.slot = definition_.grad_map;
}

void HostUnit::plan_reduction(GradReduction& reduction) const {
  if (!span_) {
    reduction.planned = PlannedUnit(fsccl::reduce_grads(definition_.reduce_shape));
    reduction.enters = reduce_grads_enter(definition_.reduce_shape);
    return;
  }
  if (span_->by_hosts) reduction.planned = PlannedUnit(reduce_partials(definition_.reduce_shape));
  const auto kind =
      span_->by_hosts ? LaneExchange::Kind::partial_sums : LaneExchange::Kind::contributions;
  if (const Communicator* const among = span_->sums_among)
    reduction.between_hosts =
        LaneExchange(definition_.reduce_shape, kind, span_->holders, among->size(), among->rank());
}

// Submits the next stage, an operation of the ranks of this host.
Status HostUnit::on_host(const PlannedUnit& planned, const Binding* bindings,
                         const OperationSettings& settings, const Fingerprint& fingerprint,
                         Chain* chain) {
  Operation* op = nullptr;
  fsccl_status_t state;
  FSCCL_TRY(host_comm().engine().acquire(&op, settings, fingerprint));
  run_plan(*op, planned, bindings);
  chain->follow(*op);
  FSCCL_TRY(host_comm().engine().submit(*op, false, &state));
  chain->passed(host_comm().engine());
  return success();
}

// Submits the next stage, an operation of the ranks of a lane, or of all ranks.
Status HostUnit::exchange(LaneExchange& pieces, Communicator& among, const SlotSet& slots,
                          const OperationSettings& settings, const Fingerprint& fingerprint,
                          Chain* chain) {
  if (pieces.empty()) return success();
  // Ranks that disagree are told what they called, not what it is made of.
  const auto prepare = [&](Operation& op) {
    const Fingerprint list = op.fingerprint;
    op.fingerprint = fingerprint;
    op.fingerprint.sequence = list.sequence;
    op.fingerprint.history = mix_hash(fingerprint.history, list.history);
    op.scale = settings.scale;
    op.divisor = settings.divisor;
    op.accumulate = settings.accumulate;
    op.dry_run = pool().dry_run();
    chain->follow(op);
  };
  FSCCL_TRY(pieces.run(among, slots, sharded_grads_.places, prepare));
  chain->passed(among.engine());
  return success();
}

// Gathers in three stages (docs/unshard.md). `moves` is false where a kept slot is still valid.
Status HostUnit::unshard_between_hosts(const PlannedUnit& first, bool moves, bool writable,
                                       uint64_t released, Chain* chain) {
  Fingerprint fingerprint;
  fill_fingerprint(&fingerprint, OpCode::unshard, layout().total(),
                   static_cast<uint8_t>((writable ? 1 : 0) | (moves ? 0 : 2)));
  FSCCL_TRY(
      on_host(first, unshard_bindings_.data(), unshard_settings(released), fingerprint, chain));
  if (!moves) return success();
  const SlotSet& slots = writable && shared() ? writable_slots_ : slots_;
  if (Communicator* const lane = span_->hosts->lane()) {
    CodedGather* const coded = span_->coded.get();
    FSCCL_TRY(coded && !coded->stays_out()
                  ? coded->run(slots, fingerprint, changed_, chain)
                  : exchange(span_->parameters, *lane, slots, {}, fingerprint, chain));
  }
  fingerprint.flags |= 4;  // the last stage
  const PlannedUnit& last = writable || !shared() ? span_->pull : span_->host_barrier;
  return on_host(last, unshard_bindings_.data(), {}, fingerprint, chain);
}

Status HostUnit::codec_report(fsccl_codec_report_t* report) const {
  if (spec_.gather_codec.kind == FSCCL_CODEC_NONE && spec_.reduce_codec.kind == FSCCL_CODEC_NONE)
    return Unit::codec_report(report);
  *report = fsccl_codec_report_t FSCCL_CODEC_REPORT_INIT;
  if (span_ && span_->coded) span_->coded->report(report);
  if (span_ && span_->coded_sum) span_->coded_sum->report(report);
  return success();
}

// Reduces between hosts. `finishes` has the scale and what else is done to the sum over all ranks.
Status HostUnit::sum_between_hosts(GradReduction& reduction, const OperationSettings& finishes,
                                   Fingerprint fingerprint, Chain* chain) {
  const bool by_hosts = span_->by_hosts;
  if (by_hosts)
    FSCCL_TRY(on_host(reduction.planned, reduction.bindings.data(), {}, fingerprint, chain));
  Communicator* const among = span_->sums_among;
  if (among && span_->coded_sum)
    FSCCL_TRY(span_->coded_sum->run(grads_, sharded_grads_.places, finishes, fingerprint, chain));
  else if (among)
    FSCCL_TRY(exchange(reduction.between_hosts, *among, grads_,
                       by_hosts ? OperationSettings{} : finishes, fingerprint, chain));
  if (!span_->has_laneless_ranks) return success();
  fingerprint.flags |= 4;
  return on_host(span_->host_barrier, reduction.bindings.data(), {}, fingerprint, chain);
}

void HostUnit::end_between_hosts(Operation& op, const Chain& chain) const {
  op.plan = &span_->empty_plan;
  op.dry_run = pool().dry_run();
  chain.follow(op);
}

// Takes this rank's sums from the slots where they are. If all ranks have exchanged their
// gradients, the sums have gone to the sharded gradients, and only the norm is left to take.
Completion HostUnit::hosts_summed(Operation& op) {
  const GradReduction& reduction = reduction_of(op);
  HostUnit& unit = unit_of(op);
  const HostSpan& span = *unit.span_;
  const SumOffsets& sums = unit.definition_.reduce_shape.sums;
  for (size_t k = 0; k < reduction.params.size(); k++) {
    const size_t i = reduction.params[k];
    const Piece piece = unit.layout().piece(unit.comm().rank(), i);
    if (!piece.count) continue;
    const void* source = unit.sharded_grads_.places[i];
    Reduce last{};
    last.sources = &source;
    last.n = 1;
    last.from = last.to = unit.spec_.grad_dtype;
    last.dst = unit.sharded_grads_.places[i];
    last.count = piece.count;
    last.norm = op.want_norm ? &op.norm : nullptr;
    if (span.by_hosts) {
      const uint64_t at = reduction.bindings[unit.spec_.by_parameter ? k : 0].table_offset +
                          sums.offset[i][static_cast<size_t>(unit.comm().rank())];
      source = unit.regions_[static_cast<size_t>(span.sum_owner)].mapped + at;
      last.from = sums.dtype;
      last.scale = op.scale;
      last.divisor = op.divisor;
      last.accumulate = op.accumulate;
    }
    if (!op.dry_run && (span.by_hosts || last.norm)) reduce(last);
    shard_ready(op, i);
  }
  return shards_summed(op);
}

}  // namespace fsccl
