#include "plan/cost.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace fsccl {
namespace {

// At most so many rounds are simulated. Each further round takes as long as the last of them.
constexpr uint32_t kFollowedRounds = 2 * kTickWindow;
constexpr double kNotYet = -1;
constexpr double kStepNs = 10;                      // cost of any step
constexpr double kOversubscribedExchangeNs = 4000;  // an exchange then takes a context switch
// If a rank moves at least this many bytes, most of them are in no cache. The library's two copies
// through a slot pass memory twice, because the slot stays in a cache, so a read, which passes it
// three times, takes longer. On an Intel Emerald Rapids reads took 0.7 times as long as the two
// copies in all-gathers and broadcasts that moved 32 MiB, and 1.2 to 1.4 times from 48 MiB on; in
// all-reduces 1.0 times with 40 MiB, 1.25 with 50 and 1.5 with 80; in reduce-scatters 1.05 times
// with 36 MiB and 1.6 with 48.
constexpr uint64_t kInMemoryBytes = 48u << 20;
constexpr double kSlowerThanSlots = 1.25;

// Simulates the steps of the two ranks.
class Follower {
 public:
  Follower(const std::array<Plan, 2>& plans, const Costs& costs, bool reads)
      : plans_(plans),
        costs_(costs),
        reads_(reads),
        set_(std::max(set_of(plans[0]), set_of(plans[1]))),
        travel_(costs.exchange - 2 * costs.message),
        fetched_(costs.sharers > 1 || !costs.by_messages) {
    rounds_ = std::min(plans[0].rounds, kFollowedRounds);
    for (auto& signals : signals_)
      signals.assign(static_cast<size_t>(rounds_) * kMaxTicks, kNotYet);
  }

  Price price() {
    while (advance(0) | advance(1)) {
    }
    const double end = std::max(clock_[0], clock_[1]),
                 busy = std::max(clock_[0] - waited_[0], clock_[1] - waited_[1]);
    if (rounds_ < 2 || plans_[0].rounds == rounds_) return {end, busy};
    const double rounds = rounds_in_full();
    return {end + (end - last_but_one_) * (rounds - rounds_), busy * rounds / rounds_};
  }

 private:
  // Simulates one of the two ranks until it has to wait. Returns false if it could not go on.
  bool advance(size_t who) {
    const Plan& plan = plans_[who];
    bool moved = false;
    for (; round_[who] < rounds_; next_round(who))
      for (; step_[who] < plan.steps.size(); step_[who]++, moved = true)
        if (!perform(who, plan.steps[step_[who]])) return moved;
    return moved;
  }
  void next_round(size_t who) {
    step_[who] = 0;
    if (++round_[who] == rounds_ - 1) last_but_one_ = std::max(last_but_one_, clock_[who]);
  }

  bool perform(size_t who, const Step& step) {
    double& clock = clock_[who];
    switch (step.kind) {
      case StepKind::signal:
        if (step.optional) return true;
        clock += costs_.message * peers_of(who, step);
        signals_[who][index(who, step)] = clock;
        return true;
      case StepKind::wait: {
        double seen = clock;
        for (size_t peer = 0; peer < 2; peer++) {
          if (step.peer != kAllPeers && (step.peer == plans_[0].rank) != (peer == 0)) continue;
          const double signalled = signals_[peer][index(who, step)];
          if (signalled == kNotYet) return false;
          const double since = fetched_ ? std::max(clock, signalled) : signalled;
          if (peer != who || step.peer != kAllPeers) seen = std::max(seen, since + travel_);
        }
        waited_[who] += seen - clock - (fetched_ && seen > clock ? travel_ : 0);
        clock = seen + costs_.message * peers_of(who, step);
        return true;
      }
      case StepKind::copy:
      case StepKind::cast:
      case StepKind::put:
        clock += costs_.sharers * move(who, step, step.src.rank != plans_[who].rank, step.dst);
        return true;
      case StepKind::reduce:
      case StepKind::reduce_local:
        clock += costs_.sharers * reduce_ns(who, step);
        return true;
      case StepKind::wait_released:
      case StepKind::choose:
      case StepKind::native:  // select/native.h has its price
      case StepKind::divide:
      case StepKind::code:  // no choice depends on its cost
        return true;
    }
    return true;
  }

  static WorkingSet set_of(const Plan& plan) {
    uint64_t read, written, own = 0;
    count_bytes(plan, &read, &written);
    for (const Step& step : plan.steps)
      if (step.kind == StepKind::copy && step.src.rank == plan.rank && step.dst.rank == plan.rank)
        own += 2 * step.count * dtype_size(step.from);
    return working_set(read + written, own);
  }
  double peers_of(size_t who, const Step& step) const {
    return step.peer == kAllPeers ? plans_[who].ranks - 1 : 1;
  }
  double copy(uint64_t bytes) const {
    return kStepNs + costs_.copy_per_byte * static_cast<double>(bytes);
  }
  // Returns the time of a step that reads and writes this rank's own memory. A sum reads one
  // operand there, and writes its result.
  double own_copy(const Step& step, uint64_t bytes) const {
    return kStepNs + costs_.own_copy(bytes, bytes / dtype_size(step.from) * dtype_size(step.to));
  }
  size_t index(size_t who, const Step& step) const {
    return static_cast<size_t>(round_[who]) * kMaxTicks + step.tick;
  }
  // Returns the bytes of the step in the present round. The last round has what is left.
  uint64_t bytes_of(size_t who, const Step& step) const {
    const uint64_t bytes = step.count * dtype_size(step.from), chunk = plans_[who].chunk,
                   done = chunk * round_[who];
    return chunk == 0 ? bytes : std::min(chunk, bytes - std::min(bytes, done));
  }
  // Returns the number of rounds. A shorter last round counts as a fraction.
  double rounds_in_full() const {
    uint64_t most = 0;
    for (const Step& step : plans_[0].steps)
      most = std::max(most, step.count * dtype_size(step.from));
    const double last_but_one = plans_[0].rounds - 1;
    return std::max(last_but_one, static_cast<double>(most) / static_cast<double>(plans_[0].chunk));
  }
  // Returns the time of a copy. The two copies through a slot take half of a slot's cost each.
  double move(size_t who, const Step& step, bool from_peer, const Operand& dst) const {
    const Plan& plan = plans_[who];
    const uint64_t bytes = bytes_of(who, step);
    if (bytes == 0) return 0;
    const Buffer& src = plan.buffers[step.src.buffer];
    if (step.kind != StepKind::reduce && plan.buffers[dst.buffer].slot)
      return costs_.slot(bytes) / 2;
    const bool to_peer = step.kind == StepKind::copy && dst.rank != plan.rank;
    if (to_peer && reads_) return costs_.reading(bytes, set_);  // the system writes as it reads
    if (!from_peer) return own_copy(step, bytes);
    if (src.slot) return costs_.slot(bytes) / 2;
    return reads_ ? costs_.reading(bytes, set_, src.role == Role::output) : copy(bytes);
  }

  double reduce_ns(size_t who, const Step& step) const {
    const Plan& plan = plans_[who];
    const uint64_t bytes = bytes_of(who, step);
    if (bytes == 0) return 0;
    const double one = copy(bytes);
    if (step.kind == StepKind::reduce_local) return one * plan.ranks;
    double ns = step.to_all ? one * (plan.ranks - 1) : 0;
    for (int q = 0; q < plan.ranks; q++) ns += move(who, step, q != plan.rank, {});
    // The sum also reads the scratch memory into which the system has read.
    if (reads_ && !plan.buffers[step.src.buffer].slot) ns += one * (plan.ranks - 1);
    // Caches of peers hold the result of the call before, which they have read. Its lines are taken
    // back when they are written, as those of a slot are. Past the caches no peer holds them.
    if (reads_ && plan.buffers[step.dst.buffer].address_in_signal && set_ == WorkingSet::in_caches)
      ns += costs_.slot(bytes) / 2;
    return ns;
  }

  const std::array<Plan, 2>& plans_;
  const Costs& costs_;
  const bool reads_;
  const WorkingSet set_;  // that of the rank that moves more
  const double travel_;   // time of a signal, without the work of the two ranks
  // each wait takes travel_ to fetch the signal, even if it was given long before
  const bool fetched_;
  uint32_t rounds_;
  std::array<std::vector<double>, 2> signals_;  // [round][tick]
  std::array<double, 2> clock_{}, waited_{};
  std::array<size_t, 2> step_{};
  std::array<uint32_t, 2> round_{};
  double last_but_one_ = 0;
};

}  // namespace

void count_bytes(const Plan& plan, uint64_t* read, uint64_t* written) {
  *read = *written = 0;
  for (const Step& step : plan.steps) {
    const bool reduces = step.kind == StepKind::reduce || step.kind == StepKind::reduce_local;
    if (!reduces && step.kind != StepKind::copy && step.kind != StepKind::cast &&
        step.kind != StepKind::put)
      continue;
    *read += step.count * dtype_size(step.from) * (reduces ? static_cast<uint64_t>(plan.ranks) : 1);
    *written +=
        step.count * dtype_size(step.to) * (step.to_all ? static_cast<uint64_t>(plan.ranks) : 1);
  }
}

double Cost::at(uint64_t bytes) const {
  size_t above = 1;
  while (above + 1 < kSizes.size() && bytes > kSizes[above]) above++;
  const double rate =
      (ns[above] - ns[above - 1]) / static_cast<double>(kSizes[above] - kSizes[above - 1]);
  return std::max(
      0.0, ns[above] + rate * (static_cast<double>(bytes) - static_cast<double>(kSizes[above])));
}

void Costs::apply_to(bool sends_messages, double ranks_per_core) {
  by_messages = sends_messages;
  sharers = std::max(1.0, ranks_per_core);
  if (sharers > 1) exchange = std::max(exchange, kOversubscribedExchangeNs);
}
uint64_t Costs::slot_streaming_from() const {
  uint64_t from = std::numeric_limits<uint64_t>::max();
  for (uint64_t bytes = Cost::kSizes.back();
       bytes >= Cost::kSizes.front() && slot_streaming.at(bytes) < slot_cached.at(bytes);
       bytes /= 2)
    from = bytes;
  return from;
}
WorkingSet working_set(uint64_t moved, uint64_t own) {
  if (moved < kPastCachesBytes) return WorkingSet::in_caches;
  return moved - own < kInMemoryBytes ? WorkingSet::past_caches : WorkingSet::in_memory;
}
double Costs::reading(uint64_t bytes, WorkingSet set, bool written) const {
  if (set == WorkingSet::in_caches) return (written ? read_written : 1) * read.at(bytes);
  const double ns = read_to_slots > 0 ? std::max(read.at(bytes), read_to_slots * slot(bytes))
                                      : kUnmeasured * read.at(bytes);
  return set == WorkingSet::past_caches ? ns : std::max(ns, kSlowerThanSlots * slot(bytes));
}
double Costs::own_copy(uint64_t bytes_read, uint64_t bytes_written) const {
  return own_per_byte ? *own_per_byte * static_cast<double>(bytes_read + bytes_written)
                      : copy_per_byte * static_cast<double>(bytes_read);
}
double Costs::slot(uint64_t bytes) const {
  return std::min(slot_cached.at(bytes), slot_streaming.at(bytes));
}

// Bytes through a slot cross the link twice, except on a network, where the second copy is local to
// the receiver. For large amounts, a read by the system takes as long as two such copies.
Costs typical_costs(const topo::Connection& link, bool sockets) {
  constexpr double kSlotNs = 60, kPastCachesNs = 300, kMessageNs = 1000, kSystemCallNs = 1200,
                   kPerPeer = 0.07;
  // Over TCP each message takes system calls of both ranks, and an exchange takes the time in which
  // the two systems deliver them.
  constexpr double kSocketsNs = 12'000, kSocketMessageNs = 2'000;
  const bool network = link.link == topo::LinkClass::network;
  const double per_byte = 1 / link.gb_per_s;
  Costs costs;
  costs.exchange = link.ns;
  costs.by_messages = network;
  costs.message = network ? kPerPeer * link.ns : 0;
  if (network && sockets) {
    costs.exchange += kSocketsNs;
    costs.message = kSocketMessageNs;
  }
  costs.copy_per_byte = network ? Costs{}.copy_per_byte : per_byte;
  for (size_t i = 0; i < Cost::kSizes.size(); i++) {
    const auto bytes = static_cast<double>(Cost::kSizes[i]);
    costs.slot_cached.ns[i] = network ? kMessageNs + bytes * (per_byte + costs.copy_per_byte)
                                      : kSlotNs + bytes * 2 * per_byte;
    costs.slot_streaming.ns[i] = costs.slot_cached.ns[i] * 1.6 + kPastCachesNs;
    costs.read.ns[i] = kSystemCallNs + bytes * 2.5 * per_byte;
  }
  return costs;
}
Costs typical_costs(topo::LinkClass link, bool sockets) {
  return typical_costs({link, topo::traits(link).ns, topo::traits(link).gb_per_s, {}}, sockets);
}

Price price(const std::array<Plan, 2>& plans, const Costs& costs, bool reads) {
  return Follower(plans, costs, reads).price();
}

}  // namespace fsccl
