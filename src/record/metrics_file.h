// Writes the text of metrics.h to the file that FSCCL_METRICS_FILE names. The service thread writes
// the file anew every FSCCL_METRICS_MS. It is also written when an object whose numbers it holds
// ends, and when the process exits. The file is whole at any moment. If it cannot be written, a
// warning says so once, and the process goes on.
#pragma once
#include <memory>
#include <string>

#include "base/config.h"

namespace fsccl {

class MetricsFile {
 public:
  // Returns null if FSCCL_METRICS_FILE is not set. `rank` is this process's rank in the job.
  static std::unique_ptr<MetricsFile> create(const Config& settings, int rank);
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;

  void write();  // any thread

 private:
  MetricsFile(std::string path, int64_t period_ns);
  int64_t turn();
  void write_whole();
  static void write_all();

  struct Shared;  // shared by all metrics files of the process
  static Shared& shared();

  const std::string path_;
  const int64_t period_ns_;
  int64_t next_ns_ = 0;  // used by the service thread only
  bool written_ = false, complained_ = false;
  int hook_ = -1;
};

}  // namespace fsccl
