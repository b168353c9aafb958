// Communicators by their handles in MPI. XLA ignores what MPI_Init_thread, MPI_Comm_split and
// MPI_Comm_rank return. Therefore a communicator that could not be made has a handle, too, and
// every operation on it returns the reason. MPI_Init does not wait for the other ranks: a thread of
// its own connects the world while XLA compiles, and the first operation waits for it.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <fsccl/fsccl.h>

#include <cstdint>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace fsccl_mpi {

struct Comm {
  fsccl_comm_t comm = nullptr;
  int rank = -1;  // known from MPI_Init on, unless MPI_Init has failed
  int size = 0;
  std::string failed;  // why there is no communicator, or ""; read it after await()
  std::mutex issue;    // held while an operation is issued, because one thread at a time may
  bool told = false;   // its first error was written to stderr; written under `issue`
  std::vector<fsccl_work_t> messages;  // MPI_Wait was not called for them; changed under `issue`
  // Only the world has this. It says why the ranks could not be connected, or "", once the thread
  // that connects them, and writes `comm`, has ended.
  std::shared_future<std::string> connected;
  std::once_flag is_awaited;  // await() tells a failure once
};

// Begins to join the world. Returns 0 or the number of an error.
int begin();
// Waits until `comm` is connected, or cannot be; then `failed` says why. Any thread.
void await(Comm& comm);
bool has_begun();
bool has_ended();
// Destroys all communicators. A world that is still being connected ends with the process.
void end();

// Returns the communicator, or nullptr with the number of an error in *error if there is none.
std::shared_ptr<Comm> find(uintptr_t handle, const char* function, int* error);
// Collective over `parent`.
int split(const std::shared_ptr<Comm>& parent, int color, int key, uintptr_t* result);
int release(uintptr_t handle);

// Returns the number of an error for a failed operation on `comm`, whose `issue` the caller holds.
// It writes the first error of each communicator to stderr, because JAX may end the process before
// Python shows the exception. It then waits for the messages in flight, because XLA frees
// their memory after the first error without waiting for the others.
int failure(Comm& comm, const char* function, fsccl_status_t status);

}  // namespace fsccl_mpi
