// Processor time of the calling thread, for reports.
#pragma once
#include <ctime>

namespace fsccl::publish {

inline double thread_cpu_s() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Adds the processor time that the thread takes while this object lives to a sum.
class CpuTime {
 public:
  explicit CpuTime(double* sum) : sum_(sum), begin_(thread_cpu_s()) {}
  ~CpuTime() { *sum_ += thread_cpu_s() - begin_; }
  CpuTime(const CpuTime&) = delete;
  CpuTime& operator=(const CpuTime&) = delete;

 private:
  double* sum_;
  double begin_;
};

}  // namespace fsccl::publish
