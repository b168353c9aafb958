#include "codec/custom.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>

#include "base/dtype.h"
#include "base/hash.h"
#include "base/immortal.h"
#include "codec/blocks.h"
#include "codec/guarded_room.h"

namespace fsccl {
namespace {

constexpr size_t kMostName = 31;
constexpr size_t kHeaderRoom = 64;  // that a short block may take beyond its elements in fp32

constexpr size_t most_bytes(size_t count) { return count * sizeof(float) + kHeaderRoom; }
static_assert(most_bytes(kMostBlock) <= GuardedRoom::kMost);

// Calls a function of a codec, run(room), which reads `in_bytes` bytes of the room's input and
// makes an output of `out_bytes` bytes. Says whether it wrote elsewhere.
template <class Run>
Overrun in_room(Overrun::By by, size_t count, const void* in, size_t in_bytes, size_t out_bytes,
                const Run& run) {
  GuardedRoom& room = GuardedRoom::of_thread();
  std::memcpy(room.input(), in, in_bytes);
  run(room);
  const auto [beyond, before] = room.check(out_bytes);
  if (!beyond && !before) return {};
  return {by, static_cast<uint32_t>(count), static_cast<uint32_t>(beyond),
          static_cast<uint32_t>(before)};
}

// The codecs that exist, for custom_codecs_in_use().
struct Known {
  std::mutex mutex;
  std::vector<std::weak_ptr<const CustomCodec>> all;
};
Known& known() {
  static Immortal<Known> codecs;
  return codecs.get();
}

Status wrong(std::string_view what) {
  return fail(FSCCL_ERR_INVALID_ARGUMENT, "the table of the custom codec {}", what);
}

Status check_name(const char* name) {
  const size_t length = name ? strnlen(name, kMostName + 1) : 0;
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  };
  if (length == 0 || length > kMostName || !std::all_of(name, name + length, fits))
    return wrong(fmt::format("has no name of 1 to {} of a-z, 0-9, _ and -", kMostName));
  const auto is_name = [&](const char* taken) { return std::strcmp(taken, name) == 0; };
  if (std::none_of(std::begin(kBuiltInCodecs), std::end(kBuiltInCodecs), is_name)) return success();
  return wrong(fmt::format("has the name {} of a built-in codec: give it another", name));
}

Status check_table(const fsccl_block_codec_t* given) {
  if (!given)
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "custom is NULL: FSCCL_CODEC_CUSTOM needs a table of functions");
  if (given->size < sizeof *given || given->size % alignof(fsccl_block_codec_t) != 0)
    return wrong(
        fmt::format("has the size {}, and needs {} bytes: initialise it with "
                    "FSCCL_BLOCK_CODEC_INIT",
                    given->size, sizeof *given));
  FSCCL_TRY(check_name(given->name));
  if (!given->bytes || !given->encode || !given->decode)
    return wrong(fmt::format("'{}' has no {}(): all three functions are needed", given->name,
                             !given->bytes    ? "bytes"
                             : !given->encode ? "encode"
                                              : "decode"));
  if (given->bound > 0 && given->bound <= 1) return success();
  return wrong(
      fmt::format("'{}' has the bound {}: give the largest error of an element over the largest "
                  "element of its block, above 0 and at most 1",
                  given->name, given->bound));
}

}  // namespace

CustomCodec::CustomCodec(const fsccl_block_codec_t& table, uint32_t block)
    : table_(table), name_(table.name), bytes_(block + 1) {
  table_.name = name_.c_str();
}

Result<std::shared_ptr<const CustomCodec>> CustomCodec::make(const fsccl_block_codec_t* given,
                                                             uint32_t block) {
  FSCCL_TRY(check_table(given));
  std::shared_ptr<CustomCodec> made(new CustomCodec(*given, block));
  for (size_t count = 1; count <= block; count++) {
    const size_t bytes = given->bytes(given->context, count);
    if (bytes == 0 || bytes > most_bytes(count))
      return wrong(
          fmt::format("'{}' gives {} bytes for a block of {} elements: bytes() gives 1 to {} there",
                      given->name, bytes, count, most_bytes(count)));
    made->bytes_[count] = static_cast<uint32_t>(bytes);
  }
  const std::lock_guard lock(known().mutex);
  std::erase_if(known().all, [](const auto& one) { return one.expired(); });
  known().all.push_back(made);
  return std::shared_ptr<const CustomCodec>(std::move(made));
}

uint64_t CustomCodec::hash() const {
  uint64_t hash = mix_in_order(hash_of(name_), table_.version);
  hash = mix_in_order(hash, std::bit_cast<uint64_t>(table_.bound));
  for (const uint32_t bytes : bytes_) hash = mix_in_order(hash, bytes);
  return hash;
}

Overrun CustomCodec::encode(const float* elements, size_t count, uint8_t* out) const {
  const size_t made = bytes(count);
  return in_room(Overrun::By::encode, count, elements, count * sizeof(float), made,
                 [&](const GuardedRoom& room) {
                   uint8_t* const output = room.output(made);
                   std::memset(output, 0, made);
                   table_.encode(table_.context, reinterpret_cast<const float*>(room.input()),
                                 count, output);
                   std::memcpy(out, output, made);
                 });
}

Overrun CustomCodec::decode(const uint8_t* in, size_t count, float* elements) const {
  const size_t made = count * sizeof(float);
  return in_room(Overrun::By::decode, count, in, bytes(count), made, [&](const GuardedRoom& room) {
    auto* const output = reinterpret_cast<float*>(room.output(made));
    // An element that the codec does not write stays NaN, whose error is above any bound.
    std::fill_n(output, count, std::numeric_limits<float>::quiet_NaN());
    table_.decode(table_.context, room.input(), count, output);
    std::memcpy(elements, output, made);
  });
}

std::string CustomCodec::text_of(const Overrun& overrun) const {
  const bool encodes = overrun.by == Overrun::By::encode;
  return fmt::format(
      "has custom codec '{}' (version {}), whose {}() wrote {} bytes or more {} the {} bytes of a "
      "block of {} elements: correct the codec, or leave it out",
      name_, version(), encodes ? "encode" : "decode",
      overrun.beyond ? overrun.beyond : overrun.before, overrun.beyond ? "beyond" : "before",
      encodes ? bytes(overrun.count) : overrun.count * sizeof(float), overrun.count);
}

std::string CustomCodec::text_of(float error, double limit, fsccl_dtype_t dtype) const {
  return fmt::format(
      "has custom codec '{}' (version {}), which states a bound of {}, {:.4g} with {}, and has an "
      "error of {:.4g} in a block: correct its bound, or leave it out",
      name_, version(), bound(), limit, dtype_name(dtype), error);
}

std::vector<CustomCodecInUse> custom_codecs_in_use() {
  std::vector<CustomCodecInUse> found;
  const std::lock_guard lock(known().mutex);
  for (const auto& one : known().all) {
    const std::shared_ptr<const CustomCodec> codec = one.lock();
    if (!codec) continue;
    const CustomCodecInUse facts{codec->name(), codec->version(), codec->block(),
                                 static_cast<uint32_t>(codec->bytes(codec->block())),
                                 codec->bound()};
    if (std::find(found.begin(), found.end(), facts) == found.end()) found.push_back(facts);
  }
  return found;
}

}  // namespace fsccl
