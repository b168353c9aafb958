// fsccl-perf collectives: the time of single collectives over a range of sizes, every result checked.
//   size     as nccl-tests count it: all-gather the output, reduce-scatter the input of a rank, all-reduce and broadcast the buffer
//   count    what is passed to the call: elements per rank for all-gather and reduce-scatter
//   sample   `calls` calls back to back after a barrier (1 above 20 us); its time is the slowest rank's, divided by `calls`
//   algbw    size / p50;  busbw = algbw x (n-1)/n (all-gather, reduce-scatter), x 2(n-1)/n (all-reduce), x 1 (broadcast)
// The input is written anew before every sample, off the clock, and every element of the result is checked after it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "session.h"

namespace fsccl::perf {

enum class Collective { kAllGather, kReduceScatter, kAllReduce, kBroadcast, kBarrier };
enum class Memory { kCaller, kPool };

struct CollectivesOptions {
  std::vector<Collective> collectives;
  std::vector<Memory> memories;
  std::vector<bool> places;  // in place: false, true
  std::vector<uint64_t> sizes;
  fsccl_dtype_t dtype = FSCCL_FLOAT32;
  fsccl_op_t op = FSCCL_SUM;
  int root = 0;
  int iterations = 20;
  int warmup = 5;
  int calls = 0;  // per sample; 0: chosen by the time of one
  int check_every = 1;
  bool json = false;
};

const char* collective_name(Collective collective);
double bus_factor(Collective collective, int ranks);

// Returns the number of wrong elements over all ranks and samples.
uint64_t run_collectives(const Session& session, const CollectivesOptions& options);

}  // namespace fsccl::perf
