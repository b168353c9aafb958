// A value that was read from JSON. Its functions have the names of nlohmann::json's. That class
// allocates memory in its destructor, which ends the process if memory is short. The destructor of
// this class allocates none. The parser refuses JSON that is nested deeper than kMostDepth, and
// objects that have a key more than once.
// Only json_value.cpp includes nlohmann/json.hpp, for its parser and for its spelling of texts and
// numbers.
//
// A function throws if it does not fit the kind of the value, so readers look at the kind first.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "base/status.h"

namespace fsccl {

class JsonWriter;

class JsonValue {
 public:
  static constexpr size_t kMostDepth = 128;
  struct Member;
  using List = std::vector<JsonValue>;
  using Object = std::vector<Member>;  // in the order of their keys, each of which is there once
  using Value = std::variant<std::monostate, bool, int64_t, uint64_t, double, std::string, List,
                             Object>;  // a whole number is an int64_t only if it is negative

  JsonValue() = default;  // null
  explicit JsonValue(Value value) : value_(std::move(value)) {}

  bool is_null() const { return is<std::monostate>(); }
  bool is_boolean() const { return is<bool>(); }
  bool is_number_unsigned() const { return is<uint64_t>(); }
  bool is_number_integer() const { return is<int64_t>() || is<uint64_t>(); }
  bool is_number() const { return is<double>() || is_number_integer(); }
  bool is_string() const { return is<std::string>(); }
  bool is_array() const { return is<List>(); }
  bool is_object() const { return is<Object>(); }

  template <class T>
  T get() const {
    if constexpr (std::is_same_v<T, bool>)
      return std::get<bool>(value_);
    else if constexpr (!std::is_arithmetic_v<T>)
      return std::get<T>(value_);
    else if (is<uint64_t>())
      return static_cast<T>(std::get<uint64_t>(value_));
    else
      return is<double>() ? static_cast<T>(std::get<double>(value_))
                          : static_cast<T>(std::get<int64_t>(value_));
  }
  bool is_whole(double least, double most) const {
    return is_number_integer() && get<double>() >= least && get<double>() <= most;
  }
  bool operator==(double number) const { return is_number() && get<double>() == number; }
  bool operator==(std::string_view text) const {
    return is_string() && std::get<std::string>(value_) == text;
  }

  // These functions are for lists.
  size_t size() const { return std::get<List>(value_).size(); }
  bool empty() const { return size() == 0; }
  List::const_iterator begin() const { return std::get<List>(value_).begin(); }
  List::const_iterator end() const { return std::get<List>(value_).end(); }
  const JsonValue& operator[](size_t index) const { return std::get<List>(value_).at(index); }

  const Object& items() const { return std::get<Object>(value_); }
  bool contains(std::string_view key) const { return find(key) != nullptr; }
  const JsonValue& operator[](std::string_view key) const;  // null if it is missing

  std::string dump() const;
  void write(JsonWriter& out) const;

 private:
  template <class T>
  bool is() const {
    return std::holds_alternative<T>(value_);
  }
  const JsonValue* find(std::string_view key) const;

  Value value_;
};

struct JsonValue::Member {
  std::string key;
  JsonValue value;
};

// Returns FSCCL_ERR_INVALID_ARGUMENT, with the place of the error, if `text` is not JSON.
Result<JsonValue> parse_json_text(const std::string& text, const std::string& source);

std::string spelled(std::string_view text);  // with quotation marks, as valid_utf8()
std::string spelled(double number);

}  // namespace fsccl
