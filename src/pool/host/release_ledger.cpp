#include "pool/host/release_ledger.h"

#include <utility>

#include "base/wait.h"

namespace fsccl {

void ReleaseLedger::done(uint64_t position) {
  std::atomic_ref<uint64_t> line(line_->position);
  uint64_t from = line.load(std::memory_order_seq_cst);
  // All earlier positions are done, so no other thread can advance the line.
  if (from + 1 == position) [[likely]] {
    advance_line(&from, position);
  } else {
    done_[position % kMostOpen].store(position, std::memory_order_seq_cst);
    from = line.load(std::memory_order_seq_cst);
  }
  // The thread that closes a gap advances the line over all done positions behind it. If it loses a
  // race for the line, another thread has seen its mark and advances the line for it.
  while (true) {
    uint64_t to = from;
    while (done_[(to + 1) % kMostOpen].load(std::memory_order_seq_cst) == to + 1) to++;
    if (to == from) return;
    advance_line(&from, to);
  }
}

// Sets the line to `to` if its value is *from. *from is the value of the line afterwards.
void ReleaseLedger::advance_line(uint64_t* from, uint64_t to) {
  if (!std::atomic_ref(line_->position)
           .compare_exchange_strong(*from, to, std::memory_order_seq_cst))
    return;
  futex_wake_sleepers(line_->word(), &line_->sleepers);
  *from = to;
}

Status wait_for_release(Engine& engine, int peer, const Milestone& line, uint64_t position,
                        Deadline deadline, const std::string& what) {
  const auto released = [&] { return line.reached() >= position; };
  bool left = false;
  const auto broken = [&] {
    if (!engine.move_on() || !engine.intact().ok()) return true;
    // The peer may have released the bytes and left since the last look at its line. That it has
    // left therefore counts only at the next look.
    return std::exchange(left, engine.has_left(peer));
  };
  const Engine::RecordedWait recorded(engine, peer, recording::Duty::release_slot);
  const WaitEnd end = wait_until(released, deadline, broken, Naps(100, 20'000, 20'000));
  if (end == WaitEnd::held) return success();
  Error error;
  error.code = end == WaitEnd::late ? FSCCL_ERR_TIMEOUT : FSCCL_ERR_PEER_DEAD;
  error.rank = engine.known_as(engine.rank());
  error.peer = engine.known_as(peer);
  error.text = end == WaitEnd::late ? fmt::format(
                                          "{} waited {} ms for rank {}, which is late, stopped, or "
                                          "cannot be reached. See FSCCL_TIMEOUT_MS",
                                          what, engine.options().timeout_ms, error.peer)
                                    : fmt::format(
                                          "rank {} has left (destroyed its communicator, or its "
                                          "process ended) while {} waited for it",
                                          error.peer, what);
  engine.fail_all(error);  // an earlier failure stays, and failure() returns it
  return engine.failure();
}

}  // namespace fsccl
