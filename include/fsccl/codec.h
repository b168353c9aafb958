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

/* How parameters and gradients travel between hosts. */
typedef enum fsccl_codec_kind {
  FSCCL_CODEC_NONE = 0,
  /* For gathers. 16-bit floats travel as their differences from the last gather, in units in the
   * last place, as half a byte each or coded by their frequencies, whichever takes less time.
   * Parameters arrive the same, bit for bit, with or without it. Ranks that exchange with other
   * hosts keep a copy of what they exchanged: together, each host keeps one copy of the unit, 2
   * bytes an element, in the pool (fsccl_codec_report_t: state_bytes). A copy that is not the
   * sender's is found by its sum, and that sender's part goes plain once. Differences that take
   * more than half of the plain bytes go plain as well. */
  FSCCL_CODEC_DELTA = 1,
  /* For gathers, with a loss: fp16, bf16 or fp32 as 8 bits and a scale for each block of
   * elements. FP8: E4M3, scales in fp32; INT8: integers of -127 .. 127, scales in fp32; MXFP8:
   * E4M3, scales that are powers of two. The error of a block, the largest |x - x'| over the
   * largest |x|, is at most 1/28, 1/254, 1/16, plus 1/256 for a wire_dtype of bf16, 1/2048 for
   * fp16. All ranks get the same parameters, those of the host that sends them too. A block that
   * is not finite, or whose error is more than max_relative_error, goes as it is; where these
   * are more than one in 16, all of what a host sends does. Hosts encode when the unit was
   * changed (reduce_grads, fsccl_unit_mark_changed), and send the same bytes until then. Blocks
   * begin with each piece of a parameter that a rank holds: the loss depends on the number of
   * ranks. The pool has 1.1 bytes for each element that a host sends, and as many for what it
   * receives of the largest unit. They do not decline: what arrives never depends on times. */
  FSCCL_CODEC_FP8 = 2,
  FSCCL_CODEC_INT8 = 3, /* for reductions, too */
  FSCCL_CODEC_MXFP8 = 4,
  /* For reductions, with a loss. Ranks of a host sum in fp32; the sums that they have for
   * another host go in bf16, in 8 bits as above, or in 4 bits and a scale in fp32 for each
   * block, of gradients that a Hadamard matrix has rotated, 32 at a time. The receiver adds up
   * the sums of hosts, in their order, in fp32, and its own part as it is. A block that is not
   * finite, or above 2^100, makes all of the block NaN, so that the step can be skipped. With
   * FSCCL_CODEC_ERROR_FEEDBACK a rank keeps what each element that it sent was short of, and
   * adds it to the next reduction's: 4 bytes for each of them in the pool, in units of the
   * gradients. A loss scale that changes between steps is therefore to be taken off before. No
   * bit depends on times. */
  FSCCL_CODEC_BF16 = 5,
  FSCCL_CODEC_INT4 = 6
} fsccl_codec_kind_t;
typedef enum fsccl_codec_scope {
  /* inside a host nothing is coded: parameters are written once, where they are used */
  FSCCL_CODEC_BETWEEN_HOSTS = 0
} fsccl_codec_scope_t;
/* Flags of FSCCL_CODEC_DELTA. */
#define FSCCL_CODEC_NIBBLES_ONLY \
  1u /* not coded by frequencies: more bytes, less time of processors */
#define FSCCL_CODEC_FEWEST_BYTES \
  4u /* coded by frequencies whatever that takes of processors; not with NIBBLES_ONLY */
#define FSCCL_CODEC_NEVER_DECLINES \
  2u /* also where the link is so fast that coding takes longer than it saves */
/* Flags of codecs of reductions. */
#define FSCCL_CODEC_ERROR_FEEDBACK 8u
typedef struct fsccl_codec {
  size_t size;
  fsccl_codec_kind_t kind;
  fsccl_codec_scope_t scope;
  uint32_t flags;
  /* For gathers by FP8, INT8 and MXFP8, else 0: the bound of a block's error, as above; 0: the
   * kind's */
  double max_relative_error;
  /* Elements of a block: a power of two of 32 .. 1024; 0: 128, of MXFP8 32. For DELTA and BF16:
   * 0. */
  uint32_t block;
  /* For gathers by FP8, INT8 and MXFP8: one block in so many is decoded by its sender, and its
   * error measured (fsccl_codec_report_t: max_error); 0: 256. With a max_relative_error all are. */
  uint32_t audit_every;
} fsccl_codec_t;
#define FSCCL_CODEC_INIT \
  {sizeof(fsccl_codec_t), FSCCL_CODEC_NONE, FSCCL_CODEC_BETWEEN_HOSTS, 0u, 0.0, 0u, 0u}

#ifdef __cplusplus
}
#endif
#endif /* FSCCL_CODEC_H */
