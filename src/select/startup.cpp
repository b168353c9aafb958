#include "select/startup.h"

#include <algorithm>

#include "base/futex.h"
#include "base/wait.h"

namespace fsccl {
namespace {

constexpr int kPolls = 100, kPollsBeforeNaps = 1000;
// longest sleep between two checks whether the start is over
constexpr int64_t kSleepNs = 10'000'000;
// Naps are so long that a dozen waiting ranks on two cores hardly disturb a measurement.
constexpr int64_t kShortNapNs = 50'000, kLongNapNs = 400'000;

}  // namespace

// Returns true if the start is over. A failure ends it, except a mismatch of calls. Ranks that
// report such a mismatch have begun to call collectives, so they have sent the lines for which this
// rank still waits, and this rank's first call will report the mismatch. A mismatch without the
// number of a rank comes from the transport. The communicators differ then, and the start is over.
bool Startup::over() const {
  const fsccl_transport_failure_t* failure = channel->failure();
  const bool calls_differ = failure && failure->code == FSCCL_ERR_MISMATCH && failure->rank >= 0;
  return now_ns() > deadline_ns || cancelled() || (failure && !calls_differ);
}

template <class Pause>
const unsigned char* Startup::await_line(int peer, uint32_t tick, int bare_polls,
                                         Pause pause) const {
  const fsccl_transport_line_t* line = nullptr;
  const auto come = [&] { return (line = channel->poll(peer, tick)) != nullptr; };
  bool there = false;
  for (int polls = 0; polls < bare_polls && !there; polls++) there = come();
  if (!there) wait_until(come, Deadline::at(deadline_ns), [this] { return over(); }, pause);
  return line ? line->payload : nullptr;
}

const unsigned char* Startup::await(int peer, uint32_t tick) const {
  FutexSleeper sleeper;
  const auto sleep = [&](int64_t left_ns) {
    fsccl_transport_word_t word;
    channel->word(peer, tick, &word);
    if (!channel->poll(peer, tick))
      sleeper.sleep(word.word, word.value, word.sleepers, std::min(left_ns, kSleepNs));
  };
  return await_line(peer, tick, kPolls, sleep);
}

const unsigned char* Startup::await_napping(int peer, uint32_t tick) const {
  return await_line(peer, tick, kPollsBeforeNaps, Naps(0, kShortNapNs, kLongNapNs));
}

}  // namespace fsccl
