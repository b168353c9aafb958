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

/* From now on MPI_Init asks `who`, and the ranks meet through `all_gather` (see
 * fsccl_comm_config_t; its context is NULL). Without this call, and with who == NULL, both come
 * from the environment. Any thread, before MPI_Init. */
FSCCL_API void fsccl_mpi_meet(fsccl_mpi_who_fn who, fsccl_all_gather_fn all_gather);

/* Why MPI_Init has failed, "" when it has not (yet). XLA does not look at what MPI_Init returns.
 * Any thread. */
FSCCL_API const char* fsccl_mpi_init_error(void);

/* Gives the counters of all operations of this process so far, on freed communicators too. Any
 * thread. */
FSCCL_API fsccl_status_t fsccl_mpi_counters(fsccl_counters_t* counters);

#ifdef __cplusplus
}
#endif
#endif /* FSCCL_MPI_H */
