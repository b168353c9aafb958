// Tests the sets of processors to which fsccl-perf binds its ranks.
#include "processor_set.h"

#include <gtest/gtest.h>
#include <sched.h>

namespace fsccl::perf {
namespace {

TEST(ProcessorSet, HasTheOneProcessorWhateverItsNumber) {
  for (const int number : {0, 1, 63, 64, 1023, 1024, 5000}) {
    const std::vector<unsigned long> set = only_processor(number);
    const auto* const as_system = reinterpret_cast<const cpu_set_t*>(set.data());
    const size_t bytes = set.size() * sizeof set[0];
    EXPECT_EQ(CPU_COUNT_S(bytes, as_system), 1) << number;
    EXPECT_TRUE(CPU_ISSET_S(static_cast<size_t>(number), bytes, as_system)) << number;
  }
}

}  // namespace
}  // namespace fsccl::perf
