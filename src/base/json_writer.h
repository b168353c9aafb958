// Values as JSON (value_writer.h).
#pragma once
#include "base/value_writer.h"

namespace fsccl {

class JsonWriter final : public ValueWriter {
 public:
  using ValueWriter::ValueWriter;
  void begin_map() override { open('{'); }
  void end_map() override { close('}'); }
  void begin_list() override { open('['); }
  void end_list() override { close(']'); }
  void key(std::string_view name) override;
  void text(std::string_view value) override;
  void number(uint64_t value) override;
  void truth(bool value) override;
  void pair(uint64_t first, uint64_t second) override;
  void finish() override;

 private:
  void open(char bracket);
  void close(char bracket);
  void separate();

  bool first_ = true;  // nothing came before in this map or list, or a key did
};

}  // namespace fsccl
