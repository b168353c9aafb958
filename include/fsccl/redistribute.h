/*
 * FSCCL redistribution: shards from any layout and number of ranks to any other, in memory.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef FSCCL_REDISTRIBUTE_H
#define FSCCL_REDISTRIBUTE_H

#include "fsccl/fsccl.h"

#ifdef __cplusplus
extern "C" {
#endif

#define FSCCL_NO_SHARD (-1)
/* Describes how parameters are divided into shards, and which shard is this rank's. */
typedef struct fsccl_sharding {
  fsccl_layout_t layout;
  int ranks; /* the number of shards: the size of the shard_comm of such units */
  /* which of them is this rank's, 0 .. ranks - 1, or FSCCL_NO_SHARD. Several ranks may have the
   * same: replicas */
  int rank;
} fsccl_sharding_t;

/* One array that is sharded like a parameter: the parameter itself, or a state of the optimizer. */
typedef struct fsccl_redistributed {
  size_t param;        /* index in fsccl_redistribute_config_t.params */
  fsccl_dtype_t dtype; /* dtype of its elements, which are not converted */
  /* this rank's old piece: the address from fsccl_unit_shard() of the old unit; ignored if the
   * piece is empty or this rank has no old shard */
  const void* from;
  /* this rank's new piece: the address from fsccl_unit_shard() of the new unit; ignored if the
   * piece is empty or this rank has no new shard */
  void* to;
} fsccl_redistributed_t;

typedef struct fsccl_redistribute_config {
  size_t size;
  /* `count` of them: dims, shape, tied_to and the block are read, as by fsccl_layout_plan(); and
   * the name, for messages */
  const fsccl_param_t* params;
  size_t count;
  fsccl_sharding_t from, to; /* layouts and numbers of shards are the same on all ranks */
  uint64_t version;          /* names the state at `from`: the number of steps done, say */
  /* memory that this rank gives to the exchange; 0: 64 MiB. At least 128 bytes per rank are
   * taken */
  uint64_t limit_bytes;
  /* sizeof(fsccl_param_t) and sizeof(fsccl_redistributed_t) as the caller was compiled; 0: those of
   * release 0.1 */
  size_t param_size, buffer_size;
} fsccl_redistribute_config_t;
#define FSCCL_REDISTRIBUTE_CONFIG_INIT          \
  {sizeof(fsccl_redistribute_config_t),         \
   NULL,                                        \
   0,                                           \
   {FSCCL_LAYOUT_PER_PARAM, 0, FSCCL_NO_SHARD}, \
   {FSCCL_LAYOUT_PER_PARAM, 0, FSCCL_NO_SHARD}, \
   0,                                           \
   0,                                           \
   sizeof(fsccl_param_t),                       \
   sizeof(fsccl_redistributed_t)}

/*
 * Redistributes parameters, and states of the optimizer that are sharded alike: from the shards
 * that ranks of `comm` hold to shards of another layout or number of ranks. `buffers` has `count`
 * elements, the same parameters and dtypes in the same order on all ranks; those of a rank must not
 * overlap. Memory at `from` is not changed. The call writes to `to` the newest version of which the
 * ranks together hold all shards, and its number to *version (NULL: not wanted). Collective over
 * `comm`; blocks; host memory only.
 *
 * Errors, of all ranks or none, that damage nothing. FSCCL_ERR_INVALID_STATE: the ranks hold all
 * shards of no version; the text names one that is lost. FSCCL_ERR_INVALID_ARGUMENT: nobody takes a
 * new shard, or an argument of some rank is wrong. FSCCL_ERR_MISMATCH: ranks give other parameters,
 * layouts or buffers. FSCCL_ERR_NOT_AVAILABLE: a buffer is memory of a GPU, or blocks that are not
 * stored in row-major order go between ragged and another layout. After FSCCL_ERR_PEER_DEAD the
 * contents at `to` are undefined: shrink and call again (docs/api/redistribute.md).
 */
FSCCL_API fsccl_status_t fsccl_redistribute(const fsccl_redistribute_config_t* config,
                                            const fsccl_redistributed_t* buffers, size_t count,
                                            fsccl_comm_t comm, uint64_t* version);

#ifdef __cplusplus
}
#endif
#endif /* FSCCL_REDISTRIBUTE_H */
