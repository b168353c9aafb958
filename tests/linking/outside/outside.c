/* A program as a user writes it, in C99, with the installed header, and one rank. It prints whether
 * the library's version is the header's, and a sum that the library has computed. */
#include <fsccl/fsccl.h>
#include <stdio.h>

static int failed(fsccl_status_t status, const char* what) {
  fsccl_error_info_t info = FSCCL_ERROR_INFO_INIT;
  if (status == FSCCL_OK) return 0;
  fsccl_last_error(&info);
  fprintf(stderr, "%s: %s: %s\n", what, fsccl_status_string(status), info.text);
  return 1;
}

int main(void) {
  fsccl_comm_config_t config = FSCCL_COMM_CONFIG_INIT;
  fsccl_unique_id_t id;
  fsccl_comm_t comm;
  float mine = 41.0f, sum = 0.0f;
  int version = 0;
  config.unique_id = &id;
  config.rank = 0;
  config.ranks = 1;
  if (failed(fsccl_version(&version), "fsccl_version")) return 1;
  if (failed(fsccl_unique_id_create(&id), "fsccl_unique_id_create")) return 1;
  if (failed(fsccl_comm_create(&config, &comm), "fsccl_comm_create")) return 1;
  if (failed(fsccl_all_reduce(&mine, &sum, 1, FSCCL_FLOAT32, FSCCL_SUM, comm, NULL, NULL),
             "fsccl_all_reduce"))
    return 1;
  if (failed(fsccl_comm_destroy(comm), "fsccl_comm_destroy")) return 1;
  printf("fsccl %d: %.0f\n", version == FSCCL_VERSION, sum);
  return 0;
}
