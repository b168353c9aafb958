#include "engine/meeting.h"

#include <ctime>

#include "base/clock.h"

namespace fsccl {

bool Meeting::over() const { return now_ns() > deadline_ns || cancelled(context); }

const unsigned char* Meeting::await(int peer, uint32_t tick) const {
  for (int tries = 0;; tries++) {
    if (const fsccl_transport_line_t* line = transport->poll(channel, peer, tick)) return line->payload;
    if (tries < 1000) continue;
    if (over()) return nullptr;
    const timespec nap{0, 50'000};
    nanosleep(&nap, nullptr);
  }
}

}  // namespace fsccl
