/* Two processes share one parameter: they gather it, use it, and average its gradient. README.md
 * shows the lines between the marks. */
#define _POSIX_C_SOURCE 200809L
#include <fsccl/fsccl.h>
#include <stdio.h>

#include "local_ranks.h"

static int failed(const char* call) {
  fsccl_error_info_t error = FSCCL_ERROR_INFO_INIT;
  fsccl_last_error(&error);
  fprintf(stderr, "%s: %s\n", call, error.text);
  return 1;
}
#define CHECK(call) \
  if ((call) < 0) return failed(#call)

static int run(fsccl_comm_config_t where) { /* has the rank, 0 or 1 of 2, and the job's unique id */
  fsccl_pool_config_t memory = FSCCL_POOL_CONFIG_INIT;
  fsccl_unit_config_t config = FSCCL_UNIT_CONFIG_INIT; /* parameters that are gathered together */
  fsccl_param_t weight = FSCCL_PARAM_INIT;
  fsccl_view_t shard, whole, grad, mean;
  fsccl_unit_t unit;
  /* README begin */
  CHECK(fsccl_comm_create(&where, &config.shard_comm));
  CHECK(fsccl_pool_create(config.shard_comm, &memory, &config.pool));
  /* 4 x 2, fp32: two rows live on each rank */
  weight.dims = 2, weight.shape[0] = 4, weight.shape[1] = 2;
  CHECK(fsccl_unit_create(&config, &weight, 1, &unit));
  CHECK(fsccl_unit_shard(unit, 0, &shard));
  for (uint64_t i = 0; i < shard.count; ++i) ((float*)shard.data)[i] = (float)(shard.offset + i);
  CHECK(fsccl_unit_unshard(unit, FSCCL_UNSHARD_READ, NULL, NULL)); /* all-gather, cast to bf16 */
  CHECK(fsccl_unit_param(unit, 0, &whole)); /* 0 1 2 3 4 5 6 7, on both ranks */
  CHECK(fsccl_unit_grad(unit, 0, NULL, &grad));
  for (uint64_t i = 0; i < whole.count; ++i) ((uint16_t*)grad.data)[i] = ((uint16_t*)whole.data)[i];
  /* the pointer of fsccl_unit_param is no longer valid; another unit may use its memory */
  CHECK(fsccl_unit_reshard(unit, NULL));
  CHECK(fsccl_unit_reduce_grads(unit, NULL, NULL, NULL)); /* reduce-scatter: the mean, in fp32 */
  CHECK(fsccl_unit_sharded_grad(unit, 0, &mean));         /* rank 0: 0 1 2 3; rank 1: 4 5 6 7 */
  /* README end */
  printf("rank %d: elements %d to %d have gradient", where.rank, (int)mean.offset,
         (int)(mean.offset + mean.count) - 1);
  for (uint64_t i = 0; i < mean.count; ++i) {
    printf(" %g", (double)((float*)mean.data)[i]);
    if (((float*)mean.data)[i] != (float)(mean.offset + i)) return fprintf(stderr, ": wrong\n"), 1;
  }
  printf("\n");
  CHECK(fsccl_unit_destroy(unit));
  CHECK(fsccl_pool_destroy(config.pool));
  CHECK(fsccl_comm_destroy(config.shard_comm));
  return 0;
}

int main(void) {
  fsccl_unique_id_t id;
  fsccl_comm_config_t where = FSCCL_COMM_CONFIG_INIT;
  where.unique_id = &id;
  where.ranks = 2;
  where.rank = local_ranks_start(2, &id); /* starts the second process */
  return where.rank < 0 ? 1 : local_ranks_finish(where.rank, 2, run(where));
}
