// fsccl-perf: how fast and how right the library is here. This file is the command line; collectives.h and step.h say what is
// measured, launch.h how ranks start.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "collectives.h"
#include "launch.h"
#include "model.h"
#include "numbers.h"
#include "session.h"
#include "step.h"

namespace fsccl::perf {
namespace {

constexpr int kExitWrong = 1, kExitUsage = 2;

struct CommonOptions {
  int ranks = 0;  // 0: not given
  std::string bind = "auto";
  std::string local_place;
};
struct CollectivesText {
  std::vector<std::string> collectives = {"all_gather", "reduce_scatter", "all_reduce", "broadcast"}, memories = {"caller"};
  std::string first = "8", last = "16M", dtype = "fp32", op = "sum", in_place = "both";
  double factor = 4;
};
struct StepText {
  std::string model = "llama-3.2-1b", wire = "bf16", layout = "per_param", gradients = "slot", sharing = "shared",
              schedule = "recorded";
  std::vector<std::string> keep = {"none"};
  std::optional<size_t> layers;
};

const CLI::Validator kSize(
    [](std::string& text) {
      return parse_bytes(text) ? std::string()
                               : fmt::format("\"{}\" is not a size: a number of bytes like 4096, 64K, 16M, 2G", text);
    },
    "SIZE");

void add_common(CLI::App* command, CommonOptions* common, bool* json) {
  command->option_defaults()->always_capture_default();  // --help shows them
  command
      ->add_option("--ranks", common->ranks,
                   "start this many local ranks; without it: one rank of torchrun or mpirun where their variables are set, else 2")
      ->check(CLI::Range(1, 4096))
      ->default_str("")
      ->type_name("N");
  command
      ->add_option("--bind", common->bind,
                   "with --ranks: bind each rank to a core of its own (core), not (none), or if there are enough cores (auto)")
      ->check(CLI::IsMember({"auto", "core", "none"}))
      ->type_name("HOW");
  command->add_flag("--json", *json, "print JSON instead of a table");
}

void add_collectives(CLI::App* command, CollectivesText* text, CollectivesOptions* options) {
  command
      ->add_option("--coll", text->collectives,
                   "which, separated by commas: all_gather, reduce_scatter, all_reduce, broadcast, barrier")
      ->delimiter(',')
      ->check(CLI::IsMember({"all_gather", "reduce_scatter", "all_reduce", "broadcast", "barrier"}))
      ->type_name("LIST");
  command->add_option("-b,--begin", text->first, "smallest size (all-gather: of the output, reduce-scatter: of one rank's input)")
      ->check(kSize);
  command->add_option("-e,--end", text->last, "largest size")->check(kSize);
  command->add_option("-f,--factor", text->factor, "each size is this many times the one before")
      ->check(CLI::Range(1.0, 1e9))
      ->type_name("X");
  command->add_option("-n,--iterations", options->iterations, "samples of each size")
      ->check(CLI::Range(1, 1000000))
      ->type_name("N");
  command->add_option("-w,--warmup", options->warmup, "samples before them")->check(CLI::Range(0, 1000000))->type_name("N");
  command->add_option("-m,--calls", options->calls, "calls in a sample; 0: 1 above 20 us, else as many as last 40 us")
      ->check(CLI::Range(0, 10000))
      ->type_name("N");
  std::vector<std::string> dtypes = {"float", "half", "double", "bfloat16"};
  for (const DtypeName& entry : reducible_dtypes()) dtypes.push_back(entry.name);
  command->add_option("-d,--dtype", text->dtype, "fp32, fp16, bf16, fp64, int8 .. int64, uint8 .. uint64")
      ->check(CLI::IsMember(dtypes))
      ->type_name("TYPE");
  command->add_option("-o,--op", text->op, "sum, avg, min, max, prod, premul (each contribution times 0.5, then the sum)")
      ->check(CLI::IsMember({"sum", "avg", "min", "max", "prod", "premul"}))
      ->type_name("OP");
  command->add_option("-r,--root", options->root, "of the broadcast")->check(CLI::Range(0, 1 << 20))->type_name("RANK");
  command
      ->add_option("--memory", text->memories,
                   "caller: plain memory; pool: blocks of the library's pool; both separated by a comma")
      ->delimiter(',')
      ->check(CLI::IsMember({"caller", "pool"}))
      ->type_name("LIST");
  command->add_option("--in-place", text->in_place, "no, yes or both")
      ->check(CLI::IsMember({"no", "yes", "both"}))
      ->type_name("WHICH");
  command->add_option("-c,--check", options->check_every, "check every N-th sample, and the last")
      ->check(CLI::Range(1, 1000000))
      ->type_name("N");
  command->footer(
      "size, count and busbw are those of nccl-tests: busbw = algbw x (n-1)/n for all-gather and reduce-scatter, x 2(n-1)/n for "
      "all-reduce, x 1 for broadcast.\n"
      "Every element of the results is checked, on data that change with every sample. Exit status: 0, 1 when an element is wrong "
      "or a call failed, 2 for bad options.");
}

void add_step(CLI::App* command, StepText* text, StepOptions* options) {
  command
      ->add_option("--model", text->model,
                   "a known model (llama-3.2-1b) or a JSON file {\"name\": .., \"units\": [{\"name\": .., \"params\": [[\"w\", "
                   "[4096, 1024]], ..]}, ..]}")
      ->type_name("NAME|FILE");
  command->add_option("--layers", text->layers, "keep only the first N layers (units whose name ends in a number)")
      ->check(CLI::Range(0, 1000000))
      ->type_name("N");
  command->add_option("--wire", text->wire, "type of gathered parameters and of gradients; shards are fp32")
      ->check(CLI::IsMember({"bf16", "fp16", "fp32"}))
      ->type_name("TYPE");
  command->add_option("--layout", text->layout, "per_param (FSDP2) or flat (FSDP1)")
      ->check(CLI::IsMember({"per_param", "flat"}))
      ->type_name("LAYOUT");
  command->add_option("--keep", text->keep, "keep gathered parameters for the backward pass: none, always, or budget BYTES")
      ->expected(1, 2)
      ->type_name("WHICH [BYTES]");
  command->add_option("--gradients", text->gradients, "slot: written into the library's slots; private: in plain memory")
      ->check(CLI::IsMember({"slot", "private"}))
      ->type_name("WHERE");
  command->add_option("--sharing", text->sharing, "shared: one slot of parameters per host; private: one per rank")
      ->check(CLI::IsMember({"shared", "private"}))
      ->type_name("HOW");
  command->add_option("--schedule", text->schedule, "recorded from the first step, or declared before it")
      ->check(CLI::IsMember({"recorded", "declared"}))
      ->type_name("HOW");
  command->add_option("--prefetch", options->prefetch, "1: gather the next unit before the present one is given back; 0: after")
      ->check(CLI::Range(0, 1))
      ->type_name("N");
  command->add_option("--steps", options->steps, "measured steps")->check(CLI::Range(1, 100000))->type_name("N");
  command->add_option("--warmup", options->warmup, "steps before them")->check(CLI::Range(0, 100000))->type_name("N");
  command->footer(
      "A step gathers all units forward, gathers them again backward (not the first, which stays), and reduces their gradients. "
      "Writing shards and gradients and\n"
      "checking are off the clock. Minimum of bytes moved, for E elements, n ranks, M, W, R, G bytes per element of shards (4), "
      "wire, gradients and sharded\n"
      "gradients (4): gather E (M + W) shared, E (M + (2n - 1) W) private, 0 when kept; reduction E (n R + G). Live bound: the "
      "most bytes of slots live at once.\n"
      "Exit status: 0, 1 when an element is wrong or a call failed, 2 for bad options.");
}

int usage(const std::string& text) {
  fmt::print(stderr, "fsccl-perf: {}\n", text);
  return kExitUsage;
}

// What the parser has accepted piece by piece, put together. A text on failure.
std::string finish(const CollectivesText& text, CollectivesOptions* options) {
  for (const std::string& name : text.collectives)
    for (Collective collective :
         {Collective::kAllGather, Collective::kReduceScatter, Collective::kAllReduce, Collective::kBroadcast, Collective::kBarrier})
      if (name == collective_name(collective)) options->collectives.push_back(collective);
  for (const std::string& name : text.memories) options->memories.push_back(name == "pool" ? Memory::kPool : Memory::kCaller);
  if (text.in_place != "yes") options->places.push_back(false);
  if (text.in_place != "no") options->places.push_back(true);
  options->dtype = *parse_dtype(text.dtype);
  options->op = *parse_op(text.op);
  const bool integer = options->dtype <= FSCCL_UINT64;
  if (integer && options->op.kind == FSCCL_OP_PREMUL_SUM)
    return fmt::format("--op premul needs a floating-point --dtype (fp16, bf16, fp32, fp64), not {}", text.dtype);
  options->sizes = size_sweep(*parse_bytes(text.first), *parse_bytes(text.last), text.factor);
  if (options->sizes.empty()) return fmt::format("--begin {} is larger than --end {}", text.first, text.last);
  return {};
}

std::string finish(const StepText& text, StepOptions* options, Model* model) {
  std::string error;
  std::optional<Model> loaded = load_model(text.model, model_folders(), &error);
  if (!loaded) return error;
  *model = std::move(*loaded);
  if (text.layers && !keep_layers(model, *text.layers, &error)) return error;
  options->wire = *parse_dtype(text.wire);
  options->layout = text.layout == "flat" ? FSCCL_LAYOUT_FLAT : FSCCL_LAYOUT_PER_PARAM;
  options->gradient_slots = text.gradients == "slot";
  options->shared = text.sharing == "shared";
  options->declare = text.schedule == "declared";
  const std::string& keep = text.keep[0];
  const bool budget = keep == "budget";
  if ((keep != "none" && keep != "always" && !budget) || (text.keep.size() == 2) != budget)
    return fmt::format("--keep {}: give none, always, or budget BYTES", fmt::join(text.keep, " "));
  options->keep = budget ? FSCCL_KEEP_BUDGET : keep == "always" ? FSCCL_KEEP_ALWAYS : FSCCL_KEEP_NONE;
  if (budget) {
    const std::optional<uint64_t> bytes = parse_bytes(text.keep[1]);
    if (!bytes) return fmt::format("--keep budget {}: not a size: a number of bytes like 64K, 16M, 2G", text.keep[1]);
    options->keep_budget_bytes = *bytes;
  }
  return {};
}

int run_rank(const CommonOptions& common, const std::function<uint64_t(const Session&)>& measure) {
  std::optional<LocalPlace> place;
  if (!common.local_place.empty()) {
    place.emplace();
    if (!parse_local_place(common.local_place, &*place)) return usage("--local-place is this program's own; use --ranks N");
  }
  const Session session(place);
  return measure(session) == 0 ? 0 : kExitWrong;
}

int run(int argc, char** argv) {
  CLI::App app("Measures FSCCL and checks every result.", "fsccl-perf");
  app.require_subcommand(1);
  app.footer(
      "fsccl-perf collectives --ranks 4 --memory caller,pool\nfsccl-perf step --ranks 4 --model llama-3.2-1b --layers 2\ntorchrun "
      "--no-python --nproc-per-node 4 fsccl-perf step");
  CommonOptions common;
  app.add_option("--local-place", common.local_place)->group("");  // for launch_local() alone
  CLI::App* collectives = app.add_subcommand("collectives", "single collectives over a range of sizes");
  CLI::App* step = app.add_subcommand("step", "an FSDP step of a model: gathers and reductions, without its computation");
  CollectivesText collectives_text;
  CollectivesOptions collectives_options;
  StepText step_text;
  StepOptions step_options;
  add_common(collectives, &common, &collectives_options.json);
  add_collectives(collectives, &collectives_text, &collectives_options);
  add_common(step, &common, &step_options.json);
  add_step(step, &step_text, &step_options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitUsage;
  }
  Model model;
  const std::string problem =
      collectives->parsed() ? finish(collectives_text, &collectives_options) : finish(step_text, &step_options, &model);
  if (!problem.empty()) return usage(problem);
  if (common.local_place.empty() && (common.ranks > 0 || !in_launcher_environment())) {
    const int ranks = common.ranks > 0 ? common.ranks : 2;
    if (collectives->parsed() && collectives_options.root >= ranks)
      return usage(fmt::format("--root {}: there are {} ranks", collectives_options.root, ranks));
    const Binding binding = common.bind == "core" ? Binding::kCore : common.bind == "none" ? Binding::kNone : Binding::kAuto;
    return launch_local(ranks, binding, argc, argv);
  }
  return run_rank(common, [&](const Session& session) {
    return collectives->parsed() ? run_collectives(session, collectives_options) : run_step(session, model, step_options);
  });
}

}  // namespace
}  // namespace fsccl::perf

int main(int argc, char** argv) { return fsccl::perf::run(argc, argv); }
