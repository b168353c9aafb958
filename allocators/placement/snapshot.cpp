#include "allocators/placement/snapshot.h"

#include <fmt/format.h>

#include <algorithm>

namespace fsccl {
namespace {

constexpr std::array<const char*, kPoolParts> kPartNames = {"shared slots", "own slots", "blocks"};

class Snapshot {
 public:
  Snapshot(const SnapshotFacts& facts, const JournalCopy& journal, ValueWriter& out)
      : facts_(facts), journal_(journal), out_(out) {
    place_ = fmt::format("pool '{}', rank {}", valid_utf8(facts.pool), facts.rank);
    for (const MemoryUse& use : journal.uses) {
      const std::string unit =
          use.unit.empty() ? "" : fmt::format("unit {}, ", valid_utf8(use.unit));
      const std::string stream = use.stream ? fmt::format(", stream {:#x}", use.stream) : "";
      owners_.push_back(unit + name_of(use.kind) + stream);
    }
  }

  void write() {
    out_.begin_map();
    list("segments", [&] {
      for (size_t part = 0; part < kPoolParts; part++) segment(part);
    });
    list("device_traces", [&] {
      out_.begin_list();
      for (const JournalEvent& event : journal_.events) trace(event);
      out_.end_list();
    });
    out_.key("fsccl");
    own_words();
    out_.end_map();
    out_.finish();
  }

 private:
  template <class Fill>
  void list(const char* name, Fill fill) {
    out_.key(name);
    out_.begin_list();
    fill();
    out_.end_list();
  }
  void frames(std::string_view owner) {
    list("frames", [&] {
      out_.begin_map();
      out_.entry("filename", place_);
      out_.entry("line", uint64_t{0});
      out_.entry("name", owner);
      out_.end_map();
    });
  }

  void segment(size_t part) {
    const PoolPart& where = journal_.parts[part];
    if (!where.bytes) return;
    const uint64_t end = where.address + where.bytes;
    const auto in_part = [&](const LiveMemory& memory) {
      return memory.address >= where.address && memory.address + memory.bytes <= end;
    };
    uint64_t live = 0, requested = 0;
    for (const LiveMemory& memory : journal_.live)
      if (in_part(memory)) live += memory.bytes, requested += memory.requested;
    out_.begin_map();
    out_.entry("device", uint64_t{0});
    out_.entry("address", where.address);
    out_.entry("total_size", where.bytes);
    out_.entry("stream", uint64_t{0});
    out_.entry("segment_type", "large");
    out_.key("segment_pool_id");
    out_.pair(0, part);
    out_.key("is_expandable");
    out_.truth(true);
    out_.entry("allocated_size", live);
    out_.entry("active_size", live);
    out_.entry("requested_size", requested);
    frames(kPartNames[part]);
    list("blocks", [&] {
      uint64_t at = where.address;
      for (const LiveMemory& memory : journal_.live) {
        if (!in_part(memory)) continue;
        if (memory.address > at) block(at, memory.address - at, 0, "inactive", {});
        block(memory.address, memory.bytes, memory.requested, "active_allocated",
              owners_[memory.use]);
        at = memory.address + memory.bytes;
      }
      if (end > at) block(at, end - at, 0, "inactive", {});
    });
    out_.end_map();
  }

  void block(uint64_t address, uint64_t bytes, uint64_t requested, const char* state,
             std::string_view owner) {
    out_.begin_map();
    out_.entry("address", address);
    out_.entry("size", bytes);
    out_.entry("requested_size", requested);
    out_.entry("state", state);
    if (owner.empty())
      list("frames", [] {});
    else
      frames(owner);
    out_.end_map();
  }

  void trace(const JournalEvent& event) {
    switch (event.action) {
      case JournalAction::kTaken:
        return trace(event, "alloc", owners_[event.use]);
      case JournalAction::kGivenBack:  // asked for and done at once
        trace(event, "free_requested", owners_[event.use]);
        return trace(event, "free_completed", owners_[event.use]);
      case JournalAction::kRefused:
        return trace(event, "oom", owners_[event.use]);
      case JournalAction::kGrown:
        return trace(event, "segment_map", kPartNames[event.use]);
      case JournalAction::kReleased:
        return trace(event, "segment_unmap", kPartNames[event.use]);
      case JournalAction::kStep:
        return;
    }
  }
  void trace(const JournalEvent& event, const char* action, std::string_view owner) {
    out_.begin_map();
    out_.entry("action", action);
    out_.entry("addr", event.address);
    out_.entry("size", event.bytes);
    if (event.action == JournalAction::kRefused) out_.entry("device_free", event.requested);
    out_.entry("stream", event.stream);
    out_.entry("time_us", static_cast<uint64_t>(event.time_us));
    out_.entry("user_metadata", owner);
    frames(owner);
    out_.end_map();
  }

  void own_words() {
    out_.begin_map();
    out_.entry("version", uint64_t{1});
    out_.entry("library", facts_.library);
    out_.entry("pool", valid_utf8(facts_.pool));
    out_.entry("rank", facts_.rank);
    out_.entry("ranks", facts_.ranks);
    out_.entry("shared_host", facts_.shared_host);
    out_.key("dry_run");
    out_.truth(facts_.dry_run);
    out_.entry("time_us", static_cast<uint64_t>(journal_.time_us));
    out_.entry("limit_bytes", facts_.limit_bytes);
    out_.entry("reserved_bytes", facts_.reserved_bytes);
    out_.entry("live_peak_bytes", facts_.live_peak);
    out_.entry("plan_hits", facts_.plan_hits);
    out_.entry("plan_misses", facts_.plan_misses);
    out_.entry("growths", facts_.growths);
    out_.entry("steps", facts_.steps);
    out_.entry("events_lost", journal_.lost);
    list("parts", [&] {
      for (size_t part = 0; part < kPoolParts; part++) plan(part);
    });
    list("uses", [&] {
      for (const MemoryUse& memory : journal_.uses) use(memory);
    });
    list("step_times_us", [&] {
      for (const JournalEvent& event : journal_.events)
        if (event.action == JournalAction::kStep) out_.number(static_cast<uint64_t>(event.time_us));
    });
    out_.end_map();
  }

  void plan(size_t part) {
    out_.begin_map();
    out_.entry("name", kPartNames[part]);
    out_.entry("address", journal_.parts[part].address);
    out_.entry("bytes", journal_.parts[part].bytes);
    out_.entry("reserved_bytes", facts_.reserved_here[part]);
    out_.entry("planned_bytes", facts_.plans[part].bytes);
    out_.entry("live_bound_bytes", facts_.plans[part].live_bound);
    out_.entry("clique_bound_bytes", facts_.plans[part].clique_bound);
    out_.end_map();
  }

  void use(const MemoryUse& memory) {
    out_.begin_map();
    out_.entry("kind", name_of(memory.kind));
    out_.entry("unit", valid_utf8(memory.unit));
    out_.entry("stream", memory.stream);
    out_.entry("live_bytes", memory.live);
    out_.entry("peak_bytes", memory.peak);
    out_.entry("allocations", memory.allocations);
    out_.entry("frees", memory.frees);
    out_.entry("allocated_bytes", memory.allocated);
    out_.end_map();
  }

  const SnapshotFacts& facts_;
  const JournalCopy& journal_;
  ValueWriter& out_;
  std::string place_;
  std::vector<std::string> owners_;  // by number of the use
};

}  // namespace

void write_snapshot(const SnapshotFacts& facts, const JournalCopy& journal, ValueWriter& out) {
  Snapshot(facts, journal, out).write();
}

}  // namespace fsccl
