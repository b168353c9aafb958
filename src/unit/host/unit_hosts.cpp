// A unit whose ranks are on several hosts (machines). Each host has slots of its own, which its
// ranks fill and reduce like those of a unit on one host. Between two hosts each byte crosses once,
// over the lanes (comm/hosts.h):
//
//   unshard        The ranks of a host gather the pieces that they hold in its slots. The ranks of
//                  a lane exchange these pieces for the pieces of the other hosts. Then all ranks
//                  of the host wait until its lanes have received. If slots are private, each rank
//                  also pulls the received pieces from the ranks that have them.
//   reduce_grads   The ranks of a host reduce their gradients: each reduces the pieces of the ranks
//                  of its lane, in its own gradient slot. The ranks of a lane sum these pieces over
//                  the hosts. Then each rank reads the sum of its own piece from the slot, scales
//                  it, and writes it to its sharded gradient.
//
// Sums between hosts are in the accumulator's type (fp32, fp64 for fp64), so that they are rounded
// once, at the end, like the sums of one host. If that is not the gradients' type, the sums lie
// behind the gradients in the slot. The slot is then longer by the elements that the ranks of a
// lane hold of the unit. Sums are first over the ranks of a host, in rank order, and then over the
// hosts.
//
// With FSCCL_REPRODUCIBLE=placement, FSCCL_HIERARCHY=off or a reduce_codec everywhere, sums are in
// rank order over all ranks instead, with the same bits as on one host: each rank sends its
// gradients, in their own type or coded, to the ranks that sum them into their sharded gradients.
// More bytes cross between hosts then, unless each host has one rank, in which case this form is
// always used.
//
// A unit whose ranks are all on one host is made like this, too, if it has a codec everywhere. Each
// rank is then a lane of its own, which codes the rank's pieces and exchanges nothing.
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

// Makes the HostSpan. Collective, blocking. Changes *unshard and definition_.reduce_shape, which
// were for all ranks, to the shapes of plans of this host's ranks.
Status HostUnit::span_hosts(UnitShape* unshard) {
  FSCCL_ASSIGN(Hosts * hosts, comm().hosts());
  const ConfigRef settings = config();
  span_ = std::make_unique<HostSpan>();
  HostSpan& span = *span_;
  span.hosts = hosts;
  span.by_hosts = settings->reproducible == Reproducible::kRun &&
                  settings->hierarchy != HierarchyMode::kOff &&
                  // if each host has one rank, its gradients are the host's sum
                  hosts->count() < hosts->places().size() && !spec_.reduce_codec.everywhere;
  const Hosts::Place own_place = hosts->own_place();
  // Each vector has, for each rank of the host, ranks of the shard_comm. `own` has the rank itself,
  // `brought` the ranks of other hosts whose pieces its lane brings, and `summed` the ranks whose
  // sums its lane makes.
  std::vector<std::vector<int>> own(hosts->host_size()), brought(hosts->host_size()),
      summed(hosts->host_size());
  span.holders.assign(hosts->places().size(), -1);
  for (size_t rank = 0; rank < hosts->places().size(); rank++) {
    const auto [host, index] = hosts->places()[rank];
    const size_t lane = hosts->lane_of(rank);
    const int layout_rank = static_cast<int>(rank);
    if (host == own_place.host) own[index] = {layout_rank};
    // A lossy codec also changes the pieces of this host, so all hosts decode them.
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
                                   lane->size(), lane->rank(), spec_.gather_codec.loses());
  unshard->acts_for = std::move(brought);
  span.pull = PlannedUnit(unshard_pull(*unshard));
  unshard->acts_for = std::move(own);
  span.host_barrier = PlannedUnit(unshard_barrier(*unshard));
  definition_.reduce_shape.rank = unshard->rank;
  definition_.reduce_shape.acts_for = std::move(summed);
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

// Sets the offsets of the sums, the same on all ranks. The sums for one rank lie end to end, so
// that they cross between hosts in few pieces.
void HostUnit::place_sums() {
  const HostSpan& span = *span_;
  const auto& places = span.hosts->places();
  SumOffsets& sums = definition_.reduce_shape.sums;
  sums.dtype = accumulator_of(spec_.reduce_dtype, spec_.grad_dtype);
  sums.offset.assign(count(), std::vector<uint64_t>(places.size()));
  const bool in_place = sums.dtype == spec_.reduce_dtype;
  const uint64_t size = dtype_size(sums.dtype);
  // For each lane and host, the ranks of the layout whose pieces the lane sums.
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
  // The fingerprint is that of the unit's call, so that the error of ranks that disagree names the
  // call and not its stages.
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

// Gathers in three stages (docs/unshard.md). `moves` is false if a kept slot is still valid.
Status HostUnit::unshard_between_hosts(const PlannedUnit& first, bool moves, bool writable,
                                       uint64_t release_position, Chain* chain) {
  Fingerprint fingerprint;
  fill_fingerprint(&fingerprint, OpCode::unshard, layout().total(),
                   static_cast<uint8_t>((writable ? 1 : 0) | (moves ? 0 : 2)));
  FSCCL_TRY(on_host(first, unshard_bindings_.data(), unshard_settings(release_position),
                    fingerprint, chain));
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
  if (span_)
    for (const std::unique_ptr<CodedSum>& sum : span_->coded_sums)
      if (sum) sum->report(report);
  report->gather_codec = spec_.gather_codec.name();
  report->reduce_codec = spec_.reduce_codec.name();
  return success();
}

// Submits the stages of a reduction over several hosts. `finishes` has the settings that finish the
// sum over all ranks, such as the scale.
Status HostUnit::sum_between_hosts(GradReduction& reduction, const OperationSettings& finishes,
                                   Fingerprint fingerprint, Chain* chain) {
  const bool by_hosts = span_->by_hosts;
  if (by_hosts)
    FSCCL_TRY(on_host(reduction.planned, reduction.bindings.data(), {}, fingerprint, chain));
  Communicator* const among = span_->sums_among;
  if (!span_->coded_sums.empty()) {
    for (const size_t k : reduction.slots)
      if (CodedSum* const sum = span_->coded_sums[k].get())
        FSCCL_TRY(sum->run(grads_, sharded_grads_.places, finishes, fingerprint, chain));
  } else if (among) {
    FSCCL_TRY(exchange(reduction.between_hosts, *among, grads_,
                       by_hosts ? OperationSettings{} : finishes, fingerprint, chain));
  }
  if (!span_->has_laneless_ranks) return success();
  fingerprint.flags |= 4;
  return on_host(span_->host_barrier, reduction.bindings.data(), {}, fingerprint, chain);
}

void HostUnit::end_between_hosts(Operation& op, const Chain& chain) const {
  op.plan = &span_->empty_plan;
  op.dry_run = pool().dry_run();
  chain.follow(op);
}

// Finishes this rank's sums: reads them from the gradient slot and writes the sharded gradients. If
// sums were not made in two levels, they are in the sharded gradients already, and only the norm is
// made.
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
