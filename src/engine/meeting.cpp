#include "engine/meeting.h"

#include <algorithm>
#include <ctime>

#include "base/clock.h"
#include "base/futex.h"

namespace fsccl {
namespace {

constexpr int kPolls = 100;
constexpr int64_t kSleepNs = 10'000'000;                    // how soon it is seen that the meeting is over
constexpr long kShortNapNs = 50'000, kLongNapNs = 400'000;  // so long that a dozen on two cores hardly disturb who measures

}  // namespace

// Ranks whose calls differ have begun, and so have sent what this rank still waits for; its own first call will tell. A mismatch
// that no rank has signed is the transport's: then it is the communicators that differ.
bool Meeting::over() const {
  const fsccl_transport_failure_t* failure = transport->failure(channel);
  const bool calls_differ = failure && failure->code == FSCCL_ERR_MISMATCH && failure->rank >= 0;
  return now_ns() > deadline_ns || cancelled(context) || (failure && !calls_differ);
}

const unsigned char* Meeting::await(int peer, uint32_t tick) const {
  for (int tries = 0;; tries++) {
    if (const fsccl_transport_line_t* line = transport->poll(channel, peer, tick)) return line->payload;
    if (tries < kPolls) continue;
    if (over()) return nullptr;
    fsccl_transport_word_t word;
    transport->word(channel, peer, tick, &word);
    if (!transport->poll(channel, peer, tick)) futex_sleep(word.word, word.value, word.sleepers, kSleepNs);
  }
}

const unsigned char* Meeting::await_napping(int peer, uint32_t tick) const {
  timespec nap{0, kShortNapNs};
  for (int tries = 0;; tries++) {
    if (const fsccl_transport_line_t* line = transport->poll(channel, peer, tick)) return line->payload;
    if (tries < 1000) continue;
    if (over()) return nullptr;
    nanosleep(&nap, nullptr);
    nap.tv_nsec = std::min(2 * nap.tv_nsec, kLongNapNs);
  }
}

}  // namespace fsccl
