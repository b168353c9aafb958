#include "base/pickle_writer.h"

namespace fsccl {
namespace {

// Opcodes, as Python's pickletools.py describes them.
constexpr char kProtocol = '\x80', kStop = '.', kMark = '(', kTrue = '\x88', kFalse = '\x89',
               kPair = '\x86';
// The digit is the size of the number in bytes. Only the number of 4 bytes is signed.
constexpr char kNumber1 = 'K', kNumber2 = 'M', kNumber4 = 'J', kLong = '\x8a';
constexpr char kText = 'X', kRemember1 = 'q', kRemember4 = 'r', kRecall1 = 'h', kRecall4 = 'j';
constexpr char kFillList = 'e', kFillMap = 'u';
constexpr size_t kPortion = 1000;
constexpr size_t kMostTexts = 1u << 20, kLongText = 256;  // later or longer ones are not remembered

}  // namespace

PickleWriter::PickleWriter(Put put) : ValueWriter(std::move(put)) {
  out_ += kProtocol;
  out_ += '\x02';
}

void PickleWriter::bytes(uint64_t value, size_t count) {
  for (size_t i = 0; i < count; i++) out_ += static_cast<char>(value >> 8 * i & 0xff);
}

// Prepares the next item. It is called before each value of a list and before each key of a map.
void PickleWriter::next_item(char fill) {
  flush_much();
  if (open_.empty() || open_.back().fill != fill) return;
  if (open_.back().items++ % kPortion != 0 || open_.back().items == 1) return;
  out_ += fill;
  out_ += kMark;
}

void PickleWriter::open(char empty, char fill) {
  next_item(kFillList);
  out_ += empty;
  out_ += kMark;
  open_.push_back({fill});
}

void PickleWriter::close() {
  out_ += open_.back().fill;
  open_.pop_back();
}

void PickleWriter::key(std::string_view name) {
  next_item(kFillMap);
  put_text(name);
}

void PickleWriter::text(std::string_view value) {
  next_item(kFillList);
  put_text(value);
}

void PickleWriter::put_text(std::string_view value) {
  const auto [known, is_new] =
      texts_.try_emplace(std::string(value), static_cast<uint32_t>(texts_.size()));
  const uint32_t number = known->second;
  const bool one_byte = number < 256;
  if (!is_new) {
    out_ += one_byte ? kRecall1 : kRecall4;
    return bytes(number, one_byte ? 1 : 4);
  }
  out_ += kText;
  bytes(value.size(), 4);
  out_ += value;
  if (value.size() > kLongText || texts_.size() > kMostTexts) {
    texts_.erase(known);
    return;
  }
  out_ += one_byte ? kRemember1 : kRemember4;
  bytes(number, one_byte ? 1 : 4);
}

void PickleWriter::number(uint64_t value) {
  next_item(kFillList);
  put_number(value);
}

void PickleWriter::put_number(uint64_t value) {
  if (value < 1u << 8) {
    out_ += kNumber1;
    return bytes(value, 1);
  }
  if (value < 1u << 16) {
    out_ += kNumber2;
    return bytes(value, 2);
  }
  if (value < uint64_t{1} << 31) {
    out_ += kNumber4;
    return bytes(value, 4);
  }
  const bool top_bit = value >> 63;  // the top bit would be a sign
  out_ += kLong;
  out_ += top_bit ? '\x09' : '\x08';
  bytes(value, 8);
  if (top_bit) out_ += '\0';
}

void PickleWriter::truth(bool value) {
  next_item(kFillList);
  out_ += value ? kTrue : kFalse;
}

void PickleWriter::pair(uint64_t first, uint64_t second) {
  next_item(kFillList);
  put_number(first);
  put_number(second);
  out_ += kPair;
}

void PickleWriter::finish() {
  out_ += kStop;
  flush();
}

}  // namespace fsccl
