// `fsccl-perf pool` runs traces of allocations on the pool and on other allocators.
#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "perf/pool/replay.h"

namespace fsccl::perf {

class PoolCommand {
 public:
  void add_to(CLI::App* command);
  // Returns the exit status: 0, or 1 if a replay failed, or 2 if a file is not a trace or a library
  // cannot be used.
  int run();

 private:
  std::vector<std::string> files_;
  std::string schedule_ = "declared", peer_, rmm_;
  ReplayOptions options_;
};

}  // namespace fsccl::perf
