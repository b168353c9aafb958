/*
 * Checks what a program relies on that was compiled with this header: the header compiles as C99
 * and as C++, numbers never change, config structs begin with their size, and the library has the
 * same version. This file is built once in each language.
 */
#include <fsccl/allocator.h>
#include <fsccl/codec.h>
#include <fsccl/fsccl.h>
#include <fsccl/insight.h>
#include <fsccl/publish.h>
#include <fsccl/redistribute.h>
#include <stdio.h>

static int failures = 0;

static void expect(int holds, const char* what) {
  if (holds) return;
  fprintf(stderr, "failed: %s\n", what);
  ++failures;
}
#define EXPECT(condition) expect((condition) ? 1 : 0, #condition)
#define EXPECT_SIZE_FIRST(type)                       \
  do {                                                \
    EXPECT(offsetof(type, size) == 0);                \
    EXPECT(sizeof((type*)0)->size == sizeof(size_t)); \
  } while (0)

static void check_numbers(void) {
  EXPECT(FSCCL_OK == 0 && FSCCL_IN_PROGRESS == 1);
  EXPECT(FSCCL_ERR_INVALID_ARGUMENT == -1 && FSCCL_ERR_INVALID_HANDLE == -2 &&
         FSCCL_ERR_INVALID_STATE == -3);
  EXPECT(FSCCL_ERR_NOT_AVAILABLE == -4 && FSCCL_ERR_VERSION == -5 && FSCCL_ERR_CONFIG == -6 &&
         FSCCL_ERR_FORKED == -7);
  EXPECT(FSCCL_ERR_OUT_OF_MEMORY == -20 && FSCCL_ERR_LIMIT == -21 && FSCCL_ERR_SYSTEM == -22);
  EXPECT(FSCCL_ERR_LINK == -40 && FSCCL_ERR_PROTOCOL == -41);
  EXPECT(FSCCL_ERR_PEER_DEAD == -60 && FSCCL_ERR_MISMATCH == -61 && FSCCL_ERR_AUTH == -62 &&
         FSCCL_ERR_TIMEOUT == -63);
  EXPECT(FSCCL_ERR_ABORTED == -80 && FSCCL_ERR_COMM_FAILED == -81 && FSCCL_ERR_INTERNAL == -100);
  EXPECT(FSCCL_INT8 == 0 && FSCCL_UINT8 == 1 && FSCCL_INT16 == 2 && FSCCL_UINT16 == 3 &&
         FSCCL_INT32 == 4 && FSCCL_UINT32 == 5);
  EXPECT(FSCCL_INT64 == 6 && FSCCL_UINT64 == 7 && FSCCL_FLOAT16 == 8 && FSCCL_BFLOAT16 == 9 &&
         FSCCL_FLOAT32 == 10);
  EXPECT(FSCCL_FLOAT64 == 11 && FSCCL_BOOL == 12 && FSCCL_FLOAT8_E4M3 == 13 &&
         FSCCL_FLOAT8_E5M2 == 14);
  EXPECT(FSCCL_OP_SUM == 0 && FSCCL_OP_AVG == 1 && FSCCL_OP_MIN == 2 && FSCCL_OP_MAX == 3 &&
         FSCCL_OP_PROD == 4);
  EXPECT(FSCCL_OP_PREMUL_SUM == 5 && FSCCL_PARAM_FROZEN == 1u && FSCCL_COLOR_NONE == -1 &&
         FSCCL_MAX_DIMS == 8);
  EXPECT(FSCCL_LAYOUT_FLAT == 0 && FSCCL_LAYOUT_PER_PARAM == 1 && FSCCL_LAYOUT_RAGGED == 2);
  EXPECT(FSCCL_SHARING_READ_ONLY == 0 && FSCCL_SHARING_PRIVATE == 1 && FSCCL_UNSHARD_READ == 0 &&
         FSCCL_UNSHARD_WRITABLE == 1);
  EXPECT(FSCCL_SHARING_COPY_ON_WRITE == 2);
  EXPECT(FSCCL_KEEP_NONE == 0 && FSCCL_KEEP_ALWAYS == 1 && FSCCL_KEEP_BUDGET == 2);
  EXPECT(FSCCL_MEMORY_HOST == 0 && FSCCL_MEMORY_CUDA == 1);
  EXPECT(FSCCL_EVENT_UNSHARD == 0 && FSCCL_EVENT_RESHARD == 1 && FSCCL_EVENT_GRAD == 2 &&
         FSCCL_EVENT_REDUCE == 3 && FSCCL_EVENT_RELEASE == 4);
}

static void check_structs(void) {
  EXPECT_SIZE_FIRST(fsccl_error_info_t);
  EXPECT_SIZE_FIRST(fsccl_comm_config_t);
  EXPECT_SIZE_FIRST(fsccl_launch_info_t);
  EXPECT_SIZE_FIRST(fsccl_pool_config_t);
  EXPECT_SIZE_FIRST(fsccl_pool_stats_t);
  EXPECT_SIZE_FIRST(fsccl_unit_config_t);
  EXPECT_SIZE_FIRST(fsccl_block_codec_t);
  EXPECT_SIZE_FIRST(fsccl_codec_t);
  EXPECT_SIZE_FIRST(fsccl_codec_report_t);
  EXPECT_SIZE_FIRST(fsccl_reduce_config_t);
  EXPECT_SIZE_FIRST(fsccl_redistribute_config_t);
  EXPECT_SIZE_FIRST(fsccl_counters_t);
  EXPECT_SIZE_FIRST(fsccl_explain_config_t);
  EXPECT_SIZE_FIRST(fsccl_layout_stats_t);
  EXPECT_SIZE_FIRST(fsccl_allocator_t);
  EXPECT_SIZE_FIRST(fsccl_allocator_stats_t);
  EXPECT(sizeof(fsccl_unique_id_t) == 256);
}

static void check_initializers(void) {
  const fsccl_comm_config_t comm = FSCCL_COMM_CONFIG_INIT;
  const fsccl_launch_info_t launch = FSCCL_LAUNCH_INFO_INIT;
  const fsccl_pool_config_t pool = FSCCL_POOL_CONFIG_INIT;
  const fsccl_unit_config_t unit = FSCCL_UNIT_CONFIG_INIT;
  const fsccl_reduce_config_t reduce = FSCCL_REDUCE_CONFIG_INIT;
  const fsccl_redistribute_config_t reshard = FSCCL_REDISTRIBUTE_CONFIG_INIT;
  const fsccl_param_t param = FSCCL_PARAM_INIT;
  const fsccl_allocator_t allocator = FSCCL_ALLOCATOR_INIT;
  const fsccl_pool_stats_t stats = FSCCL_POOL_STATS_INIT;
  const fsccl_counters_t counters = FSCCL_COUNTERS_INIT;
  EXPECT(comm.size == sizeof comm && comm.version == FSCCL_VERSION && comm.rank == -1 &&
         comm.name == NULL);
  EXPECT(launch.size == sizeof launch && launch.launcher == NULL && launch.rank == -1 &&
         launch.ranks == 0 && launch.master_port == 0);
  EXPECT(pool.size == sizeof pool && pool.record == 1 && pool.name == NULL && pool.dry_run == 0);
  EXPECT(unit.size == sizeof unit && unit.wire_dtype == FSCCL_BFLOAT16 &&
         unit.grad_dtype == FSCCL_FLOAT32 && unit.marks_changes == 0 && unit.gather_codec == NULL);
  EXPECT(unit.layout == FSCCL_LAYOUT_PER_PARAM && unit.keep == FSCCL_KEEP_NONE &&
         unit.sharing == FSCCL_SHARING_READ_ONLY);
  EXPECT(reduce.size == sizeof reduce && reduce.shard_ready_context == NULL);
  EXPECT(reshard.size == sizeof reshard && reshard.from.rank == FSCCL_NO_SHARD &&
         reshard.to.rank == -1 && reshard.limit_bytes == 0);
  EXPECT(param.tied_to == -1 && param.dtype == FSCCL_FLOAT32 && param.shard == NULL &&
         param.sharded_grad == NULL);
  EXPECT(param.block_rows == 0 && param.block_columns == 0 && FSCCL_ALL_RANKS == -1);
  EXPECT(allocator.size == sizeof allocator && allocator.abi == 1 &&
         allocator.memory == FSCCL_MEMORY_HOST && !allocator.destroy);
  EXPECT(stats.size == sizeof stats && stats.steps == 0 && counters.size == sizeof counters &&
         counters.sleeps == 0);
  EXPECT(FSCCL_SUM.kind == FSCCL_OP_SUM && FSCCL_PROD.kind == FSCCL_OP_PROD &&
         FSCCL_AVG.kind == FSCCL_OP_AVG);
  EXPECT(FSCCL_MIN.kind == FSCCL_OP_MIN && FSCCL_MAX.kind == FSCCL_OP_MAX);
  EXPECT(fsccl_premul_sum(0.5).scale == 0.5 && fsccl_premul_sum(0.5).kind == FSCCL_OP_PREMUL_SUM);
}

static void check_library(void) {
  int version = 0;
  size_t known = 0, dtype;
  EXPECT(fsccl_version(&version) == FSCCL_OK && version == FSCCL_VERSION);
  EXPECT(FSCCL_ALLOCATOR_ABI == 1 && fsccl_allocator_host(NULL) == FSCCL_ERR_INVALID_ARGUMENT);
  EXPECT(fsccl_launcher(NULL) == FSCCL_ERR_INVALID_ARGUMENT);
  for (dtype = 0; dtype < FSCCL_DTYPE_COUNT; ++dtype)
    known += fsccl_dtype_size((fsccl_dtype_t)dtype) > 0 ? 1u : 0u;
  EXPECT(known == FSCCL_DTYPE_COUNT);
  EXPECT(fsccl_dtype_size(FSCCL_DTYPE_COUNT) == 0);
  EXPECT(fsccl_status_string(FSCCL_ERR_MISMATCH) != NULL &&
         fsccl_status_string((fsccl_status_t)-99) != NULL);
}

int main(void) {
  check_numbers();
  check_structs();
  check_initializers();
  check_library();
  return failures == 0 ? 0 : 1;
}
