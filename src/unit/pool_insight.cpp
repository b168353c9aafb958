// What a pool tells about itself: its figures, who has how much of it, and a snapshot of it as a file.
#include "allocators/pool/snapshot.h"
#include "base/json_writer.h"
#include "base/pickle_writer.h"
#include "base/whole_file.h"
#include "unit/pool.h"

namespace fsccl {

// What the regions know, which only the thread of the pool's program may ask.
void Pool::publish() {
  const auto set = [&](std::atomic<uint64_t>& figure, uint64_t (CollectiveRegion::*of)() const) {
    figure.store((shared_.get()->*of)() + (own_.get()->*of)(), std::memory_order_relaxed);
  };
  set(slot_figures_.live, &CollectiveRegion::live);
  set(slot_figures_.peak, &CollectiveRegion::peak);
  set(slot_figures_.plan_bytes, &CollectiveRegion::plan_bytes);
  set(slot_figures_.plan_bound, &CollectiveRegion::plan_bound);
  set(slot_figures_.hits, &CollectiveRegion::hits);
  set(slot_figures_.misses, &CollectiveRegion::misses);
}

void Pool::stats(fsccl_pool_stats_t* out) const {
  const std::lock_guard lock(mutex_);
  fsccl_pool_stats_t s = FSCCL_POOL_STATS_INIT;
  s.size = out->size;
  s.limit_bytes = memory_->limit();
  s.shared_reserved_bytes = shared_host_ == comm_.rank() ? memory_->extent(Part::shared) : 0;
  s.reserved_bytes = memory_->extent(Part::own) + memory_->extent(Part::local) + s.shared_reserved_bytes;
  s.collective_live_bytes = slot_figures_.live.load(std::memory_order_relaxed);
  s.collective_peak_bytes = slot_figures_.peak.load(std::memory_order_relaxed);
  const Blocks::Figures blocks = blocks_->figures();
  s.local_live_bytes = blocks.live_bytes;
  s.local_peak_bytes = blocks.peak_bytes;
  s.live_bytes = s.collective_live_bytes + s.local_live_bytes;
  s.live_peak_bytes = journal_->live_peak();
  s.planned_bytes = slot_figures_.plan_bytes.load(std::memory_order_relaxed);
  s.plan_bound_bytes = slot_figures_.plan_bound.load(std::memory_order_relaxed);
  s.plan_hits = slot_figures_.hits.load(std::memory_order_relaxed);
  s.plan_misses = slot_figures_.misses.load(std::memory_order_relaxed);
  s.allocations = blocks.allocations;
  s.frees = blocks.frees;
  s.growths = memory_->growths();
  s.steps = steps_;
  *out = s;
}

void Pool::tell(MetricSamples& samples, std::string_view id) const {
  fsccl_pool_stats_t now = FSCCL_POOL_STATS_INIT;
  stats(&now);
  const std::string labels =
      MetricSamples::labels({{"comm", comm_.name()}, {"id", id}, {"pool", name_}, {"rank", std::to_string(rank())}});
  samples.add(Metric::pool_limit_bytes, labels, now.limit_bytes);
  samples.add(Metric::pool_reserved_bytes, labels, now.reserved_bytes);
  samples.add(Metric::pool_live_bytes, labels, now.live_bytes);
  samples.add(Metric::pool_peak_bytes, labels, now.live_peak_bytes);
  samples.add(Metric::pool_plan_bytes, labels, now.planned_bytes);
  samples.add(Metric::pool_plan_hits, labels, now.plan_hits);
  samples.add(Metric::pool_plan_misses, labels, now.plan_misses);
  samples.add(Metric::pool_allocations, labels, now.allocations);
  samples.add(Metric::pool_frees, labels, now.frees);
  samples.add(Metric::pool_growths, labels, now.growths);
  samples.add(Metric::pool_steps, labels, now.steps);
}

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
  facts.shared_host = static_cast<uint64_t>(std::max(shared_host_.load(), 0));
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
