// The start of a communicator, when its channel is open and no engine runs on it yet. In this time
// the ranks exchange, in signal lines, the facts on which they must agree and their measurements.
#pragma once
#include <cstdint>
#include <cstring>
#include <functional>

#include "base/clock.h"
#include "base/status.h"
#include "transports/channel.h"

namespace fsccl {

struct Startup {
  Channel* channel = nullptr;
  int rank = 0, ranks = 1;
  int64_t deadline_ns = 0;
  std::function<bool()> cancelled;
  // The number by which errors name each rank. Null: its number in this communicator.
  const int* numbers = nullptr;
  // Returns the error of a start that was cancelled. May be empty.
  std::function<Status()> why_cancelled;
  // The clock of the measurements. A test has its own, so that no other program disturbs it.
  int64_t (*clock)() = now_ns;

  int known_as(int peer) const { return numbers ? numbers[peer] : peer; }
  bool over() const;  // true if the start has failed, was cancelled, or has passed its deadline
  template <class Payload>
  void signal(uint32_t tick, const Payload& payload) const {
    channel->signal(line_of(tick, payload));
  }
  // Signals to `peer` alone.
  template <class Payload>
  void signal_to(int peer, uint32_t tick, const Payload& payload) const {
    channel->signal_to(peer, line_of(tick, payload));
  }
  void signal(uint32_t tick) const { signal(tick, '\0'); }
  template <class Payload>
  static fsccl_transport_line_t line_of(uint32_t tick, const Payload& payload) {
    static_assert(sizeof payload <= FSCCL_TRANSPORT_INLINE);
    fsccl_transport_line_t line{.tick = tick, .processor = -1};
    std::memcpy(line.payload, &payload, sizeof payload);
    return line;
  }
  // Waits for the payload that `peer` sends with `tick`, and returns it, or null once over() is
  // true.
  const unsigned char* await(int peer, uint32_t tick) const;
  // Does the same while other ranks measure. It naps and looks again, because waking a sleeper
  // would cost the measuring ranks a system call.
  const unsigned char* await_napping(int peer, uint32_t tick) const;

 private:
  template <class Pause>
  const unsigned char* await_line(int peer, uint32_t tick, int bare_polls, Pause pause) const;
};

}  // namespace fsccl
