// The options of fsccl-perf's commands. add_to() tells the parser the options (CLI11 checks each
// option by itself), and finish() makes one request of the parsed words. finish() returns a text
// that says what is wrong, or "".
#pragma once
#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "collectives.h"
#include "model.h"
#include "step.h"
#include "tune.h"

namespace fsccl::perf {

const CLI::Validator& size_validator();  // accepts a number of bytes like 64K

class CollectivesCommand {
 public:
  void add_to(CLI::App* command);
  std::string finish(CollectivesOptions* options) const;

 private:
  std::vector<std::string> collectives_ = {"all_gather", "reduce_scatter", "all_reduce",
                                           "broadcast"},
                           memories_ = {"caller"};
  std::vector<std::string> dtypes_ = {"float"}, ops_ = {"sum"};
  std::string first_ = "8", last_ = "16M", increment_, in_place_ = "both";
  std::optional<double> factor_;
  int check_ = 1;
  CollectivesOptions options_;  // written by the parser directly
};

class TuneCommand {
 public:
  void add_to(CLI::App* command);
  std::string finish(TuneOptions* options) const;

 private:
  std::vector<std::string> collectives_ = {"all_gather", "reduce_scatter", "all_reduce",
                                           "broadcast"},
                           memories_ = {"caller", "pool"};
  std::string first_ = "1K", last_ = "4M";
  double factor_ = 4;
  TuneOptions options_;
};

class StepCommand {
 public:
  void add_to(CLI::App* command);
  std::string finish(StepOptions* options, Model* model) const;

 private:
  std::string model_ = "llama-3.2-1b", root_ = "whole", wire_ = "bf16", layout_ = "per_param",
              block_ = "element", gradients_ = "slot", sharing_ = "shared", schedule_ = "recorded",
              codec_ = "none";
  std::vector<std::string> keep_ = {"none"};
  std::optional<size_t> layers_;
  StepOptions options_;
  const CLI::App* command_ = nullptr;  // the command that add_to() got
};

}  // namespace fsccl::perf
