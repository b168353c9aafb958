// The search: place items one by one, each in the best gap among the items already placed that it meets in time, for several orders
// of the items; then move the items that stick out to the front of the order and try again (squeaky wheel), until the bound is
// reached or the effort is spent.
#include "allocators/pool/planner.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <numeric>
#include <random>
#include <tuple>
#include <utility>

namespace fsccl {
namespace {

constexpr uint64_t kEffort = 8'000'000;   // neighbours looked at over all tries: about 100 ms
constexpr uint64_t kLargestRounds = 400;  // of improvement from one order
constexpr uint64_t kRandomSeed = 0x5eed;  // the same on every rank

// All requests that share one offset.
struct Item {
  uint64_t bytes = 0;
  uint64_t pinned = SlotRequest::kAnywhere;
  std::vector<std::pair<int64_t, int64_t>> times;  // disjoint, ascending, closed, within [0, events)
  std::vector<uint32_t> meets;                     // items that are live at a common event
  int64_t duration = 0;
};

struct Problem {
  std::vector<Item> items;
  std::vector<uint32_t> item_of;  // request -> item
  uint64_t bound = 0;             // most bytes live at once
  int64_t peak = 0;               // the event of the bound
  uint64_t target = 0;            // no packing is smaller: the bound, or the end of what is pinned
};

struct Packing {
  std::vector<uint64_t> offset;  // per item
  uint64_t bytes = UINT64_MAX;
};

void add_times(Item& item, const SlotRequest& request, int64_t events) {
  const bool inside = request.first >= 0 && request.first < events && request.last >= 0 && request.last < events;
  if (!inside) {
    item.times.emplace_back(0, events - 1);  // kForever, and anything that makes no sense, meets everything
  } else if (request.last >= request.first) {
    item.times.emplace_back(request.first, request.last);
  } else {
    item.times.emplace_back(request.first, events - 1);
    item.times.emplace_back(0, request.last);
  }
}

void merge_times(Item& item) {
  std::sort(item.times.begin(), item.times.end());
  std::vector<std::pair<int64_t, int64_t>> merged;
  for (const auto& time : item.times) {
    if (!merged.empty() && time.first <= merged.back().second + 1) {
      merged.back().second = std::max(merged.back().second, time.second);
    } else {
      merged.push_back(time);
    }
  }
  item.times = std::move(merged);
  for (const auto& [first, last] : item.times) item.duration += last - first + 1;
}

// One sweep over the starts and ends: who meets whom, and the most bytes at once.
void sweep(Problem& problem) {
  std::vector<std::tuple<int64_t, bool, uint32_t>> edges;  // (event, begins, item); ends are noted one event later, and come first
  for (uint32_t i = 0; i < problem.items.size(); ++i) {
    for (const auto& [first, last] : problem.items[i].times) {
      edges.emplace_back(first, true, i);
      edges.emplace_back(last + 1, false, i);
    }
  }
  std::sort(edges.begin(), edges.end());
  std::vector<uint32_t> live;
  uint64_t bytes = 0;
  for (const auto& [event, begins, i] : edges) {
    if (!begins) {
      live.erase(std::find(live.begin(), live.end(), i));
      bytes -= problem.items[i].bytes;
      continue;
    }
    for (const uint32_t other : live) {
      problem.items[i].meets.push_back(other);
      problem.items[other].meets.push_back(i);
    }
    live.push_back(i);
    bytes += problem.items[i].bytes;
    if (bytes > problem.bound) {
      problem.bound = bytes;
      problem.peak = event;
    }
  }
  for (Item& item : problem.items) {
    std::sort(item.meets.begin(), item.meets.end());
    item.meets.erase(std::unique(item.meets.begin(), item.meets.end()), item.meets.end());
  }
}

Problem make_problem(const std::vector<SlotRequest>& requests, int64_t events, uint64_t alignment) {
  Problem problem;
  std::map<int64_t, uint32_t> by_key;
  for (const SlotRequest& request : requests) {
    uint32_t index = static_cast<uint32_t>(problem.items.size());
    if (request.key >= 0) index = by_key.emplace(request.key, index).first->second;
    if (index == problem.items.size()) problem.items.emplace_back();
    Item& item = problem.items[index];
    item.bytes = std::max(item.bytes, (request.bytes + alignment - 1) & ~(alignment - 1));
    if (request.pinned != SlotRequest::kAnywhere) item.pinned = request.pinned;
    add_times(item, request, events);
    problem.item_of.push_back(index);
  }
  for (Item& item : problem.items) merge_times(item);
  sweep(problem);
  problem.target = problem.bound;
  for (const Item& item : problem.items) {
    if (item.pinned != SlotRequest::kAnywhere) problem.target = std::max(problem.target, item.pinned + item.bytes);
  }
  return problem;
}

enum class Fit { kTightest, kLowest };

class Packer {
 public:
  explicit Packer(const Problem& problem) : items_(problem.items) {}

  uint64_t effort() const { return effort_; }

  // Places the items in this order; pinned ones are there from the beginning.
  Packing pack(const std::vector<uint32_t>& order, Fit fit) {
    Packing packing;
    packing.offset.assign(items_.size(), SlotRequest::kAnywhere);
    packing.bytes = 0;
    for (uint32_t i = 0; i < items_.size(); ++i) packing.offset[i] = items_[i].pinned;
    for (const uint32_t i : order) {
      if (items_[i].pinned == SlotRequest::kAnywhere) packing.offset[i] = place(i, packing, fit);
    }
    for (uint32_t i = 0; i < items_.size(); ++i) packing.bytes = std::max(packing.bytes, packing.offset[i] + items_[i].bytes);
    effort_ += items_.size();
    return packing;
  }

 private:
  uint64_t place(uint32_t index, const Packing& packing, Fit fit) {
    const Item& item = items_[index];
    effort_ += item.meets.size();
    busy_.clear();
    for (const uint32_t other : item.meets) {
      if (packing.offset[other] != SlotRequest::kAnywhere)
        busy_.emplace_back(packing.offset[other], packing.offset[other] + items_[other].bytes);
    }
    std::sort(busy_.begin(), busy_.end());
    uint64_t end = 0, best = SlotRequest::kAnywhere, best_gap = UINT64_MAX;
    for (const auto& [from, to] : busy_) {
      if (from > end && from - end >= item.bytes && from - end < best_gap) {
        best = end;
        best_gap = from - end;
        if (fit == Fit::kLowest) return best;
      }
      end = std::max(end, to);
    }
    return best != SlotRequest::kAnywhere ? best : end;
  }

  const std::vector<Item>& items_;
  std::vector<std::pair<uint64_t, uint64_t>> busy_;
  uint64_t effort_ = 0;
};

std::vector<std::vector<uint32_t>> orders_of(const Problem& problem) {
  const std::vector<Item>& items = problem.items;
  std::vector<uint32_t> identity(items.size());
  std::iota(identity.begin(), identity.end(), 0U);
  std::vector<std::vector<uint32_t>> orders(7, identity);
  const auto start = [&](uint32_t i) { return items[i].times.front().first; };
  const auto sort_by = [&](std::vector<uint32_t>& order, auto rank_of) {
    std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return rank_of(a) < rank_of(b); });
  };
  const auto descending = [](uint64_t value) { return UINT64_MAX - value; };
  sort_by(orders[0], [&](uint32_t i) { return std::tuple(descending(items[i].bytes), start(i)); });
  sort_by(orders[1], [&](uint32_t i) {
    return std::tuple(-static_cast<double>(items[i].bytes) * static_cast<double>(items[i].duration), start(i));
  });
  sort_by(orders[2], [&](uint32_t i) { return std::tuple(start(i), descending(items[i].bytes)); });
  sort_by(orders[3], [&](uint32_t i) { return std::tuple(descending(items[i].meets.size()), descending(items[i].bytes)); });
  sort_by(orders[4], [&](uint32_t i) { return std::tuple(descending(static_cast<uint64_t>(items[i].duration)), start(i)); });
  // Time backwards, and outwards from the event where most is live.
  const auto from_peak = [&](uint32_t i) {
    int64_t least = INT64_MAX;
    for (const auto& [first, last] : items[i].times)
      least = std::min(least, std::max({first - problem.peak, problem.peak - last, int64_t{0}}));
    return least;
  };
  sort_by(orders[5], [&](uint32_t i) { return std::tuple(-start(i), descending(items[i].bytes)); });
  sort_by(orders[6], [&](uint32_t i) { return std::tuple(from_peak(i), descending(items[i].bytes)); });
  return orders;
}

// Moves the items that reach above the target to the front and packs again, as long as the effort lasts. When that changes nothing
// any more, two items change places at random (the same random on every rank).
void improve(const Problem& problem, Packer& packer, std::vector<uint32_t> order, Fit fit, uint64_t effort_end, Packing& best) {
  std::vector<uint64_t> blame(problem.items.size(), 0);
  std::minstd_rand random(kRandomSeed);
  for (uint64_t round = 0; round < kLargestRounds && best.bytes > problem.target && packer.effort() < effort_end; ++round) {
    const Packing packing = packer.pack(order, fit);
    if (packing.bytes < best.bytes) best = packing;
    for (uint32_t i = 0; i < blame.size(); ++i) {
      if (packing.offset[i] + problem.items[i].bytes > problem.target)
        blame[i] += 1 + problem.items[i].bytes * 8 / (problem.target + 1);
    }
    const std::vector<uint32_t> before = order;
    std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return blame[a] > blame[b]; });
    if (order == before) std::swap(order[random() % order.size()], order[random() % order.size()]);
  }
}

Packing search(const Problem& problem) {
  Packer packer(problem);
  Packing best;
  const std::vector<std::vector<uint32_t>> orders = orders_of(problem);
  for (const Fit fit : {Fit::kTightest, Fit::kLowest}) {
    for (const std::vector<uint32_t>& order : orders) {
      Packing packing = packer.pack(order, fit);
      if (packing.bytes < best.bytes) best = std::move(packing);
      if (best.bytes <= problem.target) return best;
    }
  }
  const uint64_t tries = 2 * orders.size();
  for (uint64_t i = 0; i < tries; ++i) {
    improve(problem, packer, orders[i / 2], i % 2 == 0 ? Fit::kTightest : Fit::kLowest, (i + 1) * (kEffort / tries), best);
  }
  return best;
}

}  // namespace

SlotPlan plan_slots(const std::vector<SlotRequest>& requests, int64_t events, uint64_t alignment) {
  SlotPlan plan;
  if (requests.empty()) return plan;
  const Problem problem = make_problem(requests, std::max<int64_t>(events, 1), alignment);
  const Packing packing = search(problem);
  plan.bytes = packing.bytes;
  plan.bound = problem.bound;
  for (const uint32_t item : problem.item_of) plan.offset.push_back(packing.offset[item]);
  return plan;
}

}  // namespace fsccl
