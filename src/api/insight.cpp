// What the library will tell about itself in later releases.
#include "api/objects.h"

using namespace fsccl;

extern "C" {

fsccl_status_t fsccl_explain(fsccl_comm_t, const char*, size_t, char*, size_t) {
  return not_available("fsccl_explain", "the cost model comes with a later release", "measure with fsccl-perf collectives");
}
fsccl_status_t fsccl_topology_dump(char*, size_t) {
  return not_available("fsccl_topology_dump", "topology discovery comes with a later release", "use hwloc's lstopo");
}
fsccl_status_t fsccl_trace_dump(const char*) {
  return not_available("fsccl_trace_dump", "the flight recorder comes with a later release", "raise FSCCL_LOG_LEVEL");
}

}  // extern "C"
