// The options of `fsccl-perf tune`. They have the meanings of `fsccl-perf collectives` if it has
// such options.
#include <fmt/format.h>

#include "command_line.h"
#include "numbers.h"

namespace fsccl::perf {
namespace {
const std::vector<std::string> kTuned = {"all_gather", "reduce_scatter", "all_reduce",
                                         "broadcast",  "reduce",         "gather",
                                         "scatter",    "all_to_all",     kTunedUnits};
}

void TuneCommand::add_to(CLI::App* command) {
  command
      ->add_option("--coll", collectives_,
                   fmt::format("which, separated by commas: {}", fmt::join(kTuned, ", ")))
      ->delimiter(',')
      ->check(CLI::IsMember(kTuned))
      ->type_name("LIST");
  command->add_option("-b,--minbytes", first_, "smallest size")->check(size_validator());
  command->add_option("-e,--maxbytes", last_, "largest size")->check(size_validator());
  command->add_option("-f,--stepfactor", factor_, "each size is this many times the one before")
      ->check(CLI::Range(1.1, 1e9))
      ->type_name("X");
  command->add_option("-n,--iters", options_.repeats, "samples of each plan at each size, in turn")
      ->check(CLI::Range(3, 10'000))
      ->type_name("N");
  command
      ->add_option("--memory", memories_,
                   "caller, pool: a rule must lose in none of them; gpu: the algorithms of GPUs")
      ->delimiter(',')
      ->check(CLI::IsMember({"caller", "pool", "gpu"}))
      ->type_name("LIST");
  command
      ->add_option("-o,--output", options_.output,
                   "write the tuning file: rules where a plan beats the choice, measured costs")
      ->type_name("FILE");
  command->footer(
      "Each candidate of fsccl_explain is forced in turn. chosen, best: plans and the medians of "
      "the slowest rank's time; spread: "
      "the larger of the two's ranges from the first to the third quartile. A rule holds from its "
      "size to the next. "
      "docs/tuning.md");
}

std::string TuneCommand::finish(TuneOptions* options) const {
  *options = options_;
  for (const std::string& name : collectives_)
    if (name == kTunedUnits)
      options->units = true;
    else
      options->collectives.push_back(find_collective(name));
  for (const Memory memory : {Memory::kCaller, Memory::kPool})
    if (std::find(memories_.begin(), memories_.end(), memory_name(memory)) != memories_.end())
      options->memories.push_back(memory);
  options->gpu = std::find(memories_.begin(), memories_.end(), "gpu") != memories_.end();
  if (options->units && !options->gpu)
    return fmt::format("{} is tuned on GPUs alone: add --memory gpu", kTunedUnits);
  options->sizes = size_sweep(*parse_bytes(first_), *parse_bytes(last_), factor_);
  return sweep_problem(options->sizes, first_, last_, factor_);
}

}  // namespace fsccl::perf
