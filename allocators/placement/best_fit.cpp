#include "allocators/placement/best_fit.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

namespace fsccl {
BestFit::BestFit(const PackingProblem& problem) : problem_(problem), items_(problem.items) {
  make_orders();
}

// Places the items in this order. Pinned items have their places from the beginning.
Packing BestFit::pack(const std::vector<uint32_t>& order, Fit fit, int64_t& effort) {
  Packing packing;
  packing.offset.assign(items_.size(), SlotRequest::kAnywhere);
  packing.bytes = 0;
  for (uint32_t i = 0; i < items_.size(); ++i) packing.offset[i] = items_[i].pinned;
  for (const uint32_t i : order) {
    if (items_[i].pinned != SlotRequest::kAnywhere) continue;
    packing.offset[i] = place(i, packing, fit);
    effort -= static_cast<int64_t>(items_[i].meets.size()) + 1;
  }
  for (uint32_t i = 0; i < items_.size(); ++i)
    packing.bytes = std::max(packing.bytes, packing.offset[i] + items_[i].bytes);
  return packing;
}

uint64_t BestFit::place(uint32_t index, const Packing& packing, Fit fit) {
  const PackingItem& item = items_[index];
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

void BestFit::make_orders() {
  std::vector<uint32_t> identity(items_.size());
  std::iota(identity.begin(), identity.end(), 0U);
  orders_.assign(6, identity);
  const auto sort_by = [&](std::vector<uint32_t>& order, auto rank_of) {
    std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
      return rank_of(items_[a]) < rank_of(items_[b]);
    });
  };
  const auto descending = [](uint64_t value) { return UINT64_MAX - value; };
  sort_by(orders_[0],
          [&](const PackingItem& i) { return std::tuple(descending(i.bytes), i.start); });
  sort_by(orders_[1], [&](const PackingItem& i) {
    return std::tuple(-static_cast<double>(i.bytes) * static_cast<double>(i.duration), i.start);
  });
  sort_by(orders_[2],
          [&](const PackingItem& i) { return std::tuple(i.start, descending(i.bytes)); });
  sort_by(orders_[3], [&](const PackingItem& i) {
    return std::tuple(descending(i.meets.size()), descending(i.bytes));
  });
  sort_by(orders_[4], [&](const PackingItem& i) {
    return std::tuple(descending(static_cast<uint64_t>(i.duration)), i.start);
  });
  sort_by(orders_[5],
          [&](const PackingItem& i) { return std::tuple(-i.start, descending(i.bytes)); });
}

void BestFit::try_orders(Packing& best, int64_t& effort) {
  for (const Fit fit : {Fit::kTightest, Fit::kLowest}) {
    for (const std::vector<uint32_t>& order : orders_) {
      if (best.bytes <= problem_.target || effort <= 0) return;
      Packing packing = pack(order, fit, effort);
      if (packing.bytes < best.bytes) best = std::move(packing);
    }
  }
}

}  // namespace fsccl
