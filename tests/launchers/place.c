/*
 * One rank of a launcher's job. It prints the result of fsccl_launcher(). Unless --look is given,
 * it also makes two communicators from the environment, one after the other, and prints the results
 * of an all-gather of the ranks' numbers on each. It prints one line:
 *
 *   launcher rank ranks local_rank local_ranks one_host master_address master_port [numbers ...]
 */
#include <fsccl/fsccl.h>
#include <fsccl/insight.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { kMaxRanks = 64, kRounds = 2 };

static int failed(const char* call) {
  fsccl_error_info_t error = FSCCL_ERROR_INFO_INIT;
  fsccl_last_error(&error);
  fprintf(stderr, "%s: %s\n", call, error.text);
  return 1;
}
#define CHECK(call) \
  if ((call) < 0) return failed(#call)

int main(int argc, char** argv) {
  fsccl_launch_info_t info = FSCCL_LAUNCH_INFO_INIT;
  int32_t all[kRounds * kMaxRanks];
  char line[1024];
  int used, i, count = 0;
  CHECK(fsccl_launcher(&info));
  if (info.launcher == NULL) return printf("no launcher\n"), 0;
  if (info.ranks > kMaxRanks)
    return fprintf(stderr, "%d ranks: %d are possible\n", info.ranks, (int)kMaxRanks), 1;
  /* The values may change with the next call, so they are written down first. */
  used = snprintf(line, sizeof line, "%s %d %d %d %d %d %s %d",
                  strcmp(info.launcher, "Open MPI") == 0 ? "OpenMPI" : info.launcher, info.rank,
                  info.ranks, info.local_rank, info.local_ranks, info.one_host,
                  info.master_address ? info.master_address : "-", info.master_port);
  if (argc == 1) {
    int round;
    for (round = 0; round < kRounds; ++round) {
      fsccl_comm_t comm;
      const int32_t mine = info.rank;
      CHECK(fsccl_comm_create(NULL, &comm));
      CHECK(fsccl_all_gather(&mine, all + count, 1, FSCCL_INT32, comm, NULL, NULL));
      CHECK(fsccl_comm_destroy(comm));
      count += info.ranks;
    }
  }
  for (i = 0; i < count; ++i)
    used += snprintf(line + used, sizeof line - (size_t)used, " %d", (int)all[i]);
  puts(line); /* at once, so that the lines of several ranks do not mix */
  return argc == 1 || strcmp(argv[1], "--look") == 0 ? 0 : 2;
}
