// The adaptors that the public header describes (fsccl/allocator.h). Each has a file of its own.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "allocators/adaptors/memory_source.h"
#include "fsccl/allocator.h"

namespace fsccl {

using Upstream = std::shared_ptr<MemorySource>;

Upstream make_limit(Upstream upstream, uint64_t limit_bytes);
Upstream make_statistics(Upstream upstream);
// Returns false if `source` is no statistics adaptor. `stats->size` is not changed.
bool read_statistics(const MemorySource& source, fsccl_allocator_stats_t* stats);
Result<Upstream> make_log(Upstream upstream, const std::string& path);
Result<Upstream> make_guard(Upstream upstream, std::function<void(const std::string& text)> report);
// `on_failure` returns the number of bytes that it gave back.
Upstream make_on_failure(Upstream upstream, std::function<uint64_t(uint64_t bytes)> on_failure);

}  // namespace fsccl
