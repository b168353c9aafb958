// Writes a row of `fsccl-perf pool` as JSON and as a line of a table, and reads it from JSON.
#pragma once
#include <optional>
#include <string>

#include "perf/pool/replay.h"

namespace fsccl::perf {

double ratio(const ReplayRow& row);

std::string to_json(const ReplayRow& row);
std::optional<ReplayRow> row_of_json(const std::string& line);
std::string table_head();
std::string table_line(const ReplayRow& row);

}  // namespace fsccl::perf
