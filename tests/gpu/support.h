// The frame of tests whose ranks use a GPU. A test starts its ranks as processes, which all use
// device 0, and collects their exit codes. Code 77 says that something is missing, which the rank
// has printed. With TEST_NEEDS_GPU=1 and TEST_NEEDS_NCCL=1, which are set over the stand-ins, that
// is a failure, unless the library was built without kernels.
#pragma once
#include <fsccl/fsccl.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "gpu/gpu.h"
#include "multi/processes.h"

namespace fsccl::testing {

inline constexpr int kNotThere = 77;

// Ends the rank's program with the condition that did not hold.
#define MUST(condition)                                                                   \
  do {                                                                                    \
    if (condition) break;                                                                 \
    std::printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, last_error().c_str()); \
    return 1;                                                                             \
  } while (false)

inline std::string last_error() {
  fsccl_error_info_t info = FSCCL_ERROR_INFO_INIT;
  fsccl_last_error(&info);
  return info.text;
}

inline bool good(const char* what, fsccl_status_t status) {
  if (status >= 0) return true;
  std::printf("%s: %s: %s\n", what, fsccl_status_string(status), last_error().c_str());
  return false;
}

// Returns 0 if the status is good, and otherwise the exit code of the rank.
inline int outcome(const char* what, fsccl_status_t status) {
  if (good(what, status)) return 0;
  return status == FSCCL_ERR_NOT_AVAILABLE ? kNotThere : 1;
}

// A communicator and a pool on device 0, as every program here begins.
struct Place {
  int rank = 0, ranks = 1;
  const Gpu* gpu = nullptr;
  fsccl_comm_t comm = nullptr;
  fsccl_pool_t pool = nullptr;

  int make();
  bool end() const;
};

inline int Place::make() {
  std::string why;
  gpu = Gpu::open(&why);
  if (!gpu) return std::printf("%s\n", why.c_str()), kNotThere;
  if (!good("join", fsccl_comm_create(nullptr, &comm))) return 1;
  fsccl_comm_rank(comm, &rank);
  fsccl_comm_size(comm, &ranks);
  fsccl_pool_config_t config = FSCCL_POOL_CONFIG_INIT;
  config.memory = FSCCL_MEMORY_CUDA;
  return outcome("device pool", fsccl_pool_create(comm, &config, &pool));
}

inline bool Place::end() const {
  return good("pool", fsccl_pool_destroy(pool)) && good("comm", fsccl_comm_destroy(comm));
}

// Returns the reason why ranks could not run, or "". A rank that finds that something is missing
// ends, and the others may only report that this rank has ended.
inline std::string what_is_missing(const Processes& processes) {
  std::string said;
  for (int rank = 0; rank < static_cast<int>(processes.count()); rank++) {
    const bool missing = processes.exit_code(rank) == kNotThere;
    if (!missing && processes.output(rank).find("FSCCL_ERR_PEER_DEAD") == std::string::npos)
      return "";
    if (missing && said.empty()) said = processes.output(rank);
  }
  const bool nccl = said.find("NCCL") != std::string::npos,
             kernels = said.find("nvcc") != std::string::npos;
  const bool ucx = said.find("FSCCL_DEVICE_TRANSPORT is ucx") != std::string::npos;
  const bool needed = std::getenv(nccl ? "TEST_NEEDS_NCCL" : "TEST_NEEDS_GPU") && !kernels && !ucx;
  return needed ? "" : said;
}

inline Variables by(const char* transport) { return {{"FSCCL_DEVICE_TRANSPORT", transport}}; }

// Runs `role` on `ranks` ranks. NCCL takes each rank for a host of its own, because it refuses two
// ranks of a host on one GPU.
inline void run_ranks(const char* role, int ranks, int port, Variables more = {}) {
  Processes processes;
  for (int rank = 0; rank < ranks; rank++) {
    Variables variables = job(rank, ranks, port);
    const Variables alone = nccl_host("host" + std::to_string(rank));
    variables.insert(variables.end(), alone.begin(), alone.end());
    variables.emplace_back("NCCL_MULTI_RANK_GPU_ENABLE", "1");
    variables.insert(variables.end(), more.begin(), more.end());
    processes.start(role, rank, ranks, variables);
  }
  const bool all = processes.finish(limit_ms(120'000));
  if (const std::string missing = what_is_missing(processes); !missing.empty())
    GTEST_SKIP() << missing;
  EXPECT_TRUE(all) << processes.report();
}

}  // namespace fsccl::testing
