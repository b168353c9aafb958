/*
 * A block codec that sends floats of 12 bits: a sign, 8 bits of exponent and 3 of mantissa, rounded
 * to the nearest. Two elements take three bytes. `train --gather-codec float12` and
 * `--reduce-codec float12` use it.
 */
#include "float12.h"

#include <stdint.h>
#include <string.h>

static size_t float12_bytes(void* context, size_t count) {
  (void)context;
  return (3 * count + 1) / 2;
}

static void float12_encode(void* context, const float* elements, size_t count, void* out) {
  uint8_t* to = out;
  (void)context;
  for (size_t i = 0; i < count; ++i) {
    uint32_t bits;
    memcpy(&bits, &elements[i], sizeof bits);
    bits = (bits + 0x7ffff + (bits >> 20 & 1)) >> 20;
    to[i / 2 * 3 + i % 2] |= (uint8_t)(i % 2 ? bits << 4 : bits);
    to[i / 2 * 3 + i % 2 + 1] = (uint8_t)(bits >> (i % 2 ? 4 : 8));
  }
}

static void float12_decode(void* context, const void* in, size_t count, float* elements) {
  const uint8_t* from = in;
  (void)context;
  for (size_t i = 0; i < count; ++i) {
    const uint32_t pair = from[i / 2 * 3 + i % 2] | (uint32_t)from[i / 2 * 3 + i % 2 + 1] << 8;
    const uint32_t bits = (i % 2 ? pair >> 4 : pair & 0xfff) << 20;
    memcpy(&elements[i], &bits, sizeof bits);
  }
}

const fsccl_block_codec_t kFloat12 = {
    sizeof kFloat12, 1, "float12", NULL, 1.0 / 16, float12_bytes, float12_encode, float12_decode};
