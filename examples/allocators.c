/*
 * Shows where memory went. The memory of a pool passes three adaptors: one logs each piece, one
 * counts, and one sets a limit of 8 MiB. A request within the limit succeeds; another one is
 * refused with a reason.
 */
#include <fsccl/allocator.h>
#include <stdio.h>
#include <string.h>

static int failed(const char* call) {
  fsccl_error_info_t error = FSCCL_ERROR_INFO_INIT;
  fsccl_last_error(&error);
  fprintf(stderr, "%s: %s\n", call, error.text);
  return 1;
}
#define CHECK(call) \
  if ((call) < 0) return failed(#call)

static int run(fsccl_comm_t comm, const char* log_path) {
  fsccl_allocator_t host, limited, counted, logged; /* each over the one before */
  fsccl_pool_config_t config = FSCCL_POOL_CONFIG_INIT;
  fsccl_allocator_stats_t stats = FSCCL_ALLOCATOR_STATS_INIT;
  fsccl_error_info_t error = FSCCL_ERROR_INFO_INIT;
  fsccl_pool_t pool;
  void *small, *large;
  CHECK(fsccl_allocator_host(&host));
  CHECK(fsccl_allocator_limit(&host, 8u << 20, &limited));
  CHECK(fsccl_allocator_count(&limited, &counted));
  CHECK(fsccl_allocator_log(&counted, log_path, &logged));
  config.source = &logged;
  CHECK(fsccl_pool_create(comm, &config, &pool));

  CHECK(fsccl_pool_alloc(pool, 5u << 20, NULL, &small));
  memset(small, 1, 5u << 20);
  if (fsccl_pool_alloc(pool, 4u << 20, NULL, &large) != FSCCL_ERR_OUT_OF_MEMORY) return 1;
  CHECK(fsccl_last_error(&error));
  printf("refused: %s\n", error.text);
  CHECK(fsccl_allocator_stats(&counted, &stats));
  printf("the pool holds %d MiB\n", (int)(stats.live_bytes >> 20));
  CHECK(fsccl_pool_free(pool, small, NULL));

  CHECK(fsccl_pool_destroy(pool));
  CHECK(fsccl_allocator_stats(&counted, &stats));
  printf("given back: %s\n", stats.live_bytes == 0 ? "all" : "not all");
  CHECK(logged.destroy(logged.context));
  CHECK(counted.destroy(counted.context));
  CHECK(limited.destroy(limited.context));
  CHECK(host.destroy(host.context));
  return 0;
}

int main(int argc, char** argv) {
  fsccl_unique_id_t id;
  fsccl_comm_config_t where = FSCCL_COMM_CONFIG_INIT;
  fsccl_comm_t comm;
  int status;
  if (argc != 2) return fprintf(stderr, "usage: allocators LOG\n"), 2;
  CHECK(fsccl_unique_id_create(&id));
  where.unique_id = &id;
  where.rank = 0;
  where.ranks = 1;
  CHECK(fsccl_comm_create(&where, &comm));
  status = run(comm, argv[1]);
  CHECK(fsccl_comm_destroy(comm));
  return status;
}
