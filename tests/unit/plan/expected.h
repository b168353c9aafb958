// The results of each collective, written down from the public header's words and independently of
// the builders.
#pragma once
#include <fmt/format.h>

#include <functional>
#include <string>
#include <vector>

#include "plan/collectives.h"
#include "plan/verify.h"

namespace fsccl::testing {

using Builder = std::function<Plan(const Shape&)>;

inline std::vector<Plan> for_all_ranks(const Builder& builder, Shape shape) {
  std::vector<Plan> plans;
  for (shape.rank = 0; shape.rank < shape.ranks; ++shape.rank) plans.push_back(builder(shape));
  return plans;
}

// Returns what gathers must leave: on the ranks that receive, part q of the output is rank q's
// input.
inline std::vector<Expected> expect_gathered(const Shape& shape, int only_rank) {
  std::vector<Expected> expected;
  for (int r = 0; r < shape.ranks; ++r)
    for (int q = 0; q < shape.ranks && (only_rank < 0 || r == only_rank); ++q)
      expected.push_back({{1, r, shape.part(q).begin * shape.size()},
                          {0, q, 0},
                          shape.part(q).count,
                          shape.dtype,
                          shape.dtype,
                          false});
  return expected;
}
inline std::vector<Expected> expect_all_gather(const Shape& shape) {
  return expect_gathered(shape, -1);
}
inline std::vector<Expected> expect_gather(const Shape& shape) {
  return expect_gathered(shape, shape.root);
}

inline std::vector<Expected> expect_scatter(const Shape& shape) {
  std::vector<Expected> expected;
  for (int r = 0; r < shape.ranks; ++r)
    expected.push_back({{1, r, 0},
                        {0, shape.root, shape.part(r).begin * shape.size()},
                        shape.part(r).count,
                        shape.dtype,
                        shape.dtype,
                        false});
  return expected;
}

inline std::vector<Expected> expect_all_to_all(const Shape& shape) {
  std::vector<Expected> expected;
  const uint64_t block = shape.count * shape.size();
  for (int r = 0; r < shape.ranks; ++r)
    for (int q = 0; q < shape.ranks; ++q)
      expected.push_back({{1, r, block * static_cast<uint64_t>(q)},
                          {0, q, block * static_cast<uint64_t>(r)},
                          shape.count,
                          shape.dtype,
                          shape.dtype,
                          false});
  return expected;
}

inline std::vector<Expected> expect_reduce_scatter(const Shape& shape) {
  std::vector<Expected> expected;
  for (int r = 0; r < shape.ranks; ++r)
    expected.push_back({{1, r, 0},
                        {0, 0, shape.part(r).begin * shape.size()},
                        shape.part(r).count,
                        shape.dtype,
                        shape.dtype,
                        true});
  return expected;
}

inline std::vector<Expected> expect_all_reduce(const Shape& shape) {
  std::vector<Expected> expected;
  for (int r = 0; r < shape.ranks; ++r)
    expected.push_back({{1, r, 0}, {0, 0, 0}, shape.count, shape.dtype, shape.dtype, true});
  return expected;
}

inline std::vector<Expected> expect_reduce(const Shape& shape) {
  return {{{1, shape.root, 0}, {0, 0, 0}, shape.count, shape.dtype, shape.dtype, true}};
}

inline std::vector<Expected> expect_broadcast(const Shape& shape) {
  std::vector<Expected> expected;
  for (int r = 0; r < shape.ranks; ++r)
    expected.push_back(
        {{0, r, 0}, {0, shape.root, 0}, shape.count, shape.dtype, shape.dtype, false});
  return expected;
}

// The smaller buffer of a rank that calls in place lies in the larger one.
inline Alias small_in_output(const Shape& shape) {
  return {shape.rank, 0, 1, shape.part(shape.rank).begin * shape.size()};
}
inline Alias small_in_input(const Shape& shape) {
  return {shape.rank, 1, 0, shape.part(shape.rank).begin * shape.size()};
}
inline Alias same_buffer(const Shape& shape) { return {shape.rank, 0, 1, 0}; }

enum class Fits : uint8_t { any, part_in_signal, whole_in_signal };
struct Collective {
  std::string name;
  Builder build;
  std::vector<Expected> (*expect)(const Shape&);
  Alias (*alias)(const Shape&);  // null if there is no in-place form
  Fits fits;
  bool rooted;
  bool parts;       // there is a form with parts of different sizes (..._v)
  bool root_alone;  // only the root can call it in place
};

// Adds the collectives that go in steps, for each number of steps.
inline void add_in_steps(std::vector<Collective>& made) {
  for (int steps = 1; steps <= kMaxTicks; ++steps) {
    const auto relayed = [&](const char* name, Plan (*plan)(const Shape&, int), auto expect,
                             auto alias, bool rooted, bool parts) {
      made.push_back({fmt::format("{}_in_{}_steps", name, steps),
                      [=](const Shape& s) { return plan(s, steps); }, expect, alias, Fits::any,
                      rooted, parts, false});
    };
    relayed("all_gather", all_gather_in_steps, expect_all_gather, small_in_output, false, true);
    relayed("reduce_scatter", reduce_scatter_in_steps, expect_reduce_scatter, small_in_input, false,
            true);
    relayed("all_reduce", all_reduce_in_steps, expect_all_reduce, same_buffer, false, false);
    relayed("broadcast", broadcast_in_steps, expect_broadcast, nullptr, true, false);
  }
}

inline const std::vector<Collective>& collectives() {
  // Collectives through slots are in the list twice, with slots that all ranks map and with
  // mirrored slots.
  static const std::vector<Collective> all = [] {
    constexpr uint64_t kSlot = 4096;
    const auto direct = [](auto movement) -> Builder {
      return [=](const Shape& s) { return move_direct(movement(s)); };
    };
    const auto slots = [](auto movement) -> Builder {
      return [=](const Shape& s) { return move_slots(movement(s), kSlot); };
    };
    const auto reduces = [](auto reduction) -> Builder {
      return [=](const Shape& s) { return reduce_direct(reduction(s)); };
    };
    const auto slot_reduction = [](auto reduction) -> Builder {
      return [=](const Shape& s) { return reduce_slots(reduction(s), kSlot); };
    };
    const Fits any = Fits::any, part = Fits::part_in_signal, whole = Fits::whole_in_signal;
    std::vector<Collective> made{
        {"all_gather_inline", all_gather_inline, expect_all_gather, small_in_output, part, false,
         true, false},
        {"all_gather_direct", direct(all_gather_movement), expect_all_gather, small_in_output, any,
         false, true, false},
        {"all_gather_slots", slots(all_gather_movement), expect_all_gather, small_in_output, any,
         false, true, false},
        {"gather_direct", direct(gather_movement), expect_gather, small_in_output, any, true, true,
         true},
        {"gather_slots", slots(gather_movement), expect_gather, small_in_output, any, true, true,
         true},
        {"scatter_direct", direct(scatter_movement), expect_scatter, small_in_input, any, true,
         true, true},
        {"scatter_slots", slots(scatter_movement), expect_scatter, small_in_input, any, true, true,
         true},
        {"all_to_all_direct", direct(all_to_all_movement), expect_all_to_all, nullptr, any, false,
         false, false},
        {"all_to_all_slots", slots(all_to_all_movement), expect_all_to_all, nullptr, any, false,
         false, false},
        {"broadcast_inline", broadcast_inline, expect_broadcast, nullptr, part, true, false, false},
        {"broadcast_balanced", broadcast_balanced, expect_broadcast, nullptr, any, true, false,
         false},
        {"broadcast_balanced_read", broadcast_balanced_read, expect_broadcast, nullptr, any, true,
         false, false},
        {"broadcast_read", broadcast_read, expect_broadcast, nullptr, any, true, false, false},
        {"broadcast_slots", slots(broadcast_movement), expect_broadcast, nullptr, any, true, false,
         false},
        {"reduce_scatter_inline", reduce_scatter_inline, expect_reduce_scatter, small_in_input,
         whole, false, true, false},
        {"reduce_scatter_direct", reduces(reduction_of_reduce_scatter), expect_reduce_scatter,
         small_in_input, any, false, true, false},
        {"reduce_scatter_slots", slot_reduction(reduction_of_reduce_scatter), expect_reduce_scatter,
         small_in_input, any, false, true, false},
        {"all_reduce_inline", all_reduce_inline, expect_all_reduce, same_buffer, part, false, false,
         false},
        {"all_reduce_direct", reduces(reduction_of_all_reduce), expect_all_reduce, same_buffer, any,
         false, false, false},
        {"all_reduce_read", all_reduce_read, expect_all_reduce, same_buffer, any, false, false,
         false},
        {"all_reduce_slots", slot_reduction(reduction_of_all_reduce), expect_all_reduce,
         same_buffer, any, false, false, false},
        {"small_all_reduce_slots", slot_reduction(reduction_of_small_all_reduce), expect_all_reduce,
         same_buffer, any, false, false, false},
        {"reduce_direct", reduces(reduction_of_reduce), expect_reduce, same_buffer, any, true,
         false, true},
        {"reduce_slots", slot_reduction(reduction_of_reduce), expect_reduce, same_buffer, any, true,
         false, true},
        {"small_reduce_slots", slot_reduction(reduction_of_small_reduce), expect_reduce,
         same_buffer, any, true, false, true},
    };
    for (size_t i = 0, mapped = made.size(); i < mapped; ++i) {
      if (!made[i].name.ends_with("_slots")) continue;
      Collective mirrored = made[i];
      mirrored.name += "_mirrored";
      mirrored.build = [build = made[i].build](Shape shape) {
        shape.mirrored = true;
        return build(shape);
      };
      made.push_back(std::move(mirrored));
    }
    add_in_steps(made);
    return made;
  }();
  return all;
}

inline bool applies(const Collective& collective, const Shape& shape) {
  if (collective.fits == Fits::any) return true;
  return (collective.fits == Fits::part_in_signal ? shape.largest_part_bytes()
                                                  : shape.whole_bytes()) <= kInlineBytes;
}

}  // namespace fsccl::testing
