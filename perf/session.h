// The base of every measurement: the communicator of all ranks, a pool, and the few reductions that
// turn each rank's figures into the job's.
#pragma once
#include <fsccl/fsccl.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launch.h"

namespace fsccl::perf {

// Ends the process with status 1 and the library's own words if `status` is an error. A tool has
// nothing to recover.
void must(fsccl_status_t status, const char* what);
// Says so if it is not.
bool succeeded(fsccl_status_t status, const char* what);

double now_us();

class Session {
 public:
  // From the place that launch_local() gave, else from the environment.
  explicit Session(const std::optional<LocalRank>& place);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  fsccl_comm_t comm() const { return comm_; }
  fsccl_pool_t pool() const { return pool_; }
  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  int hosts() const { return hosts_; }
  bool shares_cores() const { return shares_cores_; }  // some host has more ranks than cores

  // Once, before pool() is used; collective. With `dry_run` units move no bytes, and the limit is
  // the rank's.
  void open_pool(bool dry_run = false, uint64_t limit_bytes = 0);

  // Collective: ends the processes of all ranks with `status` where `failed` on any of them, which
  // has said why. One that ended alone would be a death to the others.
  void end_where(bool failed, int status) const;
  // Collective, for large amounts: ends them all where some host has not got that much more memory,
  // before its system has to kill.
  void must_fit(uint64_t bytes_a_host, const std::string& what, const std::string& advice) const;

  void barrier() const;
  std::vector<double> all_ranks(const std::vector<double>& values) const;  // rank after rank
  std::vector<double> max_over_ranks(std::vector<double> values) const;
  std::vector<double> sum_over_ranks(std::vector<double> values) const;
  uint64_t sum_over_ranks(uint64_t value) const;

 private:
  fsccl_comm_t comm_ = nullptr;
  fsccl_pool_t pool_ = nullptr;
  int rank_ = 0;
  int ranks_ = 1;
  int hosts_ = 1;
  bool shares_cores_ = false;
};

}  // namespace fsccl::perf
