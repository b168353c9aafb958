// All-to-all with counts that each rank knows only for its own part. First the ranks exchange their
// counts and displacements; then every rank knows every flow, and the bytes move as in any other
// collective. The plans are made for this one call.
#include <memory>
#include <vector>

#include "base/count_text.h"
#include "comm/collective.h"

namespace fsccl {
namespace {

// the plans are made on the way: pricing them would cost more than it gains
constexpr uint64_t kSmallBytes = 4096;

struct VectorAllToAll {
  Engine& engine;
  CollectiveCall call;
  std::vector<uint64_t> recv_counts, recv_displacements;
  Location input_location;
  const CollectiveOptions& options;
  // for each rank: the counts and then the displacements of what it sends
  std::vector<uint64_t> mine, all;
  Plan table_plan, plan, fallback;

  uint64_t count(int from, int to) const { return all[row(from) + static_cast<size_t>(to)]; }
  uint64_t displacement(int from, int to) const {
    return all[row(from) + static_cast<size_t>(engine.ranks() + to)];
  }
  size_t row(int rank) const {
    return static_cast<size_t>(rank) * 2 * static_cast<size_t>(engine.ranks());
  }
};

DataMovement movement_of(const VectorAllToAll& x) {
  DataMovement made;
  made.name = "all_to_all_v";
  made.rank = x.engine.rank();
  made.ranks = x.engine.ranks();
  made.dtype = x.call.dtype;
  made.every_rank_sends = true;
  made.mirrored = x.engine.mirrored();
  const auto ranks = static_cast<size_t>(made.ranks);
  made.sends.resize(ranks);
  made.receives.resize(ranks);
  made.input_bytes.resize(ranks);
  made.output_bytes.resize(ranks);
  for (int from = 0; from < made.ranks; from++)
    for (int to = 0; to < made.ranks; to++) {
      const Flow flow = {x.displacement(from, to),
                         to == made.rank ? x.recv_displacements[static_cast<size_t>(from)] : 0,
                         x.count(from, to)};
      if (from == made.rank) made.sends[static_cast<size_t>(to)] = flow;
      if (to == made.rank) made.receives[static_cast<size_t>(from)] = flow;
      made.longest = std::max(made.longest, flow.count);
      uint64_t& bytes = made.input_bytes[static_cast<size_t>(from)];
      if (flow.count) bytes = std::max(bytes, (flow.src + flow.count) * dtype_size(made.dtype));
    }
  for (size_t q = 0; q < ranks; q++)
    if (x.recv_counts[q])
      made.output_bytes[static_cast<size_t>(made.rank)] =
          std::max(made.output_bytes[static_cast<size_t>(made.rank)],
                   (x.recv_displacements[q] + x.recv_counts[q]) * dtype_size(made.dtype));
  return made;
}

// Fails the communicator for what `peer` has sent.
void fail_for(const VectorAllToAll& x, const Operation& op, fsccl_status_t code, int peer,
              std::string text) {
  Error error;
  error.code = code;
  error.rank = x.engine.known_as(x.engine.rank());
  error.peer = x.engine.known_as(peer);
  error.operation = op_name(op.fingerprint.op);
  error.sequence = op.fingerprint.sequence;
  error.text = std::move(text);
  x.engine.fail_all(error);
}

// False: ranks disagree, and the communicator has failed.
bool check_counts(const VectorAllToAll& x, const Operation& op) {
  const int rank = x.engine.rank();
  const auto shown = [&](int number) { return x.engine.known_as(number); };
  for (int from = 0; from < x.engine.ranks(); from++) {
    for (int to = 0; to < x.engine.ranks(); to++)
      if (x.count(from, to) >> 58 || x.displacement(from, to) >> 58) {
        fail_for(
            x, op, FSCCL_ERR_PROTOCOL, from,
            fmt::format("rank {} sent a count beyond the address space: {} elements to rank {}",
                        shown(from), count_text(x.count(from, to)), shown(to)));
        return false;
      }
    const uint64_t sent = x.count(from, rank), wanted = x.recv_counts[static_cast<size_t>(from)];
    if (sent == wanted) continue;
    fail_for(x, op, FSCCL_ERR_MISMATCH, from,
             fmt::format("rank {} sends {} elements to rank {}, which wants {} of it: "
                         "recv_counts[{}] must be rank {}'s send_counts[{}]",
                         shown(from), sent, shown(rank), wanted, from, shown(from), rank));
    return false;
  }
  return true;
}

// The operation keeps this function until its bytes have a plan: one that has none counts as
// completed once its steps are over, and making the plan may find no memory.
Completion table_is_here(Operation& op) {
  VectorAllToAll& x = *static_cast<VectorAllToAll*>(op.owner);
  if (!check_counts(x, op)) return Completion::again;  // drive() sees that the engine has failed
  const DataMovement movement = movement_of(x);
  const uint64_t most = movement.longest * dtype_size(movement.dtype);
  x.fallback = move_slots(movement, x.engine.turn_bytes());
  const SelectOptions& select = x.options.select;
  const uint64_t eager_bytes =
      select.eager_bytes == kConfigAuto ? kSmallBytes : static_cast<uint64_t>(select.eager_bytes);
  x.plan = most <= eager_bytes || x.engine.only_slots() ? x.fallback : move_direct(movement);
  set_plans(&op, x.plan, x.fallback);
  // the amount that one rank moves is not known to others
  const uint64_t at_most = 2 * most * static_cast<uint64_t>(x.engine.ranks());
  op.reads = select.costs.can_read &&
             (select.always_read || select.costs.reading_pays(most, working_set(at_most)));
  uint64_t read = 0, written = 0;
  count_bytes(x.plan, &read, &written);
  op.stores = op.fallback_stores = x.options.stores_for(read + written);
  op.plan = &x.plan;
  op.inline_bindings[0].base = static_cast<std::byte*>(const_cast<void*>(x.call.input));
  op.inline_bindings[0].location = x.input_location;
  op.inline_bindings[1].base = static_cast<std::byte*>(x.call.output);
  op.complete = nullptr;
  return Completion::again;
}

Status check_side(const char* what, const void* buffer, const std::vector<uint64_t>& counts,
                  const std::vector<uint64_t>& begins, uint64_t element) {
  for (size_t q = 0; q < counts.size(); q++) {
    if (beyond_memory(begins[q], counts[q], element))
      return fail(FSCCL_ERR_INVALID_ARGUMENT,
                  "{}_counts[{}] is {} at displacement {}: beyond the address space", what, q,
                  count_text(counts[q]), count_text(begins[q]));
    if (counts[q] && !buffer)
      return fail(FSCCL_ERR_INVALID_ARGUMENT, "{} is NULL though {}_counts[{}] is {}", what, what,
                  q, counts[q]);
  }
  return success();
}

// The memory of a part: its first address, and the one behind its last.
struct Span {
  uint64_t begin, end;
  bool overlaps(const Span& other) const { return begin < other.end && other.begin < end; }
};
Span span_of(const void* buffer, uint64_t begin, uint64_t count, uint64_t element) {
  const uint64_t at = reinterpret_cast<uintptr_t>(buffer) + begin * element;
  return {at, at + count * element};
}

// Returns the memory from the first part to the last.
Span whole_span(const void* buffer, const std::vector<uint64_t>& counts,
                const std::vector<uint64_t>& begins, uint64_t element) {
  Span whole{UINT64_MAX, 0};
  for (size_t q = 0; q < counts.size(); q++) {
    if (counts[q] == 0) continue;
    const Span part = span_of(buffer, begins[q], counts[q], element);
    whole = {std::min(whole.begin, part.begin), std::max(whole.end, part.end)};
  }
  return whole;
}

// The parts may lie in gaps of the other side, so they are compared one by one if the sides touch.
Status check_apart(const CollectiveCall& call, const std::vector<uint64_t>& sent,
                   const std::vector<uint64_t>& sent_at, const std::vector<uint64_t>& received,
                   const std::vector<uint64_t>& received_at) {
  const uint64_t element = dtype_size(call.dtype);
  if (!whole_span(call.input, sent, sent_at, element)
           .overlaps(whole_span(call.output, received, received_at, element)))
    return success();
  for (size_t p = 0; p < sent.size(); p++)
    for (size_t q = 0; q < received.size() && sent[p]; q++)
      if (received[q] && span_of(call.input, sent_at[p], sent[p], element)
                             .overlaps(span_of(call.output, received_at[q], received[q], element)))
        return fail(FSCCL_ERR_INVALID_ARGUMENT,
                    "send and recv overlap: what goes to rank {} and what comes from rank {}", p,
                    q);
  return success();
}

}  // namespace

Status Collectives::all_to_all_v(const CollectiveCall& call, bool wait, fsccl_status_t* state) {
  if (!call.counts || !call.displacements || !call.recv_counts || !call.recv_displacements)
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "counts and displacements of what is sent and received hold one number per rank: "
                "none is NULL");
  FSCCL_TRY(check_call(call));
  const auto ranks = static_cast<size_t>(engine_.ranks());
  auto x = std::make_shared<VectorAllToAll>(
      VectorAllToAll{engine_,
                     call,
                     {call.recv_counts, call.recv_counts + ranks},
                     {call.recv_displacements, call.recv_displacements + ranks},
                     {},
                     options_,
                     {},
                     {},
                     {},
                     {},
                     {}});
  x->mine.assign(call.counts, call.counts + ranks);
  const std::vector<uint64_t> begins(call.displacements, call.displacements + ranks);
  const uint64_t element = dtype_size(call.dtype);
  FSCCL_TRY(check_side("send", call.input, x->mine, begins, element));
  FSCCL_TRY(check_side("recv", call.output, x->recv_counts, x->recv_displacements, element));
  Shape received;
  received.ranks = engine_.ranks();
  received.dtype = call.dtype;
  received.counts = x->recv_counts;
  received.displacements = x->recv_displacements;
  FSCCL_TRY(check_parts(received));
  FSCCL_TRY(check_apart(call, x->mine, begins, x->recv_counts, x->recv_displacements));
  uint64_t input_bytes = 0;
  for (size_t q = 0; q < ranks; q++)
    if (x->mine[q])
      input_bytes = std::max(input_bytes, (begins[q] + x->mine[q]) * dtype_size(call.dtype));
  x->input_location = locate(call.input, input_bytes);
  x->mine.insert(x->mine.end(), begins.begin(), begins.end());
  x->all.resize(ranks * x->mine.size());

  Shape table;
  table.rank = engine_.rank();
  table.ranks = engine_.ranks();
  table.count = x->mine.size();
  table.dtype = FSCCL_UINT64;
  table.mirrored = engine_.mirrored();
  x->table_plan = move_slots(all_gather_movement(table), engine_.turn_bytes());
  Fingerprint fingerprint;
  fingerprint.op = OpCode::all_to_all_v;
  fingerprint.dtype = static_cast<uint8_t>(call.dtype);
  Operation* op = nullptr;
  FSCCL_TRY(engine_.acquire(&op, OperationSettings{}, fingerprint));
  op->plan = &x->table_plan;
  op->inline_bindings[0].base = reinterpret_cast<std::byte*>(x->mine.data());
  op->inline_bindings[1].base = reinterpret_cast<std::byte*>(x->all.data());
  op->complete = table_is_here;
  op->owner = x.get();
  op->state = std::move(x);
  return engine_.submit(*op, wait, state);
}

}  // namespace fsccl
