// `fsccl-perf pool`: traces of allocations, under the pool and beside others.
#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "perf/pool/replay.h"

namespace fsccl::perf {

class PoolCommand {
 public:
  void add_to(CLI::App* command);
  // exit status: 0, 1 when a replay failed, 2 for a file that is not a trace, or no library
  int run();

 private:
  std::vector<std::string> files_;
  std::string schedule_ = "declared", peer_, rmm_;
  ReplayOptions options_;
};

}  // namespace fsccl::perf
