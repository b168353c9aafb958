// Writes values in maps and lists one at a time, so that a long list is never in memory as a whole.
// The derived class chooses the form: JSON (json_writer.h) or Python's pickle (pickle_writer.h). A
// reader of either form gets the same values.
//
// Each entry of a map is a key() and a value. Texts are UTF-8 (valid_utf8). The writer gives its
// output to `put` in pieces.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace fsccl {

class ValueWriter {
 public:
  using Put = std::function<void(std::string_view)>;
  explicit ValueWriter(Put put) : put_(std::move(put)) {}
  virtual ~ValueWriter() = default;
  ValueWriter(const ValueWriter&) = delete;

  virtual void begin_map() = 0;
  virtual void end_map() = 0;
  virtual void begin_list() = 0;
  virtual void end_list() = 0;
  virtual void key(std::string_view name) = 0;
  virtual void text(std::string_view value) = 0;
  virtual void number(uint64_t value) = 0;
  virtual void truth(bool value) = 0;
  virtual void pair(uint64_t first, uint64_t second) = 0;  // Python's tuple; JSON's list
  virtual void finish() = 0;                               // after the one value that a file is

  void entry(std::string_view name, std::string_view value) { key(name), text(value); }
  void entry(std::string_view name, const char* value) { key(name), text(value); }
  void entry(std::string_view name, uint64_t value) { key(name), number(value); }

 protected:
  void flush() {
    put_(out_);
    out_.clear();
  }
  void flush_much() {
    if (out_.size() >= kMuch) flush();
  }
  std::string out_;

 private:
  static constexpr size_t kMuch = 256u << 10;
  Put put_;
};

// Returns the text with each part that is not UTF-8 replaced by U+FFFD.
std::string valid_utf8(std::string_view text);

}  // namespace fsccl
