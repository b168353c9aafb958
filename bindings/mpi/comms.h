// Communicators by MPI's handles. XLA does not look at what MPI_Init_thread, MPI_Comm_split and
// MPI_Comm_rank return, so a communicator that could not be made has a handle all the same, and
// every operation on it returns the reason. MPI_Init does not wait for the other ranks: a thread of
// libfsccl connects the world while XLA compiles, and the first operation waits for it.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <fsccl/fsccl.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

namespace fsccl_mpi {

struct Comm {
  fsccl_comm_t comm = nullptr;
  int rank = -1;  // MPI_Init knows the world's at once, unless it fails
  int size = 0;
  std::string failed;         // why there is no `comm`; after await() where one was begun
  std::mutex issue;           // one thread at a time may issue operations
  bool told = false;          // its first error is on stderr; written under `issue`
  std::once_flag is_awaited;  // for await()
};

// Begins to join the world; 0 or the number of an error, which is also what fsccl_mpi_init_error()
// then tells.
int begin();
// Waits until `comm` is connected, or cannot be; then `failed` says why. Any thread.
void await(Comm& comm);
bool has_begun();
bool has_ended();
// Destroys all communicators. A world that is still being connected ends with the process.
void end();

// nullptr, and an error's number in *error, where `handle` is none.
std::shared_ptr<Comm> find(uintptr_t handle, const char* function, int* error);
// Collective over `parent`.
int split(const std::shared_ptr<Comm>& parent, int color, int key, uintptr_t* result);
int release(uintptr_t handle);

// An error of an operation on `comm`: its number. The first of each communicator goes to stderr,
// too: JAX may end the process before Python shows the exception.
int failure(Comm& comm, const char* function, fsccl_status_t status);

}  // namespace fsccl_mpi
