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

// Says what lowers the memory of a rank beyond what the search has tried. Layouts by parameter deal
// out whole slices, and where a parameter has few of them, some rank holds much more than an equal
// part of the shards, on however many ranks.
std::string lowering(const Model& model, const Forecast& forecast) {
  constexpr double kMuch = 1.25;
  const StepConfig& setup = forecast.setup;
  const uint64_t shards = forecast.memory.shards, equal = model.elements() *
                                                          dtype_size(setup.shard) /
                                                          static_cast<uint64_t>(setup.shared_by());
  std::vector<std::string> ways;
  if (setup.layout == FSCCL_LAYOUT_PER_PARAM &&
      static_cast<double>(shards) > kMuch * static_cast<double>(equal))
    ways.push_back(
        fmt::format("the layout flat or ragged (this one gives a rank {} of shards, an equal part "
                    "is {})",
                    topo::amount(shards), topo::amount(equal)));
  else
    ways.emplace_back("more ranks");
  if (setup.batch > 1) ways.push_back(fmt::format("a smaller batch ({} now)", setup.batch));
  if (setup.sequence > 1)
    ways.push_back(fmt::format("shorter sequences ({} tokens now)", setup.sequence));
  return fmt::format("{}", fmt::join(ways, ", or "));
}

}  // namespace

std::string advice_of(const Model& model, const Forecast& forecast,
                      const std::vector<Choice>& choices) {
  if (forecast.fits()) return "";
  if (choices.empty() || !choices.front().fits)
    return fmt::format(
        "nothing that was tried fits {} a rank, whose least was {}; it takes less with {}",
        topo::amount(forecast.memory_limit),
        topo::amount(choices.empty() ? forecast.memory.total() : choices.front().memory),
        lowering(model, forecast));
  return fmt::format("{}: then a rank takes {} and a step {:.4g} s, the shortest of what fits",
                     fmt::join(changes_of(forecast.setup, choices.front().setup), ", "),
                     topo::amount(choices.front().memory), choices.front().step_ns * 1e-9);
}

}  // namespace fsccl::forecast
