/*
 * FSCCL codecs: how parameters and gradients travel between hosts in fewer bytes. A unit names its
 * codecs in fsccl_unit_config_t, gather_codec and reduce_codec; fsccl_unit_codec()
 * (fsccl/insight.h) tells what they have done.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef FSCCL_CODEC_H
#define FSCCL_CODEC_H

#include "fsccl/fsccl.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How parameters and gradients travel between hosts, or between all ranks (scope). */
typedef enum fsccl_codec_kind {
  FSCCL_CODEC_NONE = 0,
  /* For gathers. 16-bit floats travel as their differences from the last gather, in units in the
   * last place, as half a byte each or coded by their frequencies, whichever takes less time.
   * Parameters arrive the same, bit for bit, with or without it. Ranks that exchange with other
   * hosts keep a copy of what they exchanged: together, each host keeps one copy of the unit, 2
   * bytes an element, in the pool (fsccl_codec_report_t: state_bytes). If a receiver's copy differs
   * from the sender's, a checksum shows it, and the sender's part is sent again without the codec.
   * Differences that take more than half of the plain bytes are also sent without the codec. */
  FSCCL_CODEC_DELTA = 1,
  /* For gathers, with a loss: fp16, bf16 or fp32 as 8 bits and a scale for each block of elements.
   * FP8: E4M3, scales in fp32; INT8: integers of -127 .. 127, scales in fp32; MXFP8: E4M3, scales
   * that are powers of two. The error of a block is the largest |x - x'| divided by the largest
   * |x|, where x' is the decoded element. It is at most 1/28 for FP8, 1/254 for INT8 and 1/16 for
   * MXFP8, plus 1/256 for a wire_dtype of bf16 and 1/2048 for fp16. All ranks get the same
   * parameters, also the ranks of the host that sends them. A block that is not finite, or whose
   * error is more than max_relative_error, is sent without the codec; if more than one in 16 of a
   * host's blocks are, the host sends all of them so. Hosts encode when the unit was changed
   * (reduce_grads, fsccl_unit_mark_changed), and send the same bytes until then. The first block
   * begins at the first element of each piece of a parameter that a rank holds (pieces that lie end
   * to end are one), so the loss depends on the number of ranks. The codecs take 1.1 bytes of the
   * pool for each element that a host sends, and as many for what it receives of the largest unit.
   * They do not decline: results never depend on measured times.
   *
   * In memory of a GPU parameters get the same bits, with these differences. Every rank sends its
   * own part, whose size is fixed: it has room for one in 16 of its elements in blocks that go
   * without the codec. If there are more, also because their errors are above max_relative_error,
   * the gather has failed: that rank's parameters are NaN on all ranks, and the unit's next call
   * that finds the gather done returns FSCCL_ERR_PROTOCOL; the communicator has failed. The codecs
   * take 1.2 bytes of the pool (1.3 for fp32) for each element that the rank holds, and as many for
   * each element of the largest unit. fsccl_codec_report_t has the figures of blocks when the GPU
   * has encoded them. */
  FSCCL_CODEC_FP8 = 2,
  FSCCL_CODEC_INT8 = 3, /* for reductions, too */
  FSCCL_CODEC_MXFP8 = 4,
  /* For reductions, with a loss. The ranks of a host sum in fp32. They send the sums for another
   * host in bf16, in 8 bits as above, or in 4 bits with a scale in fp32 for each block; for 4 bits
   * a Hadamard matrix first rotates each 32 gradients. The receiver adds the sums of all hosts in
   * fp32, in the order of the hosts; its own host's sum is not encoded. If an element of a block is
   * not finite, or above 2^100, all elements of the block arrive as NaN, so that the program can
   * skip the step; with BF16 each element stands alone. With FSCCL_CODEC_ERROR_FEEDBACK a rank
   * keeps the rounding error of each element that it sent, and adds it to the element in the next
   * reduction; this takes 4 bytes of the pool for each element. The errors are in units of the
   * gradients, so divide by a loss scale that changes between steps before the reduction. Results
   * never depend on measured times.
   *
   * In memory of a GPU, whatever the scope is, each rank encodes its own gradients for the ranks
   * that sum them, and gets the bits of FSCCL_CODEC_EVERYWHERE. The units of a communicator share
   * memory of the pool: for the largest unit, the codes that a rank sends, and for each element
   * whose sum it makes, 4 bytes and a code for each rank. */
  FSCCL_CODEC_BF16 = 5,
  FSCCL_CODEC_INT4 = 6,
  /* For gathers and reductions: the functions of `custom` encode each block. Blocks, NaN, feedback
   * and memory are as with FSCCL_CODEC_INT8. */
  FSCCL_CODEC_CUSTOM = 7
} fsccl_codec_kind_t;
/* The scope of a codec says what it codes. */
typedef enum fsccl_codec_scope {
  /* The codec is for what crosses between hosts. If all ranks are on one host, it does nothing. */
  FSCCL_CODEC_BETWEEN_HOSTS = 0,
  /* Each rank codes as if it were a host of its own, also where all ranks are on one host, so that
   * the results do not depend on which ranks share a host. Gathers: all ranks get the decoded
   * parameters on one host, too. Reductions: each rank encodes its own gradients for each other
   * rank, and ranks add in the order of the ranks; nothing is summed inside a host first, so more
   * bytes cross between hosts than with BETWEEN_HOSTS if hosts have several ranks. It saves no time
   * on one host. FSCCL_CODEC_DELTA loses nothing and moves nothing inside a host: it does the same
   * with both scopes. */
  FSCCL_CODEC_EVERYWHERE = 1
} fsccl_codec_scope_t;
/* Flags of FSCCL_CODEC_DELTA. */
#define FSCCL_CODEC_NIBBLES_ONLY \
  1u /* never coded by frequencies: more bytes, less processor time */
#define FSCCL_CODEC_FEWEST_BYTES \
  4u /* always coded by frequencies: fewer bytes, more processor time; not with NIBBLES_ONLY */
#define FSCCL_CODEC_NEVER_DECLINES \
  2u /* also where the link is so fast that coding takes longer than it saves */
/* Flags of codecs of reductions. */
#define FSCCL_CODEC_ERROR_FEEDBACK 8u
/* A block codec of the program: its functions encode and decode one block of parameters or
 * gradients. They do not see blocks of zeros, nor those with an element that is not finite or is
 * above 2^100, nor those with no element of 2^-100 or more. The library chooses blocks, measures
 * errors and sends checksums. docs/codecs.md has an example.
 *
 * Determinism: the bytes depend on the elements alone, and the decoded elements on the bytes alone,
 * bit for bit on all ranks; else ranks compute with different parameters. Threads: several threads
 * call all three functions at once, with one context; they do not block, call the library or throw.
 * fsccl_unit_create copies the table and the name; functions and context live until the unit is
 * destroyed. Errors: the functions cannot fail. If a block is written beyond its size, or a block
 * that is measured has a larger error than `bound`, the operation fails with FSCCL_ERR_PROTOCOL and
 * names the codec and the rank; the communicator has failed. A gather fails on all ranks, while a
 * reduction may be over on some, where the next call fails; sharded gradients are undefined then.
 * Shards stay as they were. All ranks give the same name, version, bound and sizes, else
 * fsccl_unit_create returns FSCCL_ERR_MISMATCH. */
typedef struct fsccl_block_codec {
  size_t size;      /* size of this struct: set by FSCCL_BLOCK_CODEC_INIT */
  uint32_t version; /* version of the encoding: another one wherever the bytes change */
  const char* name; /* 1 to 31 of a-z, 0-9, _ and -; no built-in codec's */
  void* context;    /* first argument of the functions below */
  /* The largest error of a block, as of FSCCL_CODEC_FP8, where all elements are finite and at most
   * 2^100: above 0, at most 1 (with FSCCL_CODEC_ERROR_FEEDBACK below 1). For gathers, that of a
   * wire_dtype of bf16 or fp16 is added. */
  double bound;
  /* Bytes of an encoded block of `count` elements, 1 to the number of fsccl_codec_t.block: at least
   * 1, and at most 4 * count + 64; for a whole block fewer than in wire_dtype or reduce_dtype. The
   * last block of a piece of memory is shorter. fsccl_unit_create asks for each count. */
  size_t (*bytes)(void* context, size_t count);
  /* Writes the bytes of a block to `out`, which is filled with zeros. `elements` and `out` do not
   * overlap, and are aligned to 64 bytes. */
  void (*encode)(void* context, const float* elements, size_t count, void* out);
  /* Writes all elements of a block. `in`: the bytes that encode() wrote, on any rank, aligned to 64
   * bytes as `elements` is. */
  void (*decode)(void* context, const void* in, size_t count, float* elements);
} fsccl_block_codec_t;
#define FSCCL_BLOCK_CODEC_INIT {sizeof(fsccl_block_codec_t), 0u, NULL, NULL, 0.0, NULL, NULL, NULL}
typedef struct fsccl_codec {
  size_t size;
  fsccl_codec_kind_t kind;
  fsccl_codec_scope_t scope;
  uint32_t flags;
  /* For gathers by FP8, INT8, MXFP8, CUSTOM: the largest error of a block, as above, that is sent
   * with the codec; 0: the kind's bound. For other codecs: 0 */
  double max_relative_error;
  /* Elements of a block: a power of two of 32 .. 1024; 0: 128, of MXFP8 32. For DELTA and BF16:
   * 0. */
  uint32_t block;
  /* For CUSTOM, and gathers by FP8, INT8 and MXFP8: of so many blocks the sender decodes one and
   * measures its error (of gathers fsccl_codec_report_t: max_error); 0: 256. With a
   * max_relative_error it measures all blocks. */
  uint32_t audit_every;
  /* The table of FSCCL_CODEC_CUSTOM; for other kinds NULL. */
  const fsccl_block_codec_t* custom;
} fsccl_codec_t;
#define FSCCL_CODEC_INIT \
  {sizeof(fsccl_codec_t), FSCCL_CODEC_NONE, FSCCL_CODEC_BETWEEN_HOSTS, 0u, 0.0, 0u, 0u, NULL}

#ifdef __cplusplus
}
#endif
#endif /* FSCCL_CODEC_H */
