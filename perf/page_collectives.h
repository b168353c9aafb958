// The page of `fsccl-perf collectives --report`. It shows bandwidth by size beside what the machine
// can do, and times by size.
#pragma once
#include <string>
#include <vector>

#include "html.h"
#include "machine.h"
#include "report.h"

namespace fsccl::perf {

std::string collectives_page(const std::vector<CollectiveRow>& rows,
                             const std::vector<MachineLimit>& limits);

}  // namespace fsccl::perf
