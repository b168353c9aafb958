// Fuzzes the bytes that a codec gets from another host. Decoding a bad block of the delta codec
// changes nothing but the words that it should make. A good block gives words whose checksum is the
// block's, and encoding these words gives a good block again. Chunks of block codecs get a right
// checksum, so that the decoder reads the bytes behind it. It may make elements with any bits of
// them, but must not read or write beyond them.
#include "codec/delta.h"

#include <cstring>

#include "codec/blocks.h"
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

const BlockForm kForms[] = {{BlockKind::int8, 128},
                            {BlockKind::fp8, 32},
                            {BlockKind::mxfp8, 32},
                            {BlockKind::int4, 64},
                            {BlockKind::bf16, 1024}};
constexpr fsccl_dtype_t kTypes[] = {FSCCL_BFLOAT16, FSCCL_FLOAT16, FSCCL_FLOAT32};

void take_chunk(const uint8_t* data, size_t bytes, size_t count, unsigned choice) {
  const BlockForm& form = kForms[choice % std::size(kForms)];
  const fsccl_dtype_t dtype = kTypes[choice / std::size(kForms) % std::size(kTypes)];
  std::vector<uint8_t> chunk(data, data + bytes);
  if (bytes >= kBlocksHeaderBytes) {
    uint32_t payload = 0;
    std::memcpy(&payload, &chunk[8], sizeof payload);
    const size_t whole = std::min<size_t>(bytes, kBlocksHeaderBytes + size_t{payload});
    const uint32_t sum = crc32c(&chunk[4], whole - 4);
    std::memcpy(chunk.data(), &sum, sizeof sum);
  }
  std::vector<uint8_t> elements(count * dtype_size(dtype));
  std::vector<float> sums(count);
  const bool gathers = form.kind != BlockKind::int4 && form.kind != BlockKind::bf16;
  const size_t read = gathers
                          ? decode_blocks(chunk.data(), bytes, elements.data(), dtype, count, form)
                          : add_sums(chunk.data(), bytes, sums.data(), count, form, true);
  FUZZ_REQUIRE(read <= bytes);
  if (!read || !gathers) return;
  std::vector<uint8_t> out(form.chunk_bytes(count) + elements.size()), again(elements.size());
  const BlocksWritten written = encode_blocks(elements.data(), dtype, count, form,
                                              {.every = 1, .room = elements.size()}, out.data());
  FUZZ_REQUIRE(written.bytes && written.bytes <= out.size() && !written.beyond);
  FUZZ_REQUIRE(decode_blocks(out.data(), written.bytes, again.data(), dtype, count, form) ==
               written.bytes);
}

std::string chunk_of(size_t count, unsigned choice) {
  const BlockForm& form = kForms[choice % std::size(kForms)];
  const fsccl_dtype_t dtype = kTypes[choice / std::size(kForms) % std::size(kTypes)];
  const std::vector<uint16_t> words = previous_words(2 * count);
  std::string chunk(form.chunk_bytes(count) + count * dtype_size(dtype), '\0');
  auto* const out = reinterpret_cast<uint8_t*>(chunk.data());
  if (form.kind == BlockKind::int4 || form.kind == BlockKind::bf16) {
    encode_sums(words.data(), dtype, count, form, nullptr, out);
    chunk.resize(form.chunk_bytes(count));
  } else {
    chunk.resize(
        encode_blocks(words.data(), dtype, count, form, {.room = count * dtype_size(dtype)}, out)
            .bytes);
  }
  const auto size = static_cast<uint32_t>(count | choice << 16);
  return std::string(reinterpret_cast<const char*>(&size), sizeof size) + chunk;
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
  if (count) take_chunk(data, bytes, count, size >> 16);
  return 0;
}

std::vector<std::string> fuzz_seeds() {
  std::vector<std::string> seeds;
  for (const size_t count : {1, 64, 1000, 8000})
    for (const unsigned spread : {0u, 5u, 40u, 3000u, 65535u})
      for (const DeltaForm form : {DeltaForm::nibbles, DeltaForm::coded})
        seeds.push_back(block_of(count, spread, form));
  for (const size_t count : {1, 100, 5000})
    for (unsigned choice = 0; choice < std::size(kForms) * std::size(kTypes); choice++)
      seeds.push_back(chunk_of(count, choice));
  std::vector<uint8_t> bytes(rans_room(3000)), section(rans_bound(3000));
  for (size_t i = 0; i < 3000; i++) bytes[i] = static_cast<uint8_t>(i % 7 * (i % 3));
  section.resize(rans_encode(bytes.data(), 3000, section.data()));
  const uint32_t size = 3000;
  seeds.push_back(std::string(reinterpret_cast<const char*>(&size), sizeof size) +
                  std::string(section.begin(), section.end()));
  return seeds;
}
