#include "allocators/placement/slot_conflicts.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

#include "allocators/placement/region.h"

namespace fsccl {
namespace {

// The most crowds, and the most items in all crowds together.
constexpr size_t kMostCrowds = 512, kMostInCrowds = size_t{1} << 20;

// An occurrence of a request, in the step (round 0) or in the step that follows (round 1).
// Occurrences of round 0 may meet each other and those of round 1.
struct Occurrence {
  uint32_t request;
  int64_t first, last;
  const StreamClock* ready;
  bool next;  // true for round 1
};

bool inside(const SlotRequest& request, int64_t events) {
  return request.first >= 0 && request.first < events && request.last >= 0 && request.last < events;
}

void connect(std::vector<PackingItem>& items, uint32_t a, uint32_t b) {
  if (a == b) return;
  items[a].meets.push_back(b);
  items[b].meets.push_back(a);
}

class Conflicts {
 public:
  Conflicts(const std::vector<SlotRequest>& requests, int64_t events,
            const std::vector<uint32_t>& item_of)
      : requests_(requests), events_(events), item_of_(item_of) {
    list();
    later_.resize(occurrences_.size() + 1);
    later_.back().fill(UINT64_MAX);
    for (size_t i = occurrences_.size(); i-- > 0;)
      for (size_t s = 0; s < kMostStreams; ++s)
        later_[i][s] = std::min(later_[i + 1][s], (*occurrences_[i].ready)[s]);
  }

  // Makes the graph of conflicts. Returns false if that would take more than `most_compared`
  // comparisons.
  bool connect_all(std::vector<PackingItem>& items, int64_t most_compared) const {
    int64_t left = most_compared;
    for (const uint32_t always : always_) {
      left -= static_cast<int64_t>(requests_.size());
      if (left < 0) return false;
      for (const uint32_t item : item_of_) connect(items, item_of_[always], item);
    }
    std::vector<Occurrence> active;  // occurrences of round 0 that later ones may still meet
    for (size_t i = 0; i < occurrences_.size(); ++i) {
      const Occurrence& occurrence = occurrences_[i];
      left -= static_cast<int64_t>(active.size());
      if (left < 0) return false;
      std::erase_if(active, [&](const Occurrence& other) { return is_over(other, i); });
      for (const Occurrence& other : active) {
        if (other.last < occurrence.first &&
            covers(*occurrence.ready, requests_[other.request].order.done))
          continue;
        connect(items, item_of_[other.request], item_of_[occurrence.request]);
      }
      if (!occurrence.next) active.push_back(occurrence);
    }
    make_sets_of_neighbours(items);
    return true;
  }

  Packing pack_in_order(const std::vector<PackingItem>& items, uint64_t alignment) const {
    Packing packing{.offset = std::vector<uint64_t>(items.size(), 0), .bytes = 0};
    Region region(UINT64_MAX);
    take_pinned(items, region, packing);
    const auto place = [&](uint32_t item) {
      const std::optional<uint64_t> offset = region.alloc(items[item].bytes, alignment);
      packing.offset[item] = offset.value_or(0);
      packing.bytes = offset ? std::max(packing.bytes, *offset + items[item].bytes) : UINT64_MAX;
      return offset.has_value();
    };
    const std::vector<Life> lives = lives_of(items.size());
    const auto end = static_cast<uint32_t>(occurrences_.size() / 2);
    const auto movable = [&](uint32_t item) {
      return items[item].pinned == SlotRequest::kAnywhere;
    };
    for (uint32_t i = 0; i < items.size(); ++i)
      if (movable(i) && lives[i].until > end && !place(i)) return packing;
    std::vector<std::vector<uint32_t>> ending(end + 1);
    for (uint32_t at = 0; at < end; ++at) {
      for (const uint32_t item : ending[at]) region.free(packing.offset[item]);
      const uint32_t item = item_of_[occurrences_[at].request];
      if (!movable(item) || lives[item].from != at || lives[item].until > end) continue;
      if (!place(item)) return packing;
      ending[lives[item].until].push_back(item);
    }
    return packing;
  }

 private:
  // The item keeps its place during the occurrences [from, until). If `until` is greater than the
  // number of occurrences of round 0, the item keeps it for ever.
  struct Life {
    uint32_t from = UINT32_MAX, until = 0;
  };

  // Returns true if no occurrence from number `at` on can meet this one.
  bool is_over(const Occurrence& occurrence, size_t at) const {
    if (at < occurrences_.size() && occurrence.last >= occurrences_[at].first) return false;
    return covers(later_[at], requests_[occurrence.request].order.done);
  }

  std::vector<Life> lives_of(size_t items) const {
    std::vector<Life> lives(items);
    const auto end = static_cast<uint32_t>(occurrences_.size() / 2);
    for (uint32_t at = 0; at < end; ++at) {  // binary search: what is over stays over
      uint32_t from = at + 1, until = end + 1;
      while (from < until) {
        const uint32_t middle = from + (until - from) / 2;
        if (middle <= end && is_over(occurrences_[at], middle))
          until = middle;
        else
          from = middle + 1;
      }
      Life& life = lives[item_of_[occurrences_[at].request]];
      life = {std::min(life.from, at), std::max(life.until, until)};
    }
    for (const uint32_t request : always_) lives[item_of_[request]].until = end + 1;
    return lives;
  }

  // Takes the bytes of all pinned items in the region, and never frees them. Pinned items may
  // overlap, so each byte is taken once.
  static void take_pinned(const std::vector<PackingItem>& items, Region& region, Packing& packing) {
    std::vector<std::pair<uint64_t, uint64_t>> ranges;
    for (uint32_t i = 0; i < items.size(); ++i) {
      if (items[i].pinned == SlotRequest::kAnywhere) continue;
      packing.offset[i] = items[i].pinned;
      ranges.emplace_back(items[i].pinned, items[i].pinned + items[i].bytes);
    }
    std::sort(ranges.begin(), ranges.end());
    for (const auto& [from, to] : ranges) {
      const uint64_t begin = std::max(from, packing.bytes);
      if (begin < to) region.take(begin, to - begin);
      packing.bytes = std::max(packing.bytes, to);
    }
  }

  void list() {
    const auto count = static_cast<uint32_t>(requests_.size());
    for (uint32_t i = 0; i < count; ++i) {
      const SlotRequest& request = requests_[i];
      // A request that lasts for ever, or whose events make no sense, meets everything.
      if (!inside(request, events_)) {
        always_.push_back(i);
        continue;
      }
      const int64_t last = request.last >= request.first ? request.last : request.last + events_;
      occurrences_.push_back({i, request.first, last, &request.order.ready, false});
      occurrences_.push_back(
          {i, request.first + events_, last + events_, &request.order.ready_next, true});
    }
    std::sort(occurrences_.begin(), occurrences_.end(),
              [](const Occurrence& a, const Occurrence& b) {
                return std::tie(a.first, a.request) < std::tie(b.first, b.request);
              });
  }

  const std::vector<SlotRequest>& requests_;
  int64_t events_;
  const std::vector<uint32_t>& item_of_;
  std::vector<uint32_t> always_;  // requests that meet every other one
  std::vector<Occurrence> occurrences_;
  std::vector<StreamClock> later_;  // by occurrence: work known to this one and all later ones
};

using Times = std::vector<std::pair<int64_t, int64_t>>;  // [first, last] within the step

void add_times(Times& times, const SlotRequest& request, int64_t events) {
  if (!inside(request, events)) {
    times.emplace_back(0, events - 1);
  } else if (request.last >= request.first) {
    times.emplace_back(request.first, request.last);
  } else {
    times.emplace_back(request.first, events - 1);
    times.emplace_back(0, request.last);
  }
}

Times merged(Times times) {
  std::sort(times.begin(), times.end());
  Times result;
  for (const auto& time : times) {
    if (!result.empty() && time.first <= result.back().second + 1)
      result.back().second = std::max(result.back().second, time.second);
    else
      result.push_back(time);
  }
  return result;
}

using Edges =
    // (event, begins, item); ends are noted one event later, and come first
    std::vector<std::tuple<int64_t, bool, uint32_t>>;

struct Peak {
  size_t edge;  // number of the end that follows the peak
  uint64_t bytes;
  size_t items;
};

// Returns the heaviest peaks, in the order of the step.
std::vector<Peak> heaviest(std::vector<Peak> peaks) {
  std::sort(peaks.begin(), peaks.end(), [](const Peak& a, const Peak& b) {
    return a.bytes != b.bytes ? a.bytes > b.bytes : a.edge < b.edge;
  });
  size_t kept = 0;
  for (size_t items = 0; kept < std::min(peaks.size(), kMostCrowds); ++kept) {
    items += peaks[kept].items;
    if (kept > 0 && items > kMostInCrowds) break;
  }
  peaks.resize(kept);
  std::sort(peaks.begin(), peaks.end(),
            [](const Peak& a, const Peak& b) { return a.edge < b.edge; });
  return peaks;
}

// Finds the crowds and the live bound. Sweeps over the starts and ends of all items twice: first
// for the bytes at each peak, and then for the items that are live at the heaviest peaks.
void find_crowds(PackingProblem& problem, const std::vector<Times>& times) {
  Edges edges;
  for (uint32_t i = 0; i < times.size(); ++i) {
    for (const auto& [first, last] : times[i]) {
      edges.emplace_back(first, true, i);
      edges.emplace_back(last + 1, false, i);
    }
  }
  std::sort(edges.begin(), edges.end());
  std::vector<Peak> peaks;
  uint64_t bytes = 0;
  size_t live = 0;
  for (size_t e = 0; e < edges.size(); ++e) {
    const auto& [event, begins, i] = edges[e];
    if (!begins && std::get<1>(edges[e - 1])) peaks.push_back({e, bytes, live});
    live += begins ? 1 : SIZE_MAX;
    bytes += begins ? problem.items[i].bytes : 0 - problem.items[i].bytes;
    problem.live_bound = std::max(problem.live_bound, bytes);
  }
  std::vector<uint8_t> present(problem.items.size(), 0);
  size_t e = 0;
  for (const Peak& peak : heaviest(std::move(peaks))) {
    for (; e < peak.edge; ++e) present[std::get<2>(edges[e])] = std::get<1>(edges[e]);
    std::vector<uint32_t>& crowd = problem.crowds.emplace_back();
    for (uint32_t i = 0; i < present.size(); ++i)
      if (present[i]) crowd.push_back(i);
  }
}

}  // namespace

// Goes through the items in order and notes each one at all items that it meets. So each list
// becomes ascending without being sorted.
void make_sets_of_neighbours(std::vector<PackingItem>& items) {
  std::vector<std::vector<uint32_t>> noted(items.size());
  for (uint32_t a = 0; a < items.size(); ++a) {
    for (const uint32_t b : items[a].meets)
      if (noted[b].empty() || noted[b].back() != a) noted[b].push_back(a);
    items[a].meets = {};
  }
  for (size_t i = 0; i < items.size(); ++i) items[i].meets = std::move(noted[i]);
}

PackingProblem make_packing_problem(const std::vector<SlotRequest>& requests, int64_t events,
                                    uint64_t alignment, int64_t most_compared) {
  PackingProblem problem;
  problem.alignment = alignment;
  std::map<int64_t, uint32_t> by_key;
  std::vector<Times> times;
  for (const SlotRequest& request : requests) {
    uint32_t index = static_cast<uint32_t>(problem.items.size());
    if (request.key >= 0) index = by_key.emplace(request.key, index).first->second;
    if (index == problem.items.size()) {
      problem.items.emplace_back();
      times.emplace_back();
    }
    PackingItem& item = problem.items[index];
    // Each item has at least one byte, because an item without bytes could get the place of an item
    // that it meets.
    const uint64_t bytes = std::max<uint64_t>(request.bytes, 1);
    item.bytes = std::max(item.bytes, (bytes + alignment - 1) & ~(alignment - 1));
    if (request.pinned != SlotRequest::kAnywhere) item.pinned = request.pinned;
    add_times(times[index], request, events);
    problem.item_of.push_back(index);
  }
  for (size_t i = 0; i < times.size(); ++i) {
    times[i] = merged(std::move(times[i]));
    problem.items[i].start = times[i].front().first;
    for (const auto& [first, last] : times[i]) problem.items[i].duration += last - first + 1;
  }
  find_crowds(problem, times);
  problem.conflicts_known =
      Conflicts(requests, events, problem.item_of).connect_all(problem.items, most_compared);
  if (!problem.conflicts_known)
    for (PackingItem& item : problem.items) item.meets = {};
  problem.target = problem.live_bound;
  for (const PackingItem& item : problem.items)
    if (item.pinned != SlotRequest::kAnywhere)
      problem.target = std::max(problem.target, item.pinned + item.bytes);
  return problem;
}

Packing pack_in_order(const std::vector<SlotRequest>& requests, int64_t events, uint64_t alignment,
                      const PackingProblem& problem) {
  return Conflicts(requests, events, problem.item_of).pack_in_order(problem.items, alignment);
}

}  // namespace fsccl
