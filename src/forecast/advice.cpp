#include "forecast/advice.h"

#include <fmt/ranges.h>

#include "topo/describe.h"

namespace fsccl::forecast {
namespace {

// Says in words what differs between two setups.
std::vector<std::string> changes_of(const StepConfig& from, const StepConfig& to) {
  std::vector<std::string> changes;
  if (to.batch != from.batch)
    changes.push_back(fmt::format("micro-batches of {} sequences instead of {} ({} of them)",
                                  to.batch, from.batch, to.accumulate));
  if (to.shared_by() != from.shared_by())
    changes.push_back(fmt::format("shards over {} ranks", to.shared_by()));
  if (to.checkpoint != from.checkpoint)
    changes.push_back(to.checkpoint ? "full checkpointing" : "no checkpointing");
  if (to.by_parameter != from.by_parameter)
    changes.push_back(to.by_parameter ? "slots by parameter" : "slots by unit");
  if (to.keep_bytes != from.keep_bytes)
    changes.push_back(fmt::format("keep {}", topo::amount(to.keep_bytes)));
  if (to.prefetch != from.prefetch) changes.push_back(fmt::format("prefetch {}", to.prefetch));
  if (to.codec_ratio != from.codec_ratio) changes.emplace_back("no codec");
  return changes;
}

}  // namespace

std::string advice_of(const Forecast& forecast, const std::vector<Choice>& choices) {
  if (forecast.fits()) return "";
  if (choices.empty() || !choices.front().fits)
    return fmt::format(
        "nothing that was tried fits {} a rank: more ranks, a smaller batch ({} now) or "
        "shorter sequences ({} "
        "tokens now) lower it; the least that was found is {}",
        topo::amount(forecast.memory_limit), forecast.setup.batch, forecast.setup.sequence,
        topo::amount(choices.empty() ? forecast.memory.total() : choices.front().memory));
  return fmt::format("{}: then a rank takes {} and a step {:.4g} s, the shortest of what fits",
                     fmt::join(changes_of(forecast.setup, choices.front().setup), ", "),
                     topo::amount(choices.front().memory), choices.front().step_ns * 1e-9);
}

}  // namespace fsccl::forecast
