// fsccl_comm_*: making, dividing and ending communicators.
#include <vector>

#include "api/objects.h"
#include "base/config.h"
#include "base/function_ref.h"
#include "base/short_text.h"
#include "base/undo.h"
#include "comm/together.h"
#include "fsccl/insight.h"

using namespace fsccl;

namespace {

Status check_version(int version) {
  const int major = version / 10000, minor = version / 100 % 100;
  if (major == FSCCL_VERSION_MAJOR && minor <= FSCCL_VERSION_MINOR) return success();
  return fail(FSCCL_ERR_VERSION,
              "the program was built with the header of version {} and runs with the library of "
              "version {}: rebuild it, or install "
              "the library it was built for",
              version, FSCCL_VERSION);
}

struct Request {
  JoinRequest join;
  fsccl_unique_id_t id{};  // a copy: a nonblocking creation outlives the caller's
  CommunicatorOptions options;
};

Status check_ranks(const fsccl_comm_config_t& config) {
  if (config.ranks < 1)
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "ranks is {}: a communicator has at least one",
                config.ranks);
  if (config.rank < 0 || config.rank >= config.ranks)
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "rank {} is not one of 0 .. {}", config.rank,
                config.ranks - 1);
  return success();
}

Status read_request(const fsccl_comm_config_t* given, fsccl_comm_config_t* config,
                    Request* request) {
  FSCCL_TRY(read_config(given, fsccl_comm_config_t FSCCL_COMM_CONFIG_INIT, config));
  FSCCL_TRY(check_version(config->version));
  if (config->timeout_ms < 0)
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "timeout_ms is {}: it is at least 1, or 0 for FSCCL_TIMEOUT_MS",
                config->timeout_ms);
  if (config->unique_id && config->all_gather)
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "unique_id and all_gather are both set: choose one way for the ranks to meet");
  if (config->unique_id || config->all_gather) {
    FSCCL_TRY(check_ranks(*config));
    request->join.rank = config->rank;
    request->join.ranks = config->ranks;
  }
  if (config->unique_id) request->id = *config->unique_id;
  request->join.all_gather = config->all_gather;
  request->join.all_gather_context = config->all_gather_context;
  request->options.timeout_ms = config->timeout_ms;
  if (config->name) request->options.name = config->name;
  return success();
}

Status make(CommObject& object, Request& request, bool with_id, fsccl_comm_t handle) {
  if (with_id) request.join.unique_id = &request.id;
  request.join.deadline = Deadline::in_ms(request.options.timeout_ms ? request.options.timeout_ms
                                                                     : config()->timeout_ms);
  FSCCL_ASSIGN(object.comm, Communicator::create(request.join, request.options));
  object.comm->engine().set_key(bits_of(handle));
  // This store pairs with the loads of `ready` in live_comm() and comm_of().
  object.ready.store(object.comm.get(), std::memory_order_release);
  return success();
}

fsccl_comm_t as_handle(uint64_t bits) { return reinterpret_cast<fsccl_comm_t>(bits); }

// Runs in a thread of its own.
void make_later(CommObject& object, Request& request, bool with_id, uint64_t bits) noexcept {
  object.error.code = FSCCL_ERR_OUT_OF_MEMORY;  // unless something else is told
  object.error.text = short_text("out of memory");
  try {
    const Status status = make(object, request, with_id, as_handle(bits));
    if (status.ok()) return;
    object.error = status.error();
  } catch (const std::bad_alloc&) {
  }
  // This store pairs with the loads of `failed` in comm_of() and fsccl_comm_async_error(): a thread
  // that sees it set also sees the error.
  object.failed.store(true, std::memory_order_release);
}

// Reads the options of a communicator that is made from another one.
Result<CommunicatorOptions> read_child_options(const fsccl_comm_config_t* given,
                                               const Communicator& parent) {
  fsccl_comm_config_t config;
  Request request;
  FSCCL_TRY(read_request(given, &config, &request));
  if (config.nonblocking)
    return fail(FSCCL_ERR_NOT_AVAILABLE,
                "a communicator cannot be made from another nonblocking in this release: set "
                "nonblocking to 0");
  if (!request.options.timeout_ms) request.options.timeout_ms = parent.timeout_ms();
  return std::move(request.options);
}

// The list of fsccl_comm_subset.
Result<std::vector<int>> read_members(const int* ranks, size_t count, const Communicator& parent) {
  if (count < 1 || count > static_cast<size_t>(parent.size()))
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "count is {}: a part of {} ranks has from 1 to {}",
                count, parent.size(), parent.size());
  std::vector<bool> seen(static_cast<size_t>(parent.size()));
  for (size_t i = 0; i < count; i++) {
    if (ranks[i] < 0 || ranks[i] >= parent.size())
      return fail(FSCCL_ERR_INVALID_ARGUMENT, "ranks[{}] is {}, which is outside 0 .. {}", i,
                  ranks[i], parent.size() - 1);
    if (seen[static_cast<size_t>(ranks[i])])
      return fail(FSCCL_ERR_INVALID_ARGUMENT, "ranks[{}] is {}, which is in the list before", i,
                  ranks[i]);
    seen[static_cast<size_t>(ranks[i])] = true;
  }
  if (!seen[static_cast<size_t>(parent.rank())])
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "this rank, {}, is not in ranks: only its members call",
                parent.rank());
  return std::vector<int>(ranks, ranks + count);
}

// Has make() make a communicator from `parent`, and gives the caller a handle of it.
Status make_child(Communicator& parent, fsccl_comm_t* result,
                  FunctionRef<Result<std::unique_ptr<Communicator>>()> make) {
  // The handle comes first: if there is no memory for it, the other ranks have no communicator yet
  // either.
  auto made = std::make_unique<CommObject>();
  CommObject& object = *made;
  FSCCL_ASSIGN(const uint64_t bits, comms.add(std::move(made)));
  Undo undo([&] { comms.take(bits); });
  Together with_parent(parent);
  FSCCL_ASSIGN(object.comm, make());
  *result = nullptr;
  Communicator* const comm = object.comm.get();
  if (!comm) return success();
  comm->engine().set_key(bits);
  // This store pairs with the loads of `ready` in live_comm() and comm_of().
  object.ready.store(comm, std::memory_order_release);
  undo.keep();
  *result = as_handle(bits);
  return success();
}

// Returns whether a communicator that nobody uses may be destroyed.
Status may_end(const CommObject& object) {
  Communicator* const comm = object.ready.load();
  if (!comm) return success();
  if (const int dependents = comm->dependents)
    return fail(FSCCL_ERR_INVALID_STATE,
                "communicator '{}' still has {} pool(s) and unit(s): destroy them first",
                comm->name(), dependents);
  if (const uint64_t unfinished = comm->unfinished())
    return fail(FSCCL_ERR_INVALID_STATE,
                "communicator '{}' has {} operation(s) in flight: wait for them, or abort it",
                comm->name(), unfinished);
  return success();
}

// Returns the same for the messages of a communicator. No other thread uses it, because a thread
// that sends its first message to a peer adds to `pairs`.
Status messages_over(const CommObject& object) {
  for (const auto& [ranks, pair] : object.pairs) {
    const CommObject* const open = comms.owned(bits_of(pair));
    if (!open) continue;
    Engine& engine = open->comm->engine();
    engine.look_for_failure();  // a pair learns of the failure around it when somebody looks
    if (engine.unattended())
      return fail(FSCCL_ERR_INVALID_STATE,
                  "'{}' has messages in flight: wait for them, or abort the communicator",
                  open->comm->name());
  }
  return success();
}

}  // namespace

extern "C" {

fsccl_status_t fsccl_unique_id_create(fsccl_unique_id_t* id) {
  return guarded("fsccl_unique_id_create", [&]() -> Status {
    if (forked()) return forked_status();
    if (!id) return fail(FSCCL_ERR_INVALID_ARGUMENT, "id is NULL");
    FSCCL_TRY(config_status());
    watch_forks();
    return create_unique_id(id);
  });
}

fsccl_status_t fsccl_comm_create(const fsccl_comm_config_t* given, fsccl_comm_t* comm) {
  return guarded("fsccl_comm_create", [&]() -> Result<fsccl_status_t> {
    if (forked()) return forked_status();
    if (!comm) return fail(FSCCL_ERR_INVALID_ARGUMENT, "comm is NULL");
    fsccl_comm_config_t config;
    Request request;
    FSCCL_TRY(read_request(given, &config, &request));
    watch_forks();
    auto made = std::make_unique<CommObject>();
    CommObject* object = made.get();
    FSCCL_ASSIGN(const uint64_t bits, comms.add(std::move(made)));
    const bool with_id = config.unique_id != nullptr;
    Undo undo([&] { comms.take(bits); });
    if (config.nonblocking)
      FSCCL_TRY(object->creator.start([object, request, with_id, bits]() mutable {
        make_later(*object, request, with_id, bits);
      }));
    else
      FSCCL_TRY(make(*object, request, with_id, as_handle(bits)));
    undo.keep();
    *comm = as_handle(bits);
    return config.nonblocking ? FSCCL_IN_PROGRESS : FSCCL_OK;
  });
}

fsccl_status_t fsccl_comm_split(fsccl_comm_t handle, int color, int key,
                                const fsccl_comm_config_t* given, fsccl_comm_t* result) {
  return guarded("fsccl_comm_split", [&]() -> Status {
    if (!result) return fail(FSCCL_ERR_INVALID_ARGUMENT, "result is NULL");
    FSCCL_ASSIGN(const Ref<Communicator> parent, comm_of(handle));
    if (color < 0 && color != FSCCL_COLOR_NONE)
      return fail(FSCCL_ERR_INVALID_ARGUMENT, "color {} is not at least 0, nor FSCCL_COLOR_NONE",
                  color);
    FSCCL_ASSIGN(const CommunicatorOptions options, read_child_options(given, *parent));
    return make_child(*parent, result, [&] { return parent->split(color, key, options); });
  });
}

fsccl_status_t fsccl_comm_subset(fsccl_comm_t handle, const int* ranks, size_t count, uint64_t tag,
                                 const fsccl_comm_config_t* given, fsccl_comm_t* result) {
  return guarded("fsccl_comm_subset", [&]() -> Status {
    if (!result) return fail(FSCCL_ERR_INVALID_ARGUMENT, "result is NULL");
    if (!ranks) return fail(FSCCL_ERR_INVALID_ARGUMENT, "ranks is NULL");
    FSCCL_ASSIGN(const Ref<Communicator> parent, comm_of(handle));
    FSCCL_ASSIGN(const std::vector<int> members, read_members(ranks, count, *parent));
    FSCCL_ASSIGN(const CommunicatorOptions options, read_child_options(given, *parent));
    return make_child(*parent, result, [&] { return parent->subset(members, tag, options); });
  });
}

fsccl_status_t fsccl_comm_shrink(fsccl_comm_t handle, const fsccl_comm_config_t* given,
                                 fsccl_comm_t* result) {
  return guarded("fsccl_comm_shrink", [&]() -> Status {
    if (!result) return fail(FSCCL_ERR_INVALID_ARGUMENT, "result is NULL");
    FSCCL_ASSIGN(const Ref<Communicator> parent, comm_of(handle));
    FSCCL_ASSIGN(const CommunicatorOptions options, read_child_options(given, *parent));
    return make_child(*parent, result, [&] { return parent->shrink(options); });
  });
}

fsccl_status_t fsccl_comm_peer_state(fsccl_comm_t handle, int rank, fsccl_peer_state_t* state) {
  return guarded("fsccl_comm_peer_state", [&]() -> Status {
    if (!state) return fail(FSCCL_ERR_INVALID_ARGUMENT, "state is NULL");
    FSCCL_ASSIGN(const Ref<Communicator> comm, comm_of(handle));
    if (rank < 0 || rank >= comm->size())
      return fail(FSCCL_ERR_INVALID_ARGUMENT, "rank {} is outside 0 .. {}", rank, comm->size() - 1);
    *state = comm->peer_state(rank);
    return success();
  });
}

fsccl_status_t fsccl_comm_abort(fsccl_comm_t handle) {
  return guarded("fsccl_comm_abort", [&]() -> Status {
    FSCCL_ASSIGN(const Ref<Communicator> comm, comm_of(handle));
    Error error;
    error.code = FSCCL_ERR_ABORTED;
    error.rank = error.peer = comm->rank();
    try {
      error.text =
          fmt::format("communicator '{}' was aborted by rank {}", comm->name(), comm->rank());
    } catch (const std::bad_alloc&) {
      error.text = short_text("aborted");
    }
    comm->engine().fail_all(error);
    return success();
  });
}

fsccl_status_t fsccl_comm_destroy(fsccl_comm_t handle) {
  return guarded("fsccl_comm_destroy", [&]() -> Status {
    Deadline deadline = Deadline::in_ms(config()->timeout_ms);
    {
      FSCCL_ASSIGN(const Ref<CommObject> object, object_of(comms, handle));
      if (Notifications::calling())
        return fail(
            FSCCL_ERR_INVALID_STATE,
            "called from a function that was given to fsccl_work_callback: destroy it elsewhere");
      const std::lock_guard lock(object->creator_mutex);
      if (object->creator.joinable()) object->creator.join();
      FSCCL_TRY(may_end(*object));
      if (const Communicator* comm = object->ready.load()) deadline = comm->deadline();
    }
    std::vector<std::unique_ptr<CommObject>> pairs;
    Result<std::unique_ptr<CommObject>> ended =
        comms.end(bits_of(handle), deadline, [&](CommObject& object) -> Status {
          FSCCL_TRY(may_end(object));
          FSCCL_TRY(messages_over(object));
          pairs.reserve(object.pairs.size());
          for (const auto& [ranks, pair] : object.pairs)
            if (std::unique_ptr<CommObject> taken = comms.take(bits_of(pair)))
              pairs.push_back(std::move(taken));
          return success();
        });
    if (!ended.ok()) return ended.take_status();
    pairs.clear();  // before the communicator that they were made in
    ended.take().reset();
    return success();
  });
}

fsccl_status_t fsccl_comm_set_site(fsccl_comm_t handle, uint64_t site) {
  return guarded("fsccl_comm_set_site", [&]() -> Status {
    FSCCL_ASSIGN(const Ref<Communicator> comm, comm_of(handle));
    comm->engine().set_site(site);
    return success();
  });
}

fsccl_status_t fsccl_comm_rank(fsccl_comm_t handle, int* rank) {
  return guarded("fsccl_comm_rank", [&]() -> Status {
    if (!rank) return fail(FSCCL_ERR_INVALID_ARGUMENT, "rank is NULL");
    FSCCL_ASSIGN(const Ref<Communicator> comm, comm_of(handle));
    *rank = comm->rank();
    return success();
  });
}

fsccl_status_t fsccl_comm_size(fsccl_comm_t handle, int* size) {
  return guarded("fsccl_comm_size", [&]() -> Status {
    if (!size) return fail(FSCCL_ERR_INVALID_ARGUMENT, "size is NULL");
    FSCCL_ASSIGN(const Ref<Communicator> comm, comm_of(handle));
    *size = comm->size();
    return success();
  });
}

fsccl_status_t fsccl_comm_local_rank(fsccl_comm_t handle, int* local_rank, int* local_size) {
  return guarded("fsccl_comm_local_rank", [&]() -> Status {
    if (!local_rank || !local_size) return fail(FSCCL_ERR_INVALID_ARGUMENT, "an output is NULL");
    FSCCL_ASSIGN(const Ref<Communicator> comm, comm_of(handle));
    Job& job = comm->context().job();
    int before = 0, all = 0;
    for (int rank = 0; rank < comm->size(); rank++) {
      if (job.member(comm->job_rank(rank)).host != job.member(job.rank()).host) continue;
      all++;
      before += rank < comm->rank();
    }
    *local_rank = before;
    *local_size = all;
    return success();
  });
}

fsccl_status_t fsccl_comm_async_error(fsccl_comm_t handle, fsccl_status_t* state) {
  return guarded("fsccl_comm_async_error", [&]() -> Status {
    if (!state) return fail(FSCCL_ERR_INVALID_ARGUMENT, "state is NULL");
    FSCCL_ASSIGN(const Ref<CommObject> object, object_of(comms, handle));
    // The loads of `ready` and `failed` pair with the stores in make() and make_later().
    Communicator* comm = object->ready.load(std::memory_order_acquire);
    if (!comm) {
      const bool failed = object->failed.load(std::memory_order_acquire);
      *state = failed ? object->error.code : FSCCL_IN_PROGRESS;
      if (failed) set_last_error(Status(object->error));
      return success();
    }
    *state = FSCCL_OK;
    comm->engine().look_for_failure();
    if (!comm->engine().failed()) return success();
    const Status failure = comm->engine().failure();
    *state = failure.code();
    set_last_error(failure);
    return success();
  });
}

fsccl_status_t fsccl_comm_counters(fsccl_comm_t handle, fsccl_counters_t* counters) {
  return guarded("fsccl_comm_counters", [&]() -> Status {
    FSCCL_TRY(check_output(counters, "counters", "FSCCL_COUNTERS_INIT"));
    FSCCL_ASSIGN(const Ref<Communicator> comm, comm_of(handle));
    fill_output(counters, comm->engine().tally().counters());
    return success();
  });
}

}  // extern "C"
