// Models and machines that tests of the forecast share.
#pragma once
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/json_value.h"
#include "forecast/forecast.h"

namespace fsccl::forecast {

inline JsonValue value_of(const std::string& text) {
  return parse_json_text(text, "a test").take();
}
inline Model model_of(const char* text, int experts = 0) {
  Result<Model> model = read_model(value_of(text), experts, 2);
  EXPECT_TRUE(model.ok()) << (model.ok() ? "" : model.status().text());
  return model.take();
}
inline Machine machine_of(const char* text, const char* type = "bf16", int ranks = 1 << 20) {
  Result<Machine> machine = read_machine(value_of(text), type, ranks);
  EXPECT_TRUE(machine.ok()) << (machine.ok() ? "" : machine.status().text());
  return machine.take();
}

inline constexpr const char* kSmall = R"({"name": "small", "units": [
  {"name": "root", "params": [["embed.weight", [32000, 1024]], ["norm.weight", [1024]],
    ["head.weight", [32000, 1024]]]},
  {"repeat": 12, "first": 0, "units": [{"name": "layers.{}", "params": [
    ["q_proj.weight", [1024, 1024]], ["k_proj.weight", [1024, 1024]],
    ["v_proj.weight", [1024, 1024]], ["o_proj.weight", [1024, 1024]],
    ["up_proj.weight", [4096, 1024]], ["down_proj.weight", [1024, 4096]],
    ["norm.weight", [1024]]]}]}]})";
inline constexpr const char* kHosts =
    R"({"name": "hosts", "device": "cpu", "ranks_per_host": 8, "tflops": {"bf16": 3},
  "memory_gb_per_s": 50, "between": {"gb_per_s": 12.5, "ns": 30000}})";
inline constexpr const char* kGpus =
    R"({"name": "gpus", "device": "gpu", "ranks_per_host": 8, "tflops": {"bf16": 989},
  "memory_bytes": 85899345920, "memory_gb_per_s": 3350,
  "within": {"link": "nvlink", "gb_per_s": 450, "ns": 2000},
  "between": {"gb_per_s": 400, "ns": 5000}})";

}  // namespace fsccl::forecast
