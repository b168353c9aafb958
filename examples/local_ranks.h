/*
 * Starts the ranks of a job as local processes. The caller forks, and one pipe per child carries
 * the job's unique id. It forks before its first call of the library, because handles do not
 * survive a fork.
 */
#ifndef LOCAL_RANKS_H
#define LOCAL_RANKS_H

#include <fsccl/fsccl.h>

/* Returns once in each of `ranks` processes. The result is the process's rank (0 in the caller's
 * process), or -1 with a message on stderr. */
int local_ranks_start(int ranks, fsccl_unique_id_t* id);

/* Rank 0 waits for the other processes. Returns the exit status for main(): 0 only if every rank
 * succeeded. */
int local_ranks_finish(int rank, int ranks, int status);

#endif
