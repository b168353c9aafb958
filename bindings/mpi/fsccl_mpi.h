/*
 * libfsccl_mpi.so has the functions of MPI that XLA's CPU collectives call, under the names of
 * MPItrampoline's ABI, and carries them out over fsccl.h. jaxlib carries MPItrampoline and loads
 * the library that MPITRAMPOLINE_LIB names; nothing links the library. This header is for a program
 * whose ranks meet through a channel of its own, as those of fsccl_jax meet through JAX's
 * coordination service.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef FSCCL_MPI_H
#define FSCCL_MPI_H

#include <fsccl/fsccl.h>
#include <fsccl/insight.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Tells MPI_Init who this process is. Returns 0 after setting *rank and *ranks. Returns another
 * number after writing the reason of a failure to why[capacity]. If it sets *ranks to 0, both come
 * from the environment (fsccl_launcher). */
typedef int (*fsccl_mpi_who_fn)(int* rank, int* ranks, char* why, size_t capacity);

/* Carries `count` bytes from rank 0 to the others: rank 0 gives them, and the others receive them.
 * 0 on success. It is called in MPI_Init, once on every rank. Rank 0 calls it with NULL and 0 if it
 * has none to give, and the others should fail then. */
typedef int (*fsccl_mpi_share_fn)(void* bytes, size_t count);

/* From now on MPI_Init asks `who`, and `share` carries the unique id by which the ranks find each
 * other. Without this call, and with who == NULL, both come from the environment. MPI_Init returns
 * before the ranks are connected; the first operation waits for that. Any thread, before
 * MPI_Init. */
FSCCL_API void fsccl_mpi_meet(fsccl_mpi_who_fn who, fsccl_mpi_share_fn share);

/* Waits for what this process still runs. */
typedef void (*fsccl_mpi_finish_fn)(void);

/* From now on MPI_Finalize calls `finish`, once, before it leaves the other ranks. XLA calls
 * MPI_Finalize while its last programs may still run. Any thread, before MPI_Finalize. */
FSCCL_API void fsccl_mpi_at_end(fsccl_mpi_finish_fn finish);

/* Fills in the counters of all operations of this process so far, including those on freed
 * communicators. Any thread may call it. */
FSCCL_API fsccl_status_t fsccl_mpi_counters(fsccl_counters_t* counters);

#ifdef __cplusplus
}
#endif
#endif /* FSCCL_MPI_H */
