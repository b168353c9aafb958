#include "engine/hierarchy.h"

#include <algorithm>
#include <numeric>

#include "base/config.h"
#include "engine/communicator.h"
#include "plan/build.h"

namespace fsccl {
namespace {

constexpr uint64_t kTag = 0x6869657261726368;  // of the subsets
constexpr uint64_t kFromBytes = 64u << 10;     // of the whole result or input: below, the exchanges of more stages cost more

std::byte* at(const void* base, uint64_t bytes) { return static_cast<std::byte*>(const_cast<void*>(base)) + bytes; }

bool gathers(OpCode op) { return op == OpCode::all_gather || op == OpCode::all_gather_v; }
bool scatters(OpCode op) { return op == OpCode::reduce_scatter || op == OpCode::reduce_scatter_v; }

// The ranks of each host, hosts in the order of their first ranks.
std::vector<std::vector<int>> ranks_by_host(Communicator& whole) {
  Job& job = whole.context().job();
  std::vector<uint64_t> hosts;
  std::vector<std::vector<int>> ranks;
  for (int rank = 0; rank < whole.size(); rank++) {
    const uint64_t host = job.member(whole.job_rank(rank)).host;
    const auto found = static_cast<size_t>(std::find(hosts.begin(), hosts.end(), host) - hosts.begin());
    if (found == hosts.size()) hosts.push_back(host), ranks.emplace_back();
    ranks[found].push_back(rank);
  }
  return ranks;
}

// Of the first sum, over a host, and the second, over hosts: what is multiplied is so before all, what is divided after all.
fsccl_op_t first_sum(fsccl_op_t op) {
  if (op.kind == FSCCL_OP_AVG) op.kind = FSCCL_OP_SUM;
  return op;
}
fsccl_op_t last_sum(fsccl_op_t op) {
  if (op.kind == FSCCL_OP_PREMUL_SUM) op = FSCCL_SUM;
  return op;
}

Result<std::unique_ptr<Communicator>> part_of(Communicator& whole, const std::vector<int>& ranks, uint64_t tag, const char* what) {
  CommunicatorOptions options{whole.timeout_ms(), fmt::format("{}, {}", whole.name(), what), ranks};
  return whole.subset(ranks, tag, options);
}

Status run_on(Communicator& part, const CollectiveCall& call, fsccl_status_t* state) {
  return part.collectives().run(call, false, state);
}
Status run_on(Communicator& part, const ListCall& call, fsccl_status_t* state) {
  return part.lists().run(part.collectives(), call, false, state);
}

}  // namespace

Result<std::unique_ptr<Hierarchy>> Hierarchy::create(Communicator& whole) {
  const ConfigRef settings = config();
  const std::vector<std::vector<int>> hosts = ranks_by_host(whole);
  if (hosts.size() == static_cast<size_t>(whole.size()) || settings->hierarchy == HierarchyMode::kOff)
    return std::unique_ptr<Hierarchy>();
  std::unique_ptr<Hierarchy> made(new Hierarchy(whole));
  made->hosts_ = hosts.size();
  made->lanes_ = hosts[0].size();
  made->seats_.resize(static_cast<size_t>(whole.size()));
  for (size_t host = 0; host < hosts.size(); host++) {
    made->lanes_ = std::min(made->lanes_, hosts[host].size());
    for (size_t place = 0; place < hosts[host].size(); place++)
      made->seats_[static_cast<size_t>(hosts[host][place])] = {host, place};
  }
  made->seat_ = made->seats_[static_cast<size_t>(whole.rank())];
  const std::vector<int>& here = hosts[made->seat_.host];
  made->here_ = here.size();
  made->always_ = settings->hierarchy == HierarchyMode::kOn;
  made->sums_ = settings->reproducible == Reproducible::kRun;
  FSCCL_ASSIGN(made->host_, part_of(whole, here, kTag, "ranks of a host"));
  whole.engine().bind(made->host_->engine());
  if (made->seat_.place >= made->lanes_) return made;
  std::vector<int> across;
  for (const std::vector<int>& ranks : hosts) across.push_back(ranks[made->seat_.place]);
  FSCCL_ASSIGN(made->lane_, part_of(whole, across, kTag + 1, "a lane between hosts"));
  whole.engine().bind(made->lane_->engine());
  return made;
}

Hierarchy::Hierarchy(Communicator& whole) : whole_(whole) {
  nothing_.name = "by_hosts";
  nothing_.rank = whole.rank();
  nothing_.ranks = whole.size();
}

Hierarchy::~Hierarchy() { whole_.engine().unbind(); }

bool Hierarchy::takes(const CollectiveCall& call) const {
  const bool each = gathers(call.op) || scatters(call.op);  // count is a rank's
  const bool sums = scatters(call.op) || call.op == OpCode::all_reduce;
  if ((!each && !sums && call.op != OpCode::broadcast) || call.prepare || (sums && !sums_)) return false;
  const uint64_t count = call.counts ? std::accumulate(call.counts, call.counts + seats_.size(), uint64_t{0})
                                     : call.count * (each ? seats_.size() : 1);
  return count && (always_ || count * dtype_size(call.dtype) >= kFromBytes);
}

bool Hierarchy::takes(const ListCall& call) const {
  if (call.prepare || (call.kind == ListKind::reduce_scatter && !sums_)) return false;
  uint64_t bytes = 0;
  for (size_t t = 0; t < call.count; t++) {
    const fsccl_tensor_t& tensor = call.tensors[t];
    const size_t* const end = tensor.counts + (call.kind == ListKind::broadcast ? 1 : seats_.size());
    bytes += std::accumulate(tensor.counts, end, uint64_t{0}) * dtype_size(tensor.dtype);
  }
  return bytes && (always_ || bytes >= kFromBytes);
}

// ---- parts

void Hierarchy::parts_of(const CollectiveCall& call) {
  const bool gather = gathers(call.op);
  const auto self = static_cast<size_t>(whole_.rank());
  parts_.clear();
  for (size_t rank = 0, begin = 0; rank < seats_.size(); rank++) {
    const size_t count = call.counts ? call.counts[rank] : call.count;
    if (call.displacements) begin = call.displacements[rank];
    std::byte* const all = at(gather ? call.output : call.input, begin * dtype_size(call.dtype));
    std::byte* const own = rank == self ? at(gather ? call.input : call.output, 0) : nullptr;
    if (count) parts_.push_back({rank, call.displacements ? rank : 0, count, call.dtype, all, own});
    begin += count;
  }
}

void Hierarchy::parts_of(const ListCall& call) {
  const bool gather = call.kind == ListKind::all_gather;
  const auto self = static_cast<size_t>(whole_.rank());
  parts_.clear();
  for (size_t t = 0; t < call.count; t++) {
    const fsccl_tensor_t& tensor = call.tensors[t];
    std::byte* all = at(gather ? tensor.recv : tensor.send, 0);
    for (size_t rank = 0; rank < seats_.size(); rank++) {
      const size_t count = tensor.counts[rank];
      std::byte* const own = rank == self ? at(gather ? tensor.send : tensor.recv, 0) : nullptr;
      if (count) parts_.push_back({rank, t, count, tensor.dtype, all, own});
      all += count * dtype_size(tensor.dtype);
    }
  }
}

// Elements cut into a part for each lane, of whole lines but for the last; ranks without a lane get none.
void Hierarchy::cut(uint64_t count, fsccl_dtype_t dtype) {
  const uint64_t line = 64 / dtype_size(dtype), lines = (count + line - 1) / line, each = (lines + lanes_ - 1) / lanes_ * line;
  counts_.assign(here_, 0);
  displacements_.assign(here_, count);
  for (size_t i = 0; i < lanes_; i++) {
    displacements_[i] = std::min(count, each * i);
    counts_[i] = std::min(each, count - displacements_[i]);
  }
}

// ---- stages

// A stage begins when the one before is over. The last sum divides an average by all ranks.
void Hierarchy::follow(Operation& op, bool last_sum) const {
  if (last_sum && op.kind == FSCCL_OP_AVG) {
    op.scale = 1.0 / whole_.size();
    op.divisor = whole_.size();
  }
  if (before_->completed() >= before_sequence_) return;
  op.gate = before_->done_line();
  op.gate_position = op.gate_sequence = before_sequence_;
  op.gate_engine = before_;
}

template <class Call>
Status Hierarchy::on(Communicator& part, Call call, bool last_sum) {
  struct Context {
    const Hierarchy* hierarchy;
    bool last_sum;
  } const context{this, last_sum};
  call.prepare_context = &context;
  call.prepare = [](Operation& op, const void* given) {
    const auto& [hierarchy, last] = *static_cast<const Context*>(given);
    hierarchy->follow(op, last);
  };
  fsccl_status_t state;
  FSCCL_TRY(run_on(part, call, &state));
  before_ = &part.engine();
  before_sequence_ = before_->submitted();
  return success();
}

// The parts of a stage: those for which `use` says yes, having said who holds them.
template <class Use>
void Hierarchy::hold(Join join, Use use) {
  held_.clear();
  const Part* before = nullptr;
  for (const Part& part : parts_) {
    Held held{0, part.count, part.dtype, false, part.at, part.own};
    if (!use(part, held)) continue;
    if (join != Join::never && before && before + 1 == &part && before->tensor == part.tensor)
      held.joins = held.holder > held_.back().holder || (join == Join::all && held.holder == held_.back().holder);
    held_.push_back(held);
    before = &part;
  }
}

Status Hierarchy::stage_list(Communicator& part, ListKind kind, fsccl_op_t reduction, bool last_sum) {
  if (held_.empty()) return success();
  const bool gather = kind == ListKind::all_gather;
  const auto ranks = static_cast<size_t>(part.size()), self = static_cast<size_t>(part.rank());
  tensors_.clear();
  counts_.clear();
  for (const Held& held : held_) {
    if (!held.joins) {
      tensors_.push_back({gather ? nullptr : held.at, gather ? held.at : nullptr, nullptr, held.dtype});
      counts_.resize(counts_.size() + ranks);
    }
    void*& own = gather ? tensors_.back().send : tensors_.back().recv;
    if (held.holder == self && !own) own = held.own;
    counts_[counts_.size() - ranks + held.holder] += held.count;
  }
  for (size_t t = 0; t < tensors_.size(); t++) tensors_[t].counts = &counts_[t * ranks];
  return on(part, ListCall{tensors_.data(), tensors_.size(), kind, reduction}, last_sum);
}

// Of a plain call, between hosts: the parts that each host holds one after the other, one of each host in each round. They lie
// anywhere behind `base`.
Status Hierarchy::stage_rounds(ListKind kind, std::byte* base, fsccl_op_t reduction) {
  const bool gather = kind == ListKind::all_gather;
  for (size_t round = 0;; round++) {
    CollectiveCall call;
    std::byte* own = base;
    counts_.assign(hosts_, 0);
    displacements_.assign(hosts_, 0);
    seen_.assign(hosts_, 0);
    bool some = false;
    for (const Held& held : held_) {
      if (seen_[held.holder]++ != round) continue;
      some = true;
      call.dtype = held.dtype;
      counts_[held.holder] = held.count;
      displacements_[held.holder] = static_cast<size_t>(held.at - base) / dtype_size(held.dtype);
      if (held.holder == seat_.host) own = held.own;
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

// ---- collectives

// plain: the output of a call that is no list.
Status Hierarchy::gather(std::byte* plain) {
  const bool carries = here_ > lanes_;
  if (carries) {
    hold(Join::holders, [&](const Part& part, Held& held) {
      held.holder = seats_[part.rank].place;
      return seats_[part.rank].host == seat_.host;
    });
    FSCCL_TRY(stage_list(*host_, ListKind::all_gather));
  }
  if (lane_) {
    hold(Join::holders, [&](const Part& part, Held& held) {
      held.holder = seats_[part.rank].host;
      if (!held.own) held.own = part.at;
      return lane_of(part) == seat_.place;
    });
    FSCCL_TRY(plain ? stage_rounds(ListKind::all_gather, plain) : stage_list(*lane_, ListKind::all_gather));
  }
  hold(Join::all, [&](const Part& part, Held& held) {
    held.holder = lane_of(part);
    held.own = part.at;
    return !(carries && seats_[part.rank].host == seat_.host);
  });
  return stage_list(*host_, ListKind::all_gather);
}

// Where sums lie in scratch_, and how much that takes.
uint64_t Hierarchy::place_partials() {
  uint64_t bytes = 0;
  size_t tensor = SIZE_MAX;
  for (Part& part : parts_) {
    if (!lane_ || lane_of(part) != seat_.place) continue;
    if (part.tensor != tensor) bytes = round_up_line(bytes);
    tensor = part.tensor;
    part.partial = bytes;
    bytes += part.count * dtype_size(part.dtype);
  }
  for (Part& part : parts_) {
    if (!carried(part)) continue;
    part.result = round_up_line(bytes);
    bytes = part.result + part.count * dtype_size(part.dtype);
  }
  return bytes;
}

Status Hierarchy::reduce_scatter(fsccl_op_t reduction, bool plain) {
  const uint64_t bytes = place_partials();
  if (scratch_.size() < bytes) {
    FSCCL_TRY(finish());  // what still uses the old one
    scratch_.resize(bytes);
  }
  hold(Join::all, [&](const Part& part, Held& held) {
    held.holder = lane_of(part);
    held.own = at(scratch_.data(), part.partial);
    return true;
  });
  FSCCL_TRY(stage_list(*host_, ListKind::reduce_scatter, first_sum(reduction)));
  if (lane_) {
    hold(Join::holders, [&](const Part& part, Held& held) {
      held.holder = seats_[part.rank].host;
      held.at = at(scratch_.data(), part.partial);
      if (!held.own) held.own = at(scratch_.data(), part.result);
      return lane_of(part) == seat_.place;
    });
    FSCCL_TRY(plain ? stage_rounds(ListKind::reduce_scatter, scratch_.data(), last_sum(reduction))
                    : stage_list(*lane_, ListKind::reduce_scatter, last_sum(reduction), true));
  }
  hold(Join::never, [&](const Part& part, Held& held) {
    held.holder = lane_of(part);
    held.own = at(scratch_.data(), part.result);
    if (!part.own) held.at = held.own;
    if (part.own) held.at = part.own;
    return carried(part);
  });
  return stage_list(*host_, ListKind::all_gather);
}

Status Hierarchy::all_reduce(const CollectiveCall& call) {
  cut(call.count, call.dtype);
  std::byte* const own = at(call.output, displacements_[seat_.place] * dtype_size(call.dtype));
  CollectiveCall stage = call;
  stage.op = OpCode::reduce_scatter_v;
  stage.output = own;
  stage.count = 0;
  stage.counts = counts_.data();
  stage.displacements = displacements_.data();
  stage.reduction = first_sum(call.reduction);
  FSCCL_TRY(on(*host_, stage));
  stage = call;
  stage.input = stage.output = own;
  stage.count = counts_[seat_.place];
  stage.reduction = last_sum(call.reduction);
  if (stage.count) FSCCL_TRY(on(*lane_, stage, true));
  return gather_cut(call, own);
}

// What was cut, of which each lane has its part in its final place.
Status Hierarchy::gather_cut(const CollectiveCall& call, const std::byte* own) {
  CollectiveCall stage;
  stage.op = OpCode::all_gather_v;
  stage.input = own;
  stage.output = call.output;
  stage.dtype = call.dtype;
  stage.counts = counts_.data();
  stage.displacements = displacements_.data();
  return on(*host_, stage);
}

Status Hierarchy::broadcast(const CollectiveCall& call) {
  cut(call.count, call.dtype);
  const Seat root = seats_[static_cast<size_t>(call.root)];
  const bool here = seat_.host == root.host;
  CollectiveCall stage = call;
  stage.root = static_cast<int>(root.place);
  if (here) FSCCL_TRY(on(*host_, stage));
  std::byte* const own = at(call.output, displacements_[seat_.place] * dtype_size(call.dtype));
  stage.output = own;
  stage.count = counts_[seat_.place];
  stage.root = static_cast<int>(root.host);
  if (stage.count) FSCCL_TRY(on(*lane_, stage));
  return here ? success() : gather_cut(call, own);
}

Status Hierarchy::broadcast(const ListCall& call) {
  const Seat root = seats_[static_cast<size_t>(call.root)];
  const bool here = seat_.host == root.host;
  if (here) FSCCL_TRY(on(*host_, ListCall{call.tensors, call.count, call.kind, FSCCL_SUM, static_cast<int>(root.place)}));
  parts_.clear();
  for (size_t t = 0; t < call.count; t++) {
    const fsccl_tensor_t& tensor = call.tensors[t];
    cut(tensor.counts[0], tensor.dtype);
    for (size_t lane = 0; lane < lanes_; lane++)
      if (counts_[lane])
        parts_.push_back({lane, t, counts_[lane], tensor.dtype, at(tensor.recv, displacements_[lane] * dtype_size(tensor.dtype))});
  }
  tensors_.clear();
  for (const Part& part : parts_)
    if (part.rank == seat_.place) tensors_.push_back({nullptr, part.at, &part.count, part.dtype});
  if (!tensors_.empty())
    FSCCL_TRY(on(*lane_, ListCall{tensors_.data(), tensors_.size(), call.kind, FSCCL_SUM, static_cast<int>(root.host)}));
  if (here) return success();
  hold(Join::holders, [](const Part& part, Held& held) {
    held.holder = part.rank;
    held.own = part.at;
    return true;
  });
  return stage_list(*host_, ListKind::all_gather);
}

// ---- calls

// All that this communicator has been asked for.
Status Hierarchy::finish() {
  Engine& engine = whole_.engine();
  fsccl_status_t state;
  return engine.submitted() ? engine.wait(engine.submitted(), -1, &state) : success();
}

void Hierarchy::begin() {
  before_ = &whole_.engine();
  before_sequence_ = before_->submitted();
}

Status Hierarchy::end(OpCode op, uint64_t count, bool wait, fsccl_status_t* state) {
  Operation* operation = nullptr;
  Fingerprint fingerprint;
  fingerprint.op = op;
  fingerprint.count = count;
  FSCCL_TRY(whole_.engine().acquire(&operation, OperationSettings{}, fingerprint));
  operation->plan = &nothing_;
  follow(*operation, false);
  return whole_.engine().submit(*operation, wait, state);
}

Status Hierarchy::run(const CollectiveCall& call, bool wait, fsccl_status_t* state) {
  begin();
  if (gathers(call.op) || scatters(call.op)) {
    parts_of(call);
    FSCCL_TRY(gathers(call.op) ? gather(at(call.output, 0)) : reduce_scatter(call.reduction, true));
  } else {
    FSCCL_TRY(call.op == OpCode::all_reduce ? all_reduce(call) : broadcast(call));
  }
  return end(call.op, call.count, wait, state);
}

Status Hierarchy::run(const ListCall& call, bool wait, fsccl_status_t* state) {
  begin();
  if (call.kind == ListKind::broadcast) {
    FSCCL_TRY(broadcast(call));
  } else {
    parts_of(call);
    FSCCL_TRY(call.kind == ListKind::all_gather ? gather(nullptr) : reduce_scatter(call.reduction, false));
  }
  return end(op_code(call.kind), call.count, wait, state);
}

}  // namespace fsccl
