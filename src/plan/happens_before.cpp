#include "plan/happens_before.h"

#include <algorithm>

namespace fsccl {

HappensBefore::HappensBefore(int ranks, int ticks)
    : ranks_(static_cast<size_t>(ranks)),
      ticks_(ticks),
      clocks_(ranks_, std::vector<uint32_t>(ranks_, 0)),
      signals_(ranks_ * static_cast<size_t>(ticks) * ranks_) {}

Moment HappensBefore::now(int rank, uint32_t step) const {
  return {rank, step,
          static_cast<uint32_t>(clocks_[static_cast<size_t>(rank)].size() / ranks_ - 1)};
}

void HappensBefore::signal(int rank, uint32_t step, int tick, int peer) {
  signals_[index(rank, tick, peer)] = now(rank, step);
}

void HappensBefore::begin_wait(int rank) {
  std::vector<uint32_t>& clock = clocks_[static_cast<size_t>(rank)];
  const size_t last = clock.size() - ranks_;
  clock.resize(clock.size() + ranks_);
  std::copy_n(clock.begin() + static_cast<std::ptrdiff_t>(last), ranks_,
              clock.begin() + static_cast<std::ptrdiff_t>(last + ranks_));
}

void HappensBefore::wait(int rank, int peer, int tick) {
  const Moment sent = *signals_[index(peer, tick, rank)];
  uint32_t* mine =
      &clocks_[static_cast<size_t>(rank)][clocks_[static_cast<size_t>(rank)].size() - ranks_];
  const uint32_t* theirs = &clocks_[static_cast<size_t>(peer)][sent.epoch * ranks_];
  for (size_t q = 0; q < ranks_; ++q) mine[q] = std::max(mine[q], theirs[q]);
  mine[peer] = std::max(mine[peer], sent.step + 1);
}

bool HappensBefore::knows_entered(int rank, int peer) const {
  const Moment end = now(rank, 0);
  const auto* entered = &signals_[index(peer, 0, 0)];
  return std::any_of(entered, entered + ranks_,
                     [&](const auto& signal) { return signal && before(*signal, end); });
}

bool HappensBefore::before(const Moment& first, const Moment& second) const {
  if (first.rank == second.rank) return first.step < second.step;
  return clocks_[static_cast<size_t>(second.rank)]
                [second.epoch * ranks_ + static_cast<size_t>(first.rank)] > first.step;
}

std::optional<Conflict> find_conflict(std::vector<MemoryAccess>& accesses,
                                      const HappensBefore& order) {
  std::sort(accesses.begin(), accesses.end(),
            [](const MemoryAccess& a, const MemoryAccess& b) { return a.begin < b.begin; });
  std::vector<const MemoryAccess*> reads, writes;  // accesses that reach the current place
  const auto unordered = [&](const MemoryAccess& a, const MemoryAccess& b) {
    const bool same_step = a.moment.rank == b.moment.rank && a.moment.step == b.moment.step;
    const auto over = [&](const MemoryAccess& first, const MemoryAccess& second) {
      return first.over && order.before(*first.over, second.moment);
    };
    return !same_step && !over(a, b) && !over(b, a);
  };
  for (const MemoryAccess& access : accesses) {
    if (access.begin == access.end) continue;
    const auto over = [&](const MemoryAccess* open) { return open->end <= access.begin; };
    std::erase_if(reads, over);
    std::erase_if(writes, over);
    for (const MemoryAccess* write : writes)
      if (unordered(*write, access)) return Conflict{*write, access};
    if (access.write)
      for (const MemoryAccess* read : reads)
        if (unordered(*read, access)) return Conflict{*read, access};
    (access.write ? writes : reads).push_back(&access);
  }
  return std::nullopt;
}

}  // namespace fsccl
