// fsccl-perf measures how fast the library is here, and checks its results. This file starts what
// the command line asks for. collectives.h and step.h say what is measured, command_line.h has the
// options, and launch.h says how ranks start.
#include <fmt/format.h>
#include <csignal>

#include <CLI/CLI.hpp>
#include <functional>
#include <optional>
#include <string>

#include "base/program.h"
#include "command_line.h"
#include "fsccl/codec.h"
#include "launch.h"
#include "perf/pool/pool_command.h"
#include "perf/race/race_command.h"
#include "session.h"
#include "step_codec.h"

namespace fsccl::perf {
namespace {

constexpr int kExitWrong = 1, kExitUsage = 2;

struct CommonOptions {
  int ranks = 0;  // 0 if not given
  std::string bind = "auto";
  std::string local_place;
  bool json = false;
};

void add_common(CLI::App* command, CommonOptions* common) {
  command->option_defaults()->always_capture_default();  // so that --help shows the defaults
  command
      ->add_option("--ranks", common->ranks,
                   "start this many local ranks; without it: one rank of torchrun, mpirun, mpiexec "
                   "or srun where that runs it, else 2")
      ->check(CLI::Range(1, 4096))
      ->default_str("")
      ->type_name("N");
  command
      ->add_option("--bind", common->bind,
                   "with --ranks: bind each rank to a core of its own (core), not (none), or if "
                   "there are enough cores (auto)")
      ->check(CLI::IsMember({"auto", "core", "none"}))
      ->type_name("HOW");
  command->add_flag("--json", common->json, "print JSON, an object a line, instead of a table");
}

int usage(const std::string& text) {
  fmt::print(stderr, "fsccl-perf: {}\n", text);
  return kExitUsage;
}

std::string version_line() {
  const auto text = [](int version) {
    return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
  };
  int library = 0;
  if (fsccl_version(&library) != FSCCL_OK) return fmt::format("fsccl-perf {}", text(FSCCL_VERSION));
  return fmt::format("fsccl-perf {} (with the library of {})", text(FSCCL_VERSION), text(library));
}

int run_rank(const CommonOptions& common, const std::function<uint64_t(Session&)>& measure) {
  std::optional<LocalRank> place;
  if (!common.local_place.empty()) {
    place.emplace();
    if (!parse_local_rank(common.local_place, &*place))
      return usage("--local-place is this program's own; use --ranks N");
  }
  Session session(place);
  return measure(session) == 0 ? 0 : kExitWrong;
}

int run(int argc, char** argv) {
  CLI::App app("Measures FSCCL and checks every result.", "fsccl-perf");
  app.require_subcommand(1);
  app.set_version_flag("--version", version_line);
  app.footer(
      "fsccl-perf collectives --ranks 4 --memory caller,pool\nfsccl-perf step --ranks 4 --model "
      "llama-3.2-1b --layers 2\ntorchrun "
      "--no-python --nproc-per-node 4 fsccl-perf step");
  CommonOptions common;
  app.add_option("--local-place", common.local_place)->group("");  // only launch_local() passes it
  CLI::App* collectives =
      app.add_subcommand("collectives", "single collectives over a range of sizes");
  CLI::App* step = app.add_subcommand(
      "step", "an FSDP step of a model: gathers and reductions, without its computation");
  CollectivesCommand collectives_command;
  CollectivesOptions collectives_options;
  CLI::App* tune = app.add_subcommand(
      "tune",
      "the plans that are chosen against all others, and the tuning file that corrects them");
  TuneCommand tune_command;
  TuneOptions tune_options;
  StepCommand step_command;
  StepOptions step_options;
  add_common(collectives, &common);
  collectives_command.add_to(collectives);
  add_common(tune, &common);
  tune_command.add_to(tune);
  add_common(step, &common);
  step_command.add_to(step);
  CLI::App* pool = app.add_subcommand(
      "pool", "traces of allocations through the pool's placement, against their bounds");
  PoolCommand pool_command;
  pool_command.add_to(pool);
  CLI::App* race = app.add_subcommand(
      "race", "the variants of the passes over memory against each other, on this processor");
  RaceCommand race_command;
  race_command.add_to(race);
  race->add_flag("--json", common.json, "print JSON, an object a line, instead of a table");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitUsage;
  }
  if (pool->parsed()) return pool_command.run();
  if (race->parsed()) return race_command.run(common.json);
  Model model;
  const std::string problem = collectives->parsed()
                                  ? collectives_command.finish(&collectives_options)
                              : tune->parsed() ? tune_command.finish(&tune_options)
                                               : step_command.finish(&step_options, &model);
  if (!problem.empty()) return usage(problem);
  collectives_options.json = step_options.json = tune_options.json = common.json;
  if (common.local_place.empty() && (common.ranks > 0 || !in_launcher_environment())) {
    const int ranks = common.ranks > 0 ? common.ranks : 2;
    const Binding binding = common.bind == "core"   ? Binding::kCore
                            : common.bind == "none" ? Binding::kNone
                                                    : Binding::kAuto;
    return launch_local(ranks, binding, argc, argv);
  }
  return run_rank(common, [&](Session& session) {
    if (tune->parsed()) {
      run_tune(session, tune_options);
      return uint64_t{0};
    }
    const bool no_root = collectives->parsed() && collectives_options.root >= session.ranks();
    if (no_root && session.rank() == 0)
      (void)usage(
          fmt::format("--root {}: there are {} ranks", collectives_options.root, session.ranks()));
    session.end_where(no_root, kExitUsage);
    if (collectives->parsed()) return run_collectives(session, collectives_options);
    return step_options.codec != FSCCL_CODEC_NONE ? run_step_codec(session, model, step_options)
                                                  : run_step(session, model, step_options);
  });
}

}  // namespace
}  // namespace fsccl::perf

int main(int argc, char** argv) {
  // Whoever started this program may ignore the signal, and then nobody learns how a child ended.
  signal(SIGCHLD, SIG_DFL);
  return fsccl::run_program("fsccl-perf", argc, argv, fsccl::perf::run);
}
