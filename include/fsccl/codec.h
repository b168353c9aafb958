/*
 * FSCCL codecs: how parameters travel between hosts in fewer bytes. A unit names its codec in
 * fsccl_unit_config_t.gather_codec; fsccl_unit_codec() (fsccl/insight.h) tells what it has done.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef FSCCL_CODEC_H
#define FSCCL_CODEC_H

#include "fsccl/fsccl.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How parameters travel between hosts. What arrives is the same, bit for bit, with or without
 * it. */
typedef enum fsccl_codec_kind {
  FSCCL_CODEC_NONE = 0,
  /* 16-bit floats as their differences from the last gather, in units in the last place, as half a
   * byte each or coded by their frequencies, whichever takes less time. Ranks that exchange with
   * other hosts keep what they exchange as it was: together, each host keeps one copy of the unit,
   * 2 bytes an element, in the pool, and room for the coded bytes of the largest unit
   * (fsccl_codec_report_t: state_bytes). A copy that is not the sender's is found by its sum, and
   * that sender's part goes plain once. Differences that take more than half of the plain bytes go
   * plain as well. */
  FSCCL_CODEC_DELTA = 1
} fsccl_codec_kind_t;
typedef enum fsccl_codec_scope {
  /* inside a host nothing is coded: parameters are written once, where they are used */
  FSCCL_CODEC_BETWEEN_HOSTS = 0
} fsccl_codec_scope_t;
#define FSCCL_CODEC_NIBBLES_ONLY \
  1u /* not coded by frequencies: more bytes, less time of processors */
#define FSCCL_CODEC_FEWEST_BYTES \
  4u /* coded by frequencies whatever that takes of processors; not with NIBBLES_ONLY */
#define FSCCL_CODEC_NEVER_DECLINES \
  2u /* also where the link is so fast that coding takes longer than it saves */
typedef struct fsccl_codec {
  size_t size;
  fsccl_codec_kind_t kind;
  fsccl_codec_scope_t scope;
  uint32_t flags;
} fsccl_codec_t;
#define FSCCL_CODEC_INIT {sizeof(fsccl_codec_t), FSCCL_CODEC_NONE, FSCCL_CODEC_BETWEEN_HOSTS, 0u}

#ifdef __cplusplus
}
#endif
#endif /* FSCCL_CODEC_H */
