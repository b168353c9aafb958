// Memory of a GPU for measurements. It comes from the driver that the library has loaded, because
// the program itself is not linked with CUDA.
#pragma once
#include <cstdint>
#include <string>

#include "session.h"

namespace fsccl::perf {

// Memory on this rank's GPU. The ranks of a host take the usable GPUs in turn: local rank r takes
// the one with number r modulo their count. Ends the process if there is none.
class GpuMemory {
 public:
  // Returns the ordinal of that GPU. The first call makes its primary context the current one of
  // the calling thread.
  static int device(const Session& session);
  GpuMemory(const Session& session, uint64_t bytes);
  ~GpuMemory();
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;
  char* data() const { return data_; }
  // Waits until all work on the default stream is over.
  static void wait();

 private:
  char* data_ = nullptr;
};

// Returns why there is no GPU here, or an empty text if there is one.
std::string why_no_gpu();

}  // namespace fsccl::perf
