// Parses JSON that a user supplies. The library's parser comes first, because it limits the depth
// and its errors have the place; then nlohmann's, whose values the programs use.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "base/json_value.h"

// Errors begin with `source`, which names the text.
inline fsccl::Result<nlohmann::json> parse_checked(const std::string& text,
                                                   const std::string& source) {
  fsccl::Result<fsccl::JsonValue> checked = fsccl::parse_json_text(text, source);
  if (!checked.ok()) return checked.take_status();
  return nlohmann::json::parse(text);
}
