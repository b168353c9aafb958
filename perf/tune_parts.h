// The parts that tuning of host memory and of GPUs share: a communicator on which one candidate is
// forced, and times of candidates that were measured in turn.
#pragma once
#include <fsccl/insight.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "numbers.h"
#include "session.h"

namespace fsccl::perf {

using Json = nlohmann::ordered_json;

std::string setting(const char* name);
Json explain(fsccl_comm_t comm, const std::string& operation, uint64_t bytes);

// A communicator of all ranks on which one plan is forced, or none if `plan` is empty.
class Forced {
 public:
  Forced(const Session& session, std::string plan, const std::string& operation);
  Forced(Forced&& other) noexcept
      : plan_(std::move(other.plan_)), comm_(std::exchange(other.comm_, nullptr)) {}
  ~Forced();
  fsccl_comm_t comm() const { return comm_; }
  const std::string& plan() const { return plan_; }

 private:
  std::string plan_;
  fsccl_comm_t comm_ = nullptr;
};

// The median and the spread of the times of one plan.
struct Timing {
  std::string plan;
  double us = 0, spread_us = 0;
};
inline double spread_of(const Timing& a, const Timing& b) {
  return std::max(a.spread_us, b.spread_us);
}
inline bool better(const Timing& a, const Timing& b) { return b.us - a.us > spread_of(a, b); }

// Measures the candidates tried[i] for each i in `which`, in turn: each repeat calls sample(i) once
// for each of them, and each repeat begins with another one. The time of a sample is that of the
// slowest rank. Returns for each candidate, in the order of `which`, the median and the spread
// between the quartiles.
template <class Sample>
std::vector<Timing> time_in_turn(const Session& session, int repeats,
                                 const std::vector<const Forced*>& tried,
                                 const std::vector<size_t>& which, const Sample& sample) {
  const size_t all = which.size();
  std::vector<double> times;  // by repeat, then by candidate
  for (size_t repeat = 0; repeat < static_cast<size_t>(repeats); repeat++) {
    times.resize(times.size() + all);
    for (size_t k = 0; k < all; k++) {
      const size_t i = (repeat + k) % all;
      times[repeat * all + i] = sample(which[i]);
    }
  }
  times = session.max_over_ranks(times);
  std::vector<Timing> timings;
  for (size_t i = 0; i < all; i++) {
    std::vector<double> mine;
    for (size_t at = i; at < times.size(); at += all) mine.push_back(times[at]);
    timings.push_back({tried[which[i]]->plan(), percentile(mine, 0.5),
                       percentile(mine, 0.75) - percentile(mine, 0.25)});
  }
  return timings;
}

}  // namespace fsccl::perf
