// Collects the rules that a test breaks.
#pragma once
#include <string>
#include <vector>

#include "base/invariant.h"

namespace fsccl {

struct BrokenRules final : InvariantGuard {
  std::vector<std::string> rules;
  void broken(const char* rule, const char*, int) noexcept override { rules.emplace_back(rule); }
};

}  // namespace fsccl
