// A program's own block codec: a checked copy of its table of functions (fsccl_block_codec_t). The
// library does not trust these functions: they read and write in a GuardedRoom (guarded_room.h).
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "fsccl/codec.h"

namespace fsccl {

// The first write of a codec beyond the memory that it was given, or before it.
struct Overrun {
  enum class By : uint8_t { nobody, encode, decode };
  By by = By::nobody;
  uint32_t count = 0;   // elements of the block
  uint32_t beyond = 0;  // bytes from the end to the last byte that was seen to be overwritten
  uint32_t before = 0;  // the same from the begin, if nothing beyond the end was overwritten
  explicit operator bool() const { return by != By::nobody; }
};

// The names of the built-in codecs, by fsccl_codec_kind_t. No custom codec may have one of them.
inline constexpr const char* kBuiltInCodecs[] = {"none",  "delta", "fp8", "int8",
                                                 "mxfp8", "bf16",  "int4"};

class CustomCodec {
 public:
  // Copies the table, for blocks of `block` elements. Returns FSCCL_ERR_INVALID_ARGUMENT, with the
  // reason, if the table is not valid.
  static Result<std::shared_ptr<const CustomCodec>> make(const fsccl_block_codec_t* given,
                                                         uint32_t block);

  const std::string& name() const { return name_; }
  uint32_t version() const { return table_.version; }
  double bound() const { return table_.bound; }
  uint32_t block() const { return static_cast<uint32_t>(bytes_.size() - 1); }
  // Bytes of an encoded block of 1 .. block() elements.
  size_t bytes(size_t count) const { return bytes_[count]; }
  uint64_t hash() const;  // hash of all that the ranks must have alike

  // Encode and decode one block. Each returns whether the codec kept to its size. Only the
  // library's own memory is overwritten.
  Overrun encode(const float* elements, size_t count, uint8_t* out) const;
  Overrun decode(const uint8_t* in, size_t count, float* elements) const;

  // Each returns what is wrong with the codec, to stand behind "rank N": it wrote outside its
  // memory, or the error of a block of `dtype` is beyond `limit`, the bound with what `dtype` adds
  // to it.
  std::string text_of(const Overrun& overrun) const;
  std::string text_of(float error, double limit, fsccl_dtype_t dtype) const;

 private:
  CustomCodec(const fsccl_block_codec_t& table, uint32_t block);

  fsccl_block_codec_t table_;
  std::string name_;
  std::vector<uint32_t> bytes_;  // by the number of elements, 0 .. block
};

// A codec of a unit of this process, for fsccl_explain.
struct CustomCodecInUse {
  std::string name;
  uint32_t version = 0, block = 0, bytes = 0;  // bytes of a whole block
  double bound = 0;
  bool operator==(const CustomCodecInUse&) const = default;
};
// Lists each codec once, in the order of creation. Any thread may call it.
std::vector<CustomCodecInUse> custom_codecs_in_use();

}  // namespace fsccl
