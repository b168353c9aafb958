// What a pool tells about itself: who has how much of it, and a snapshot of it as a file.
#include "allocators/pool/snapshot.h"
#include "base/json_writer.h"
#include "base/pickle_writer.h"
#include "base/whole_file.h"
#include "unit/pool.h"

namespace fsccl {

void Pool::uses(void (*visit)(void* context, const fsccl_pool_use_t* use), void* context) const {
  for (const MemoryUse& use : journal_->uses()) {
    fsccl_pool_use_t entry{};
    entry.size = sizeof entry;
    entry.kind = name_of(use.kind);
    entry.owner = use.unit.empty() ? nullptr : use.unit.c_str();
    entry.stream = reinterpret_cast<const void*>(use.stream);
    entry.live_bytes = use.live;
    entry.peak_bytes = use.peak;
    entry.allocations = use.allocations;
    entry.frees = use.frees;
    entry.allocated_bytes = use.allocated;
    visit(context, &entry);
  }
}

Status Pool::snapshot(const std::string& path) const {
  fsccl_pool_stats_t now = FSCCL_POOL_STATS_INIT;
  stats(&now);
  SnapshotFacts facts;
  facts.pool = name_;
  facts.library = fmt::format("{}.{}.{}", FSCCL_VERSION / 10000, FSCCL_VERSION / 100 % 100, FSCCL_VERSION % 100);
  facts.rank = static_cast<uint64_t>(rank());
  facts.ranks = static_cast<uint64_t>(comm_.size());
  facts.shared_host = static_cast<uint64_t>(std::max(shared_host_, 0));
  facts.dry_run = dry_run_;
  facts.limit_bytes = now.limit_bytes;
  facts.reserved_bytes = now.reserved_bytes;
  facts.reserved_here = {now.shared_reserved_bytes, memory_->extent(Part::own), memory_->extent(Part::local)};
  for (const Part part : {Part::shared, Part::own}) {
    const CollectiveRegion& slots = part == Part::shared ? *shared_ : *own_;
    facts.plans[static_cast<size_t>(part)] = {slots.plan_bytes(), slots.plan_bound(), slots.plan_clique_bound()};
  }
  facts.plan_hits = now.plan_hits;
  facts.plan_misses = now.plan_misses;
  facts.growths = now.growths;
  facts.steps = now.steps;
  facts.live_peak = now.live_peak_bytes;

  FSCCL_ASSIGN(WholeFile file, WholeFile::create(path));
  const ValueWriter::Put append = [&file](std::string_view text) { file.append(text); };
  const JournalCopy journal = journal_->copy();
  if (path.ends_with(".pickle")) {
    PickleWriter out(append);
    write_snapshot(facts, journal, out);
  } else {
    JsonWriter out(append);
    write_snapshot(facts, journal, out);
  }
  return file.commit();
}

}  // namespace fsccl
