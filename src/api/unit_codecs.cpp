#include "api/unit_codecs.h"

#include <cstring>

#include "api/objects.h"
#include "api/structs.h"
#include "fsccl/codec.h"

namespace fsccl {
namespace {

// Checks a delta codec. The fields that only block codecs have must be 0.
Status check_delta(const fsccl_codec_t& codec, fsccl_dtype_t wire) {
  constexpr uint32_t kForms = FSCCL_CODEC_NIBBLES_ONLY | FSCCL_CODEC_FEWEST_BYTES;
  if (codec.flags & ~(kForms | FSCCL_CODEC_NEVER_DECLINES))
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "gather_codec: flags {:#x} has unknown bits",
                codec.flags);
  if ((codec.flags & kForms) == kForms)
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "gather_codec: FSCCL_CODEC_NIBBLES_ONLY does not go with FSCCL_CODEC_FEWEST_BYTES");
  if (codec.block || codec.max_relative_error != 0 || codec.audit_every)
    return fail(
        FSCCL_ERR_INVALID_ARGUMENT,
        "gather_codec: block, max_relative_error and audit_every are of codecs with a loss: "
        "they are 0 with FSCCL_CODEC_DELTA");
  if (wire == FSCCL_BFLOAT16 || wire == FSCCL_FLOAT16) return success();
  return fail(FSCCL_ERR_INVALID_ARGUMENT,
              "gather_codec: differences are of float16 or bfloat16, not of wire_dtype {}: leave "
              "the codec out",
              dtype_name(wire));
}

// Checks a block codec. Fields and flags that its kind, or a reduction, does not have must be 0.
Status check_blocks(const fsccl_codec_t& codec, const char* what, bool gathers) {
  const uint32_t flags = gathers ? 0 : FSCCL_CODEC_ERROR_FEEDBACK;
  if (codec.flags & ~flags)
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "{}: flags {:#x} has bits that kind {} does not have",
                what, codec.flags, static_cast<int>(codec.kind));
  const bool sized = codec.kind != FSCCL_CODEC_BF16;
  if (codec.block && !(sized && is_block_size(codec.block)))
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "{}: block is {}: give {}0", what, codec.block,
                sized ? "a power of two of 32 to 1024, or " : "");
  if (!(codec.max_relative_error >= 0 && codec.max_relative_error <= (gathers ? 1 : 0)))
    return fail(
        FSCCL_ERR_INVALID_ARGUMENT, "{}: max_relative_error is {}: give {}", what,
        codec.max_relative_error,
        gathers ? "a part of the largest element of a block, 0 to 1" : "0 with a reduction");
  if (gathers || codec.kind == FSCCL_CODEC_CUSTOM || !codec.audit_every) return success();
  return fail(FSCCL_ERR_INVALID_ARGUMENT,
              "{}: audit_every is of gathers and of custom codecs: give 0", what);
}

// Checks what units in memory of a GPU can do.
Status check_on_gpu(const fsccl_codec_t& codec, const char* what, bool of_gather) {
  if (codec.kind == FSCCL_CODEC_DELTA || codec.kind == FSCCL_CODEC_CUSTOM)
    return fail(FSCCL_ERR_NOT_AVAILABLE,
                "{}: units in memory of a GPU have no {} in this release: use {} there", what,
                codec.kind == FSCCL_CODEC_DELTA ? "FSCCL_CODEC_DELTA" : "FSCCL_CODEC_CUSTOM",
                of_gather ? "FSCCL_CODEC_INT8, FSCCL_CODEC_FP8 or FSCCL_CODEC_MXFP8"
                          : "FSCCL_CODEC_INT8, FSCCL_CODEC_INT4 or FSCCL_CODEC_BF16");
  return success();
}

// Reads gather_codec or reduce_codec, and checks the rules that hold for both.
Status read_codec(const fsccl_codec_t* given, const char* what, const UnitSpec& spec,
                  fsccl_codec_t* codec) {
  FSCCL_TRY(read_config(given, fsccl_codec_t FSCCL_CODEC_INIT, codec));
  const bool custom = codec->kind == FSCCL_CODEC_CUSTOM;
  const bool gathers =
      custom || (codec->kind >= FSCCL_CODEC_DELTA && codec->kind <= FSCCL_CODEC_MXFP8);
  const bool reduces = custom || codec->kind == FSCCL_CODEC_INT8 ||
                       codec->kind == FSCCL_CODEC_BF16 || codec->kind == FSCCL_CODEC_INT4;
  const bool of_gather = std::strcmp(what, "gather_codec") == 0;
  if (codec->custom && !custom)
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "{}: custom is the table of FSCCL_CODEC_CUSTOM: leave it NULL with kind {}", what,
                static_cast<int>(codec->kind));
  if (codec->kind != FSCCL_CODEC_NONE && !(of_gather ? gathers : reduces))
    return fail(
        FSCCL_ERR_INVALID_ARGUMENT, "{}: kind {} is not {}", what, static_cast<int>(codec->kind),
        gathers || reduces ? of_gather ? "of gathers" : "of reductions" : "a fsccl_codec_kind_t");
  if (codec->scope != FSCCL_CODEC_BETWEEN_HOSTS && codec->scope != FSCCL_CODEC_EVERYWHERE)
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "{}: scope {} is not a fsccl_codec_scope_t: give FSCCL_CODEC_BETWEEN_HOSTS or "
                "FSCCL_CODEC_EVERYWHERE",
                what, static_cast<int>(codec->scope));
  return codec->kind != FSCCL_CODEC_NONE && spec.pool->memory() != FSCCL_MEMORY_HOST
             ? check_on_gpu(*codec, what, of_gather)
             : success();
}

// Returns the codec with the defaults of its kind.
CodecSpec spec_of(const fsccl_codec_t& codec, bool gathers) {
  CodecSpec made;
  made.kind = codec.kind;
  made.flags = codec.flags;
  if (codec.kind == FSCCL_CODEC_DELTA) return made;
  made.everywhere = codec.scope == FSCCL_CODEC_EVERYWHERE;
  made.block = codec.block;
  made.max_relative_error = codec.max_relative_error;
  made.audit_every = codec.audit_every;
  if (!made.block) made.block = codec.kind == FSCCL_CODEC_MXFP8 ? 32 : 128;
  if (!made.audit_every && (gathers || codec.kind == FSCCL_CODEC_CUSTOM)) made.audit_every = 256;
  return made;
}

// Copies the table of a custom codec, whose encoded blocks must be shorter than the plain ones of
// `dtype`, each with a byte of the library's own. Does nothing for codecs of other kinds.
Status read_custom(const fsccl_codec_t& codec, const char* what, fsccl_dtype_t dtype,
                   CodecSpec* spec) {
  if (codec.kind != FSCCL_CODEC_CUSTOM) return success();
  auto made = CustomCodec::make(codec.custom, spec->block);
  if (!made.ok()) return fail(made.status().code(), "{}: {}", what, made.status().text());
  spec->custom = made.take();
  const size_t plain = spec->block * dtype_size(dtype), coded = spec->custom->bytes(spec->block);
  if (codec.flags & FSCCL_CODEC_ERROR_FEEDBACK && spec->custom->bound() >= 1)
    return fail(
        FSCCL_ERR_INVALID_ARGUMENT,
        "{}: custom codec '{}' has the bound 1, with which rounding errors may grow without "
        "end: state a lower one, or leave FSCCL_CODEC_ERROR_FEEDBACK out",
        what, spec->custom->name());
  if (coded + 1 < plain) return success();  // each block has a byte of the library's own
  return fail(FSCCL_ERR_INVALID_ARGUMENT,
              "{}: custom codec '{}' takes {} bytes and one of the library for a block of {} "
              "elements, which are {} bytes as {}: leave the codec out",
              what, spec->custom->name(), coded, spec->block, plain, dtype_name(dtype));
}

Status read_gather_codec(const fsccl_unit_config_t& config, UnitSpec* spec) {
  constexpr const char* kWhat = "gather_codec";
  if (!config.gather_codec) return success();
  fsccl_codec_t codec;
  FSCCL_TRY(read_codec(config.gather_codec, kWhat, *spec, &codec));
  if (codec.kind == FSCCL_CODEC_NONE) return success();
  FSCCL_TRY(codec.kind == FSCCL_CODEC_DELTA ? check_delta(codec, config.wire_dtype)
                                            : check_blocks(codec, kWhat, true));
  if (!blocks_take(config.wire_dtype))
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "gather_codec: blocks are of float16, bfloat16 or float32, not of wire_dtype {}: "
                "leave the codec out",
                dtype_name(config.wire_dtype));
  spec->gather_codec = spec_of(codec, true);
  return read_custom(codec, kWhat, config.wire_dtype, &spec->gather_codec);
}

Status read_reduce_codec(const fsccl_unit_config_t& config, UnitSpec* spec) {
  constexpr const char* kWhat = "reduce_codec";
  if (!config.reduce_codec) return success();
  fsccl_codec_t codec;
  FSCCL_TRY(read_codec(config.reduce_codec, kWhat, *spec, &codec));
  if (codec.kind == FSCCL_CODEC_NONE) return success();
  FSCCL_TRY(check_blocks(codec, kWhat, false));
  if (!blocks_take(config.reduce_dtype) || !blocks_take(config.grad_dtype))
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "reduce_codec: gradients are float16, bfloat16 or float32, not of reduce_dtype {} "
                "and grad_dtype {}: leave the codec out",
                dtype_name(config.reduce_dtype), dtype_name(config.grad_dtype));
  spec->reduce_codec = spec_of(codec, false);
  return read_custom(codec, kWhat, config.reduce_dtype, &spec->reduce_codec);
}

}  // namespace

Status read_codecs(const fsccl_unit_config_t& config, UnitSpec* spec) {
  FSCCL_TRY(read_gather_codec(config, spec));
  return read_reduce_codec(config, spec);
}

}  // namespace fsccl
