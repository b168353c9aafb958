// The start of a communicator: its channel is open, and no engine runs on it yet. The ranks tell
// each other in signal lines what they need to agree on, and what they measure.
#pragma once
#include <cstdint>
#include <cstring>
#include <functional>

#include "base/status.h"
#include "transports/channel.h"

namespace fsccl {

struct Startup {
  Channel* channel = nullptr;
  int rank = 0, ranks = 1;
  int64_t deadline_ns = 0;
  std::function<bool()> cancelled;
  // the number of each rank in messages; null: its own
  const int* numbers = nullptr;
  std::function<Status()>
      why_cancelled;  // returns the error of a start that was cancelled; or null

  int known_as(int peer) const { return numbers ? numbers[peer] : peer; }
  bool over() const;  // somebody was lost, or the time has passed
  template <class Payload>
  void signal(uint32_t tick, const Payload& payload) const {
    channel->signal(line_of(tick, payload));
  }
  // No other needs to see it.
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
  // Returns the payload that `peer` sent under `tick`, once it has come; null: over().
  const unsigned char* await(int peer, uint32_t tick) const;
  // While others measure: naps, for a sleeper that must be woken would cost them a system call.
  const unsigned char* await_napping(int peer, uint32_t tick) const;

 private:
  template <class Pause>
  const unsigned char* await_line(int peer, uint32_t tick, int bare_polls, Pause pause) const;
};

}  // namespace fsccl
