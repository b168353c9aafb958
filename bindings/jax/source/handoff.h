// Completes XLA's futures in threads of its own. A future's completion runs what XLA computes next
// in the thread that completes it. The thread in which FSCCL calls back must not do this, because
// it moves on all operations of the process.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>

namespace fsccl_jax {

// Runs `task` soon, in a thread that no other task holds up: whenever all threads are busy, one
// more is started.
void hand_off(std::function<void()> task);

}  // namespace fsccl_jax
