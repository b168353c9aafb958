// FSCCL_METRICS_FILE: the text of metrics.h in a file, whole at any moment, written anew by the
// service thread every FSCCL_METRICS_MS, when an object whose numbers it holds ends, and when the
// process exits. Whoever may not write there is told so once, and goes on.
#pragma once
#include <memory>
#include <string>

#include "base/config.h"

namespace fsccl {

class MetricsFile {
 public:
  // Null where none is asked for. `rank`: of the job.
  static std::unique_ptr<MetricsFile> create(const Config& settings, int rank);
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;

  void write();  // any thread

 private:
  MetricsFile(std::string path, int64_t period_ns);
  int64_t turn();
  void write_whole();
  static void write_all();

  struct Shared;  // by all of the process
  static Shared& shared();

  const std::string path_;
  const int64_t period_ns_;
  int64_t next_ns_ = 0;  // the service thread's
  bool written_ = false, complained_ = false;
  int hook_ = -1;
};

}  // namespace fsccl
