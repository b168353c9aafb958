// What each collective must leave behind, written down from the public header's words and independently of the builders.
#pragma once
#include <vector>

#include "plan/plan.h"
#include "plan/verify.h"

namespace fsccl::testing {

inline std::vector<Plan> for_all_ranks(Plan (*builder)(const Shape&), Shape shape) {
  std::vector<Plan> plans;
  for (shape.rank = 0; shape.rank < shape.ranks; ++shape.rank) plans.push_back(builder(shape));
  return plans;
}

inline std::vector<Expected> expect_all_gather(const Shape& shape) {
  std::vector<Expected> expected;
  const uint64_t part = shape.count * dtype_size(shape.dtype);
  for (int r = 0; r < shape.ranks; ++r) {
    for (int q = 0; q < shape.ranks; ++q) {
      const uint64_t offset = part * static_cast<uint64_t>(q);
      const Place source = shape.in_place ? Place{1, q, offset} : Place{0, q, 0};
      expected.push_back({{1, r, offset}, source, shape.count, shape.dtype, shape.dtype, false});
    }
  }
  return expected;
}

inline std::vector<Expected> expect_reduce_scatter(const Shape& shape) {
  std::vector<Expected> expected;
  for (int r = 0; r < shape.ranks; ++r) {
    const uint64_t own = shape.count * dtype_size(shape.dtype) * static_cast<uint64_t>(r);
    const Place result = shape.in_place ? Place{0, r, own} : Place{1, r, 0};
    expected.push_back({result, {0, 0, own}, shape.count, shape.dtype, shape.dtype, true});
  }
  return expected;
}

inline std::vector<Expected> expect_all_reduce(const Shape& shape) {
  std::vector<Expected> expected;
  const uint32_t input = shape.in_place ? 1 : 0;
  for (int r = 0; r < shape.ranks; ++r) expected.push_back({{1, r, 0}, {input, 0, 0}, shape.count, shape.dtype, shape.dtype, true});
  return expected;
}

inline std::vector<Expected> expect_broadcast(const Shape& shape) {
  std::vector<Expected> expected;
  for (int r = 0; r < shape.ranks; ++r)
    expected.push_back({{0, r, 0}, {0, shape.root, 0}, shape.count, shape.dtype, shape.dtype, false});
  return expected;
}

// Where a rank that calls in place has its smaller buffer, in the plan of a call that does not know of it.
inline Alias alias_all_gather(const Shape& shape) {
  return {shape.rank, 0, 1, shape.count * dtype_size(shape.dtype) * static_cast<uint64_t>(shape.rank)};
}
inline Alias alias_reduce_scatter(const Shape& shape) {
  return {shape.rank, 1, 0, shape.count * dtype_size(shape.dtype) * static_cast<uint64_t>(shape.rank)};
}
inline Alias alias_all_reduce(const Shape& shape) { return {shape.rank, 0, 1, 0}; }

struct Collective {
  const char* name;
  Plan (*build)(const Shape&);
  std::vector<Expected> (*expect)(const Shape&);
  Alias (*alias)(const Shape&);  // null: has no in-place form
  bool in_line;                  // only for payloads that fit the signal
  bool whole_in_line;            // ... ranks * count elements of them
  bool rooted;
};
inline constexpr Collective kCollectives[] = {
    {"all_gather_inline", all_gather_inline, expect_all_gather, alias_all_gather, true, false, false},
    {"all_gather_direct", all_gather_direct, expect_all_gather, alias_all_gather, false, false, false},
    {"reduce_scatter_inline", reduce_scatter_inline, expect_reduce_scatter, alias_reduce_scatter, true, true, false},
    {"reduce_scatter_direct", reduce_scatter_direct, expect_reduce_scatter, alias_reduce_scatter, false, false, false},
    {"all_reduce_inline", all_reduce_inline, expect_all_reduce, alias_all_reduce, true, false, false},
    {"all_reduce_direct", all_reduce_direct, expect_all_reduce, alias_all_reduce, false, false, false},
    {"broadcast_inline", broadcast_inline, expect_broadcast, nullptr, true, false, true},
    {"broadcast_direct", broadcast_direct, expect_broadcast, nullptr, false, false, true},
};

inline bool applies(const Collective& collective, const Shape& shape) {
  if (!collective.in_line) return true;
  const uint64_t copies = collective.whole_in_line ? static_cast<uint64_t>(shape.ranks) : 1;
  return shape.count * dtype_size(shape.dtype) * copies <= kInlineBytes;
}

}  // namespace fsccl::testing
