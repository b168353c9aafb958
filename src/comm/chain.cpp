#include "comm/chain.h"

#include <new>

namespace fsccl {

Status Chain::run(std::span<Engine* const> engines, FunctionRef<Status()> submits) {
  try {
    Status status = submits();
    return status.ok() || !begun_ ? std::move(status) : give_up(engines, &status.error());
  } catch (const std::bad_alloc&) {
    if (!begun_) throw;
    return give_up(engines, nullptr);
  }
}

// All have failed before the error is returned, as that may find no memory.
Status Chain::give_up(std::span<Engine* const> engines, const Error* why) const {
  for (Engine* engine : engines)
    if (engine) engine->give_up(why);
  return engines.front()->failure();
}

}  // namespace fsccl
