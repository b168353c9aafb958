// Reports that pools of host memory and of GPUs make in one form: samples for the metrics, the
// holders of memory, and a snapshot as a file.
#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "allocators/placement/journal.h"
#include "allocators/placement/snapshot.h"
#include "base/config.h"
#include "comm/communicator.h"
#include "fsccl/insight.h"

namespace fsccl::pool_report {

// Opens a journal with the log that the settings name.
Result<std::unique_ptr<Journal>> open_journal(const Config& settings, const Communicator& comm);
void add_samples(MetricSamples& samples, const Communicator& comm, const std::string& pool,
                 std::string_view id, const fsccl_pool_stats_t& now);
void visit_uses(const Journal& journal, void (*visit)(void* context, const fsccl_pool_owner_t* use),
                void* context);
std::string holders(const Journal& journal);  // returns the holders of memory, the largest first
// Returns the facts that pools of both kinds have.
SnapshotFacts facts_of(const Communicator& comm, const std::string& pool,
                       const fsccl_pool_stats_t& now);
Status write(const std::string& path, const SnapshotFacts& facts, const JournalCopy& journal);

}  // namespace fsccl::pool_report
