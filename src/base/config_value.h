// The type of a variable, and the parser of its values. Users write these values, so the parser
// checks all of the text, and its errors name the refused text and what it accepts.
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
  std::vector<int64_t> list;  // the indices of the words in a list
};

// The error does not name the source of the text, which the caller knows.
Result<ConfigValue> parse_config_value(const ConfigSpec& spec, std::string_view text);

// Returns the type and range as text, such as "integer, 1 to 65535" or "one of auto, off".
std::string config_accepted(const ConfigSpec& spec);

// Returns the words of an enum as users write them: kNeverAsk is "never-ask".
std::vector<std::string> config_words(const ConfigSpec& spec);

// Makes a text of unknown origin safe for a message: it is quoted and shortened, and its control
// characters are replaced.
std::string quote(std::string_view text);

// Returns the candidate with the smallest edit distance to `name`, or an empty text if none is so
// near that the user may have meant it.
std::string_view nearest_name(std::string_view name,
                              const std::vector<std::string_view>& candidates);

}  // namespace fsccl
