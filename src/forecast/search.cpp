#include "forecast/search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <set>

namespace fsccl::forecast {
namespace {

// The search tries about so many setups before it goes on from the best one. Each takes up to a
// millisecond.
constexpr size_t kMostCandidates = 1000;

// Returns all degrees of which there is a forecast, in ascending order.
std::vector<int> possible_degrees(const Forecaster& forecaster, const StepConfig& setup) {
  std::vector<int> degrees;
  StepConfig one = setup;
  one.copy_per_host = one.by_parameter = false;
  for (int degree = 1; degree <= setup.ranks; degree++) {
    if (setup.ranks % degree != 0) continue;
    one.shard_over = degree;
    if (forecaster.misfit(one).empty()) degrees.push_back(degree);
  }
  return degrees;
}

// Returns at most about `most` degrees, spread evenly over the possible ones, and in any case the
// setup's, all ranks, and one host.
std::vector<int> some_degrees(const std::vector<int>& possible, const StepConfig& setup,
                              const Machine& machine, size_t most) {
  std::set<int> degrees{setup.shared_by(), setup.ranks};
  const size_t count = std::min(possible.size(), std::max<size_t>(most, 2));
  for (size_t i = 0; i < count; i++)
    degrees.insert(possible[count < 2 ? 0 : i * (possible.size() - 1) / (count - 1)]);
  if (setup.ranks % std::min(machine.ranks_per_host, setup.ranks) == 0)
    degrees.insert(std::min(machine.ranks_per_host, setup.ranks));
  return {degrees.rbegin(), degrees.rend()};
}

Choice choice_of(const Forecast& forecast) {
  return {forecast.setup,           forecast.line.step_ns,
          forecast.line.exposed_ns, forecast.tokens_per_s_per_rank(),
          forecast.memory.total(),  forecast.fits()};
}

// Returns the sizes of micro-batches to try, with as many micro-batches as make the same step: this
// size, a half, a quarter and so on, one sequence, and twice and four times as much.
std::vector<std::pair<int, int>> batches_of(const StepConfig& setup) {
  std::vector<std::pair<int, int>> made{{setup.batch, setup.accumulate}};
  for (int by = 2; setup.batch % by == 0 && setup.accumulate <= kMostAccumulate / by; by *= 2)
    made.emplace_back(setup.batch / by, setup.accumulate * by);
  if (made.back().first > 1 && setup.accumulate <= kMostAccumulate / setup.batch)
    made.emplace_back(1, setup.accumulate * setup.batch);
  for (int by = 2; by <= 4 && setup.accumulate % by == 0 && setup.batch <= kMostBatch / by; by *= 2)
    made.emplace_back(setup.batch * by, setup.accumulate / by);
  return made;
}

std::vector<StepConfig> candidates(const StepConfig& setup, const Forecaster& forecaster,
                                   const std::vector<int>& possible) {
  const uint64_t all = forecaster.model().elements() * dtype_size(setup.wire);
  // Bytes that are kept: none, half of the model or all of it. std::nullopt: slots by parameter.
  std::vector<std::optional<uint64_t>> keeps{std::nullopt};
  for (const uint64_t bytes : std::set{uint64_t{0}, all / 2, all}) keeps.emplace_back(bytes);
  constexpr std::array kWays{Checkpoint::none, Checkpoint::selective, Checkpoint::full};
  constexpr std::array kPrefetches{0, 1, 2};
  const auto batches = batches_of(setup);
  const size_t of_a_degree = batches.size() * kWays.size() * kPrefetches.size() * keeps.size() *
                             (setup.codec_ratio > 1 ? 2 : 1);
  const std::vector<int> degrees =
      some_degrees(possible, setup, forecaster.machine(), kMostCandidates / of_a_degree);
  std::vector<StepConfig> made{setup};
  for (const auto& [batch, accumulate] : batches)
    for (const int degree : degrees)
      for (const Checkpoint checkpoint : kWays)
        for (const int prefetch : kPrefetches)
          for (const std::optional<uint64_t>& keep : keeps) {
            StepConfig one = setup;
            one.batch = batch;
            one.accumulate = accumulate;
            one.copy_per_host = false;
            one.shard_over = degree == setup.ranks ? 0 : degree;
            one.checkpoint = checkpoint;
            one.prefetch = prefetch;
            one.by_parameter = !keep;
            one.keep_bytes = keep.value_or(0);
            if (!alike(one, setup)) made.push_back(one);
            if (setup.codec_ratio <= 1) continue;
            one.codec_ratio = 1;
            made.push_back(one);
          }
  return made;
}

// Compares choices: first by whether they fit, then by the time of the step if they do, and by
// memory if they do not. Times that differ by less than about a thousandth count as equal, and the
// smaller memory is then better.
bool better(const Choice& a, const Choice& b) {
  const auto thousandths = [](const Choice& choice) {
    return std::llround(1000 * std::log(choice.step_ns));
  };
  if (a.fits != b.fits) return a.fits;
  const auto first = thousandths(a), second = thousandths(b);
  return a.fits && first != second ? first < second : a.memory < b.memory;
}

// Returns the setups that differ from a choice in one thing: the other degrees, with the same kept
// bytes or none; units gathered ahead; and kept bytes, which may fill the memory that the choice
// leaves.
std::vector<StepConfig> neighbours(const Choice& choice, const Forecaster& forecaster,
                                   const std::vector<int>& degrees, uint64_t limit) {
  std::vector<StepConfig> made;
  const StepConfig& from = choice.setup;
  const auto add = [&](auto change) {
    StepConfig one = from;
    one.copy_per_host = false;
    one.shard_over = from.shared_by();
    change(one);
    if (forecaster.misfit(one).empty()) made.push_back(one);
  };
  for (const int degree : degrees)
    for (const uint64_t keep : std::set{uint64_t{0}, from.keep_bytes})
      add([&](StepConfig& one) { one.shard_over = degree, one.keep_bytes = keep; });
  if (from.prefetch < kMostPrefetch) add([](StepConfig& one) { one.prefetch++; });
  if (from.prefetch > 0) add([](StepConfig& one) { one.prefetch--; });
  const uint64_t all = forecaster.model().elements() * dtype_size(from.wire),
                 room = limit > choice.memory ? limit - choice.memory : 0;
  if (from.by_parameter) return made;
  for (const uint64_t quarters : {4, 3, 2, 1})
    if (const uint64_t more = room / 4 * quarters; more > 0 && from.keep_bytes < all)
      add([&](StepConfig& one) { one.keep_bytes = std::min(all, from.keep_bytes + more); });
  return made;
}

}  // namespace

bool alike(const StepConfig& a, const StepConfig& b) {
  return a.shared_by() == b.shared_by() && a.batch == b.batch && a.accumulate == b.accumulate &&
         a.checkpoint == b.checkpoint && a.prefetch == b.prefetch &&
         a.by_parameter == b.by_parameter && a.keep_bytes == b.keep_bytes &&
         a.codec_ratio == b.codec_ratio;
}

Result<std::vector<Choice>> search(Forecaster& forecaster, const StepConfig& setup) {
  const std::vector<int> degrees = possible_degrees(forecaster, setup);
  const std::vector<StepConfig> setups = candidates(setup, forecaster, degrees);
  std::vector<Choice> choices;
  const auto consider = [&](const StepConfig& one) -> Status {
    FSCCL_ASSIGN(const Forecast forecast, forecaster.run(one));
    choices.push_back(choice_of(forecast));
    return success();
  };
  for (const StepConfig& one : setups)
    if (forecaster.misfit(one).empty()) FSCCL_TRY(consider(one));
  std::stable_sort(choices.begin(), choices.end(), better);
  // From the best one the search goes to its neighbours, as long as one of them is better.
  const uint64_t limit = forecaster.memory_limit(setup);
  for (Choice best = choices.front();;) {
    const size_t known = choices.size();
    for (const StepConfig& one : neighbours(best, forecaster, degrees, limit))
      if (std::none_of(choices.begin(), choices.end(),
                       [&](const Choice& other) { return alike(other.setup, one); }))
        FSCCL_TRY(consider(one));
    const auto first = choices.begin() + static_cast<std::ptrdiff_t>(known);
    const auto found = std::min_element(first, choices.end(), better);
    if (found == choices.end() || !better(*found, best)) break;
    best = *found;
  }
  std::stable_sort(choices.begin(), choices.end(), better);
  return choices;
}

Result<std::vector<WhatIf>> what_if(const Forecaster& forecaster, const StepConfig& setup) {
  std::vector<WhatIf> answers;
  const auto add = [&](const char* what, const StepConfig& changed, double network) -> Status {
    Machine machine = forecaster.machine();
    machine.between.gb_per_s *= network;
    Forecaster other(forecaster.model(), machine);
    FSCCL_ASSIGN(const Forecast forecast, other.run(changed));
    answers.push_back({what, forecast.line.step_ns, forecast.fits(), {}});
    return success();
  };
  const bool one_host = setup.ranks <= forecaster.machine().ranks_per_host;
  for (const auto& [what, factor] :
       {std::pair("network twice as fast", 2.0), std::pair("network half as fast", 0.5),
        std::pair("the link of one host at a quarter", 0.25)})
    if (one_host)
      answers.push_back({what, 0, false, "all ranks are on one host, so they use no network"});
    else
      FSCCL_TRY(add(what, setup, factor));
  StepConfig slow = setup;
  slow.compute_factor *= 1.1;
  FSCCL_TRY(add("one rank 10 % slower", slow, 1));
  StepConfig twice = setup;
  twice.ranks *= 2;
  if (std::string misfit = forecaster.misfit(twice); misfit.empty())
    FSCCL_TRY(add("twice the ranks", twice, 1));
  else
    answers.push_back({"twice the ranks", 0, false, std::move(misfit)});
  return answers;
}

Result<std::vector<ScalePoint>> scaling(Forecaster& forecaster, const StepConfig& setup) {
  std::vector<ScalePoint> points;
  const int per_host = forecaster.machine().ranks_per_host;
  std::set<int> counts{setup.ranks};
  for (const int ranks :
       {8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 100'000})
    counts.insert(ranks <= per_host ? ranks : ranks / per_host * per_host);
  for (const int ranks : counts) {
    StepConfig one = setup;
    one.ranks = ranks;
    if (one.shard_over > ranks) one.shard_over = 0;
    ScalePoint point{.ranks = ranks, .shard_over = one.shared_by()};
    point.misfit = forecaster.misfit(one);
    if (point.misfit.empty()) {
      FSCCL_ASSIGN(const Forecast forecast, forecaster.run(one));
      point.step_ns = forecast.line.step_ns;
      point.exposed_ns = forecast.line.exposed_ns;
      point.tokens_per_s_per_rank = forecast.tokens_per_s_per_rank();
      point.memory = forecast.memory.total();
      point.fits = forecast.fits();
    }
    points.push_back(std::move(point));
  }
  return points;
}

}  // namespace fsccl::forecast
