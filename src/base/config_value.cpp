#include "base/config_value.h"

#include <algorithm>
#include <charconv>
#include <climits>
#include <numeric>

#include "base/ascii.h"
#include "base/byte_size.h"

namespace fsccl {
namespace {

constexpr size_t kMaxPath = 4095;
constexpr size_t kMaxQuoted = 80;

bool has_auto(const ConfigSpec& spec) { return std::string_view(spec.default_text) == "auto"; }

std::string bytes_text(int64_t bytes) {
  constexpr const char* kSuffix[] = {"", "K", "M", "G", "T"};
  size_t unit = 0;
  while (bytes != 0 && bytes % 1024 == 0 && unit < std::size(kSuffix) - 1) bytes /= 1024, ++unit;
  return fmt::format("{}{}", bytes, kSuffix[unit]);
}

bool parse_number(std::string_view text, int64_t* number) {
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return code == std::errc() && end == text.data() + text.size();
}

bool parse_bytes(std::string_view text, int64_t* number) {
  const std::optional<uint64_t> bytes = parse_byte_size(text);
  if (bytes) *number = static_cast<int64_t>(*bytes);
  return bytes.has_value();
}

Status refuse(const ConfigSpec& spec, std::string_view text) {
  return fail(FSCCL_ERR_CONFIG, "{} is {}; accepted: {}", spec.name, quote(text),
              config_accepted(spec));
}

Result<ConfigValue> parse_numeric(const ConfigSpec& spec, std::string_view text) {
  ConfigValue value;
  if (has_auto(spec) && ascii::equal_ignoring_case(text, "auto")) {
    value.number = -1;
    return value;
  }
  const bool parsed = spec.type == ConfigType::kBytes ? parse_bytes(text, &value.number)
                                                      : parse_number(text, &value.number);
  if (!parsed) return refuse(spec, text);
  if (value.number < spec.minimum || value.number > spec.maximum) return refuse(spec, text);
  return value;
}

Result<ConfigValue> parse_bool(const ConfigSpec& spec, std::string_view text) {
  ConfigValue value;
  for (const char* yes : {"1", "true", "yes", "on"}) {
    if (ascii::equal_ignoring_case(text, yes)) {
      value.number = 1;
      return value;
    }
  }
  for (const char* no : {"0", "false", "no", "off"}) {
    if (ascii::equal_ignoring_case(text, no)) return value;
  }
  return refuse(spec, text);
}

Result<ConfigValue> parse_text(const ConfigSpec& spec, std::string_view text) {
  const size_t maximum =
      spec.type == ConfigType::kPath ? kMaxPath : static_cast<size_t>(spec.maximum);
  const bool printable = std::none_of(text.begin(), text.end(), ascii::is_control);
  if (text.size() > maximum || !printable) return refuse(spec, text);
  ConfigValue value;
  value.text = text;
  return value;
}

// Returns the index of the word, or -1.
int64_t find_word(const std::vector<std::string>& words, std::string_view text) {
  for (size_t i = 0; i < words.size(); ++i) {
    if (ascii::equal_ignoring_case(text, words[i])) return static_cast<int64_t>(i);
  }
  return -1;
}

Result<ConfigValue> parse_words(const ConfigSpec& spec, std::string_view text) {
  const std::vector<std::string> words = config_words(spec);
  ConfigValue value;
  if (spec.type == ConfigType::kEnum) {
    value.number = find_word(words, text);
    if (value.number < 0) return refuse(spec, text);
    return value;
  }
  for (std::string_view rest = text; !text.empty();) {
    const size_t comma = rest.find(',');
    const int64_t word = find_word(words, rest.substr(0, comma));
    if (word < 0 || std::find(value.list.begin(), value.list.end(), word) != value.list.end())
      return refuse(spec, text);
    value.list.push_back(word);
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  return value;
}

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t above = row[j + 1];
      row[j + 1] = std::min({above + 1, row[j] + 1, diagonal + (a[i] == b[j] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row.back();
}

}  // namespace

Result<ConfigValue> parse_config_value(const ConfigSpec& spec, std::string_view text) {
  switch (spec.type) {
    case ConfigType::kInteger:
    case ConfigType::kBytes:
      return parse_numeric(spec, text);
    case ConfigType::kBool:
      return parse_bool(spec, text);
    case ConfigType::kString:
    case ConfigType::kPath:
      return parse_text(spec, text);
    case ConfigType::kEnum:
    case ConfigType::kList:
      return parse_words(spec, text);
  }
  return fail(FSCCL_ERR_INTERNAL, "{} has no type", spec.name);
}

std::string config_accepted(const ConfigSpec& spec) {
  const char* or_auto = has_auto(spec) ? ", or auto" : "";
  switch (spec.type) {
    case ConfigType::kInteger:
      return fmt::format("integer, {} to {}{}", spec.minimum, spec.maximum, or_auto);
    case ConfigType::kBytes:
      return fmt::format("bytes, {} to {}, with K, M, G or T{}", bytes_text(spec.minimum),
                         bytes_text(spec.maximum), or_auto);
    case ConfigType::kBool:
      return "0 or 1 (also no, yes, off, on, false, true)";
    case ConfigType::kString:
      return fmt::format("text of at most {} printable characters", spec.maximum);
    case ConfigType::kPath:
      return "path";
    case ConfigType::kEnum:
      return fmt::format("one of {}", fmt::join(config_words(spec), ", "));
    case ConfigType::kList:
      return fmt::format("any of {}, each once, separated by commas",
                         fmt::join(config_words(spec), ", "));
  }
  return "";
}

std::vector<std::string> config_words(const ConfigSpec& spec) {
  std::vector<std::string> words;
  for (std::string_view rest = spec.words; !rest.empty();) {
    const size_t comma = std::min(rest.find(','), rest.size());
    std::string word;
    for (const char c : rest.substr(0, comma)) {
      if (c == ' ' || (c == 'k' && word.empty())) continue;
      const bool capital = ascii::is_upper(c);
      if (capital && !word.empty()) word += '-';
      word += ascii::lower(c);
    }
    words.push_back(std::move(word));
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  return words;
}

std::string quote(std::string_view text) {
  std::string result = "\"";
  for (const char c : text.substr(0, kMaxQuoted)) result += ascii::is_control(c) ? '?' : c;
  return result + (text.size() > kMaxQuoted ? "...\"" : "\"");
}

std::string_view nearest_name(std::string_view name,
                              const std::vector<std::string_view>& candidates) {
  // All names share the prefix. Up to half of the rest may be wrong.
  constexpr size_t kPrefix = 6, kLongest = 64;
  if (name.size() > kLongest) return {};
  size_t best = std::max<size_t>(3, (name.size() - std::min(name.size(), kPrefix)) / 2) + 1;
  std::string_view nearest;
  for (const std::string_view candidate : candidates) {
    const size_t distance = edit_distance(name, candidate);
    if (distance < best) best = distance, nearest = candidate;
  }
  return nearest;
}

}  // namespace fsccl
