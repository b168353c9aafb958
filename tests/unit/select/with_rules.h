// Options of a choice that follow the rules of a text.
#pragma once
#include <memory>
#include <string_view>
#include <vector>

#include "select/select.h"

namespace fsccl {

// The text is one of FSCCL_PLAN.
inline SelectOptions with_rules(std::string_view text) {
  SelectOptions options;
  options.rules = std::make_shared<const std::vector<Rule>>(parse_rules(text, "FSCCL_PLAN").take());
  return options;
}

}  // namespace fsccl
