#include "comm/hierarchy.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "base/config.h"
#include "comm/communicator.h"

namespace fsccl {
namespace {

// From so many bytes on a list runs in two levels. Over sockets every list does, because it takes
// fewer messages. Elsewhere the exchanges of more stages cost more for smaller lists.
constexpr uint64_t kListBytes = 64u << 10;

bool gathers(OpCode op) { return op == OpCode::all_gather || op == OpCode::all_gather_v; }
bool scatters(OpCode op) { return op == OpCode::reduce_scatter || op == OpCode::reduce_scatter_v; }

}  // namespace

fsccl_dtype_t partial_dtype(fsccl_dtype_t dtype, fsccl_op_t op) {
  const bool picks = op.kind == FSCCL_OP_MIN || op.kind == FSCCL_OP_MAX;
  return dtype_float(dtype) && !picks ? accumulator_of(dtype, dtype) : dtype;
}

Hierarchy::Hierarchy(Communicator& whole, const Hosts& hosts)
    : whole_(whole),
      at_(hosts),
      places_(hosts.places()),
      own_place_(hosts.own_place()),
      host_(&hosts.host()),
      lane_(hosts.lane()),
      mode_(config()->hierarchy),
      least_list_(whole.engine().options().channel->traits().sockets() ? 1 : kListBytes),
      sums_(config()->reproducible == Reproducible::kRun) {
  empty_plan_.name = "by_hosts";
  empty_plan_.rank = whole.rank();
  empty_plan_.ranks = whole.size();
}

bool Hierarchy::takes(const CollectiveCall& call) const {
  if (call.op == OpCode::barrier) return !call.prepare;
  const bool each = gathers(call.op) || scatters(call.op);  // count is a rank's
  const bool sums = scatters(call.op) || call.op == OpCode::all_reduce;
  if ((!each && !sums && call.op != OpCode::broadcast) || call.prepare || (sums && !sums_))
    return false;
  return call.count ||
         (call.counts && std::accumulate(call.counts, call.counts + places_.size(), uint64_t{0}));
}

HostsChoice Hierarchy::choose(const CollectiveCall& call, const Shape& shape) const {
  if (reduces(call.op) && !sums_) return {};
  const bool widens = reduces(call.op) && partial_dtype(call.dtype, call.reduction) != call.dtype;
  return choose_by_hosts(call.op, shape, whole_.collectives().group_shape(), mode_, widens);
}

bool Hierarchy::takes(const ListCall& call) const {
  if (call.prepare || (call.kind == ListKind::reduce_scatter && !sums_)) return false;
  uint64_t bytes = 0;
  for (size_t t = 0; t < call.count; t++) {
    const fsccl_tensor_t& tensor = call.tensors[t];
    const size_t* const end =
        tensor.counts + (call.kind == ListKind::broadcast ? 1 : places_.size());
    bytes += std::accumulate(tensor.counts, end, uint64_t{0}) * dtype_size(tensor.dtype);
  }
  return bytes && (mode_ == HierarchyMode::kOn || bytes >= least_list_);
}

// ---- parts

void Hierarchy::parts_of(const CollectiveCall& call) {
  const bool gather = gathers(call.op);
  const auto self = static_cast<size_t>(whole_.rank());
  auto* const input = static_cast<std::byte*>(const_cast<void*>(call.input));
  auto* const output = static_cast<std::byte*>(call.output);
  parts_.clear();
  for (size_t rank = 0, begin = 0; rank < places_.size(); rank++) {
    const size_t count = call.counts ? call.counts[rank] : call.count;
    if (call.displacements) begin = call.displacements[rank];
    std::byte* const all = (gather ? output : input) + begin * dtype_size(call.dtype);
    std::byte* const own = rank != self ? nullptr : gather ? input : output;
    // Parts of one tensor that touch are joined. Displacements are each rank's own, so whether
    // parts may be joined depends on the operation alone.
    if (count)
      parts_.push_back({rank, call.op == OpCode::all_gather_v ? rank : 0, count, call.dtype,
                        partial_dtype(call.dtype, call.reduction), all, own});
    begin += count;
  }
}

void Hierarchy::parts_of(const ListCall& call) {
  const bool gather = call.kind == ListKind::all_gather;
  const auto self = static_cast<size_t>(whole_.rank());
  parts_.clear();
  for (size_t t = 0; t < call.count; t++) {
    const fsccl_tensor_t& tensor = call.tensors[t];
    auto* all = static_cast<std::byte*>(gather ? tensor.recv : tensor.send);
    auto* const mine = static_cast<std::byte*>(gather ? tensor.send : tensor.recv);
    for (size_t rank = 0; rank < places_.size(); rank++) {
      const size_t count = tensor.counts[rank];
      if (count)
        parts_.push_back({rank, t, count, tensor.dtype, partial_dtype(tensor.dtype, call.reduction),
                          all, rank == self ? mine : nullptr});
      all += count * dtype_size(tensor.dtype);
    }
  }
}

// ---- stages

// A stage begins when the one before is over. The last sum divides an average by all ranks.
void Hierarchy::follow(Operation& op, bool last_sum) const {
  if (last_sum && op.kind == FSCCL_OP_AVG) op.divisor = whole_.size();
  chain_.follow(op);
}

template <class Call>
Status Hierarchy::on(Communicator& part, Call call, bool last_sum) {
  const auto follow_last = [&](Operation& op) {
    op.fingerprint.flags = static_cast<uint8_t>(called_);
    follow(op, last_sum);
  };
  call.prepare = follow_last;
  fsccl_status_t state;
  FSCCL_TRY(part.run(call, false, &state));
  chain_.passed(part.engine());
  return success();
}

template Status Hierarchy::on(Communicator&, CollectiveCall, bool);
template Status Hierarchy::on(Communicator&, ListCall, bool);

Status Hierarchy::stage_list(Communicator& part, ListKind kind, fsccl_op_t reduction,
                             bool last_sum) {
  if (held_.empty()) return success();
  const bool gather = kind == ListKind::all_gather;
  const auto ranks = static_cast<size_t>(part.size()), self = static_cast<size_t>(part.rank());
  tensors_.clear();
  received_.clear();
  counts_.clear();
  for (const Held& held : held_) {
    if (!held.joins) {
      tensors_.push_back(
          {gather ? nullptr : held.at, gather ? held.at : nullptr, nullptr, held.dtype});
      received_.push_back(held.received);
      counts_.resize(counts_.size() + ranks);
    }
    void*& own = gather ? tensors_.back().send : tensors_.back().recv;
    if (held.holder == self && !own) own = held.own;
    counts_[counts_.size() - ranks + held.holder] += held.count;
  }
  for (size_t t = 0; t < tensors_.size(); t++) tensors_[t].counts = &counts_[t * ranks];
  ListCall call{tensors_.data(), tensors_.size(), kind, reduction};
  if (!gather) call.received = received_.data();
  return on(part, call, last_sum);
}

// Stages a plain call between hosts: the parts that each host holds one after the other, one part
// of each host in each round. The parts lie anywhere behind `base`.
Status Hierarchy::stage_rounds(ListKind kind, std::byte* base, fsccl_op_t reduction) {
  const bool gather = kind == ListKind::all_gather;
  for (size_t round = 0;; round++) {
    CollectiveCall call;
    std::byte* own = base;
    counts_.assign(at_.count(), 0);
    displacements_.assign(at_.count(), 0);
    seen_.assign(at_.count(), 0);
    bool some = false;
    for (const Held& held : held_) {
      if (seen_[held.holder]++ != round) continue;
      some = true;
      call.dtype = held.dtype;
      counts_[held.holder] = held.count;
      displacements_[held.holder] = static_cast<size_t>(held.at - base) / dtype_size(held.dtype);
      if (held.holder == own_place_.host) own = held.own;
    }
    if (!some) return success();
    call.op = gather ? OpCode::all_gather_v : OpCode::reduce_scatter_v;
    call.input = gather ? own : base;
    call.output = gather ? base : own;
    call.reduction = reduction;
    call.counts = counts_.data();
    call.displacements = displacements_.data();
    FSCCL_TRY(on(*lane_, call, true));
  }
}

// ---- calls

// All that this communicator has been asked for.
Status Hierarchy::finish() {
  Engine& engine = whole_.engine();
  fsccl_status_t state;
  return engine.submitted() ? engine.wait(engine.submitted(), -1, &state) : success();
}

namespace {

// These describe the whole call in errors and recordings. No other rank compares them.
Fingerprint described(const CollectiveCall& call) {
  Fingerprint fingerprint;
  fingerprint.op = call.op;
  fingerprint.dtype = static_cast<uint8_t>(call.dtype);
  fingerprint.count = call.count;
  fingerprint.root = call.root;
  fingerprint.kind = static_cast<uint8_t>(call.reduction.kind);
  return fingerprint;
}

}  // namespace

Status Hierarchy::end(const Fingerprint& fingerprint, bool wait, fsccl_status_t* state) {
  Operation* operation = nullptr;
  FSCCL_TRY(whole_.engine().acquire(&operation, OperationSettings{}, fingerprint));
  operation->plan = &empty_plan_;
  follow(*operation, false);
  return whole_.engine().submit(*operation, wait, state);
}

Status Hierarchy::stages(const CollectiveCall& call) {
  if (call.op == OpCode::all_reduce) return all_reduce(call);
  if (call.op == OpCode::broadcast) return broadcast(call);
  if (call.op == OpCode::barrier) return barrier();
  parts_of(call);
  return gathers(call.op) ? gather(static_cast<std::byte*>(call.output))
                          : reduce_scatter(call.reduction, true);
}

Status Hierarchy::stages(const ListCall& call) {
  if (call.kind == ListKind::broadcast) return broadcast(call);
  parts_of(call);
  return call.kind == ListKind::all_gather ? gather(nullptr)
                                           : reduce_scatter(call.reduction, false);
}

template <class Call>
Status Hierarchy::run_stages(const Call& call, bool wait, fsccl_status_t* state) {
  const Fingerprint whole = described(call);
  called_ = whole.op;
  chain_ = Chain(whole_.engine());
  return chain_.run(std::array{&whole_.engine()}, [&]() -> Status {
    FSCCL_TRY(stages(call));
    return end(whole, wait, state);
  });
}

Status Hierarchy::run(const CollectiveCall& call, bool wait, fsccl_status_t* state) {
  return run_stages(call, wait, state);
}

Status Hierarchy::run(const ListCall& call, bool wait, fsccl_status_t* state) {
  return run_stages(call, wait, state);
}

}  // namespace fsccl
