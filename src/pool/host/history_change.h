// A change of the history of slots, which must be the same on all ranks.
#pragma once
#include <new>

#include "engine/engine.h"

namespace fsccl {

// Runs change(), which changes the history of slots. If this rank lacks memory for the pool's own
// data on the way, its history of slots differs from that of the others, which may wait for it. The
// engine therefore gives up.
template <class Change>
auto change_history(Engine& engine, const Change& change) -> decltype(change()) {
  try {
    return change();
  } catch (const std::bad_alloc&) {
    engine.give_up(nullptr);
    return engine.failure();
  }
}

}  // namespace fsccl
