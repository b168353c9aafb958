// The adaptors, as the public header describes them (fsccl/allocator.h): one a file.
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
// False when `source` is no statistics adaptor. `stats->size` stays.
bool read_statistics(const MemorySource& source, fsccl_allocator_stats_t* stats);
Result<Upstream> make_log(Upstream upstream, const std::string& path);
Result<Upstream> make_guard(Upstream upstream, std::function<void(const std::string& text)> report);
// `on_failure`: how many bytes it gave back.
Upstream make_on_failure(Upstream upstream, std::function<uint64_t(uint64_t bytes)> on_failure);

}  // namespace fsccl
