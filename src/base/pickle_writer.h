// Writes values as a pickle of protocol 2 (value_writer.h), which every Python since 2.3 and the
// memory_viz reader in JavaScript can load. Lists and maps are written in portions, as Python does
// it, because a reader puts each portion on its stack. A text that occurs again is written as its
// number.
#pragma once
#include <unordered_map>
#include <vector>

#include "base/value_writer.h"

namespace fsccl {

class PickleWriter final : public ValueWriter {
 public:
  explicit PickleWriter(Put put);
  void begin_map() override { open('}', 'u'); }
  void end_map() override { close(); }
  void begin_list() override { open(']', 'e'); }
  void end_list() override { close(); }
  void key(std::string_view name) override;
  void text(std::string_view value) override;
  void number(uint64_t value) override;
  void truth(bool value) override;
  void pair(uint64_t first, uint64_t second) override;
  void finish() override;

 private:
  struct Open {
    char fill;  // the instruction that adds a portion to it
    size_t items = 0;
  };
  void open(char empty, char fill);
  void close();
  void next_item(char fill);
  void bytes(uint64_t value, size_t count);
  void put_text(std::string_view value);
  void put_number(uint64_t value);

  std::vector<Open> open_;
  std::unordered_map<std::string, uint32_t> texts_;
};

}  // namespace fsccl
