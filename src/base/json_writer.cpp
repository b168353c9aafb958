#include "base/json_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace fsccl {

std::string valid_utf8(std::string_view text) {
  return parse_json_text(spelled(text), "").take().get<std::string>();
}

void JsonWriter::separate() {
  flush_much();
  if (!std::exchange(after_key_, false) && depth_ > 0) {
    if (!first_) out_ += ',';
    begin_line();
  }
  first_ = false;
}

void JsonWriter::begin_line() {
  if (form_ == Form::lines) out_.append(1, '\n').append(depth_, ' ');
}

void JsonWriter::open(char bracket) {
  separate();
  out_ += bracket;
  first_ = true;
  depth_++;
}

void JsonWriter::close(char bracket) {
  depth_--;
  if (!first_) begin_line();
  out_ += bracket;
  first_ = false;
}

void JsonWriter::key(std::string_view name) {
  text(name);
  out_ += form_ == Form::lines ? ": " : ":";
  after_key_ = true;
}

void JsonWriter::text(std::string_view value) {
  separate();
  const auto plain = [](char c) { return c >= ' ' && c <= '~' && c != '"' && c != '\\'; };
  if (std::all_of(value.begin(), value.end(), plain))
    out_.append(1, '"').append(value).append(1, '"');
  else
    out_ += spelled(value);
}

void JsonWriter::number(uint64_t value) {
  separate();
  fmt::format_to(std::back_inserter(out_), "{}", value);
}

void JsonWriter::put(std::string_view word) {
  separate();
  out_ += word;
}

void JsonWriter::pair(uint64_t first, uint64_t second) {
  separate();
  fmt::format_to(std::back_inserter(out_), "[{},{}]", first, second);
}

void JsonWriter::finish() {
  out_ += '\n';
  flush();
}

}  // namespace fsccl
