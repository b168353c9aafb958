// The order of work between streams, by vector clocks. A stream is a queue of work that runs in
// order. An event that is recorded on one stream and waited for on another orders the work after
// the wait behind the work before the record. Nothing else orders streams.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace fsccl {

inline constexpr uint32_t kMostStreams = 8;
// For each stream, the number of a piece of its work, counted from 1: all work up to it is meant.
using StreamClock = std::array<uint64_t, kMostStreams>;

inline bool covers(const StreamClock& known, const StreamClock& done) {
  bool all = true;
  for (size_t s = 0; s < known.size(); ++s) all &= done[s] <= known[s];
  return all;
}

class StreamOrder {
 public:
  explicit StreamOrder(uint32_t streams = kMostStreams) : streams_(streams) {}

  // Returns the work that is complete before the next work of the stream.
  const StreamClock& known(uint32_t stream) const { return known_[stream]; }
  StreamClock known_to_all() const;
  // Puts work on the stream; returns its number.
  uint64_t work(uint32_t stream) { return ++known_[stream][stream]; }
  void record(uint64_t event, uint32_t stream) { events_[event] = known_[stream]; }
  void wait(uint64_t event, uint32_t stream);  // an event that was never recorded orders nothing
  // Makes the stream wait until this work is done. Returns the streams for which it had to wait,
  // beyond what it knew to be done, a bit each.
  uint32_t wait_for(const StreamClock& done, uint32_t stream);
  // Appends how far `clock` is behind the work that each stream has been given.
  void append_lags(const StreamClock& clock, std::vector<uint64_t>* lags) const;
  // Appends the state of the streams so that two states with equal differences order later work
  // alike.
  void append_differences(std::vector<uint64_t>* differences) const;

 private:
  uint32_t streams_;
  std::array<StreamClock, kMostStreams> known_{};
  std::map<uint64_t, StreamClock> events_;
};

}  // namespace fsccl
