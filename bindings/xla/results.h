// This prepares what a collective writes into, for both libraries for XLA.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>

namespace fsccl_xla {

// Asks the kernel for huge pages under the `bytes` at `address`, which a collective will write,
// unless FSCCL_HUGE_PAGES is off. Call it before the collective. XLA takes fresh memory for the
// results of every run of a program, and gives it back at the end; with pages of 4 KiB the kernel
// needs longer to bring that memory than the collective needs to fill it. The call has no effect on
// memory that is there already, and none on what the collective does.
void prepare_result(void* address, size_t bytes);

}  // namespace fsccl_xla
