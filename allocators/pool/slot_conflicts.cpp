#include "allocators/pool/slot_conflicts.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace fsccl {
namespace {

// An occurrence of a request. Those of the step (round 0) meet each other and those of the step that follows (round 1).
struct Occurrence {
  uint32_t request;
  int64_t first, last;
  const StreamClock* ready;
  bool next;  // of round 1
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
  Conflicts(const std::vector<SlotRequest>& requests, int64_t events, PackingProblem& problem)
      : requests_(requests), events_(events), problem_(problem) {}

  void find() {
    list();
    std::vector<StreamClock> later(occurrences_.size() + 1);  // known to everything from this occurrence on
    later.back().fill(UINT64_MAX);
    for (size_t i = occurrences_.size(); i-- > 0;)
      for (size_t s = 0; s < kMostStreams; ++s) later[i][s] = std::min(later[i + 1][s], (*occurrences_[i].ready)[s]);
    std::vector<Occurrence> active;  // of round 0: what comes may still meet them
    for (size_t i = 0; i < occurrences_.size(); ++i) {
      const Occurrence& here = occurrences_[i];
      std::erase_if(active, [&](const Occurrence& other) {
        return other.last < here.first && covers(later[i], requests_[other.request].order.done);
      });
      for (const Occurrence& other : active) {
        if (other.last < here.first && covers(*here.ready, requests_[other.request].order.done)) continue;
        connect(problem_.items, problem_.item_of[other.request], problem_.item_of[here.request]);
      }
      if (!here.next) active.push_back(here);
    }
    for (PackingItem& item : problem_.items) {
      std::sort(item.meets.begin(), item.meets.end());
      item.meets.erase(std::unique(item.meets.begin(), item.meets.end()), item.meets.end());
    }
  }

 private:
  void list() {
    const auto count = static_cast<uint32_t>(requests_.size());
    for (uint32_t i = 0; i < count; ++i) {
      const SlotRequest& request = requests_[i];
      if (!inside(request, events_)) {  // for ever, and what makes no sense, meets everything
        for (uint32_t j = 0; j < count; ++j) connect(problem_.items, problem_.item_of[i], problem_.item_of[j]);
        continue;
      }
      const int64_t last = request.last >= request.first ? request.last : request.last + events_;
      occurrences_.push_back({i, request.first, last, &request.order.ready, false});
      occurrences_.push_back({i, request.first + events_, last + events_, &request.order.ready_next, true});
    }
    std::sort(occurrences_.begin(), occurrences_.end(),
              [](const Occurrence& a, const Occurrence& b) { return std::tie(a.first, a.request) < std::tie(b.first, b.request); });
  }

  const std::vector<SlotRequest>& requests_;
  int64_t events_;
  PackingProblem& problem_;
  std::vector<Occurrence> occurrences_;
};

using Times = std::vector<std::pair<int64_t, int64_t>>;  // closed, within the step

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

// One sweep over the starts and ends: the most bytes at once, and who is there together.
void find_crowds(PackingProblem& problem, const std::vector<Times>& times) {
  std::vector<std::tuple<int64_t, bool, uint32_t>> edges;  // (event, begins, item); ends are noted one event later, and come first
  for (uint32_t i = 0; i < times.size(); ++i) {
    for (const auto& [first, last] : times[i]) {
      edges.emplace_back(first, true, i);
      edges.emplace_back(last + 1, false, i);
    }
  }
  std::sort(edges.begin(), edges.end());
  std::vector<uint32_t> live;
  uint64_t bytes = 0;
  bool grew = false;
  for (const auto& [event, begins, i] : edges) {
    const auto place = std::lower_bound(live.begin(), live.end(), i);
    if (begins) {
      live.insert(place, i);
      bytes += problem.items[i].bytes;
      problem.live_bound = std::max(problem.live_bound, bytes);
    } else {
      if (grew) problem.crowds.push_back(live);
      live.erase(place);
      bytes -= problem.items[i].bytes;
    }
    grew = begins;
  }
}

}  // namespace

PackingProblem make_packing_problem(const std::vector<SlotRequest>& requests, int64_t events, uint64_t alignment) {
  PackingProblem problem;
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
    item.bytes = std::max(item.bytes, (request.bytes + alignment - 1) & ~(alignment - 1));
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
  Conflicts(requests, events, problem).find();
  problem.target = problem.live_bound;
  for (const PackingItem& item : problem.items)
    if (item.pinned != SlotRequest::kAnywhere) problem.target = std::max(problem.target, item.pinned + item.bytes);
  return problem;
}

}  // namespace fsccl
