// Steps whose slots are used on three streams, like those of training with prefetch: a stream of
// gathers, one of computation and one of reductions.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "allocators/placement/step_schedule.h"

namespace fsccl {

enum : uint32_t { kCompute, kGather, kReduce, kStreams };

// Builds a training step of units of these sizes. Each unit is gathered while the one before it is
// computed. The gradients of a unit are given back during the backward pass of the second unit
// after it. Events between streams are numbered by unit and purpose.
class StreamStep {
 public:
  explicit StreamStep(std::vector<uint64_t> unit_bytes)
      : bytes_(std::move(unit_bytes)), gathered_(bytes_.size(), false) {}

  std::vector<StepEvent> build() {
    const auto units = static_cast<uint64_t>(bytes_.size());
    for (uint64_t u = 0; u < units; ++u) {
      gather(u);
      if (u + 1 < units) gather(u + 1);
      compute(u);
      if (u + 1 < units) drop(u);
    }
    for (uint64_t u = units; u-- > 0;) {
      gather(u);
      if (u > 0) gather(u - 1);
      if (u + 2 < units) finish(u + 2);
      add(StepOp::kTake, kCompute, kGradient + u, bytes_[u]);
      compute(u);
      add(StepOp::kUse, kCompute, kGradient + u);
      drop(u);
      order(kCompute, kReduce, 4 * u + 2);
      add(StepOp::kUse, kReduce, kGradient + u);
      add(StepOp::kRecord, kReduce, 4 * u + 3);
    }
    for (uint64_t u = std::min<uint64_t>(units, 2); u-- > 0;) finish(u);
    order(kCompute, kGather, 4 * units);
    order(kCompute, kReduce, 4 * units + 1);
    return std::move(events_);
  }

  static constexpr uint64_t kGradient = uint64_t{1} << 32;

 private:
  void add(StepOp op, uint32_t stream, uint64_t key, uint64_t bytes = 0) {
    const bool stable = op == StepOp::kTake && key < kGradient;
    events_.push_back({.op = op,
                       .stable = stable,
                       .stream = op == StepOp::kGiveBack ? 0 : stream,
                       .key = key,
                       .bytes = bytes});
  }
  void order(uint32_t from, uint32_t to, uint64_t event) {
    add(StepOp::kRecord, from, event);
    add(StepOp::kWait, to, event);
  }
  void gather(uint64_t u) {
    if (gathered_[u]) return;
    gathered_[u] = true;
    order(kCompute, kGather, 4 * u);
    add(StepOp::kTake, kGather, u, bytes_[u]);
    add(StepOp::kRecord, kGather, 4 * u + 1);
  }
  void compute(uint64_t u) {
    add(StepOp::kWait, kCompute, 4 * u + 1);
    add(StepOp::kUse, kCompute, u);
  }
  void drop(uint64_t u) {
    gathered_[u] = false;
    add(StepOp::kGiveBack, kCompute, u);
  }
  void finish(uint64_t u) {
    add(StepOp::kWait, kCompute, 4 * u + 3);
    add(StepOp::kGiveBack, kReduce, kGradient + u);
  }

  std::vector<uint64_t> bytes_;
  std::vector<bool> gathered_;
  std::vector<StepEvent> events_;
};

// Returns a step with random slots, random work on them, and random events between streams. At its
// end it gives back all slots that are still held.
inline std::vector<StepEvent> random_stream_step(std::mt19937_64& random, size_t length,
                                                 uint64_t page) {
  std::vector<StepEvent> events;
  std::vector<uint64_t> held;
  uint64_t next_key = 0, recorded = 0;
  const auto give_back = [&](size_t at) {
    events.push_back({.op = StepOp::kGiveBack, .key = held[at]});
    held.erase(held.begin() + static_cast<std::ptrdiff_t>(at));
  };
  while (events.size() < length) {
    const auto stream = static_cast<uint32_t>(random() % kStreams);
    switch (random() % 6) {
      case 0:
      case 1: {
        const uint64_t key = random() % 3 == 0 && next_key > 0 ? random() % next_key : next_key++;
        if (std::find(held.begin(), held.end(), key) != held.end()) break;
        events.push_back({.stable = key % 2 == 0,
                          .stream = stream,
                          .key = key,
                          .bytes = (1 + key * 7 % 13) * page});
        held.push_back(key);
        break;
      }
      case 2:
        if (!held.empty()) give_back(random() % held.size());
        break;
      case 3:
        if (!held.empty())
          events.push_back(
              {.op = StepOp::kUse, .stream = stream, .key = held[random() % held.size()]});
        break;
      case 4:
        events.push_back({.op = StepOp::kRecord, .stream = stream, .key = recorded++});
        break;
      default:
        if (recorded > 0)
          events.push_back({.op = StepOp::kWait, .stream = stream, .key = random() % recorded});
        break;
    }
  }
  while (!held.empty()) give_back(held.size() - 1);
  return events;
}

}  // namespace fsccl
