// fsccl_work_*: a work is a number that names an operation, so it needs no allocation and cannot
// leak.
#include <fcntl.h>
#include <sys/eventfd.h>

#include <cerrno>

#include "api/objects.h"
#include "fsccl/insight.h"

using namespace fsccl;

namespace {

// 0 | of the communicator's generation 17 bits, from 1 on | its slot:14 | sequence, low 32 bits
constexpr int kSequenceBits = 32, kSlotBits = 14, kGenerationBits = 17;
constexpr uint64_t kFirst = uint64_t{1} << (kSequenceBits + kSlotBits);  // no work is below
constexpr uint32_t kGenerations = (1u << kGenerationBits) - 1;
static_assert(CommTable::kCapacity <= 1u << kSlotBits &&
              kSequenceBits + kSlotBits + kGenerationBits == 63);

struct Awaited {
  Ref<Communicator> comm;
  Engine* engine = nullptr;
  uint64_t sequence = 0;
};

Result<Awaited> awaited_by(fsccl_work_t work) {
  const uint64_t bits = bits_of(work);
  if (forked() || !is_work(bits)) return bad_handle(HandleKind::work, bits);
  const auto slot = static_cast<uint32_t>(bits >> kSequenceBits & ((1u << kSlotBits) - 1)),
             generation = static_cast<uint32_t>(bits >> (kSequenceBits + kSlotBits)) - 1;
  Ref<CommObject> object = comms.at<kGenerations>(slot, generation);
  // This load pairs with the stores of `ready` where communicators are made (comm.cpp,
  // messages.cpp).
  Communicator* const comm = object ? object->ready.load(std::memory_order_acquire) : nullptr;
  if (!comm) return fail(FSCCL_ERR_INVALID_HANDLE, "the communicator of this work was destroyed");
  // Returns the sequence number with this low half, among the last 2^32 submitted.
  const uint64_t submitted = comm->engine().submitted();
  const uint64_t age =
      static_cast<uint32_t>(static_cast<uint32_t>(submitted) - static_cast<uint32_t>(bits));
  if (age >= submitted)
    return fail(FSCCL_ERR_INVALID_HANDLE,
                "the work handle {:#x} names no operation of its communicator", bits);
  uint64_t sequence = submitted - age;
  Engine* const engine = comm->engine().ends_in(&sequence);
  return Awaited{Ref<Communicator>(comm, std::move(object)), engine, sequence};
}

}  // namespace

namespace fsccl {

fsccl_work_t make_work(fsccl_comm_t comm, uint64_t sequence) {
  const HandleBits handle(bits_of(comm));
  const uint64_t generation = handle.generation % kGenerations + 1;
  return reinterpret_cast<fsccl_work_t>(generation << (kSequenceBits + kSlotBits) |
                                        uint64_t{handle.slot} << kSequenceBits |
                                        static_cast<uint32_t>(sequence));
}

bool is_work(uint64_t bits) { return bits >= kFirst && bits < uint64_t{1} << 63; }

}  // namespace fsccl

extern "C" {

fsccl_status_t fsccl_work_test(fsccl_work_t work) {
  return guarded("fsccl_work_test", [&]() -> Result<fsccl_status_t> {
    FSCCL_ASSIGN(const Awaited awaited, awaited_by(work));
    fsccl_status_t state = FSCCL_OK;
    FSCCL_TRY(awaited.engine->test(awaited.sequence, &state));
    return state;
  });
}

fsccl_status_t fsccl_work_wait(fsccl_work_t work, int64_t timeout_ms) {
  return guarded("fsccl_work_wait", [&]() -> Result<fsccl_status_t> {
    FSCCL_ASSIGN(const Awaited awaited, awaited_by(work));
    fsccl_status_t state = FSCCL_OK;
    FSCCL_TRY(awaited.engine->wait(awaited.sequence, timeout_ms, &state));
    return state;
  });
}

fsccl_status_t fsccl_work_error(fsccl_work_t work) {
  return guarded("fsccl_work_error", [&]() -> Status {
    FSCCL_ASSIGN(const Awaited awaited, awaited_by(work));
    if (awaited.engine->completed() >= awaited.sequence || !awaited.engine->failed())
      return success();
    return awaited.engine->failure();
  });
}

fsccl_status_t fsccl_work_callback(fsccl_work_t work, void (*done)(void*, fsccl_status_t),
                                   void* context) {
  return guarded("fsccl_work_callback", [&]() -> Status {
    if (!done) return fail(FSCCL_ERR_INVALID_ARGUMENT, "done is NULL");
    FSCCL_ASSIGN(const Awaited awaited, awaited_by(work));
    awaited.engine->notify(awaited.sequence, {done, context, {}});
    return success();
  });
}

fsccl_status_t fsccl_work_event_fd(fsccl_work_t work, int* fd) {
  return guarded("fsccl_work_event_fd", [&]() -> Status {
    if (!fd) return fail(FSCCL_ERR_INVALID_ARGUMENT, "fd is NULL");
    FSCCL_ASSIGN(const Awaited awaited, awaited_by(work));
    Fd theirs = make_fd([] { return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); });
    if (!theirs.valid()) return fail_errno(errno, "eventfd");
    // so the caller may close early
    Fd ours = make_fd([&] { return fcntl(theirs.get(), F_DUPFD_CLOEXEC, 0); });
    if (!ours.valid()) return fail_errno(errno, "fcntl(F_DUPFD_CLOEXEC) of an eventfd");
    awaited.engine->notify(awaited.sequence, {nullptr, nullptr, std::move(ours)});
    *fd = theirs.release();
    return success();
  });
}

fsccl_status_t fsccl_work_release(fsccl_work_t work) {
  return guarded("fsccl_work_release", [&]() -> Status {
    if (!work) return success();
    return awaited_by(work).take_status();
  });
}

}  // extern "C"
