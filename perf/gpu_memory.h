// Memory of a GPU for measurements, through the driver that the library has loaded: the program
// itself is not linked with CUDA.
#pragma once
#include <cstdint>
#include <string>

#include "session.h"

namespace fsccl::perf {

// Memory on this rank's GPU. The ranks of a host take the usable GPUs in turn: local rank r takes
// the one with number r modulo their count. Ends the process if there is none.
class GpuMemory {
 public:
  // Returns the ordinal of that GPU, whose primary context is the thread's from now on.
  static int device(const Session& session);
  GpuMemory(const Session& session, uint64_t bytes);
  ~GpuMemory();
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;
  char* data() const { return data_; }
  // Returns when all that was put on the default stream is over.
  static void wait();

 private:
  char* data_ = nullptr;
};

// Returns why there is no GPU here; empty where there is one.
std::string why_no_gpu();

}  // namespace fsccl::perf
