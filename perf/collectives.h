// fsccl-perf collectives measures the time of single collectives over a range of sizes, and checks
// every result. Options, columns and the definitions of size, count, algbw and busbw are those of
// nccl-tests.
//   size     the bytes of a rank's larger buffer: of the output of all-gather, of the input of
//            reduce-scatter, of the buffer of all-reduce and broadcast
//   count    the number that is passed to the call; for all-gather and reduce-scatter these are the
//            elements of one rank's block
//   sample   `calls` calls back to back between two barriers. Its time is the slowest rank's,
//            divided by `calls`. Inputs are written and results checked outside the barriers, so
//            that no rank does either while another's clock runs.
//   algbw    size / p50
//   busbw    algbw x the collective's factor (collective_table.h)
// The input is written anew before every sample, off the clock, and every element of the result is
// checked after it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "buffer.h"
#include "collective_table.h"
#include "session.h"

namespace fsccl::perf {

struct CollectivesOptions {
  std::vector<const CollectiveKind*> collectives;
  std::vector<Memory> memories;
  std::vector<bool> places;  // the forms to measure: true stands for in place
  std::vector<uint64_t> sizes;
  std::vector<fsccl_dtype_t> dtypes;
  std::vector<fsccl_op_t> ops;
  int root = 0;
  int iterations = 20;
  int warmup = 5;
  int calls = 0;  // per sample; with 0 the time of one call decides
  bool check = true;
  bool json = false;
  bool skip_unavailable = false;  // leaves out what the library does not have, instead of failing
  std::string report;             // path of the HTML page; empty if there is none
};

// Returns the number of wrong elements over all ranks and samples.
uint64_t run_collectives(Session& session, const CollectivesOptions& options);

}  // namespace fsccl::perf
