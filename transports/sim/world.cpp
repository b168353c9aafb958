#include "transports/sim/world.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>

#include "base/clock.h"

namespace fsccl {
namespace {

constexpr int64_t kHourNs = int64_t{3600} * 1'000'000'000;
// These are atomic because the service thread, though it has nothing to do here, may read them.
std::atomic<int64_t> simulated_ns{0};

std::atomic<int64_t> late_ns{0};  // 0 if the world is in time

}  // namespace

int64_t now_ns() {
  if (const int64_t late = late_ns.load(std::memory_order_relaxed)) late_ns = late + kHourNs;
  return simulated_ns.load(std::memory_order_relaxed) + late_ns.load(std::memory_order_relaxed);
}

namespace sim {
namespace {

World* living_world = nullptr;

}  // namespace

World::World(uint64_t seed, bool traced) : random_(seed), history_(seed), traced_(traced) {
  if (living_world) std::abort();
  living_world = this;
  simulated_ns = kSecond;
}
World::~World() { living_world = nullptr; }
World& World::current() { return *living_world; }
int64_t World::now() const { return simulated_ns; }
void World::leave_time(bool out) { late_ns = out ? kHourNs : 0; }

void World::at(int64_t ns, std::function<void()> happens) {
  events_.push_back({std::max(ns, now()), planned_++, std::move(happens)});
  std::push_heap(events_.begin(), events_.end());
}

bool World::step() {
  if (events_.empty()) return false;
  std::pop_heap(events_.begin(), events_.end());
  const Event next = std::move(events_.back());
  events_.pop_back();
  simulated_ns = next.at;
  next.happens();
  return true;
}

// The generator is splitmix64.
uint64_t World::random() {
  uint64_t x = random_ += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

void World::take_note() {
  history_ = mix_in_order(mix_in_order(history_, hash_of(text_)), static_cast<uint64_t>(now()));
  if (traced_)
    trace_.push_back(fmt::format("{:>14.6f} ms  {}",
                                 static_cast<double>(now() - kSecond) / kMillisecond, text_));
}

}  // namespace sim
}  // namespace fsccl
