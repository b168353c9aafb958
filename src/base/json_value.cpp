#include "base/json_value.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/immortal.h"
#include "base/json_writer.h"

namespace fsccl {
namespace {

// Makes JsonValues from the events of nlohmann's parser, which then makes no values of its own.
class Builder {
 public:
  bool null() { return add(JsonValue()); }
  bool boolean(bool value) { return add(JsonValue(value)); }
  bool number_integer(int64_t value) { return add(JsonValue(value)); }
  bool number_unsigned(uint64_t value) { return add(JsonValue(value)); }
  bool number_float(double value, const std::string&) { return add(JsonValue(value)); }
  bool string(const std::string& value) { return add(JsonValue(value)); }
  bool binary(const nlohmann::json::binary_t&) { return false; }  // JSON has no such values
  bool start_array(size_t) { return open(JsonValue::List()); }
  bool end_array() { return close(); }
  bool start_object(size_t) { return open(JsonValue::Object()); }
  bool key(const std::string& key) {
    std::get<JsonValue::Object>(open_.back()).push_back({key, {}});
    return true;
  }
  bool end_object() {
    auto& members = std::get<JsonValue::Object>(open_.back());
    std::sort(members.begin(), members.end(),
              [](const auto& a, const auto& b) { return a.key < b.key; });
    const auto again =
        std::adjacent_find(members.begin(), members.end(),
                           [](const auto& a, const auto& b) { return a.key == b.key; });
    if (again == members.end()) return close();
    twice = again->key;
    return false;
  }
  bool parse_error(size_t byte, const std::string&, const nlohmann::json::exception& error) {
    too_large = dynamic_cast<const nlohmann::json::out_of_range*>(&error) != nullptr;
    before_error = std::max<size_t>(byte, 1) - 1;
    return false;
  }

  JsonValue whole;
  bool too_deep = false, too_large = false;
  std::optional<std::string> twice;  // a key that an object has more than once
  size_t before_error = 0;

 private:
  bool open(JsonValue::Value empty) {
    too_deep = open_.size() == JsonValue::kMostDepth;
    if (!too_deep) open_.push_back(std::move(empty));
    return !too_deep;
  }
  bool close() {
    JsonValue done(std::move(open_.back()));
    open_.pop_back();
    return add(std::move(done));
  }
  bool add(JsonValue value) {
    if (open_.empty())
      whole = std::move(value);
    else if (auto* const list = std::get_if<JsonValue::List>(&open_.back()))
      list->push_back(std::move(value));
    else
      std::get<JsonValue::Object>(open_.back()).back().value = std::move(value);
    return true;
  }

  std::vector<JsonValue::Value> open_;  // lists and objects whose ends are not reached yet
};

}  // namespace

const JsonValue* JsonValue::find(std::string_view key) const {
  if (!is_object()) return nullptr;
  const auto found =
      std::lower_bound(items().begin(), items().end(), key,
                       [](const Member& one, std::string_view wanted) { return one.key < wanted; });
  return found != items().end() && found->key == key ? &found->value : nullptr;
}

const JsonValue& JsonValue::operator[](std::string_view key) const {
  static Immortal<JsonValue> none;
  const JsonValue* const found = find(key);
  return found ? *found : none.get();
}

std::string JsonValue::dump() const {
  return write_json([this](JsonWriter& out) { write(out); });
}

void JsonValue::write(JsonWriter& out) const {
  std::visit(
      [&out](const auto& value) {
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, std::monostate>) {
          out.null();
        } else if constexpr (std::is_same_v<T, List>) {
          out.list(value, [&out](const JsonValue& one) { one.write(out); });
        } else if constexpr (std::is_same_v<T, Object>) {
          out.begin_map();
          for (const Member& one : value) out.key(one.key), one.value.write(out);
          out.end_map();
        } else {
          out.value(value);
        }
      },
      value_);
}

Result<JsonValue> parse_json_text(const std::string& text, const std::string& source) {
  Builder builder;
  if (nlohmann::json::sax_parse(text, &builder)) return std::move(builder.whole);
  if (builder.too_deep)
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "{}: nested deeper than {} levels", source,
                JsonValue::kMostDepth);
  if (builder.twice)
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "{}: an object has the key \"{}\" more than once: leave all but one out", source,
                *builder.twice);
  if (builder.too_large)
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "{}: a number in it is too large", source);
  if (text.find_first_not_of(" \t\r\n") == std::string::npos)
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "{}: it is empty", source);
  const std::string_view before = std::string_view(text).substr(0, builder.before_error);
  const size_t line_begin = before.rfind('\n') + 1;  // 0 if there is none
  return fail(FSCCL_ERR_INVALID_ARGUMENT, "{}: not JSON at line {}, column {}", source,
              1 + std::count(before.begin(), before.end(), '\n'), before.size() - line_begin + 1);
}

// Returns the text as a JSON string. A value of nlohmann's without children takes no memory when it
// is destroyed.
std::string spelled(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}
std::string spelled(double number) { return nlohmann::json(number).dump(); }

}  // namespace fsccl
