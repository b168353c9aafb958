#include "memory_timeline.h"

#include <algorithm>
#include <map>

namespace fsccl::trace {
namespace {

using Action = MemoryEvent::Action;

class Maker {
 public:
  explicit Maker(const MemorySnapshot& snapshot) : snapshot_(snapshot) {}

  Timeline make() {
    timeline_.begin_us = timeline_.end_us = snapshot_.time_us;
    if (!snapshot_.events.empty()) {
      timeline_.begin_us = std::min(timeline_.begin_us, snapshot_.events.front().time_us);
      timeline_.end_us = std::max(timeline_.end_us, snapshot_.events.back().time_us);
    }
    find_tenancies();
    add_moments();
    find_peak();
    return std::move(timeline_);
  }

 private:
  void find_tenancies() {
    for (size_t i = 0; i < snapshot_.events.size(); i++) {
      const MemoryEvent& event = snapshot_.events[i];
      if (event.action == Action::kTaken) {
        end(event, i);  // a broken snapshot may lack the end of the tenancy before
        open_.emplace(event.address, timeline_.tenancies.size());
        timeline_.tenancies.push_back({event.time_us, event.time_us, event.address, event.bytes,
                                       event.owner, false, true, i, i});
      } else if (event.action == Action::kGivenBack && !end(event, i)) {
        add_early(event.address, event.bytes, event.owner);
        close(timeline_.tenancies.back(), event, i);
      }
    }
    for (const LiveMemory& live : snapshot_.live)
      if (!open_.contains(live.address)) add_early(live.address, live.bytes, live.owner);
    for (Tenancy& tenancy : timeline_.tenancies)
      if (tenancy.open_end)
        tenancy.end_us = timeline_.end_us, tenancy.end_event = snapshot_.events.size();
    std::stable_sort(timeline_.tenancies.begin(), timeline_.tenancies.end(),
                     [](const Tenancy& a, const Tenancy& b) {
                       return a.open_begin != b.open_begin ? a.open_begin
                                                           : a.begin_event < b.begin_event;
                     });
  }
  void add_early(uint64_t address, uint64_t bytes, uint32_t owner) {
    timeline_.tenancies.push_back(
        {timeline_.begin_us, timeline_.begin_us, address, bytes, owner, true, true, 0, 0});
  }
  static void close(Tenancy& tenancy, const MemoryEvent& event, size_t number) {
    tenancy.end_us = event.time_us;
    tenancy.end_event = number;
    tenancy.open_end = false;
  }
  bool end(const MemoryEvent& event, size_t number) {
    const auto found = open_.find(event.address);
    if (found == open_.end()) return false;
    close(timeline_.tenancies[found->second], event, number);
    open_.erase(found);
    return true;
  }

  // Adds the moments from the changes at each event. Before the first event, the live tenancies are
  // those without a known beginning, and the reserved memory is that which is reserved now and was
  // not added by an event.
  void add_moments() {
    const size_t events = snapshot_.events.size();
    std::vector<Moment> changes(events + 1);
    Moment now{};
    now.time_us = timeline_.begin_us;
    const auto is_block = [&](uint64_t address) {
      return part_of(snapshot_, address) == kBlocksPart;
    };
    for (const Tenancy& tenancy : timeline_.tenancies) {
      const double bytes = static_cast<double>(tenancy.bytes);
      const bool block = is_block(tenancy.address);
      const auto add = [&](Moment& moment, double change) {
        (block ? moment.blocks : moment.slots) += change;
      };
      add(tenancy.open_begin ? now : changes[tenancy.begin_event], bytes);
      if (!tenancy.open_end) add(changes[tenancy.end_event], -bytes);
    }
    for (size_t i = 0; i < snapshot_.parts.size(); i++)
      (i == kBlocksPart ? now.reserved_blocks : now.reserved_slots) +=
          static_cast<double>(snapshot_.parts[i].bytes);
    for (size_t i = 0; i < events; i++) {
      const MemoryEvent& event = snapshot_.events[i];
      if (event.action != Action::kGrown && event.action != Action::kReleased) continue;
      const double bytes =
          static_cast<double>(event.bytes) * (event.action == Action::kGrown ? 1 : -1);
      const bool block = is_block(event.address);
      (block ? changes[i].reserved_blocks : changes[i].reserved_slots) += bytes;
      (block ? now.reserved_blocks : now.reserved_slots) -= bytes;
    }
    timeline_.moments.push_back(now);
    for (size_t i = 0; i < events; i++) {
      now.time_us = snapshot_.events[i].time_us;
      now.slots += changes[i].slots, now.blocks += changes[i].blocks;
      now.reserved_slots += changes[i].reserved_slots,
          now.reserved_blocks += changes[i].reserved_blocks;
      timeline_.moments.push_back(now);
    }
    now.time_us = timeline_.end_us;
    timeline_.moments.push_back(now);
  }

  void find_peak() {
    const std::vector<Moment>& moments = timeline_.moments;
    for (size_t i = 1; i < moments.size(); i++)
      if (moments[i].slots + moments[i].blocks >
          moments[timeline_.peak].slots + moments[timeline_.peak].blocks)
        timeline_.peak = i;
    timeline_.owned_at_peak.resize(snapshot_.owners.size());
    for (const Tenancy& tenancy : timeline_.tenancies) {  // moment i is after event i - 1
      const bool begun = tenancy.open_begin || tenancy.begin_event < timeline_.peak;
      const bool ended = !tenancy.open_end && tenancy.end_event < timeline_.peak;
      if (begun && !ended)
        timeline_.owned_at_peak[tenancy.owner] += static_cast<double>(tenancy.bytes);
    }
  }

  const MemorySnapshot& snapshot_;
  Timeline timeline_;
  std::map<uint64_t, size_t> open_;  // address -> tenancy
};

}  // namespace

size_t part_of(const MemorySnapshot& snapshot, uint64_t address) {
  // The memory of a part may have been released since, so only the beginning of the part is known.
  // The address belongs to the part with the nearest beginning below it.
  size_t best = snapshot.parts.size();
  for (size_t i = 0; i < snapshot.parts.size(); i++) {
    const MemoryPart& part = snapshot.parts[i];
    if (part.address && part.address <= address &&
        (best == snapshot.parts.size() || part.address > snapshot.parts[best].address))
      best = i;
  }
  return best;
}

Timeline make_timeline(const MemorySnapshot& snapshot) { return Maker(snapshot).make(); }

}  // namespace fsccl::trace
