/*
 * libfsccl_mpi.so: the functions of MPI that XLA's CPU collectives call, over fsccl.h, under the
 * names of MPItrampoline's ABI. jaxlib carries MPItrampoline and loads the library that
 * MPITRAMPOLINE_LIB names; nothing links it. This header is for a program that lets the ranks meet
 * through a channel of its own, as fsccl_jax does through JAX's coordination service.
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

/* Says who this process is when MPI is initialised: 0, and rank and ranks; or anything else, and
 * why not in why[capacity]. *ranks == 0 means: as the environment says (fsccl_launcher). */
typedef int (*fsccl_mpi_who_fn)(int* rank, int* ranks, char* why, size_t capacity);

/* Carries `count` bytes from rank 0 to the others: rank 0 gives them, and the others receive them.
 * 0 on success. It is called in MPI_Init, once on every rank. */
typedef int (*fsccl_mpi_share_fn)(void* bytes, size_t count);

/* From now on MPI_Init asks `who`, and `share` carries the unique id by which the ranks find each
 * other. Without this call, and with who == NULL, both come from the environment. MPI_Init returns
 * before the ranks are connected; the first operation waits for that. Any thread, before
 * MPI_Init. */
FSCCL_API void fsccl_mpi_meet(fsccl_mpi_who_fn who, fsccl_mpi_share_fn share);

/* Why MPI_Init has failed, "" when it has not (yet); a failure to connect is known once an
 * operation has waited for it. XLA does not look at what MPI_Init returns. Any thread. */
FSCCL_API const char* fsccl_mpi_init_error(void);

/* Gives the counters of all operations of this process so far, on freed communicators too. Any
 * thread. */
FSCCL_API fsccl_status_t fsccl_mpi_counters(fsccl_counters_t* counters);

#ifdef __cplusplus
}
#endif
#endif /* FSCCL_MPI_H */
