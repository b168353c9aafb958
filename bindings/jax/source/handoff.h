// Completes XLA's futures in threads of its own. A future's completion runs what XLA computes next,
// in the thread that completes it; the thread in which FSCCL calls back drives all operations of
// the process, and must be free for them. SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>

namespace fsccl_jax {

// Runs `task` soon, in a thread that nothing else holds up: there is one more whenever all are
// busy.
void hand_off(std::function<void()> task);

}  // namespace fsccl_jax
