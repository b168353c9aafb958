#include "engine/hierarchy.h"

#include <algorithm>

#include "base/config.h"
#include "engine/communicator.h"

namespace fsccl {
namespace {

constexpr uint64_t kTag = 0x6869657261726368;  // of the subsets
constexpr uint64_t kFromBytes = 64u << 10;     // of the whole result or input: below, the exchanges of more stages cost more

const std::byte* at(const void* base, uint64_t bytes) { return static_cast<const std::byte*>(base) + bytes; }
std::byte* at(void* base, uint64_t bytes) { return static_cast<std::byte*>(base) + bytes; }

// Host by host, equally many ranks on each: how many, else 0.
size_t ranks_per_host(Communicator& whole) {
  Job& job = whole.context().job();
  const auto host = [&](int rank) { return job.member(whole.job_rank(rank)).host; };
  const int ranks = whole.size();
  int first = 1;
  while (first < ranks && host(first) == host(0)) first++;
  if (ranks % first) return 0;
  std::vector<uint64_t> seen;
  for (int rank = 0; rank < ranks; rank++) {
    const uint64_t number = host(rank);
    if (rank % first == 0) {
      if (std::find(seen.begin(), seen.end(), number) != seen.end()) return 0;
      seen.push_back(number);
    } else if (number != seen.back()) {
      return 0;
    }
  }
  return static_cast<size_t>(first);
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

Result<std::unique_ptr<Communicator>> part_of(Communicator& whole, std::vector<int> ranks, uint64_t tag, const char* what) {
  CommunicatorOptions options{whole.timeout_ms(), fmt::format("{}, {}", whole.name(), what), ranks};
  return whole.subset(ranks, tag, options);
}

}  // namespace

Result<std::unique_ptr<Hierarchy>> Hierarchy::create(Communicator& whole) {
  const ConfigRef settings = config();
  const size_t per_host = ranks_per_host(whole);
  if (per_host < 2 || settings->hierarchy == HierarchyMode::kOff) return std::unique_ptr<Hierarchy>();
  std::unique_ptr<Hierarchy> made(new Hierarchy(whole));
  made->per_host_ = per_host;
  made->hosts_ = static_cast<size_t>(whole.size()) / per_host;
  made->always_ = settings->hierarchy == HierarchyMode::kOn;
  made->sums_ = settings->reproducible == Reproducible::kRun;
  const int place = whole.rank() % static_cast<int>(per_host), first = whole.rank() - place;
  std::vector<int> here, across;
  for (int i = 0; i < static_cast<int>(per_host); i++) here.push_back(first + i);
  for (int rank = place; rank < whole.size(); rank += static_cast<int>(per_host)) across.push_back(rank);
  FSCCL_ASSIGN(made->host_, part_of(whole, std::move(here), kTag, "ranks of a host"));
  FSCCL_ASSIGN(made->lane_, part_of(whole, std::move(across), kTag + 1, "a lane between hosts"));
  for (Communicator* part : {made->host_.get(), made->lane_.get()}) whole.engine().bind(part->engine());
  return made;
}

Hierarchy::Hierarchy(Communicator& whole) : whole_(whole) {
  nothing_.name = "by_hosts";
  nothing_.rank = whole.rank();
  nothing_.ranks = whole.size();
}

Hierarchy::~Hierarchy() { whole_.engine().unbind(); }

bool Hierarchy::takes(const CollectiveCall& call) const {
  const bool sums = call.op == OpCode::reduce_scatter || call.op == OpCode::all_reduce;
  if (call.op != OpCode::all_gather && call.op != OpCode::broadcast && !sums) return false;
  if (call.prepare || call.count < per_host_ || (sums && !sums_)) return false;
  const bool each = call.op == OpCode::all_gather || call.op == OpCode::reduce_scatter;  // count is a rank's
  const uint64_t bytes = call.count * dtype_size(call.dtype) * (each ? hosts_ * per_host_ : 1);
  return always_ || bytes >= kFromBytes;
}

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

Status Hierarchy::on(Communicator& part, CollectiveCall call, bool last_sum) {
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
  FSCCL_TRY(part.collectives().run(call, false, &state));
  before_ = &part.engine();
  before_sequence_ = before_->submitted();
  return success();
}

Status Hierarchy::on_host(ListCall call) {
  call.prepare_context = this;
  call.prepare = [](Operation& op, const void* given) { static_cast<const Hierarchy*>(given)->follow(op, false); };
  fsccl_status_t state;
  FSCCL_TRY(host_->lists().run(host_->collectives(), call, false, &state));
  before_ = &host_->engine();
  before_sequence_ = before_->submitted();
  return success();
}

// Elements cut into a part for each lane, of whole lines but for the last.
void Hierarchy::cut(uint64_t count, fsccl_dtype_t dtype) {
  const uint64_t line = 64 / dtype_size(dtype), lines = (count + line - 1) / line,
                 each = (lines + per_host_ - 1) / per_host_ * line;
  counts_.resize(per_host_);
  displacements_.resize(per_host_);
  for (size_t i = 0; i < per_host_; i++) {
    displacements_[i] = std::min(count, each * i);
    counts_[i] = std::min(each, count - displacements_[i]);
  }
}

Status Hierarchy::all_gather(const CollectiveCall& call) {
  const size_t place = static_cast<size_t>(host_->rank());
  counts_.assign(hosts_, call.count);
  displacements_.resize(hosts_);
  for (size_t host = 0; host < hosts_; host++) displacements_[host] = (host * per_host_ + place) * call.count;
  CollectiveCall lanes = call;
  lanes.op = OpCode::all_gather_v;
  lanes.count = 0;
  lanes.counts = counts_.data();
  lanes.displacements = displacements_.data();
  FSCCL_TRY(on(*lane_, lanes));

  const uint64_t bytes = call.count * dtype_size(call.dtype);
  counts_.assign(per_host_, call.count);
  tensors_.clear();
  for (size_t host = 0; host < hosts_; host++) {
    std::byte* const parts = at(call.output, host * per_host_ * bytes);
    tensors_.push_back({parts + place * bytes, parts, counts_.data(), call.dtype});
  }
  return on_host({tensors_.data(), tensors_.size(), ListKind::all_gather});
}

Status Hierarchy::reduce_scatter(const CollectiveCall& call) {
  const uint64_t bytes = call.count * dtype_size(call.dtype);
  if (partial_.size() < hosts_ * bytes) {
    FSCCL_TRY(finish());  // what still uses the old one
    partial_.resize(hosts_ * bytes);
  }
  counts_.assign(per_host_, call.count);
  tensors_.clear();
  for (size_t host = 0; host < hosts_; host++)
    tensors_.push_back({const_cast<std::byte*>(at(call.input, host * per_host_ * bytes)), partial_.data() + host * bytes,
                        counts_.data(), call.dtype});
  FSCCL_TRY(on_host({tensors_.data(), tensors_.size(), ListKind::reduce_scatter, first_sum(call.reduction)}));
  CollectiveCall lanes = call;
  lanes.input = partial_.data();
  lanes.reduction = last_sum(call.reduction);
  return on(*lane_, lanes, true);
}

Status Hierarchy::all_reduce(const CollectiveCall& call) {
  cut(call.count, call.dtype);
  const auto place = static_cast<size_t>(host_->rank());
  std::byte* const own = at(call.output, displacements_[place] * dtype_size(call.dtype));
  CollectiveCall stage = call;
  stage.op = OpCode::reduce_scatter_v;
  stage.output = own;
  stage.count = 0;
  stage.counts = counts_.data();
  stage.reduction = first_sum(call.reduction);
  FSCCL_TRY(on(*host_, stage));
  stage = call;
  stage.input = stage.output = own;
  stage.count = counts_[place];
  stage.reduction = last_sum(call.reduction);
  if (stage.count) FSCCL_TRY(on(*lane_, stage, true));
  return gather_parts(call, own);
}

// Of what lies in its final place, a part on each rank of the host.
Status Hierarchy::gather_parts(const CollectiveCall& call, const std::byte* own) {
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
  const size_t place = static_cast<size_t>(host_->rank()), root = static_cast<size_t>(call.root);
  const size_t root_host = root / per_host_;
  const bool here = static_cast<size_t>(whole_.rank()) / per_host_ == root_host;
  CollectiveCall stage = call;
  stage.root = static_cast<int>(root % per_host_);
  if (here) FSCCL_TRY(on(*host_, stage));
  std::byte* const own = at(call.output, displacements_[place] * dtype_size(call.dtype));
  stage.output = own;
  stage.count = counts_[place];
  stage.root = static_cast<int>(root_host);
  if (stage.count) FSCCL_TRY(on(*lane_, stage));
  return here ? success() : gather_parts(call, own);
}

// All that this communicator has been asked for.
Status Hierarchy::finish() {
  Engine& engine = whole_.engine();
  fsccl_status_t state;
  return engine.submitted() ? engine.wait(engine.submitted(), -1, &state) : success();
}

Status Hierarchy::run(const CollectiveCall& call, bool wait, fsccl_status_t* state) {
  Engine& engine = whole_.engine();
  before_ = &engine;
  before_sequence_ = engine.submitted();
  switch (call.op) {
    case OpCode::all_gather:
      FSCCL_TRY(all_gather(call));
      break;
    case OpCode::reduce_scatter:
      FSCCL_TRY(reduce_scatter(call));
      break;
    case OpCode::all_reduce:
      FSCCL_TRY(all_reduce(call));
      break;
    default:
      FSCCL_TRY(broadcast(call));
  }
  Operation* op = nullptr;
  Fingerprint fingerprint;
  fingerprint.op = call.op;
  fingerprint.count = call.count;
  fingerprint.dtype = static_cast<uint8_t>(call.dtype);
  FSCCL_TRY(engine.acquire(&op, OperationSettings{}, fingerprint));
  op->plan = &nothing_;
  follow(*op, false);
  return engine.submit(*op, wait, state);
}

}  // namespace fsccl
