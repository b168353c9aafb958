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

// Ends the process with status 1 if `status` is an error, after printing what the library says of
// it. A tool has nothing to recover.
void must(fsccl_status_t status, const char* what);
// Returns true if `status` is no error; otherwise prints what the library says of it.
bool succeeded(fsccl_status_t status, const char* what);

double now_us();

class Session {
 public:
  // Makes the communicator. This rank's place is `place`, which launch_local() gave, or else that
  // of the environment.
  explicit Session(const std::optional<LocalRank>& place);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  fsccl_comm_t comm() const { return comm_; }
  fsccl_pool_t pool() const { return pool_; }
  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  int hosts() const { return hosts_; }
  // Returns true if the ranks of some machine are more than the cores that they may use, by their
  // affinities and the quota of their container.
  bool shares_cores() const { return shares_cores_; }
  bool uneven_hosts() const { return uneven_hosts_; }  // some host has more ranks than another

  // Makes the pool; collective. It is called once, before pool() is used. With `dry_run` units move
  // no bytes. The limit is that of one rank; 0 stands for the default.
  void open_pool(bool dry_run = false, uint64_t limit_bytes = 0);

  // Ends the processes of all ranks with `status` if `failed` is true on any rank; collective. That
  // rank has already said why. If it ended alone, the others would report its death instead.
  void end_where(bool failed, int status) const;
  // Returns by how many bytes a host has less than `bytes_a_host` available, or 0 if none has less;
  // collective.
  double missing_bytes(uint64_t bytes_a_host) const;
  // Ends the processes of all ranks if a host has less than `bytes_a_host` bytes available;
  // collective. It is called before large amounts are taken, for which the system might otherwise
  // kill processes.
  void must_fit(uint64_t bytes_a_host, const std::string& what, const std::string& advice) const;

  void barrier() const;
  std::vector<double> all_ranks(const std::vector<double>& values) const;  // rank 0 first
  std::vector<double> max_over_ranks(std::vector<double> values) const;
  std::vector<double> sum_over_ranks(std::vector<double> values) const;
  uint64_t sum_over_ranks(uint64_t value) const;

 private:
  bool find_shared_cores(uint64_t ranks_of_host) const;

  fsccl_comm_t comm_ = nullptr;
  fsccl_pool_t pool_ = nullptr;
  int rank_ = 0;
  int ranks_ = 1;
  int hosts_ = 1;
  bool shares_cores_ = false;
  bool uneven_hosts_ = false;
};

}  // namespace fsccl::perf
