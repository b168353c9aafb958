// The table of communicators. The first one is made by joining the world, the others by splitting.
// SPDX-License-Identifier: Apache-2.0
#include "comms.h"

#include <array>
#include <chrono>
#include <cstdio>
#include <map>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "../communicators.h"
#include "errors.h"
#include "fsccl_mpi.h"
#include "symbols.h"

namespace fsccl_mpi {
namespace {
std::mutex lock;
std::map<uintptr_t, std::shared_ptr<Comm>> comms;
uintptr_t next = 16;  // larger than the handles that MPI defines
bool begun = false, ended = false;
fsccl_mpi_who_fn who = nullptr;
fsccl_mpi_share_fn share = nullptr;
fsccl_mpi_finish_fn finish = nullptr;
fsccl_counters_t gone = FSCCL_COUNTERS_INIT;  // counters of communicators that were freed

void say(const std::string& text) {
  std::fprintf(stderr, "libfsccl_mpi: %s\n", text.c_str());
  std::fflush(stderr);
}

// Returns true once no other thread writes `comm.comm`.
bool is_made(const Comm& comm) {
  return !comm.connected.valid() ||
         comm.connected.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

void add(fsccl_counters_t& sum, const Comm& comm) {
  if (is_made(comm) && comm.comm != nullptr) fsccl_bindings::add_counters(comm.comm, sum);
}

// Rank 0 makes the unique id of the world, and the others receive it, or learn that there is none.
// Returns "", or the reason why there is none.
std::string share_id(int rank, fsccl_unique_id_t& id) {
  if (rank == 0) {
    const fsccl_status_t status = fsccl_unique_id_create(&id);
    if (status != FSCCL_OK) {
      const std::string reason = last_error(status);
      share(nullptr, 0);
      return reason;
    }
  }
  if (share(&id, sizeof id) == 0) return "";
  return "the program that started the ranks could not carry the id by which they find each other";
}

// Fills in the rank and the size of `world`, and `config`. Returns "", or the reason why they are
// not known.
std::string where(Comm& world, fsccl_comm_config_t& config, fsccl_unique_id_t& id) {
  std::array<char, 768> why{};
  int rank = -1, ranks = 0;
  if (who != nullptr && who(&rank, &ranks, why.data(), why.size() - 1) != 0) return why.data();
  config.name = "mpi";
  if (ranks > 0) {
    const std::string reason = share_id(rank, id);
    if (!reason.empty()) return reason;
    config.unique_id = &id;
    world.rank = config.rank = rank;
    world.size = config.ranks = ranks;
    return "";
  }
  fsccl_launch_info_t launch = FSCCL_LAUNCH_INFO_INIT;
  const fsccl_status_t status = fsccl_launcher(&launch);
  if (status != FSCCL_OK) return last_error(status);
  if (launch.launcher == nullptr) {
    return "no launcher has started this process, so its rank is not known: set RANK, WORLD_SIZE "
           "and MASTER_PORT for each process, or start them with mpirun or srun, or call "
           "fsccl_jax.use(), which asks JAX";
  }
  world.rank = launch.rank;
  world.size = launch.ranks;
  return "";
}

// Starts the thread that connects the world. It is not joined, because a process that ends does not
// wait for ranks that it has never needed. Returns "", or the reason why there is no thread.
std::string connect(const std::shared_ptr<Comm>& world, fsccl_comm_config_t config,
                    const fsccl_unique_id_t& id) {
  std::promise<std::string> made;
  world->connected = made.get_future().share();
  try {
    std::thread([world, config, id, made = std::move(made)]() mutable {
      if (config.unique_id != nullptr) config.unique_id = &id;
      const fsccl_status_t status = fsccl_comm_create(&config, &world->comm);
      made.set_value(status == FSCCL_OK ? "" : last_error(status));
    }).detach();
  } catch (const std::system_error& error) {
    world->connected = {};
    return std::string("no thread can be started that connects the ranks: ") + error.what();
  }
  return "";
}

// Returns an error unless each rank's key is its place. All ranks get all keys, so both ranks of a
// pair learn of a difference.
std::string check_keys(Comm& comm, int key) {
  std::vector<int> keys(static_cast<size_t>(comm.size));
  const fsccl_status_t status =
      fsccl_all_gather(&key, keys.data(), 1, FSCCL_INT32, comm.comm, nullptr, nullptr);
  if (status != FSCCL_OK) return last_error(status);
  for (int rank = 0; rank < comm.size; ++rank) {
    const int theirs = keys[static_cast<size_t>(rank)];
    if (theirs != rank) {
      return "rank " + std::to_string(rank) + " of a communicator of " + std::to_string(comm.size) +
             " was made for place " + std::to_string(theirs) +
             ". XLA made communicators in another order on the ranks, or has several devices in a "
             "process, which its MPI door "
             "does not support: one device a process (no --xla_force_host_platform_device_count, "
             "no jax_num_cpu_devices above 1)";
    }
  }
  return "";
}

uintptr_t keep(std::shared_ptr<Comm> comm) {
  const std::lock_guard guard(lock);
  comms[next] = std::move(comm);
  return next++;
}

void fail(Comm& comm, const std::string& reason) {
  comm.failed = reason;
  comm.told = true;
  say(reason);
}
}  // namespace

int begin() {
  auto world = std::make_shared<Comm>();
  {
    const std::lock_guard guard(lock);
    if (begun) return refuse("MPI_Init was called before in this process: call it once");
    begun = true;
  }
  fsccl_comm_config_t config = FSCCL_COMM_CONFIG_INIT;
  fsccl_unique_id_t id{};
  std::string reason = where(*world, config, id);
  if (reason.empty()) reason = connect(world, config, id);
  if (!reason.empty()) {
    world->rank = -1;
    fail(*world, "MPI_Init: " + reason);
  }
  const std::lock_guard guard(lock);
  comms[kCOMM_WORLD] = world;
  return reason.empty() ? kSUCCESS : refuse(world->failed);
}

void await(Comm& comm) {
  if (!comm.connected.valid()) return;
  std::call_once(comm.is_awaited, [&] {
    const std::string& reason = comm.connected.get();
    if (!reason.empty()) fail(comm, "MPI_Init: " + reason);
  });
}

bool has_begun() {
  const std::lock_guard guard(lock);
  return begun;
}

bool has_ended() {
  const std::lock_guard guard(lock);
  return ended;
}

void end() {
  fsccl_mpi_finish_fn last = nullptr;
  {
    const std::lock_guard guard(lock);
    last = std::exchange(finish, nullptr);
  }
  if (last != nullptr) last();
  std::map<uintptr_t, std::shared_ptr<Comm>> all;
  {
    const std::lock_guard guard(lock);
    ended = true;
    for (const auto& [handle, comm] : comms) add(gone, *comm);
    all.swap(comms);
  }
  const std::shared_ptr<Comm> world = std::exchange(all[kCOMM_WORLD], nullptr);
  for (auto& [handle, comm] : all) {  // the world comes last, because others are made of it
    if (comm != nullptr && comm->comm != nullptr) fsccl_bindings::leave(comm->comm);
  }
  if (world != nullptr && is_made(*world) && world->comm != nullptr)
    fsccl_bindings::leave(world->comm);
}

std::shared_ptr<Comm> find(uintptr_t handle, const char* function, int* error) {
  const std::lock_guard guard(lock);
  const auto found = comms.find(handle);
  if (found != comms.end()) return found->second;
  const char* state = ended   ? "after MPI_Finalize"
                      : begun ? "with a communicator that is freed, or was never made"
                              : "before MPI_Init";
  *error = refuse(std::string(function) + " was called " + state);
  return nullptr;
}

int split(const std::shared_ptr<Comm>& parent, int color, int key, uintptr_t* result) {
  if (color == kUNDEFINED) color = FSCCL_COLOR_NONE;
  auto comm = std::make_shared<Comm>();
  await(*parent);
  if (!parent->failed.empty()) {
    comm->failed = parent->failed;
  } else {
    const std::lock_guard guard(parent->issue);
    const fsccl_status_t status = fsccl_comm_split(parent->comm, color, key, nullptr, &comm->comm);
    if (status != FSCCL_OK) fail(*comm, "MPI_Comm_split: " + last_error(status));
  }
  if (comm->failed.empty() && comm->comm == nullptr) {
    *result = kCOMM_NULL;
    return kSUCCESS;
  }
  if (comm->failed.empty()) {
    fsccl_comm_rank(comm->comm, &comm->rank);
    fsccl_comm_size(comm->comm, &comm->size);
    const std::string reason = check_keys(*comm, key);
    if (!reason.empty()) {
      fail(*comm, "MPI_Comm_split: " + reason);
      fsccl_comm_destroy(comm->comm);
      comm->comm = nullptr;
    }
  }
  const int code = comm->failed.empty() ? kSUCCESS : refuse(comm->failed);
  *result = keep(std::move(comm));
  return code;
}

int release(uintptr_t handle) {
  std::shared_ptr<Comm> comm;
  {
    const std::lock_guard guard(lock);
    const auto found = comms.find(handle);
    if (found == comms.end()) {
      return ended ? kSUCCESS
                   : refuse(
                         "MPI_Comm_free was called with a communicator that is freed, or was never "
                         "made");
    }
    comm = found->second;
    comms.erase(found);
    add(gone, *comm);
  }
  if (comm->comm == nullptr) return kSUCCESS;
  const fsccl_status_t status = fsccl_comm_destroy(comm->comm);
  return status == FSCCL_OK ? kSUCCESS : refuse("MPI_Comm_free: " + last_error(status));
}

int failure(Comm& comm, const char* function, fsccl_status_t status) {
  const std::string text = std::string(function) + ": " + last_error(status);
  if (!comm.told) {
    comm.told = true;
    say(text);
  }
  // The peer of a message may wait for what has failed here.
  if (!comm.messages.empty()) fsccl_comm_abort(comm.comm);
  for (const fsccl_work_t message : std::exchange(comm.messages, {})) fsccl_work_wait(message, -1);
  return refuse(text);
}

}  // namespace fsccl_mpi

extern "C" {
void fsccl_mpi_meet(fsccl_mpi_who_fn ask, fsccl_mpi_share_fn carry) {
  const std::lock_guard guard(fsccl_mpi::lock);
  fsccl_mpi::who = ask;
  fsccl_mpi::share = carry;
}

void fsccl_mpi_at_end(fsccl_mpi_finish_fn last) {
  const std::lock_guard guard(fsccl_mpi::lock);
  fsccl_mpi::finish = last;
}

fsccl_status_t fsccl_mpi_counters(fsccl_counters_t* counters) {
  if (counters == nullptr || counters->size != sizeof(fsccl_counters_t))
    return FSCCL_ERR_INVALID_ARGUMENT;
  const std::lock_guard guard(fsccl_mpi::lock);
  fsccl_counters_t sum = fsccl_mpi::gone;
  for (auto& entry : fsccl_mpi::comms) fsccl_mpi::add(sum, *entry.second);
  *counters = sum;
  return FSCCL_OK;
}
}
