// The movement and the reduction of each collective, as the public header defines it.
#include <algorithm>

#include "plan/collectives.h"

namespace fsccl {
namespace {

DataMovement movement(const char* name, const Shape& shape) {
  DataMovement made;
  made.name = name;
  made.rank = shape.rank;
  made.ranks = shape.ranks;
  made.dtype = shape.dtype;
  made.mirrored = shape.mirrored;
  const auto ranks = static_cast<size_t>(shape.ranks);
  made.sends.resize(ranks);
  made.receives.resize(ranks);
  made.input_bytes.resize(ranks);
  made.output_bytes.resize(ranks);
  return made;
}

template <class FlowOf>
void fill(DataMovement& made, FlowOf flow_of) {
  for (int q = 0; q < made.ranks; q++) {
    made.sends[static_cast<size_t>(q)] = flow_of(made.rank, q);
    made.receives[static_cast<size_t>(q)] = flow_of(q, made.rank);
  }
}

ReductionShape reduction(const char* name, const Shape& shape, Deliver deliver,
                         uint64_t input_count, uint64_t output_count) {
  ReductionShape made;
  made.name = name;
  made.rank = shape.rank;
  made.ranks = shape.ranks;
  made.root = shape.root;
  made.dtype = shape.dtype;
  made.mirrored = shape.mirrored;
  made.deliver = deliver;
  made.input_bytes = input_count * shape.size();
  made.output_bytes = output_count * shape.size();
  return made;
}

// Returns the part of rank q in whole 64-byte lines, as evenly as possible. A short last line goes
// to the last rank that has a part.
Shape::Part line_part(const Shape& shape, int q) {
  const uint64_t line = 64 / shape.size(), lines = shape.count / line + (shape.count % line != 0);
  const auto ranks = static_cast<uint64_t>(shape.ranks), r = static_cast<uint64_t>(q);
  // The first `longer` ranks have one line more.
  const uint64_t each = lines / ranks, longer = lines % ranks;
  const uint64_t first = r * each + std::min(r, longer), last = first + each + (r < longer ? 1 : 0);
  const uint64_t begin = std::min(first * line, shape.count),
                 end = std::min(last * line, shape.count);
  return {begin, end - begin};
}

}  // namespace

uint64_t Shape::whole_bytes() const {
  uint64_t end = 0;
  for (int q = 0; q < ranks; q++)
    if (const Part p = part(q); p.count) end = std::max(end, p.begin + p.count);
  return end * size();
}

uint64_t Shape::largest_part() const {
  return counts.empty() ? count : *std::max_element(counts.begin(), counts.end());
}

DataMovement all_gather_movement(const Shape& shape) {
  DataMovement made = movement("all_gather", shape);
  made.same_to_all = made.every_rank_sends = true;
  fill(made,
       [&](int from, int) { return Flow{0, shape.part(from).begin, shape.part(from).count}; });
  made.longest = shape.largest_part();
  const uint64_t whole_bytes = shape.whole_bytes();
  for (int q = 0; q < shape.ranks; q++) {
    made.input_bytes[static_cast<size_t>(q)] = shape.part(q).count * shape.size();
    made.output_bytes[static_cast<size_t>(q)] = whole_bytes;
  }
  return made;
}

DataMovement gather_movement(const Shape& shape) {
  DataMovement made = all_gather_movement(shape);
  made.name = "gather";
  made.every_rank_sends = false;
  for (int q = 0; q < shape.ranks; q++)
    if (q != shape.root)
      made.sends[static_cast<size_t>(q)] = {}, made.output_bytes[static_cast<size_t>(q)] = 0;
  if (shape.rank != shape.root) std::fill(made.receives.begin(), made.receives.end(), Flow{});
  return made;
}

DataMovement scatter_movement(const Shape& shape) {
  DataMovement made = movement("scatter", shape);
  fill(made, [&](int from, int to) {
    return from == shape.root ? Flow{shape.part(to).begin, 0, shape.part(to).count} : Flow{};
  });
  made.longest = shape.largest_part();
  for (int q = 0; q < shape.ranks; q++) {
    made.input_bytes[static_cast<size_t>(q)] = q == shape.root ? shape.whole_bytes() : 0;
    made.output_bytes[static_cast<size_t>(q)] = shape.part(q).count * shape.size();
  }
  return made;
}

DataMovement all_to_all_movement(const Shape& shape) {
  DataMovement made = movement("all_to_all", shape);
  made.every_rank_sends = true;
  fill(made, [&](int from, int to) {
    return Flow{shape.count * static_cast<uint64_t>(to), shape.count * static_cast<uint64_t>(from),
                shape.count};
  });
  made.longest = shape.count;
  const uint64_t bytes = shape.count * static_cast<uint64_t>(shape.ranks) * shape.size();
  std::fill(made.input_bytes.begin(), made.input_bytes.end(), bytes);
  std::fill(made.output_bytes.begin(), made.output_bytes.end(), bytes);
  return made;
}

DataMovement broadcast_movement(const Shape& shape) {
  DataMovement made = movement("broadcast", shape);
  made.same_to_all = made.one_buffer = true;
  fill(made, [&](int from, int to) {
    return from == shape.root && to != from ? Flow{0, 0, shape.count} : Flow{};
  });
  made.longest = shape.ranks > 1 ? shape.count : 0;
  std::fill(made.input_bytes.begin(), made.input_bytes.end(), shape.count * shape.size());
  return made;
}

ReductionShape reduction_of_reduce_scatter(const Shape& shape) {
  ReductionShape made = reduction("reduce_scatter", shape, Deliver::self,
                                  shape.whole_bytes() / shape.size(), shape.part(shape.rank).count);
  for (int q = 0; q < shape.ranks; q++) made.parts.push_back(shape.part(q));
  return made;
}

ReductionShape reduction_of_all_reduce(const Shape& shape) {
  ReductionShape made = reduction("all_reduce", shape, Deliver::all, shape.count, shape.count);
  for (int q = 0; q < shape.ranks; q++) made.parts.push_back(line_part(shape, q));
  return made;
}

ReductionShape reduction_of_small_all_reduce(const Shape& shape) {
  ReductionShape made = reduction("all_reduce", shape, Deliver::self, shape.count, shape.count);
  made.parts.assign(static_cast<size_t>(shape.ranks), {0, shape.count});
  made.every_rank_reduces_all = true;
  return made;
}

ReductionShape reduction_of_reduce(const Shape& shape) {
  ReductionShape made = reduction("reduce", shape, Deliver::root, shape.count,
                                  shape.rank == shape.root ? shape.count : 0);
  for (int q = 0; q < shape.ranks; q++) made.parts.push_back(line_part(shape, q));
  return made;
}

ReductionShape reduction_of_small_reduce(const Shape& shape) {
  ReductionShape made = reduction("reduce", shape, Deliver::self, shape.count,
                                  shape.rank == shape.root ? shape.count : 0);
  made.parts.assign(static_cast<size_t>(shape.ranks), {0, 0});
  made.parts[static_cast<size_t>(shape.root)] = {0, shape.count};
  made.every_rank_reduces_all = true;
  return made;
}

}  // namespace fsccl
