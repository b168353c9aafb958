/* The id is a secret (it admits its holder to the job), so it travels through a private pipe, never
 * on a command line. */
#define _POSIX_C_SOURCE 200809L
#include "local_ranks.h"

#include <signal.h>
#include <stdio.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

enum { kMaxRanks = 256 };

/* Reads, in a child, the id that rank 0 writes. A short read means that rank 0 has ended. */
static int receive_id(int fd, int rank, fsccl_unique_id_t* id) {
  const ssize_t got = read(fd, id, sizeof *id);
  close(fd);
  if (got == (ssize_t)sizeof *id) return rank;
  fprintf(stderr, "rank %d: rank 0 ended before the job began\n", rank);
  return -1;
}

int local_ranks_start(int ranks, fsccl_unique_id_t* id) {
  int to_child[kMaxRanks];
  int rank;
  fsccl_error_info_t error = FSCCL_ERROR_INFO_INIT;
  if (ranks < 1 || ranks > kMaxRanks) {
    fprintf(stderr, "%d ranks asked for: 1 to %d are possible\n", ranks, kMaxRanks);
    return -1;
  }
  /* With SIGPIPE ignored, a child that dies early makes write() fail and does not end this process.
   */
  signal(SIGPIPE, SIG_IGN);
  for (rank = 1; rank < ranks; ++rank) {
    int ends[2];
    pid_t child;
    if (pipe(ends) != 0 || (child = fork()) < 0) {
      perror("starting a rank");
      return -1; /* the children started so far find the end of their pipe, and end, too */
    }
    if (child == 0) {
      int other;
      for (other = 1; other < rank; ++other) close(to_child[other]);
      close(ends[1]);
      return receive_id(ends[0], rank, id);
    }
    close(ends[0]);
    to_child[rank] = ends[1];
  }
  if (fsccl_unique_id_create(id) < 0) {
    fsccl_last_error(&error);
    fprintf(stderr, "fsccl_unique_id_create: %s\n", error.text);
    return -1;
  }
  for (rank = 1; rank < ranks; ++rank) {
    const ssize_t written = write(to_child[rank], id, sizeof *id);
    close(to_child[rank]);
    if (written == (ssize_t)sizeof *id) continue;
    fprintf(stderr, "rank %d ended before the job began\n", rank);
    return -1;
  }
  return 0;
}

int local_ranks_finish(int rank, int ranks, int status) {
  int left;
  if (rank != 0) return status;
  for (left = ranks - 1; left > 0; --left) {
    int child_status = 0;
    if (wait(&child_status) < 0 || !WIFEXITED(child_status) || WEXITSTATUS(child_status) != 0)
      status = 1;
  }
  return status;
}
