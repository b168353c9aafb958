#include "base/json_writer.h"

#include <fmt/format.h>

#include <iterator>
#include <nlohmann/json.hpp>

namespace fsccl {
namespace {

std::string quoted(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

std::string valid_utf8(std::string_view text) {
  return nlohmann::json::parse(quoted(text)).get<std::string>();
}

void JsonWriter::separate() {
  flush_much();
  if (!first_) out_ += ',';
  first_ = false;
}

void JsonWriter::open(char bracket) {
  separate();
  out_ += bracket;
  first_ = true;
}

void JsonWriter::close(char bracket) {
  out_ += bracket;
  first_ = false;
}

void JsonWriter::key(std::string_view name) {
  text(name);
  out_ += ':';
  first_ = true;
}

void JsonWriter::text(std::string_view value) {
  separate();
  out_ += quoted(value);
}

void JsonWriter::number(uint64_t value) {
  separate();
  fmt::format_to(std::back_inserter(out_), "{}", value);
}

void JsonWriter::truth(bool value) {
  separate();
  out_ += value ? "true" : "false";
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
