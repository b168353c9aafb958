// Writes values as JSON (value_writer.h).
#pragma once
#include <concepts>
#include <initializer_list>
#include <type_traits>

#include "base/json_value.h"
#include "base/value_writer.h"

namespace fsccl {

class JsonWriter final : public ValueWriter {
 public:
  enum class Form : uint8_t { compact, lines };  // lines: each value is on its own line, for people
  explicit JsonWriter(Put put, Form form = Form::compact)
      : ValueWriter(std::move(put)), form_(form) {}
  void begin_map() override { open('{'); }
  void end_map() override { close('}'); }
  void begin_list() override { open('['); }
  void end_list() override { close(']'); }
  void key(std::string_view name) override;
  void text(std::string_view value) override;
  void number(uint64_t value) override;
  void truth(bool value) override { put(value ? "true" : "false"); }
  void pair(uint64_t first, uint64_t second) override;
  void finish() override;

  void null() { put("null"); }
  // Writes a truth value, a number or a text, or calls a function that writes the value.
  template <class T>
  void value(const T& one) {
    if constexpr (std::is_same_v<T, bool>)
      truth(one);
    else if constexpr (std::is_floating_point_v<T>)
      put(spelled(one));
    else if constexpr (std::is_signed_v<T>)
      put(std::to_string(one));
    else if constexpr (std::is_unsigned_v<T>)
      number(one);
    else if constexpr (std::is_invocable_v<T>)
      one();
    else
      text(one);
  }
  template <class T>
  void entry(std::string_view name, const T& one) {
    key(name), value(one);
  }
  // A key and a reference to its value, which must live as long as the call.
  struct Entry {
    template <class T>
    Entry(std::string_view key, const T& one)
        : name(key),
          value(&one),
          write([](JsonWriter& out, const void* as) { out.value(*static_cast<const T*>(as)); }) {}
    std::string_view name;
    const void* value;
    void (*write)(JsonWriter&, const void*);
  };
  void entries(std::initializer_list<Entry> of) {
    for (const Entry& one : of) key(one.name), one.write(*this, one.value);
  }
  void map(std::initializer_list<Entry> of) { begin_map(), entries(of), end_map(); }
  template <class Range, class Write>
  void list(const Range& range, Write write) {
    begin_list();
    for (const auto& one : range) write(one);
    end_list();
  }

 private:
  void open(char bracket);
  void close(char bracket);
  void separate();
  void begin_line();
  void put(std::string_view word);

  Form form_;
  size_t depth_ = 0;
  bool first_ = true;  // nothing came before in this map or list
  bool after_key_ = false;
};

// Returns what `write` writes.
template <std::invocable<JsonWriter&> Write>
std::string write_json(Write write, JsonWriter::Form form = JsonWriter::Form::compact) {
  std::string text;
  JsonWriter out([&text](std::string_view piece) { text += piece; }, form);
  write(out);
  out.finish();
  text.pop_back();  // the end of the line
  return text;
}

}  // namespace fsccl
