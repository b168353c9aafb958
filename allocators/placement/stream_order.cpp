#include "allocators/placement/stream_order.h"

#include <algorithm>

namespace fsccl {

StreamClock StreamOrder::known_to_all() const {
  StreamClock result = known_[0];
  for (uint32_t stream = 1; stream < streams_; ++stream)
    for (size_t s = 0; s < kMostStreams; ++s) result[s] = std::min(result[s], known_[stream][s]);
  return result;
}

void StreamOrder::wait(uint64_t event, uint32_t stream) {
  const auto found = events_.find(event);
  if (found != events_.end()) wait_for(found->second, stream);
}

uint32_t StreamOrder::wait_for(const StreamClock& done, uint32_t stream) {
  uint32_t waited = 0;
  for (uint32_t s = 0; s < kMostStreams; ++s) {
    if (done[s] <= known_[stream][s]) continue;
    known_[stream][s] = done[s];
    waited |= 1U << s;
  }
  return waited;
}

void StreamOrder::append_lags(const StreamClock& clock, std::vector<uint64_t>* lags) const {
  for (uint32_t s = 0; s < streams_; ++s) lags->push_back(known_[s][s] - clock[s]);
}

void StreamOrder::append_differences(std::vector<uint64_t>* differences) const {
  for (uint32_t stream = 0; stream < streams_; ++stream) append_lags(known_[stream], differences);
  const StreamClock common = known_to_all();
  for (const auto& [event, clock] : events_) {
    if (covers(common, clock)) continue;  // a wait for this event orders nothing more
    differences->push_back(event);
    append_lags(clock, differences);
  }
}

}  // namespace fsccl
