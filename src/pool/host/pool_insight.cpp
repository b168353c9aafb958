// Insight into a pool in host memory: its figures, its owners, and a snapshot of it as a file.
#include "fsccl/insight.h"
#include "pool/host/host_pool.h"
#include "pool/host/pool_report.h"

namespace fsccl {

// Copies the figures of the regions to atomics that any thread may read. Only the thread of the
// pool's program may access the regions themselves. Calls of a planned step add only hits, which
// are copied when the step ends.
void HostPool::update_figures() {
  const auto set = [&](std::atomic<uint64_t>& figure, uint64_t (CollectiveRegion::*of)() const) {
    figure.store((shared_.get()->*of)() + (own_.get()->*of)(), std::memory_order_relaxed);
  };
  set(slot_figures_.peak, &CollectiveRegion::peak);
  set(slot_figures_.hits, &CollectiveRegion::hits);
  set(slot_figures_.misses, &CollectiveRegion::misses);
  for (const PartKind part : {PartKind::shared, PartKind::own}) {
    const CollectiveRegion& slots = region(part);
    SlotFigures::MemoryPlan& plan = slot_figures_.plans[static_cast<size_t>(part)];
    plan.bytes.store(slots.plan_bytes(), std::memory_order_relaxed);
    plan.bound.store(slots.plan_bound(), std::memory_order_relaxed);
    plan.clique_bound.store(slots.plan_clique_bound(), std::memory_order_relaxed);
  }
  look_if_ready();
}

void HostPool::look_if_ready() {
  for (const PartKind part : {PartKind::shared, PartKind::own}) {
    const auto p = static_cast<size_t>(part);
    const int owner =
        part == PartKind::shared ? shared_owner_.load(std::memory_order_relaxed) : rank();
    const uint64_t needed = memory_->sparse() ? region(part).plan_bytes() : region(part).extent();
    ready_[p] = !watch_ && !mend_due_ && owner >= 0 && memory_->whole(part) >= needed;
    if (ready_[p]) base_[p] = location(part, owner, 0);
  }
}

void HostPool::stats(fsccl_pool_stats_t* out) const {
  const std::lock_guard lock(mutex_);
  fsccl_pool_stats_t s = FSCCL_POOL_STATS_INIT;
  s.size = out->size;
  s.limit_bytes = memory_->limit();
  const bool hosts_shared = shared_owner_ == comm_.rank();
  s.shared_reserved_bytes = hosts_shared ? memory_->extent(PartKind::shared) : 0;
  s.reserved_bytes =
      memory_->extent(PartKind::own) + memory_->extent(PartKind::local) + s.shared_reserved_bytes;
  s.collective_live_bytes = journal_->live_in_slots();
  s.collective_peak_bytes = slot_figures_.peak.load(std::memory_order_relaxed);
  const Blocks::Figures blocks = blocks_->figures();
  s.local_live_bytes = blocks.live_bytes;
  s.local_peak_bytes = blocks.peak_bytes;
  s.live_bytes = s.collective_live_bytes + s.local_live_bytes;
  s.live_peak_bytes = journal_->live_peak();
  for (const SlotFigures::MemoryPlan& plan : slot_figures_.plans) {
    s.planned_bytes += plan.bytes.load(std::memory_order_relaxed);
    s.plan_bound_bytes += plan.bound.load(std::memory_order_relaxed);
  }
  s.plan_hits = slot_figures_.hits.load(std::memory_order_relaxed);
  s.plan_misses = slot_figures_.misses.load(std::memory_order_relaxed);
  s.allocations = blocks.allocations;
  s.frees = blocks.frees;
  s.growths = memory_->growths();
  s.given_back_bytes = memory_->given_back_bytes(PartKind::own) +
                       memory_->given_back_bytes(PartKind::local) +
                       (hosts_shared ? memory_->given_back_bytes(PartKind::shared) : 0);
  s.steps = steps_;
  *out = s;
}

void HostPool::tell(MetricSamples& samples, std::string_view id) const {
  fsccl_pool_stats_t now = FSCCL_POOL_STATS_INIT;
  stats(&now);
  pool_report::add_samples(samples, comm_, name_, id, now);
}

void HostPool::owners(void (*visit)(void* context, const fsccl_pool_owner_t* use),
                      void* context) const {
  pool_report::visit_uses(*journal_, visit, context);
}

Status HostPool::snapshot(const std::string& path) const {
  fsccl_pool_stats_t now = FSCCL_POOL_STATS_INIT;
  stats(&now);
  SnapshotFacts facts = pool_report::facts_of(comm_, name_, now);
  facts.shared_host = static_cast<uint64_t>(std::max(shared_owner_.load(), 0));
  facts.dry_run = dry_run_;
  facts.reserved_here = {now.shared_reserved_bytes, memory_->extent(PartKind::own),
                         memory_->extent(PartKind::local)};
  for (size_t part = 0; part < slot_figures_.plans.size(); part++) {
    const SlotFigures::MemoryPlan& plan = slot_figures_.plans[part];
    facts.plans[part] = {plan.bytes, plan.bound, plan.clique_bound};
  }
  return pool_report::write(path, facts, journal_->copy());
}

}  // namespace fsccl
