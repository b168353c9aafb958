// fsccl-perf collectives: the time of single collectives over a range of sizes, every result
// checked. Options, columns and the definitions of size, count, algbw and busbw are those of
// nccl-tests.
//   size     of the larger buffer of a rank: all-gather the output, reduce-scatter the input,
//            all-reduce and broadcast the buffer
//   count    what is passed to the call: elements of one rank's block for all-gather and
//            reduce-scatter
//   sample   `calls` calls back to back between two barriers; its time is the slowest rank's,
//            divided by `calls`. Writing inputs and checking lie outside the barriers, so that no
//            rank does either while another's clock runs.
//   algbw    size / p50;  busbw = algbw x the collective's factor (collective_table.h)
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
  std::vector<bool> places;  // in place: false, true
  std::vector<uint64_t> sizes;
  std::vector<fsccl_dtype_t> dtypes;
  std::vector<fsccl_op_t> ops;
  int root = 0;
  int iterations = 20;
  int warmup = 5;
  int calls = 0;  // per sample; 0: chosen by the time of one
  bool check = true;
  bool json = false;
  bool skip_unavailable = false;  // leave out what the library does not have, instead of failing
  std::string report;             // path of the HTML page; empty: none
};

// Returns the number of wrong elements over all ranks and samples.
uint64_t run_collectives(Session& session, const CollectivesOptions& options);

}  // namespace fsccl::perf
