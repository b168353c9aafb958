// The arithmetic of machine.h. It has its own file because it needs no communicator, so that pages
// and tests can use it without one.
#include <algorithm>

#include "machine.h"

namespace fsccl::perf {

double limit_rate(const MachineLimit& limit, double reads, double writes) {
  double seconds = writes / limit.copy_gb_per_s;
  if (reads > writes) seconds += (reads - writes) / limit.read_gb_per_s;
  return seconds > 0 ? 1 / seconds : 0;
}

}  // namespace fsccl::perf
