// Blocks of the delta codec from another host. A bad block changes only the words that it was to
// make. A good block gives words whose sum is the block's, and an encoder makes a good block of
// these words again.
#include "codec/delta.h"

#include <cstring>

#include "codec/nibbles.h"
#include "codec/rans.h"
#include "fuzz.h"
#include "kernels/crc32c.h"

namespace {

using namespace fsccl;

std::vector<uint16_t> previous_words(size_t count) {
  std::vector<uint16_t> words(count);
  for (size_t i = 0; i < count; i++) words[i] = static_cast<uint16_t>(i * 40503u);
  return words;
}

std::string block_of(size_t count, unsigned spread, DeltaForm form) {
  static DeltaScratch scratch;
  std::vector<uint16_t> words = previous_words(count), previous = words;
  for (size_t i = 0; i < count && spread; i++)
    words[i] = static_cast<uint16_t>(words[i] + i * i % spread);
  std::string block(delta_block_bound(count), '\0');
  auto* const out = reinterpret_cast<uint8_t*>(block.data());
  block.resize(encode_delta(words.data(), previous.data(), count, form, out, scratch).bytes);
  const auto size = static_cast<uint32_t>(count);
  return std::string(reinterpret_cast<const char*>(&size), sizeof size) + block;
}

void take_section(const uint8_t* data, size_t bytes, size_t count) {
  std::vector<uint8_t> out(rans_room(count), 7);
  (void)rans_decode(data, bytes, out.data(), count);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  static DeltaScratch scratch;
  uint32_t size = 0;
  if (bytes < sizeof size) return 0;
  std::memcpy(&size, data, sizeof size);
  const size_t count = size % (1u << 14);
  data += sizeof size, bytes -= sizeof size;
  std::vector<uint16_t> words = previous_words(count);
  const DeltaRead read = decode_delta(data, bytes, words.data(), count, scratch);
  if (read.result == DeltaResult::good) {
    FUZZ_REQUIRE(count > 0 && read.bytes <= bytes && read.sum == crc32c(words.data(), 2 * count));
    std::vector<uint16_t> previous = previous_words(count), again = previous;
    std::vector<uint8_t> out(delta_block_bound(count));
    const DeltaWritten written =
        encode_delta(words.data(), previous.data(), count, DeltaForm::coded, out.data(), scratch);
    FUZZ_REQUIRE(written.bytes <= out.size());
    const DeltaRead back = decode_delta(out.data(), written.bytes, again.data(), count, scratch);
    FUZZ_REQUIRE(back.result == DeltaResult::good && again == words);
  }
  if (count) take_section(data, bytes, count);
  return 0;
}

std::vector<std::string> fuzz_seeds() {
  std::vector<std::string> seeds;
  for (const size_t count : {1, 64, 1000, 8000})
    for (const unsigned spread : {0u, 5u, 40u, 3000u, 65535u})
      for (const DeltaForm form : {DeltaForm::nibbles, DeltaForm::coded})
        seeds.push_back(block_of(count, spread, form));
  std::vector<uint8_t> bytes(rans_room(3000)), section(rans_bound(3000));
  for (size_t i = 0; i < 3000; i++) bytes[i] = static_cast<uint8_t>(i % 7 * (i % 3));
  section.resize(rans_encode(bytes.data(), 3000, section.data()));
  const uint32_t size = 3000;
  seeds.push_back(std::string(reinterpret_cast<const char*>(&size), sizeof size) +
                  std::string(section.begin(), section.end()));
  return seeds;
}
