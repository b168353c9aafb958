#include "api/objects.h"

#include <unordered_map>

#include "base/immortal.h"

namespace fsccl {
namespace {

std::mutex engines_mutex;
std::unordered_map<const Engine*, fsccl_comm_t>& engines() {
  static Immortal<std::unordered_map<const Engine*, fsccl_comm_t>> map;
  return map.get();
}

}  // namespace

const char* kind_name(HandleKind kind) {
  switch (kind) {
    case HandleKind::comm:
      return "communicator";
    case HandleKind::pool:
      return "pool";
    case HandleKind::unit:
      return "unit";
    case HandleKind::work:
      return "work";
    case HandleKind::allocator:
      return "allocator";
    case HandleKind::publisher:
      return "publisher";
    case HandleKind::subscriber:
      return "subscriber";
  }
  return "unknown";
}

Status bad_handle(HandleKind wanted, uint64_t bits) {
  if (forked()) return forked_status();
  if (!bits) return fail(FSCCL_ERR_INVALID_HANDLE, "the {} handle is NULL", kind_name(wanted));
  const HandleKind kind = is_work(bits) ? HandleKind::work : HandleBits(bits).kind;
  const bool known = kind >= HandleKind::comm && kind <= HandleKind::subscriber;
  if (known && kind != wanted)
    return fail(FSCCL_ERR_INVALID_HANDLE, "a {} handle was given where a {} is wanted",
                kind_name(kind), kind_name(wanted));
  return fail(FSCCL_ERR_INVALID_HANDLE,
              "the {} handle {:#x} names nothing: it was destroyed, or never made",
              kind_name(wanted), bits);
}

constinit CommTable comms;
constinit PoolTable pools;
constinit UnitTable units;

Result<Ref<Communicator>> comm_of(fsccl_comm_t handle) {
  if (Ref<Communicator> comm = live_comm(handle)) [[likely]]
    return comm;
  FSCCL_ASSIGN(Ref<CommObject> object, object_of(comms, handle));
  // The two loads pair with the stores in make() and make_later() (comm.cpp): a thread that sees
  // that the communicator is ready, or has failed, also sees the communicator, or the error.
  // `ready` also pairs with the stores in functions that make a communicator at once (comm.cpp,
  // messages.cpp).
  if (Communicator* const comm = object->ready.load(std::memory_order_acquire)) [[likely]]
    return Ref<Communicator>(comm, std::move(object));
  if (object->failed.load(std::memory_order_acquire)) return Status(object->error);
  return fail(FSCCL_ERR_INVALID_STATE,
              "the communicator is still being created: poll fsccl_comm_async_error() until it "
              "says FSCCL_OK");
}

void register_engine(const Engine* engine, fsccl_comm_t comm) {
  const std::lock_guard lock(engines_mutex);
  engines()[engine] = comm;
}
void unregister_engine(const Engine* engine) {
  const std::lock_guard lock(engines_mutex);
  engines().erase(engine);
}
fsccl_comm_t comm_of_engine(const Engine* engine) {
  const std::lock_guard lock(engines_mutex);
  const auto found = engines().find(engine);
  return found == engines().end() ? nullptr : found->second;
}

}  // namespace fsccl
