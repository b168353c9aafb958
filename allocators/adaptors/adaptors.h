// The adaptors, which the public header fsccl/allocator.h describes. Each has a file of its own.
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
// Reads the figures of a statistics adaptor. Returns false if `source` is none. `stats->size` is
// not changed.
bool read_statistics(const MemorySource& source, fsccl_allocator_stats_t* stats);
Result<Upstream> make_log(Upstream upstream, const std::string& path);
Result<Upstream> make_guard(Upstream upstream, std::function<void(const std::string& text)> report);
// The adaptor calls `on_failure` with the bytes that are wanted, and `on_failure` returns the
// number of bytes that it gave back.
Upstream make_on_failure(Upstream upstream, std::function<uint64_t(uint64_t bytes)> on_failure);

}  // namespace fsccl
