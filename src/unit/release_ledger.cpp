#include "unit/release_ledger.h"

#include <sched.h>

#include <ctime>

namespace fsccl {

void ReleaseLedger::done(uint64_t position) {
  std::atomic_ref<uint64_t> line(line_->position);
  uint64_t from = line.load(std::memory_order_seq_cst);
  if (from + 1 == position) [[likely]] {  // nothing before it is open, and nobody else can publish it
    publish(&from, position);
  } else {
    done_[position % kWindow].store(position, std::memory_order_seq_cst);
    from = line.load(std::memory_order_seq_cst);
  }
  // Whoever closes the gap publishes everything behind it; a thread that loses the race has been overtaken by one that saw its
  // mark.
  while (true) {
    uint64_t to = from;
    while (done_[(to + 1) % kWindow].load(std::memory_order_seq_cst) == to + 1) to++;
    if (to == from) return;
    publish(&from, to);
  }
}

// *from: what the line says afterwards; `to`, if it said *from.
void ReleaseLedger::publish(uint64_t* from, uint64_t to) {
  if (!std::atomic_ref(line_->position).compare_exchange_strong(*from, to, std::memory_order_seq_cst)) return;
  futex_wake_sleepers(line_->word(), &line_->sleepers);
  *from = to;
}

Result<bool> wait_for_release(const ReleaseLine& line, uint64_t position, Deadline deadline,
                              const std::function<Status()>& meanwhile) {
  for (unsigned tries = 0; line.reached() < position; tries++) {
    FSCCL_TRY(meanwhile());
    if (tries < 100) {
      sched_yield();
      continue;
    }
    if (deadline.passed()) return false;
    const timespec pause{0, 20'000};
    nanosleep(&pause, nullptr);
  }
  return true;
}

}  // namespace fsccl
