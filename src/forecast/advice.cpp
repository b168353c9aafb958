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
    changes.push_back(to.checkpoint == Checkpoint::none
                          ? "no checkpointing"
                          : fmt::format("{} checkpointing", name_of(to.checkpoint)));
  if (to.by_parameter != from.by_parameter)
    changes.push_back(to.by_parameter ? "slots by parameter" : "slots by unit");
  if (to.keep_bytes != from.keep_bytes)
    changes.push_back(fmt::format("keep {}", topo::amount(to.keep_bytes)));
  if (to.prefetch != from.prefetch) changes.push_back(fmt::format("prefetch {}", to.prefetch));
  if (to.codec_ratio != from.codec_ratio) changes.emplace_back("no codec");
  return changes;
}

// Says what lowers the memory of a rank beyond what the search has tried. `least` is the choice
// that takes least. A way is named only if it can give back a tenth of what is too much.
std::string lowering(Forecaster& forecaster, const Forecast& least) {
  constexpr double kMuch = 1.25;
  const StepConfig& setup = least.setup;
  const Memory& memory = least.memory;
  const uint64_t spread = memory.shards + memory.sharded_gradients + memory.optimizer,
                 still = memory.total() - spread - memory.activations;
  if (still > least.memory_limit)
    return fmt::format(
        "this limit is too small for this model on this machine: {} of that neither more ranks nor "
        "shorter sequences lower ({} of gathered parameters and gradients, {} of transports, the "
        "driver and the framework)",
        topo::amount(still), topo::amount(memory.parameter_slots + memory.gradient_slots),
        topo::amount(memory.transports + memory.context));
  const double excess = static_cast<double>(memory.total() - least.memory_limit);
  const auto helps = [&](double bytes) { return bytes > excess / 10; };
  // Layouts by parameter deal out whole slices, and where a parameter has few of them, some rank
  // holds much more than an equal part of the shards, on however many ranks.
  const double shards = static_cast<double>(memory.shards),
               equal =
                   static_cast<double>(forecaster.model().elements() * dtype_size(setup.shard)) /
                   setup.shared_by();
  const bool uneven = setup.layout == FSCCL_LAYOUT_PER_PARAM && shards > kMuch * equal;
  std::vector<std::string> ways;
  if (uneven && helps(static_cast<double>(spread) * (1 - equal / shards)))
    ways.push_back(
        fmt::format("the layout flat or ragged (this one gives a rank {} of shards, an equal part "
                    "is {})",
                    topo::amount(memory.shards), topo::amount(static_cast<uint64_t>(equal))));
  StepConfig more = setup;
  more.ranks *= 2;
  more.shard_over = 0;
  if (!uneven && helps(static_cast<double>(spread))) {
    const std::string misfit = forecaster.misfit(more);
    ways.push_back(misfit.empty() ? "more ranks" : fmt::format("more ranks ({})", misfit));
  }
  StepConfig fused = setup;
  fused.fused_loss = true;
  if (const Result<Forecast> with = forecaster.run(fused);
      with.ok() && helps(static_cast<double>(memory.activations) -
                         static_cast<double>(with.value().memory.activations)))
    ways.emplace_back("a fused loss");
  if (helps(static_cast<double>(memory.activations))) {
    if (setup.batch > 1) ways.push_back(fmt::format("a smaller batch ({} now)", setup.batch));
    if (setup.sequence > 1)
      ways.push_back(fmt::format("shorter sequences ({} tokens now)", setup.sequence));
  }
  if (ways.empty()) ways.emplace_back("units of fewer parameters");
  return fmt::format("it takes less with {}", fmt::join(ways, ", or "));
}

}  // namespace

Result<std::string> advice_of(Forecaster& forecaster, const Forecast& forecast,
                              const std::vector<Choice>& choices) {
  if (forecast.fits()) return std::string();
  if (choices.front().fits)
    return fmt::format("{}: then a rank takes {} and a step {:.4g} s, the shortest of what fits",
                       fmt::join(changes_of(forecast.setup, choices.front().setup), ", "),
                       topo::amount(choices.front().memory), choices.front().step_ns * 1e-9);
  FSCCL_ASSIGN(const Forecast least, forecaster.run(choices.front().setup));
  return fmt::format("nothing that was tried fits {} a rank, whose least was {}; {}",
                     topo::amount(forecast.memory_limit), topo::amount(least.memory.total()),
                     lowering(forecaster, least));
}

}  // namespace fsccl::forecast
