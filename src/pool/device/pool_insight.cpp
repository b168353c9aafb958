// Insight into a pool on a GPU: its figures, its owners, and a snapshot of it as a file.
#include "fsccl/insight.h"
#include "pool/device/device_pool.h"
#include "pool/host/pool_report.h"

namespace fsccl {

void DevicePool::stats(fsccl_pool_stats_t* out) const {
  const DeviceBlocks::Figures blocks = blocks_->figures();
  fsccl_pool_stats_t s = FSCCL_POOL_STATS_INIT;
  s.size = out->size;
  s.limit_bytes = memory_->limits().all;
  s.reserved_bytes = memory_->held();
  s.local_live_bytes = blocks.live_bytes;
  s.local_peak_bytes = blocks.peak_bytes;
  s.allocations = blocks.allocations;
  s.frees = blocks.frees;
  s.growths = memory_->growths();
  s.given_back_bytes = memory_->given_back_bytes();
  s.live_peak_bytes = journal_->live_peak();
  const std::lock_guard lock(figures_mutex_);
  s.collective_live_bytes = slot_figures_.live;
  s.collective_peak_bytes = slot_figures_.peak;
  s.live_bytes = s.collective_live_bytes + s.local_live_bytes;
  s.planned_bytes = slot_figures_.plan_bytes;
  s.plan_bound_bytes = slot_figures_.plan_bound;
  s.plan_hits = slot_figures_.hits;
  s.plan_misses = slot_figures_.misses;
  s.steps = steps_;
  *out = s;
}

void DevicePool::owners(void (*visit)(void* context, const fsccl_pool_owner_t* use),
                        void* context) const {
  pool_report::visit_uses(*journal_, visit, context);
}

Status DevicePool::snapshot(const std::string& path) const {
  fsccl_pool_stats_t now = FSCCL_POOL_STATS_INIT;
  stats(&now);
  SnapshotFacts facts = pool_report::facts_of(comm_, name_, now);
  facts.reserved_here = {0, memory_->bytes(DevicePart::slots), memory_->bytes(DevicePart::blocks)};
  {
    const std::lock_guard lock(figures_mutex_);
    facts.plans[1] = {slot_figures_.plan_bytes, slot_figures_.plan_bound,
                      slot_figures_.clique_bound};
  }
  return pool_report::write(path, facts, journal_->copy());
}

DevicePool::Counters DevicePool::counters() const {
  const uint64_t waits = blocks_->waits();
  const std::lock_guard lock(mutex_);
  return {waits, marks_.events()};
}

}  // namespace fsccl
