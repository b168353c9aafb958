#include "codec/blocks.h"

#include <array>
#include <cstring>

#include "codec/block_kernels.h"
#include "kernels/crc32c.h"

namespace fsccl {
namespace {

struct Header {
  uint32_t sum;    // CRC32C of what follows it
  uint32_t form;   // kind, and the block above it
  uint32_t bytes;  // behind the header
  uint32_t exact;  // blocks
};
static_assert(sizeof(Header) == kBlocksHeaderBytes);

uint32_t word_of(const BlockForm& form) {
  return static_cast<uint32_t>(form.kind) | form.block << 8;
}

uint32_t sum_of(const uint8_t* chunk, size_t bytes) {
  return crc32c(chunk + sizeof(uint32_t), bytes - sizeof(uint32_t));
}

void close(uint8_t* out, const BlockForm& form, size_t bytes, uint32_t exact) {
  Header header{0, word_of(form), static_cast<uint32_t>(bytes - sizeof(Header)), exact};
  std::memcpy(out, &header, sizeof header);
  header.sum = sum_of(out, bytes);
  std::memcpy(out, &header.sum, sizeof header.sum);
}

// Returns the bytes of the chunk at `in`, or 0 if there is no valid chunk.
size_t open(const uint8_t* in, size_t size, size_t count, const BlockForm& form, uint32_t* exact) {
  Header header;
  if (count == 0 || count > kBlocksMost || size < sizeof header) return 0;
  std::memcpy(&header, in, sizeof header);
  const size_t bytes = sizeof header + header.bytes;
  if (header.form != word_of(form) || bytes > size || bytes < form.chunk_bytes(count) ||
      header.sum != sum_of(in, bytes))
    return 0;
  *exact = header.exact;
  return bytes;
}

}  // namespace

double block_bound(const BlockForm& form, fsccl_dtype_t dtype) {
  // Half of the largest step, relative to the largest element. Rounding to the stored type adds to
  // it.
  const double codes = form.custom                     ? form.custom->bound()
                       : form.kind == BlockKind::int8  ? 1 / 254.0
                       : form.kind == BlockKind::fp8   ? 1 / 28.0
                       : form.kind == BlockKind::mxfp8 ? 1 / 16.0
                       : form.kind == BlockKind::int4  ? 1 / 14.0
                                                       : 1 / 256.0;
  const double stored = dtype == FSCCL_BFLOAT16  ? 1 / 256.0
                        : dtype == FSCCL_FLOAT16 ? 1 / 2048.0
                                                 : 0.0;
  constexpr double kRounding = 1e-5;  // the rounding of scales and products in fp32
  return codes + stored + kRounding;
}

BlocksWritten encode_blocks(const void* from, fsccl_dtype_t dtype, size_t count,
                            const BlockForm& form, const BlockAudit& audit, uint8_t* out) {
  BlockEncoding work;
  work.scales = out + sizeof(Header);
  work.codes = work.scales + form.blocks(count) * form.scale_bytes();
  work.exact_to = work.codes + form.code_bytes(count);
  work.room = audit.room;
  work.most_error = audit.most_error;
  work.bound = block_bound(form, dtype);
  work.every = audit.every;
  work.phase = audit.phase;
  encode_block_kernel(from, dtype, count, form, work);
  BlocksWritten made;
  made.blocks = static_cast<uint32_t>(form.blocks(count));
  made.exact = work.exact;
  made.audited = work.audited;
  made.beyond = work.beyond;
  made.largest = work.largest;
  made.worst = work.worst;
  made.overrun = work.overrun;
  if (work.full || work.overrun) return made;
  made.bytes = static_cast<size_t>(work.exact_to - out);
  close(out, form, made.bytes, work.exact);
  return made;
}

size_t decode_blocks(const uint8_t* in, size_t size, void* to, fsccl_dtype_t dtype, size_t count,
                     const BlockForm& form, Overrun* overrun) {
  uint32_t exact = 0;
  const size_t bytes = open(in, size, count, form, &exact);
  if (!bytes) return 0;
  BlockDecoding work;
  work.scales = in + sizeof(Header);
  work.codes = work.scales + form.blocks(count) * form.scale_bytes();
  work.exact_from = work.codes + form.code_bytes(count);
  work.end = in + bytes;
  decode_block_kernel(to, dtype, count, form, work);
  if (overrun) *overrun = work.overrun;
  return !work.overrun && work.exact == exact && work.exact_from == work.end ? bytes : 0;
}

SumsWritten encode_sums(const void* from, fsccl_dtype_t dtype, size_t count, const BlockForm& form,
                        float* feedback, uint8_t* out, const BlockAudit& audit) {
  BlockEncoding work;
  work.scales = out + sizeof(Header);
  work.codes = work.scales + form.blocks(count) * form.scale_bytes();
  work.feedback = feedback;
  work.every = audit.every;
  work.phase = audit.phase;
  encode_sum_kernel(from, dtype, count, form, work);
  const bool beyond = work.worst > block_bound(form, FSCCL_FLOAT32);
  if (!beyond && !work.overrun) close(out, form, form.chunk_bytes(count), 0);
  return {beyond ? work.worst : 0, work.overrun};
}

size_t add_sums(const uint8_t* in, size_t size, float* sums, size_t count, const BlockForm& form,
                bool adds, Overrun* overrun) {
  uint32_t exact = 0;
  const size_t bytes = open(in, size, count, form, &exact);
  if (bytes != form.chunk_bytes(count) || exact) return 0;
  BlockDecoding work;
  work.scales = in + sizeof(Header);
  work.codes = work.scales + form.blocks(count) * form.scale_bytes();
  add_sum_kernel(sums, count, form, adds, work);
  if (overrun) *overrun = work.overrun;
  return work.overrun ? 0 : bytes;
}

}  // namespace fsccl
