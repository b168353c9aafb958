// One variable's type, and its parser. The text of a value comes from users: it is checked in full,
// and what is refused is named together with what would have been accepted.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace fsccl {

enum class ConfigType { kInteger, kBytes, kBool, kString, kPath, kEnum, kList };

struct ConfigSpec {
  const char* name;
  ConfigType type;
  const char* default_text;
  int64_t minimum = 0;     // the least value of a number
  int64_t maximum = 0;     // the largest value of a number, or the length of a string
  const char* words = "";  // enumerators as written in the source: "kError, kWarn"
  const char* doc = "";
};

struct ConfigValue {
  int64_t number = 0;         // integer, bytes, bool; the index of an enum's word
  std::string text;           // string, path
  std::vector<int64_t> list;  // indices of the words
};

// The error has no source: the caller knows it.
Result<ConfigValue> parse_config_value(const ConfigSpec& spec, std::string_view text);

// The type and range as text: "integer, 1 to 65535", "one of auto, off".
std::string config_accepted(const ConfigSpec& spec);

// The words of an enum as users write them: kNeverAsk is "never-ask".
std::vector<std::string> config_words(const ConfigSpec& spec);

// Foreign text made safe for a message: quoted, control characters replaced, shortened.
std::string quote(std::string_view text);

// The candidate with the smallest edit distance to `name`; empty when none is near enough to be
// meant.
std::string_view nearest_name(std::string_view name,
                              const std::vector<std::string_view>& candidates);

}  // namespace fsccl
