#include "comm/together.h"

#include <new>

namespace fsccl {

uint64_t Together::submitted() const {
  return engines_[0]->submitted_with_parts() + engines_[1]->submitted_with_parts();
}

Together::~Together() {
  if (!begun_ && submitted() == submitted_) return;
  if (thrown_) {
    for (Engine* engine : engines_) engine->give_up(nullptr);
    return;
  }
  const auto& [one, other] = engines_;
  if (one->failed() == other->failed()) return;
  try {
    (one->failed() ? other : one)->fail_all((one->failed() ? one : other)->failure().error());
  } catch (const std::bad_alloc&) {
    for (Engine* engine : engines_) engine->give_up(nullptr);
  }
}

}  // namespace fsccl
