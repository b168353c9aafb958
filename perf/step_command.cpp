// The options of `fsccl-perf step`.
#include <fmt/format.h>

#include "command_line.h"
#include "fsccl/codec.h"
#include "numbers.h"

namespace fsccl::perf {

void StepCommand::add_to(CLI::App* command) {
  command_ = command;
  const auto word = [&](const char* name, std::string& value, const std::vector<std::string>& known,
                        const char* text, const char* type) {
    command->add_option(name, value, text)->check(CLI::IsMember(known))->type_name(type);
  };
  command
      ->add_option("--model", model_,
                   "a known model (fsccl-perf names them when it knows none of that name) or a "
                   "JSON file {\"name\": .., \"units\": "
                   "[{\"name\": .., \"params\": [[\"w\", [4096, 1024]], ..]}, ..]}")
      ->type_name("NAME|FILE");
  command
      ->add_option("--layers", layers_,
                   "keep only the first N layers (units whose name ends in a number)")
      ->check(CLI::Range(0, 1000000))
      ->type_name("N");
  word("--root", root_, {"whole", "split"},
       "whole: the first unit, embedding and head, stays for the whole step; split: the embedding "
       "begins it and the head ends it, each a unit, as TorchTitan shards",
       "HOW");
  word("--wire", wire_, {"bf16", "fp16", "fp32"},
       "type of gathered parameters and of gradients; shards are fp32", "TYPE");
  word("--layout", layout_, {"per_param", "flat", "ragged"},
       "per_param (FSDP2), flat (FSDP1) or ragged (between blocks)", "LAYOUT");
  command
      ->add_option(
          "--block", block_,
          "ragged: what a shard boundary never cuts, of tensors of two and more dimensions")
      ->check(check_block)
      ->type_name("element|RxC");
  command
      ->add_option("--keep", keep_,
                   "keep gathered parameters for the backward pass: none, always, or budget BYTES")
      ->expected(1, 2)
      ->type_name("WHICH [BYTES]");
  word("--codec", codec_, {"none", "delta", "int8", "fp8", "mxfp8"},
       "compare gathers without a codec, kept without one, and with it: differences from the last "
       "gather, or blocks of 8 bits (docs/codecs.md)",
       "CODEC");
  command->add_flag("--codec-always", options_.codec_always,
                    "the delta codec does not decline where the link is too fast for it");
  word("--gradients", gradients_, {"slot", "private"},
       "slot: written into the library's slots; private: in plain memory", "WHERE");
  word("--sharing", sharing_, {"shared", "private"},
       "shared: one slot of parameters per host; private: one per rank", "HOW");
  word("--schedule", schedule_, {"recorded", "declared"},
       "recorded from the first step, or declared before it", "HOW");
  command->add_flag("--by-parameter", options_.by_parameter,
                    "a slot for each parameter: backward gives them back, and reduces their "
                    "gradients, one by one");
  command
      ->add_option("--prefetch", options_.prefetch,
                   "1: gather the next unit before the present one is given back; 0: after")
      ->check(CLI::Range(0, 1))
      ->type_name("N");
  command->add_option("--steps", options_.steps, "measured steps")
      ->check(CLI::Range(1, 100000))
      ->type_name("N");
  command->add_option("--warmup", options_.warmup, "steps before them")
      ->check(CLI::Range(0, 100000))
      ->type_name("N");
  command->add_flag("--dry-run", options_.dry_run,
                    "plans, pool and signals without any memory, for models that do not fit: "
                    "nothing is moved or checked, the times are those of the bookkeeping");
  command
      ->add_option(
          "--report", options_.report,
          "write an HTML page: time per phase and rank, memory over time against the bound")
      ->default_str("")
      ->type_name("FILE");
  command
      ->add_option("--snapshot", options_.snapshots,
                   "write rank 0's fsccl_pool_snapshot() after the measured steps, may be given "
                   "several times; FSCCL_POOL_HISTORY says how many events it has")
      ->expected(1)
      ->take_all()
      ->type_name("FILE");
  command->footer(
      "A step gathers all units forward, gathers them again backward (not the root, which stays; "
      "with --by-parameter it is gathered twice), and reduces their gradients. Writing shards and "
      "gradients and\n"
      "checking are off the clock. Minimum of bytes moved, for E elements, n ranks, M, W, R, G "
      "bytes per element of shards (4), "
      "wire, gradients and sharded\n"
      "gradients (4): gather E (M + W) shared, E (M + (2n - 1) W) private, 0 when kept; reduction "
      "E (n R + G). Live bound: the "
      "most bytes of slots live at once.\n"
      "Exit status: 0, 1 when an element is wrong or a call failed, 2 for bad options.");
}

std::string StepCommand::finish(StepOptions* options, Model* model) const {
  *options = options_;
  std::string error;
  std::optional<Model> loaded = load_model(model_, model_folders(), &error);
  if (!loaded) return error;
  *model = std::move(*loaded);
  if (layers_ && !keep_layers(model, *layers_, &error)) return error;
  if (root_ == "split") split_root(model);
  options->wire = *parse_dtype(wire_);
  options->layout = layout_ == "flat"     ? FSCCL_LAYOUT_FLAT
                    : layout_ == "ragged" ? FSCCL_LAYOUT_RAGGED
                                          : FSCCL_LAYOUT_PER_PARAM;
  options->block = *parse_block(block_);
  if (options->layout != FSCCL_LAYOUT_RAGGED && block_ != "element")
    return fmt::format(
        "--block {}: only a ragged layout is cut between blocks: add --layout ragged", block_);
  options->gradient_slots = gradients_ == "slot";
  options->shared = sharing_ == "shared";
  options->codec = codec_ == "delta"   ? FSCCL_CODEC_DELTA
                   : codec_ == "int8"  ? FSCCL_CODEC_INT8
                   : codec_ == "fp8"   ? FSCCL_CODEC_FP8
                   : codec_ == "mxfp8" ? FSCCL_CODEC_MXFP8
                                       : FSCCL_CODEC_NONE;
  if (options->codec_always && codec_ != "delta")
    return "--codec-always: only the delta codec declines: add --codec delta, or leave it out";
  if (codec_ != "none" && wire_ == "fp32")
    return "--codec compares steps of 16-bit parameters: leave out --wire fp32";
  for (const char* const option : {"--keep", "--schedule", "--gradients", "--by-parameter",
                                   "--prefetch", "--dry-run", "--report", "--snapshot"})
    if (codec_ != "none" && command_->count(option))
      return fmt::format(
          "--codec compares steps in which each unit is gathered, waited for and given back, with "
          "and without keeping: leave out {}",
          option);
  options->declare = schedule_ == "declared";
  const std::string& keep = keep_[0];
  const bool budget = keep == "budget";
  if ((keep != "none" && keep != "always" && !budget) || (keep_.size() == 2) != budget)
    return fmt::format("--keep {}: give none, always, or budget BYTES", fmt::join(keep_, " "));
  options->keep = budget             ? FSCCL_KEEP_BUDGET
                  : keep == "always" ? FSCCL_KEEP_ALWAYS
                                     : FSCCL_KEEP_NONE;
  if (options->by_parameter && options->keep != FSCCL_KEEP_NONE)
    return fmt::format(
        "--by-parameter --keep {}: units by parameter are not kept: leave one of the two out",
        keep);
  if (budget) {
    const std::optional<uint64_t> bytes = parse_bytes(keep_[1]);
    if (!bytes)
      return fmt::format("--keep budget {}: not a size: a number of bytes like 64K, 16M, 2G",
                         keep_[1]);
    options->keep_budget_bytes = *bytes;
  }
  return {};
}

}  // namespace fsccl::perf
