#include "program.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace fsccl::sim {
namespace {

constexpr size_t kGuard = 64;  // bytes around a buffer that nobody may touch
constexpr std::byte kUntouched{0xa5};
constexpr int kTags = 3;

bool vector_form(OpCode code) {
  return code == OpCode::all_gather_v || code == OpCode::reduce_scatter_v;
}
bool one_buffer(const Op& op) {
  return op.code == OpCode::broadcast || op.code == OpCode::send ||
         op.code == OpCode::broadcast_list;
}

template <class T>
int64_t load_as(const std::byte* at, size_t index) {
  T value;
  std::memcpy(&value, at + index * sizeof value, sizeof value);
  return static_cast<int64_t>(value);
}
template <class T>
void store_as(std::byte* at, size_t index, int64_t number) {
  const T value = static_cast<T>(number);
  std::memcpy(at + index * sizeof value, &value, sizeof value);
}
int64_t load(fsccl_dtype_t dtype, const std::byte* at, size_t index) {
  return dtype == FSCCL_UINT8   ? load_as<uint8_t>(at, index)
         : dtype == FSCCL_INT32 ? load_as<int32_t>(at, index)
         : dtype == FSCCL_INT64 ? load_as<int64_t>(at, index)
                                : load_as<float>(at, index);
}
void store(fsccl_dtype_t dtype, std::byte* at, size_t index, int64_t value) {
  if (dtype == FSCCL_UINT8) return store_as<uint8_t>(at, index, value);
  if (dtype == FSCCL_INT32) return store_as<int32_t>(at, index, value);
  if (dtype == FSCCL_INT64) return store_as<int64_t>(at, index, value);
  store_as<float>(at, index, value);
}

std::vector<size_t> end_to_end(const std::vector<size_t>& counts) {
  std::vector<size_t> at(counts.size());
  std::exclusive_scan(counts.begin(), counts.end(), at.begin(), size_t{0});
  return at;
}

// Returns a count that is mostly small, at times as large as possible, and rarely zero.
size_t random_count(World& world, size_t most) {
  if (world.chance(0.05)) return 0;
  const uint64_t bits = world.below(64 - static_cast<uint64_t>(__builtin_clzll(most | 1)) + 1);
  return std::min<size_t>(1 + world.below(uint64_t{1} << bits), std::max<size_t>(most, 1));
}

Op::Tensor random_tensor(World& world, const ProgramSize& size, OpCode code, Op::Kind kind) {
  static constexpr fsccl_dtype_t kTypes[] = {FSCCL_UINT8, FSCCL_INT32, FSCCL_INT64, FSCCL_FLOAT32};
  const auto ranks = static_cast<size_t>(size.ranks);
  Op::Tensor tensor;
  tensor.dtype = kTypes[world.below(std::size(kTypes))];
  const size_t most = size.bytes / dtype_size(tensor.dtype) / ranks;
  const bool shared = code == OpCode::broadcast || code == OpCode::all_reduce ||
                      code == OpCode::reduce || code == OpCode::send;
  tensor.count = random_count(world, shared ? most * ranks : most);
  const bool parts =
      vector_form(code) || (kind == Op::Kind::list && code != OpCode::broadcast_list);
  const size_t numbers = parts ? ranks : kind == Op::Kind::vector_all_to_all ? ranks * ranks : 0;
  for (size_t i = 0; i < numbers; i++)
    tensor.counts.push_back(world.chance(0.2) ? 0 : random_count(world, most));
  if (code == OpCode::broadcast_list) tensor.counts = {tensor.count};
  if (vector_form(code)) {
    tensor.displacements = end_to_end(tensor.counts);
    if (world.chance(0.3))  // gaps, and not in order
      for (size_t q = 0; q < ranks; q++) tensor.displacements[q] = (ranks - 1 - q) * (most + 3);
  }
  return tensor;
}

Op random_op(World& world, const ProgramSize& size) {
  static constexpr OpCode kCodes[] = {OpCode::barrier,
                                      OpCode::all_gather,
                                      OpCode::reduce_scatter,
                                      OpCode::all_reduce,
                                      OpCode::broadcast,
                                      OpCode::reduce,
                                      OpCode::gather,
                                      OpCode::scatter,
                                      OpCode::all_to_all,
                                      OpCode::all_gather_v,
                                      OpCode::reduce_scatter_v,
                                      OpCode::all_to_all_v,
                                      OpCode::send,
                                      OpCode::send,
                                      OpCode::all_gather_list,
                                      OpCode::reduce_scatter_list,
                                      OpCode::broadcast_list};
  const auto ranks = static_cast<uint64_t>(size.ranks);
  Op op;
  op.code = kCodes[world.below(std::size(kCodes))];
  op.root = static_cast<int>(world.below(ranks));
  op.to = static_cast<int>((static_cast<uint64_t>(op.root) + 1 + world.below(ranks - 1)) % ranks);
  op.tag = static_cast<int>(world.below(kTags));
  op.reduction.kind = world.chance(0.7)   ? FSCCL_OP_SUM
                      : world.chance(0.5) ? FSCCL_OP_MAX
                                          : FSCCL_OP_MIN;
  op.in_place = op.code == OpCode::all_reduce && world.chance(0.3);
  if (op.code == OpCode::all_to_all_v) op.kind = Op::Kind::vector_all_to_all;
  size_t tensors = 1;
  if (op.code == OpCode::all_gather_list || op.code == OpCode::reduce_scatter_list ||
      op.code == OpCode::broadcast_list) {
    op.kind = Op::Kind::list;
    op.list = op.code == OpCode::all_gather_list       ? ListKind::all_gather
              : op.code == OpCode::reduce_scatter_list ? ListKind::reduce_scatter
                                                       : ListKind::broadcast;
    tensors = world.below(5);
  }
  for (size_t i = 0; i < tensors; i++)
    op.tensors.push_back(random_tensor(world, size, op.code, op.kind));
  return op;
}

}  // namespace

std::string Op::text() const {
  std::string text = op_name(code);
  if (code == OpCode::send)
    return text + fmt::format(" of {} from {} to {} tag {}", tensors[0].count, root, to, tag);
  for (const Tensor& tensor : tensors)
    text += fmt::format(" {}x{}",
                        tensor.counts.empty() ? fmt::format("{}", tensor.count)
                                              : fmt::format("{}..", tensor.counts[0]),
                        dtype_name(tensor.dtype));
  return text + fmt::format(" root {}", root);
}

std::vector<Op> random_program(World& world, const ProgramSize& size) {
  std::vector<Op> ops;
  for (int i = 0; i < size.ops; i++) {
    ops.push_back(!ops.empty() && world.chance(0.3) ? ops[world.below(ops.size())]
                                                    : random_op(world, size));
    if (world.chance(0.2)) ops.push_back(ops.back());
  }
  return ops;
}

Op differing(World& world, const Op& op, int ranks) {
  Op other = op;
  if (op.code == OpCode::barrier || op.tensors.empty() || world.chance(0.2)) {
    other = Op{};
    other.code = op.code == OpCode::all_reduce ? OpCode::all_gather : OpCode::all_reduce;
    other.tensors.push_back({FSCCL_INT32, 5, {}, {}});
  } else if ((op.code == OpCode::broadcast || op.code == OpCode::gather ||
              op.code == OpCode::scatter) &&
             world.chance(0.5)) {
    other.root = (op.root + 1) % ranks;
  } else if (op.kind == Op::Kind::plain && op.tensors[0].counts.empty()) {
    if (world.chance(0.5))
      other.tensors[0].count++;
    else
      other.tensors[0].dtype = op.tensors[0].dtype == FSCCL_INT32 ? FSCCL_FLOAT32 : FSCCL_INT32;
  } else {
    other.tensors[0].dtype = op.tensors[0].dtype == FSCCL_INT32 ? FSCCL_FLOAT32 : FSCCL_INT32;
  }
  return other;
}

Call::Call(World& world, const Op& op, uint64_t number, int rank, int ranks, Arena* arena)
    : op_(op),
      number_(number),
      rank_(rank),
      ranks_(ranks),
      inputs_(op.tensors.size()),
      outputs_(op.tensors.size()) {
  const auto n = static_cast<size_t>(ranks), self = static_cast<size_t>(rank);
  if (op.kind == Op::Kind::vector_all_to_all)
    for (size_t q = 0; q < n; q++) {
      sends_.push_back(op.tensors[0].counts[self * n + q]);
      receives_.push_back(op.tensors[0].counts[q * n + self]);
    }
  send_at_ = end_to_end(sends_), receive_at_ = end_to_end(receives_);
  for (size_t t = 0; t < op.tensors.size(); t++) {
    if (!one_buffer(op_) && !op.in_place)
      make(world, &inputs_[t], t, input_count(op.tensors[t]), arena);
    make(world, &outputs_[t], t, output_count(op.tensors[t]), arena);
    Buffer& filled = one_buffer(op_) || op.in_place ? outputs_[t] : inputs_[t];
    if (one_buffer(op_) && rank != op.root) continue;
    for (size_t i = 0; i < filled.count; i++)
      store(op.tensors[t].dtype, filled.at, i, value(t, rank, i));
  }
}

void Call::make(World& world, Buffer* buffer, size_t tensor, size_t count, Arena* arena) const {
  const size_t bytes = count * dtype_size(op_.tensors[tensor].dtype),
               all = (bytes + 2 * kGuard + 63) / 64 * 64;
  buffer->count = count;
  const bool shared = arena && world.chance(0.6);
  if (shared && arena->used + all <= arena->memory.size()) {
    buffer->at = arena->memory.data() + arena->used;
    arena->used += all;
  } else {
    buffer->own.resize(all);
    buffer->at = buffer->own.data();
  }
  std::memset(buffer->at, static_cast<int>(kUntouched), bytes + 2 * kGuard);
  buffer->at += kGuard;
}

size_t Call::input_count(const Op::Tensor& tensor) const {
  const auto n = static_cast<size_t>(ranks_), self = static_cast<size_t>(rank_);
  const auto sum = [](const std::vector<size_t>& counts) {
    return std::accumulate(counts.begin(), counts.end(), size_t{0});
  };
  switch (op_.code) {
    case OpCode::reduce_scatter:
    case OpCode::scatter:
    case OpCode::all_to_all:
      return n * tensor.count;
    case OpCode::all_gather_v:
    case OpCode::all_gather_list:
      return tensor.counts[self];
    case OpCode::reduce_scatter_v: {
      size_t end = 0;
      for (size_t q = 0; q < n; q++)
        end = std::max(end, tensor.displacements[q] + tensor.counts[q]);
      return end;
    }
    case OpCode::reduce_scatter_list:
      return sum(tensor.counts);
    case OpCode::all_to_all_v:
      return sum(sends_);
    default:
      return tensor.count;
  }
}

size_t Call::output_count(const Op::Tensor& tensor) const {
  const auto n = static_cast<size_t>(ranks_), self = static_cast<size_t>(rank_);
  const auto sum = [](const std::vector<size_t>& counts) {
    return std::accumulate(counts.begin(), counts.end(), size_t{0});
  };
  switch (op_.code) {
    case OpCode::all_gather:
    case OpCode::gather:
    case OpCode::all_to_all:
      return n * tensor.count;
    case OpCode::reduce_scatter_v:
    case OpCode::reduce_scatter_list:
      return tensor.counts[self];
    case OpCode::all_gather_v: {
      size_t end = 0;
      for (size_t q = 0; q < n; q++)
        end = std::max(end, tensor.displacements[q] + tensor.counts[q]);
      return end;
    }
    case OpCode::all_gather_list:
      return sum(tensor.counts);
    case OpCode::all_to_all_v:
      return sum(receives_);
    default:
      return tensor.count;
  }
}

// Returns a value so small that a sum over all ranks is exact in every type.
int64_t Call::value(size_t tensor, int rank, size_t index) const {
  return static_cast<int64_t>(
             mix_hash(mix_hash(number_ * 64 + tensor, static_cast<uint64_t>(rank)), index) % 27) +
         1;
}

int64_t Call::reduced(size_t tensor, size_t index) const {
  int64_t result = value(tensor, 0, index);
  for (int q = 1; q < ranks_; q++) {
    const int64_t next = value(tensor, q, index);
    result = op_.reduction.kind == FSCCL_OP_SUM   ? result + next
             : op_.reduction.kind == FSCCL_OP_MAX ? std::max(result, next)
                                                  : std::min(result, next);
  }
  return result;
}

std::optional<int64_t> Call::expected(size_t t, size_t i) const {
  const Op::Tensor& tensor = op_.tensors[t];
  const auto n = static_cast<size_t>(ranks_), self = static_cast<size_t>(rank_);
  const size_t count = std::max<size_t>(tensor.count, 1);
  // Finds the rank whose part contains `i`, and the place of `i` in that part.
  const auto in_parts = [&](const std::vector<size_t>& counts, const std::vector<size_t>& at,
                            const auto& from) -> std::optional<int64_t> {
    for (size_t q = 0; q < n; q++)
      if (i >= at[q] && i < at[q] + counts[q]) return from(q, i - at[q]);
    return std::nullopt;
  };
  const auto of_rank = [&](size_t q, size_t k) { return value(t, static_cast<int>(q), k); };
  switch (op_.code) {
    case OpCode::all_gather:
      return of_rank(i / count, i % count);
    case OpCode::gather:
      if (rank_ != op_.root) return std::nullopt;
      return of_rank(i / count, i % count);
    case OpCode::reduce_scatter:
      return reduced(t, self * count + i);
    case OpCode::all_reduce:
      return reduced(t, i);
    case OpCode::reduce:
      if (rank_ != op_.root) return std::nullopt;
      return reduced(t, i);
    case OpCode::scatter:
      return value(t, op_.root, self * count + i);
    case OpCode::all_to_all:
      return of_rank(i / count, self * count + i % count);
    case OpCode::all_gather_v:
      return in_parts(tensor.counts, tensor.displacements, of_rank);
    case OpCode::all_gather_list:
      return in_parts(tensor.counts, end_to_end(tensor.counts), of_rank);
    case OpCode::reduce_scatter_v:
      return reduced(t, tensor.displacements[self] + i);
    case OpCode::reduce_scatter_list:
      return reduced(t, end_to_end(tensor.counts)[self] + i);
    case OpCode::all_to_all_v:
      return in_parts(receives_, receive_at_, [&](size_t q, size_t k) {
        const auto row = tensor.counts.begin() + static_cast<std::ptrdiff_t>(q * n);
        return of_rank(q, std::accumulate(row, row + rank_, size_t{0}) + k);
      });
    default:  // operations of one buffer
      return value(t, op_.root, i);
  }
}

Status Call::start(Collectives& collectives, Lists& lists) {
  fsccl_status_t state = FSCCL_OK;
  if (op_.kind == Op::Kind::list) {
    std::vector<fsccl_tensor_t> tensors;
    for (size_t t = 0; t < op_.tensors.size(); t++)
      tensors.push_back(
          {inputs_[t].at, outputs_[t].at, op_.tensors[t].counts.data(), op_.tensors[t].dtype});
    ListCall call;
    call.tensors = tensors.data();
    call.count = tensors.size();
    call.kind = op_.list;
    call.reduction = op_.reduction;
    call.root = op_.root;
    FSCCL_TRY(lists.run(collectives, call, false, &state));
    sequence = collectives.engine().submitted();
    return success();
  }
  CollectiveCall call;
  call.op = op_.code;
  if (!op_.tensors.empty() && op_.code != OpCode::barrier) {
    const Op::Tensor& tensor = op_.tensors[0];
    call.input = op_.in_place ? outputs_[0].at : inputs_[0].at;
    call.output = outputs_[0].at;
    call.count = tensor.count;
    call.dtype = tensor.dtype;
    call.reduction = op_.reduction;
    call.root = op_.code == OpCode::send ? 0 : op_.root;
    call.tag = op_.tag;
    if (vector_form(op_.code))
      call.counts = tensor.counts.data(), call.displacements = tensor.displacements.data();
  }
  const bool rooted = op_.code == OpCode::broadcast || op_.code == OpCode::reduce ||
                      op_.code == OpCode::gather || op_.code == OpCode::scatter ||
                      op_.code == OpCode::send;
  if (!rooted) call.root = -1;
  if (op_.kind == Op::Kind::vector_all_to_all) {
    call.counts = sends_.data();
    call.displacements = send_at_.data();
    call.recv_counts = receives_.data();
    call.recv_displacements = receive_at_.data();
    FSCCL_TRY(collectives.run(call, false, &state));
  } else {
    FSCCL_TRY(collectives.run(call, false, &state));
  }
  sequence = collectives.engine().submitted();
  return success();
}

std::optional<std::string> Call::problem() const {
  if (op_.code == OpCode::barrier) return std::nullopt;
  for (size_t t = 0; t < outputs_.size(); t++) {
    const Buffer& out = outputs_[t];
    const fsccl_dtype_t dtype = op_.tensors[t].dtype;
    const size_t size = dtype_size(dtype);
    for (size_t i = 0; i < out.count; i++) {
      const std::optional<int64_t> right = expected(t, i);
      const bool as_it_was = std::all_of(out.at + i * size, out.at + (i + 1) * size,
                                         [](std::byte b) { return b == kUntouched; });
      if (right ? load(dtype, out.at, i) != *right : !as_it_was)
        return fmt::format("{} on rank {}: element {} of {} of tensor {} is {}, not {}", op_.text(),
                           rank_, i, out.count, t, load(dtype, out.at, i),
                           right ? fmt::format("{}", *right) : "as it was");
    }
    for (size_t i = 0; i < kGuard; i++)
      if (*(out.at - 1 - i) != kUntouched || out.at[out.count * size + i] != kUntouched)
        return fmt::format("{} on rank {} wrote beyond its output", op_.text(), rank_);
    const Buffer& in = inputs_[t];
    for (size_t i = 0; in.at && i < in.count; i++)
      if (load(dtype, in.at, i) != value(t, rank_, i))
        return fmt::format("{} on rank {} wrote to element {} of its input {}", op_.text(), rank_,
                           i, t);
  }
  return std::nullopt;
}

void Call::give_back() {
  for (size_t t = 0; t < outputs_.size(); t++)
    given_back_.emplace_back(outputs_[t].at,
                             outputs_[t].at + outputs_[t].count * dtype_size(op_.tensors[t].dtype));
}

bool Call::touched() const {
  for (size_t t = 0; t < given_back_.size(); t++)
    if (!std::equal(given_back_[t].begin(), given_back_[t].end(), outputs_[t].at)) return true;
  return false;
}

}  // namespace fsccl::sim
