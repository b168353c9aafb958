#include "pool/host/pool_report.h"

#include <algorithm>
#include <vector>

#include "base/json_writer.h"
#include "base/pickle_writer.h"
#include "base/whole_file.h"
#include "fsccl/insight.h"

namespace fsccl::pool_report {

Result<std::unique_ptr<Journal>> open_journal(const Config& settings, const Communicator& comm) {
  std::string path = settings.pool_log;
  const std::string rank = std::to_string(comm.job_rank(comm.rank()));
  for (size_t at = path.find("%r"); at != std::string::npos; at = path.find("%r", at + rank.size()))
    path.replace(at, 2, rank);
  return Journal::open(static_cast<size_t>(settings.pool_history), path);
}

void add_samples(MetricSamples& samples, const Communicator& comm, const std::string& pool,
                 std::string_view id, const fsccl_pool_stats_t& now) {
  const std::string labels = MetricSamples::labels(
      {{"comm", comm.name()}, {"id", id}, {"pool", pool}, {"rank", std::to_string(comm.rank())}});
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
  samples.add(Metric::pool_given_back_bytes, labels, now.given_back_bytes);
}

void visit_uses(const Journal& journal, void (*visit)(void* context, const fsccl_pool_owner_t* use),
                void* context) {
  for (const MemoryUse& use : journal.uses()) {
    fsccl_pool_owner_t entry{};
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

std::string holders(const Journal& journal) {
  constexpr size_t kListed = 8;
  std::vector<MemoryUse> uses = journal.uses();
  std::erase_if(uses, [](const MemoryUse& use) { return use.live == 0; });
  std::stable_sort(uses.begin(), uses.end(),
                   [](const MemoryUse& a, const MemoryUse& b) { return a.live > b.live; });
  std::string text;
  uint64_t others = 0;
  for (size_t i = 0; i < uses.size(); i++) {
    if (i >= kListed) {
      others += uses[i].live;
      continue;
    }
    text += fmt::format("{}{} bytes of {}{}", text.empty() ? "" : ", ", uses[i].live,
                        name_of(uses[i].kind),
                        uses[i].unit.empty() ? "" : fmt::format(" of unit '{}'", uses[i].unit));
  }
  if (others) text += fmt::format(", {} bytes of {} others", others, uses.size() - kListed);
  return text.empty() ? "nothing" : text;
}

SnapshotFacts facts_of(const Communicator& comm, const std::string& pool,
                       const fsccl_pool_stats_t& now) {
  SnapshotFacts facts;
  facts.pool = pool;
  facts.library = fmt::format("{}.{}.{}", FSCCL_VERSION / 10000, FSCCL_VERSION / 100 % 100,
                              FSCCL_VERSION % 100);
  facts.rank = static_cast<uint64_t>(comm.rank());
  facts.ranks = static_cast<uint64_t>(comm.size());
  facts.limit_bytes = now.limit_bytes;
  facts.reserved_bytes = now.reserved_bytes;
  facts.plan_hits = now.plan_hits;
  facts.plan_misses = now.plan_misses;
  facts.growths = now.growths;
  facts.steps = now.steps;
  facts.live_peak = now.live_peak_bytes;
  return facts;
}

Status write(const std::string& path, const SnapshotFacts& facts, const JournalCopy& journal) {
  FSCCL_ASSIGN(WholeFile file, WholeFile::create(path));
  const ValueWriter::Put append = [&file](std::string_view text) { file.append(text); };
  if (path.ends_with(".pickle")) {
    PickleWriter out(append);
    write_snapshot(facts, journal, out);
  } else {
    JsonWriter out(append);
    write_snapshot(facts, journal, out);
  }
  return file.commit();
}

}  // namespace fsccl::pool_report
