#include "api/objects.h"

namespace fsccl {

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

}  // namespace fsccl
