// Messages from one rank to another. The messages from rank a to rank b run on a communicator of
// these two ranks, which is made from the caller's communicator at its first use; there a message
// is a broadcast. Messages of one direction therefore match in order, and are independent of other
// directions, other peers and the collectives.
#include "api/submit.h"
#include "base/undo.h"
#include "fsccl/insight.h"

using namespace fsccl;

namespace {

Result<fsccl_comm_t> pair_of(fsccl_comm_t handle, int from, int to) {
  FSCCL_ASSIGN(const Ref<CommObject> object, object_of(comms, handle));
  const auto [place, fresh] = object->pairs.try_emplace({from, to});
  if (!fresh) return place->second;
  Undo undo([&, where = place] { object->pairs.erase(where); });
  auto made = std::make_unique<CommObject>();
  FSCCL_ASSIGN(made->comm, object->comm->pair(from, to));
  Communicator* comm = made->comm.get();
  // This store pairs with the loads of `ready` in live_comm() and comm_of().
  made->ready.store(comm, std::memory_order_release);
  FSCCL_ASSIGN(const uint64_t bits, comms.add(std::move(made), bits_of(handle)));
  place->second = reinterpret_cast<fsccl_comm_t>(bits);
  comm->engine().set_key(bits);
  undo.keep();
  return place->second;
}

Status check_peer(const Communicator& comm, int peer) {
  if (peer >= 0 && peer < comm.size() && peer != comm.rank()) return success();
  return fail(FSCCL_ERR_INVALID_ARGUMENT,
              "peer {} is not another rank: they are 0 .. {}, and this is rank {}", peer,
              comm.size() - 1, comm.rank());
}

fsccl_status_t move(const char* name, bool sends, void* buffer, size_t count, fsccl_dtype_t dtype,
                    int peer, int tag, fsccl_comm_t handle, void* stream, fsccl_work_t* work) {
  fsccl_status_t state = FSCCL_OK;
  const fsccl_status_t code = guarded(name, [&]() -> Status {
    FSCCL_ASSIGN(const Ref<Communicator> comm, comm_of(handle));
    if (comm->engine().failed()) return comm->engine().failure();
    FSCCL_TRY(check_peer(*comm, peer));
    FSCCL_ASSIGN(const fsccl_comm_t pair,
                 sends ? pair_of(handle, comm->rank(), peer) : pair_of(handle, peer, comm->rank()));
    FSCCL_ASSIGN(const Ref<Communicator> between, comm_of(pair));
    CollectiveCall call;
    call.op = OpCode::send;
    call.output = buffer;
    call.count = count;
    call.dtype = dtype;
    call.root = 0;
    call.tag = tag;
    return submit(*between, pair, call, stream, grouped(), work, &state);
  });
  return code == FSCCL_OK ? state : code;
}

}  // namespace

extern "C" {

fsccl_status_t fsccl_send(const void* buffer, size_t count, fsccl_dtype_t dtype, int peer, int tag,
                          fsccl_comm_t comm, void* stream, fsccl_work_t* work) {
  return move("fsccl_send", true, const_cast<void*>(buffer), count, dtype, peer, tag, comm, stream,
              work);
}

fsccl_status_t fsccl_recv(void* buffer, size_t count, fsccl_dtype_t dtype, int peer, int tag,
                          fsccl_comm_t comm, void* stream, fsccl_work_t* work) {
  return move("fsccl_recv", false, buffer, count, dtype, peer, tag, comm, stream, work);
}

fsccl_status_t fsccl_probe(int peer, fsccl_comm_t handle) {
  return guarded("fsccl_probe", [&]() -> Result<fsccl_status_t> {
    FSCCL_ASSIGN(const Ref<Communicator> comm, comm_of(handle));
    FSCCL_TRY(comm->engine().intact());
    FSCCL_TRY(check_peer(*comm, peer));
    FSCCL_ASSIGN(const fsccl_comm_t pair, pair_of(handle, peer, comm->rank()));
    FSCCL_ASSIGN(const Ref<Communicator> between, comm_of(pair));
    const bool gone = between->engine().is_gone(0);  // asked first: what it sent is there by then
    const std::optional<bool> come = between->engine().has_come(0);
    if (come.value_or(false)) return FSCCL_OK;
    if (!come || !gone) return FSCCL_IN_PROGRESS;
    return fail(FSCCL_ERR_PEER_DEAD,
                "rank {} has left (destroyed its communicator, or its process ended) and sent no "
                "message that is not received",
                peer)
        .with_peer(comm->rank(), peer);
  });
}

}  // extern "C"
