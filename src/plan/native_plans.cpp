#include "plan/native_plans.h"

#include <fmt/format.h>

#include <algorithm>

#include "plan/build.h"

namespace fsccl {
namespace {

constexpr uint64_t kUnit = 64;  // elements; parts begin at cache lines

bool one_buffer(OpCode op) { return op == OpCode::broadcast || op == OpCode::send; }
bool one_sent_to_all(OpCode op) {
  return op == OpCode::all_gather || op == OpCode::all_reduce || one_buffer(op);
}
bool sent_to_root(OpCode op) { return op == OpCode::gather || op == OpCode::reduce; }
bool received_from_root(OpCode op) { return op == OpCode::scatter || one_buffer(op); }

using Parts = std::vector<Native::Part>;

void add(Parts& parts, int peer, const Shape::Part& part, uint64_t size) {
  if (part.count) parts.push_back({peer, part.begin * size, part.count});
}
void add_to_all(Parts& parts, int ranks, const Shape::Part& part, uint64_t size) {
  for (int q = 0; q < ranks; q++) add(parts, q, part, size);
}
void add_by_rank(Parts& parts, const std::vector<Shape::Part>& of, uint64_t size) {
  for (size_t q = 0; q < of.size(); q++) add(parts, static_cast<int>(q), of[q], size);
}

Parts sends_of(const NativeShape& shape) {
  Parts parts;
  const uint64_t size = dtype_size(shape.dtype);
  if (shape.sends.empty()) return parts;
  if (sent_to_root(shape.op))
    add(parts, shape.root, shape.sends[0], size);
  else if (one_sent_to_all(shape.op))
    add_to_all(parts, shape.ranks, shape.sends[0], size);
  else
    add_by_rank(parts, shape.sends, size);
  // The root of a broadcast has its own bytes already.
  if (one_buffer(shape.op))
    std::erase_if(parts, [&](const Native::Part& part) { return part.peer == shape.rank; });
  return parts;
}

Parts receives_of(const NativeShape& shape) {
  Parts parts;
  const uint64_t size = dtype_size(shape.dtype);
  if (shape.receives.empty()) return parts;
  if (received_from_root(shape.op))
    add(parts, shape.root, shape.receives[0], size);
  else if (reduces(shape.op))
    add_to_all(parts, shape.ranks, shape.receives[0], size);
  else
    add_by_rank(parts, shape.receives, size);
  return parts;
}

uint64_t end_of(const std::vector<Shape::Part>& parts, uint64_t size) {
  uint64_t end = 0;
  for (const Shape::Part& part : parts) end = std::max(end, part.begin + part.count);
  return end * size;
}

// Each rank sums its part, at its place in the result. Then the parts are gathered.
void sum_and_gather(Builder& builder, const NativeShape& shape, Native sum, NativeAlgorithm mover) {
  const uint64_t size = dtype_size(shape.dtype);
  const std::vector<Shape::Part> parts =
      summed_parts(shape.sends.empty() ? 0 : shape.sends[0].count, shape.ranks);
  const Shape::Part own = parts[static_cast<size_t>(shape.rank)];
  sum.sends.clear(), sum.receives.clear();
  add_by_rank(sum.sends, parts, size);
  add_to_all(sum.receives, shape.ranks, own, size);
  Native gather;
  gather.by = mover;
  add_to_all(gather.sends, shape.ranks, own, size);
  add_by_rank(gather.receives, parts, size);
  builder.native(std::move(sum), 0, 1, shape.dtype);
  builder.native(std::move(gather), 1, 1, shape.dtype);
}

}  // namespace

std::vector<Shape::Part> summed_parts(uint64_t count, int ranks) {
  const auto all = static_cast<uint64_t>(ranks);
  const uint64_t part = (count + all - 1) / all, step = (part + kUnit - 1) / kUnit * kUnit;
  std::vector<Shape::Part> parts;
  for (uint64_t q = 0; q < all; q++) {
    const uint64_t begin = std::min(q * step, count);
    parts.push_back({begin, std::min(step, count - begin)});
  }
  return parts;
}

Plan native_plan(const NativeShape& shape, const NativeMeans& means) {
  Builder builder(
      fmt::format("{}_{}", op_name(shape.op), kNativeNames[static_cast<size_t>(means.by)]),
      shape.rank, shape.ranks, 0);
  const uint64_t size = dtype_size(shape.dtype);
  Native native;
  native.by = means.by;
  native.reduces = reduces(shape.op);
  native.in_rank_order =
      native.reduces && (means.by == NativeAlgorithm::staged ? means.host_in_rank_order
                                                             : means.by != NativeAlgorithm::nccl);
  native.averages = !means.divides;
  native.is_barrier = shape.op == OpCode::barrier;
  native.sends = sends_of(shape);
  native.receives = receives_of(shape);
  const uint64_t sent = end_of(shape.sends, size), received = end_of(shape.receives, size);
  const bool one = one_buffer(shape.op);
  builder.buffer(one ? "buffer" : "input", one ? Role::inout : Role::input,
                 one ? std::max(sent, received) : sent);
  if (!one) builder.buffer("output", Role::output, received);
  if (means.by == NativeAlgorithm::summed && shape.op == OpCode::all_reduce) {
    sum_and_gather(builder, shape, std::move(native), means.mover);
    return builder.take();
  }
  const bool divides = means.divides && !native.receives.empty();
  const Native::Part result = native.receives.empty() ? Native::Part{} : native.receives.front();
  builder.native(std::move(native), 0, one ? 0 : 1, shape.dtype);
  if (divides) builder.divide(builder.mine(1, result.offset), result.count, shape.dtype);
  return builder.take();
}

}  // namespace fsccl
