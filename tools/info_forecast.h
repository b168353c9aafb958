// fsccl-info forecast predicts the memory and the time of a training step before it runs.
#pragma once
#include <CLI/CLI.hpp>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

class ForecastCommand {
 public:
  explicit ForecastCommand(CLI::App& app);
  bool parsed() const { return command_->parsed(); }
  int run() const;  // the program's exit status

 private:
  void add_model_options();
  void add_step_options();
  void add_output_options();
  std::optional<std::string> machine_file() const;
  std::optional<nlohmann::json> machine(const std::string& file, const std::string& compute) const;
  bool goes_with_options(const nlohmann::json& more) const;
  bool add_sizes(nlohmann::json* given) const;
  nlohmann::json configuration(nlohmann::json model, nlohmann::json machine) const;

  CLI::App* command_;
  std::string model_, machine_ = "dgx-h100", topology_, sharding_ = "full", layout_ = "per_param";
  std::string wire_ = "bf16", reduce_ = "bf16", compute_ = "bf16", optimizer_ = "adam";
  std::string keep_, memory_limit_, checkpoint_ = "none", loss_ = "fp32", codec_, carrier_, report_,
                                    config_;
  int ranks_ = 8, batch_ = 1, sequence_ = 4096, accumulate_ = 1, prefetch_ = 1, experts_ = 0;
  double codec_ratio_ = 1, codec_gb_per_s_ = 0, tflops_ = 0, measured_s_ = 0, communication_s_ = 0,
         efficiency_ = 0;
  bool by_parameter_ = false, search_ = false, what_if_ = false, scaling_ = false, startup_ = false;
  bool json_ = false;
};
