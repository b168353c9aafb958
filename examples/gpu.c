/* Two processes that use the same GPU share one parameter. It is gathered, and its gradient is
 * reduced, in the order of a stream, and the host does not wait. On a machine without a GPU the
 * program says so. */
#include <fsccl/fsccl.h>
#include <stdio.h>

#include "local_ranks.h"

enum { kRows = 4096, kColumns = 1024 };

static int failed(const char* call) {
  fsccl_error_info_t error = FSCCL_ERROR_INFO_INIT;
  fsccl_last_error(&error);
  fprintf(stderr, "%s: %s\n", call, error.text);
  return 1;
}
#define CHECK(call) \
  if ((call) < 0) return failed(#call)

/* Returns 0 on success and 1 on failure; returns 2 if there is no GPU, or if the library was built
 * without kernels for it. */
static int run(fsccl_comm_config_t where) {
  fsccl_pool_config_t memory = FSCCL_POOL_CONFIG_INIT;
  fsccl_unit_config_t config = FSCCL_UNIT_CONFIG_INIT;
  fsccl_param_t weight = FSCCL_PARAM_INIT;
  fsccl_view_t whole, grad, mean;
  fsccl_unit_t unit;
  fsccl_status_t status;
  void* stream = NULL; /* a cudaStream_t of the program; NULL: the legacy default stream */
  CHECK(fsccl_comm_create(&where, &config.shard_comm));
  memory.memory = FSCCL_MEMORY_CUDA;
  memory.device = 0; /* the local rank, if each rank has its own GPU */
  status = fsccl_pool_create(config.shard_comm, &memory, &config.pool);
  if (status == FSCCL_OK) {
    /* fp32 shards of half the rows, in memory of the pool */
    weight.dims = 2, weight.shape[0] = kRows, weight.shape[1] = kColumns;
    status = fsccl_unit_create(&config, &weight, 1, &unit);
  }
  if (status == FSCCL_ERR_NOT_AVAILABLE) {
    if (where.rank == 0) failed("there is nothing to run on here");
    if (config.pool) CHECK(fsccl_pool_destroy(config.pool));
    /* If the process just ended, the other rank would take it for dead. */
    CHECK(fsccl_comm_destroy(config.shard_comm));
    return 2;
  }
  CHECK(status);
  /* This call returns at once; kernels that follow on the stream may read the parameter. */
  CHECK(fsccl_unit_unshard(unit, FSCCL_UNSHARD_READ, stream, NULL));
  CHECK(fsccl_unit_param(unit, 0, &whole));
  CHECK(fsccl_unit_grad(unit, 0, stream,
                        &grad)); /* kernels of backward fill the gradient on the stream */
  CHECK(fsccl_unit_reshard(unit, stream));
  /* The reduction makes the mean over the ranks; the optimizer's kernels follow on the stream. */
  CHECK(fsccl_unit_reduce_grads(unit, NULL, stream, NULL));
  CHECK(fsccl_unit_sharded_grad(unit, 0, &mean));
  CHECK(fsccl_barrier(config.shard_comm, NULL, NULL));
  printf("rank %d: gathered %d elements on the GPU, reduced gradients of %d\n", where.rank,
         (int)whole.count, (int)mean.count);
  CHECK(fsccl_unit_destroy(unit));
  CHECK(fsccl_pool_destroy(config.pool));
  CHECK(fsccl_comm_destroy(config.shard_comm));
  return 0;
}

int main(void) {
  fsccl_unique_id_t id;
  fsccl_comm_config_t where = FSCCL_COMM_CONFIG_INIT;
  int outcome;
  where.unique_id = &id;
  where.ranks = 2;
  /* The processes fork before the first use of CUDA, which a child cannot share with its parent. */
  where.rank = local_ranks_start(2, &id);
  if (where.rank < 0) return 1;
  outcome = run(where);
  return local_ranks_finish(where.rank, 2, outcome == 1);
}
