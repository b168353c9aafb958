#include "allocators/placement/reduction.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "base/hash.h"

namespace fsccl {
namespace {

template <typename Values>
void make_set(Values& values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
}

// Adds an item like this one, but without neighbours, to the reduced problem, and returns its
// index.
uint32_t add_item(Reduction& reduction, const PackingItem& like) {
  std::vector<PackingItem>& items = reduction.problem.items;
  items.push_back({.bytes = like.bytes,
                   .pinned = like.pinned,
                   .start = like.start,
                   .duration = like.duration,
                   .meets = {}});
  return static_cast<uint32_t>(items.size() - 1);
}

// Adds neighbours and crowds to the reduced problem, once it is known where each item of `whole`
// went. Returns false if two items that lie at one place meet; items that lie side by side may.
bool connect(Reduction& reduction, const PackingProblem& whole) {
  std::vector<PackingItem>& items = reduction.problem.items;
  for (size_t i = 0; i < whole.items.size(); ++i) {
    for (const uint32_t other : whole.items[i].meets) {
      const uint32_t a = reduction.item_of[i], b = reduction.item_of[other];
      if (a == b && reduction.inner[i] == reduction.inner[other]) return false;
      if (a != b) items[a].meets.push_back(b);
    }
  }
  make_sets_of_neighbours(items);
  for (std::vector<uint32_t> crowd : whole.crowds) {
    for (uint32_t& item : crowd) item = reduction.item_of[item];
    make_set(crowd);
    reduction.problem.crowds.push_back(std::move(crowd));
  }
  make_set(reduction.problem.crowds);
  for (const uint32_t item : whole.item_of)
    reduction.problem.item_of.push_back(reduction.item_of[item]);
  reduction.problem.alignment = whole.alignment;
  reduction.problem.live_bound = whole.live_bound;
  reduction.problem.target = whole.target;
  return true;
}

}  // namespace

Packing Reduction::expand(const Packing& small) const {
  Packing packing{.offset = {}, .bytes = small.bytes};
  packing.offset.reserve(item_of.size());
  for (size_t i = 0; i < item_of.size(); ++i)
    packing.offset.push_back(small.offset[item_of[i]] + inner[i]);
  return packing;
}

std::optional<Reduction> fuse_twins(const PackingProblem& whole) {
  Reduction reduction;
  reduction.inner.assign(whole.items.size(), 0);
  // (an item and all that it meets) -> the item of the reduced problem that holds it.
  std::map<std::vector<uint32_t>, uint32_t> by_company;
  for (uint32_t i = 0; i < whole.items.size(); ++i) {
    const PackingItem& item = whole.items[i];
    std::vector<uint32_t> company = item.meets;
    company.insert(std::lower_bound(company.begin(), company.end(), i), i);
    const auto next = static_cast<uint32_t>(reduction.problem.items.size());
    const bool movable = item.pinned == SlotRequest::kAnywhere;
    const uint32_t place =
        movable ? by_company.emplace(std::move(company), next).first->second : next;
    reduction.item_of.push_back(place);
    if (place == next) {
      add_item(reduction, item);
      continue;
    }
    PackingItem& fused = reduction.problem.items[place];
    reduction.inner[i] = fused.bytes;
    fused.bytes += item.bytes;
    fused.start = std::min(fused.start, item.start);
    fused.duration = std::max(fused.duration, item.duration);
  }
  if (!connect(reduction, whole)) return std::nullopt;
  return reduction;
}

Periods::Periods(const std::vector<SlotRequest>& requests, int64_t events,
                 const PackingProblem& whole)
    : whole_(whole) {
  // The takes and give-backs of the step, in order. The label of each says which of the two it is,
  // the size, and whether the offset is shared.
  std::vector<std::tuple<int64_t, bool, uint32_t>> order;  // (event, takes, request)
  for (uint32_t i = 0; i < requests.size(); ++i) {
    order.emplace_back(requests[i].first, true, i);
    if (requests[i].last < events) order.emplace_back(requests[i].last, false, i);
  }
  std::sort(order.begin(), order.end());
  std::vector<uint64_t> label;
  for (const auto& [event, takes, request] : order)
    label.push_back(mix_in_order(requests[request].bytes, (takes ? 1 : 0) +
                                                              (requests[request].key >= 0 ? 2 : 0) +
                                                              (requests[request].stable ? 4 : 0)));
  for (int reach = 0; reach <= kLargestReach; ++reach) {
    std::vector<uint64_t> likeness(whole.items.size(), 0);
    for (size_t i = 0; i < order.size(); ++i) {
      uint64_t& of_item = likeness[whole.item_of[std::get<2>(order[i])]];
      of_item = mix_in_order(of_item, label[i]);
    }
    likeness_.push_back(std::move(likeness));
    const size_t distance = size_t{1} << reach;
    std::vector<uint64_t> wider(label.size());
    for (size_t i = 0; i < label.size(); ++i)
      wider[i] = mix_in_order(mix_in_order(label[i], i >= distance ? label[i - distance] : 1),
                              i + distance < label.size() ? label[i + distance] : 2);
    label = std::move(wider);
  }
}

std::optional<Reduction> Periods::reduce(int reach, uint32_t period, size_t most_items) const {
  const std::vector<uint64_t>& likeness = likeness_[static_cast<size_t>(reach)];
  const size_t count = whole_.items.size();
  std::vector<uint32_t> by_start(count);
  std::iota(by_start.begin(), by_start.end(), 0U);
  std::stable_sort(by_start.begin(), by_start.end(), [&](uint32_t a, uint32_t b) {
    return whole_.items[a].start < whole_.items[b].start;
  });
  struct Alike {
    std::vector<uint32_t> places;  // at most `period`
    size_t seen = 0;
  };
  std::map<uint64_t, Alike> groups;
  Reduction reduction;
  reduction.item_of.resize(count);
  reduction.inner.assign(count, 0);
  for (const uint32_t i : by_start) {
    const PackingItem& item = whole_.items[i];
    if (item.pinned != SlotRequest::kAnywhere) {
      reduction.item_of[i] = add_item(reduction, item);
      continue;
    }
    Alike& group = groups[likeness[i]];
    const size_t turn = group.seen++ % period;
    if (turn == group.places.size()) {
      group.places.push_back(add_item(reduction, item));
    } else {
      PackingItem& place = reduction.problem.items[group.places[turn]];
      place.bytes = std::max(place.bytes, item.bytes);  // equal sizes, unless two hashes collide
      place.duration += item.duration;
    }
    reduction.item_of[i] = group.places[turn];
  }
  if (reduction.problem.items.size() > std::min(most_items, count - 1) ||
      !connect(reduction, whole_))
    return std::nullopt;
  return reduction;
}

}  // namespace fsccl
