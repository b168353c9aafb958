// Tests the bytes of a rank, by owner.
#include "forecast/memory.h"

#include "fixtures.h"
#include "forecast/report.h"
#include "perf/step_schedule.h"

namespace fsccl::forecast {
namespace {

Forecast forecast_of(Forecaster& forecaster, const StepConfig& setup) {
  Result<Forecast> forecast = forecaster.run(setup);
  EXPECT_TRUE(forecast.ok()) << (forecast.ok() ? "" : forecast.status().text());
  return forecast.take();
}

TEST(Memory, SlotsAreThoseOfThePlanner) {
  std::string error;
  const perf::Model same = *perf::parse_model(kSmall, "test", &error);
  Forecaster forecaster(model_of(kSmall), machine_of(kHosts));
  for (const bool by_parameter : {false, true})
    for (const int prefetch : {0, 1}) {
      StepConfig setup;
      setup.ranks = 2;
      setup.prefetch = prefetch;
      setup.by_parameter = by_parameter;
      perf::StepShape shape;
      shape.by_parameter = by_parameter;
      shape.kept.assign(same.units.size(), false);
      const auto events = by_parameter ? perf::make_step_by_parameter(same, prefetch)
                                       : perf::make_step(same.units.size(), prefetch);
      const double bound = static_cast<double>(perf::plan_bound_bytes(same, events, shape));
      const Forecast forecast = forecast_of(forecaster, setup);
      const double planned =
          static_cast<double>(forecast.slots.parameters + forecast.slots.gradients);
      EXPECT_GE(planned, bound);  // no plan needs less than the bound
      EXPECT_LE(planned, 1.01 * bound)
          << "prefetch " << prefetch << ", by parameter " << by_parameter;
    }
}

TEST(Memory, OwnersAreWhatTheirTypesSay) {
  Forecaster forecaster(model_of(kSmall), machine_of(kGpus));
  StepConfig setup;
  setup.ranks = 8;
  const uint64_t elements = forecaster.model().elements();
  const Forecast forecast = forecast_of(forecaster, setup);
  EXPECT_NEAR(static_cast<double>(forecast.memory.shards), static_cast<double>(elements) * 4 / 8,
              4096);
  EXPECT_EQ(forecast.memory.optimizer, 2 * forecast.memory.shards);
  EXPECT_EQ(forecast.memory.sharded_gradients, forecast.memory.shards);
  setup.shard = setup.sharded_grad = FSCCL_BFLOAT16;
  setup.optimizer_bytes = 4;
  const Forecast half = forecast_of(forecaster, setup);
  EXPECT_EQ(half.memory.shards, forecast.memory.shards / 2);
  EXPECT_EQ(half.memory.optimizer, forecast.memory.optimizer / 2);
}

TEST(Memory, RanksOfAHostShareParametersAndGpusDoNot) {
  Forecaster hosts(model_of(kSmall), machine_of(kHosts)), gpus(model_of(kSmall), machine_of(kGpus));
  StepConfig setup;
  setup.ranks = 8;
  const Forecast shared = forecast_of(hosts, setup), own = forecast_of(gpus, setup);
  EXPECT_EQ(shared.memory.parameter_slots * 8, own.memory.parameter_slots);
  EXPECT_EQ(shared.memory.host_slots, own.memory.parameter_slots);
}

TEST(Memory, KeepingTakesWhatIsKeptAndCheckpointsFreeActivations) {
  Forecaster forecaster(model_of(kSmall), machine_of(kGpus));
  StepConfig setup;
  setup.ranks = 8;
  const Forecast plain = forecast_of(forecaster, setup);
  setup.keep_bytes = uint64_t{1} << 40;
  const Forecast kept = forecast_of(forecaster, setup);
  EXPECT_GE(kept.memory.parameter_slots, forecaster.model().elements() * 2);
  EXPECT_GT(kept.memory.parameter_slots, plain.memory.parameter_slots);
  EXPECT_LT(kept.line.communication_ns, plain.line.communication_ns);
  setup.keep_bytes = 0;
  setup.checkpoint = Checkpoint::full;
  setup.fused_loss = true;
  const Forecast again = forecast_of(forecaster, setup);
  EXPECT_LT(again.memory.activations, plain.memory.activations / 2);
  EXPECT_GT(again.line.compute_ns, 1.2 * plain.line.compute_ns);
}

// The results of four of a layer's seven products of matrices stay, and that of attention.
TEST(Memory, SelectiveCheckpointsKeepEverySecondProduct) {
  const Model model = model_of(kSmall);
  Forecaster forecaster(model, machine_of(kGpus));
  StepConfig setup;
  setup.ranks = 8;
  setup.fused_loss = true;
  double kept = 0, again = 0;
  bool stays = true;
  const ModelUnit& layer = model.units[1];
  for (const ModelParam& param : layer.params) {
    if (param.shape.dims.size() != 2) continue;
    if (param.name.find("o_proj") != std::string::npos)
      kept += static_cast<double>(param.shape.dims[1]);
    if (stays)
      kept += static_cast<double>(param.shape.dims[0]);
    else
      again += 2 * static_cast<double>(param.elements);
    stays = !stays;
  }
  EXPECT_DOUBLE_EQ(layer.selective_bytes, layer.checkpoint_bytes + 2 * kept);
  EXPECT_DOUBLE_EQ(layer.selective_flops, again);
  std::vector<Forecast> all;
  for (const Checkpoint one : {Checkpoint::none, Checkpoint::selective, Checkpoint::full}) {
    setup.checkpoint = one;
    all.push_back(forecast_of(forecaster, setup));
  }
  for (size_t i = 1; i < all.size(); i++) {
    EXPECT_LT(all[i].memory.activations, all[i - 1].memory.activations);
    EXPECT_GT(all[i].line.compute_ns, all[i - 1].line.compute_ns);
  }
}

// Products other than those of two matrices are made again: convolutions, and those of experts,
// even if nothing says how many of these a token uses.
TEST(Memory, SelectiveCheckpointsMakeAllElseAgain) {
  const auto layer_of = [](const char* params) {
    const std::string text = fmt::format(
        R"({{"name": "m", "units": [{{"name": "root", "params": [["head.weight", [64, 64]]]}},
            {{"name": "layers.0", "forward_flops": 1e9, "activation_bytes": 1e6,
              "checkpoint_bytes": 1e3, "params": [{}]}}]}})",
        params);
    return model_of(text.c_str()).units[1];
  };
  EXPECT_EQ(layer_of(R"(["conv.weight", [64, 64, 3, 3]])").selective_flops, 1e9);
  EXPECT_EQ(layer_of(R"(["experts.weight", [8, 64, 64]])").selective_flops, 1e9);
  const ModelUnit both = layer_of(R"(["conv.weight", [64, 64, 3, 3]], ["fc.weight", [32, 64]])");
  EXPECT_EQ(both.selective_flops, 1e9 - 2 * 32 * 64);
  EXPECT_EQ(both.selective_bytes, 1e3 + 2 * 32);
  // Looking up a table is no product.
  const ModelUnit table = layer_of(R"(["embed.weight", [500, 64]], ["fc.weight", [32, 64]])");
  const ModelUnit matrix = layer_of(R"(["fc.weight", [32, 64]])");
  EXPECT_EQ(table.selective_flops, matrix.selective_flops);
  EXPECT_EQ(table.selective_bytes, matrix.selective_bytes);
  EXPECT_EQ(table.widest_bytes, matrix.widest_bytes);
}

TEST(Memory, LookingUpATableKeepsNoActivations) {
  const auto unit_of = [](const char* params) {
    const std::string text = fmt::format(
        R"({{"name": "m", "units": [{{"name": "layers.0", "params": [{}]}}]}})", params);
    return model_of(text.c_str()).units[0];
  };
  const ModelUnit table = unit_of(R"(["embed.weight", [500, 12]], ["fc.weight", [32, 64]])"),
                  matrix = unit_of(R"(["fc.weight", [32, 64]])");
  EXPECT_EQ(table.activation_bytes, matrix.activation_bytes);
  EXPECT_EQ(table.checkpoint_bytes, matrix.checkpoint_bytes);
}

// tests/torch/peak_test.py compares the figure with torch.
TEST(Memory, TheMostAtOneTimeIsLessThanTheSumOfOwners) {
  for (const char* carrier : {"plans", "nccl"}) {
    nlohmann::json machine = nlohmann::json::parse(kGpus);
    machine["carrier"] = carrier;
    Forecaster forecaster(model_of(kSmall), machine_of(machine.dump().c_str()));
    StepConfig setup;
    setup.ranks = 8;
    const Memory memory = forecast_of(forecaster, setup).memory;
    EXPECT_LT(memory.at_once, memory.total()) << carrier;
    EXPECT_GT(memory.at_once, memory.shards + memory.optimizer + memory.activations) << carrier;
    // Between micro-batches the sharded gradients stay.
    setup.accumulate = 2;
    EXPECT_EQ(forecast_of(forecaster, setup).memory.at_once,
              memory.at_once + memory.sharded_gradients)
        << carrier;
  }
}

// This holds for models without a root, too, and for those whose root has the table of embeddings
// alone, which is the head as well.
TEST(Memory, NoSetupHoldsMoreAtOnceThanInAll) {
  constexpr const char* kLayers = R"({"repeat": 4, "first": 0, "units": [{"name": "layers.{}",
      "params": [["o_proj.weight", [256, 256]], ["up.weight", [1024, 256]],
                 ["down.weight", [256, 1024]]]}]})";
  const std::string tied = R"({"name": "tied", "units": [{"name": "root",
      "params": [["wte.weight", [50000, 256]]]},)" +
                           std::string(kLayers) + "]}",
                    no_root = R"({"name": "no root", "units": [)" + std::string(kLayers) + "]}";
  for (const char* carrier : {"plans", "nccl"})
    for (const char* text : {kSmall, tied.c_str(), no_root.c_str()}) {
      nlohmann::json machine = nlohmann::json::parse(kGpus);
      machine["carrier"] = carrier;
      Forecaster forecaster(model_of(text), machine_of(machine.dump().c_str()));
      for (const Checkpoint checkpoint :
           {Checkpoint::none, Checkpoint::selective, Checkpoint::full})
        for (const int more : {0, 1, 2, 3}) {
          StepConfig setup;
          setup.ranks = 8;
          setup.batch = 2;
          setup.checkpoint = checkpoint;
          setup.fused_loss = more != 0;
          setup.keep_bytes = more == 1 ? uint64_t{1} << 30 : 0;
          setup.shard_over = more == 2 ? 4 : 0;
          if (more == 3 && std::string_view(carrier) == "plans") {
            setup.by_parameter = true;
            setup.layout = FSCCL_LAYOUT_FLAT;
          }
          const Memory memory = forecast_of(forecaster, setup).memory;
          EXPECT_LE(memory.at_once, memory.total())
              << carrier << " " << text << " " << static_cast<int>(checkpoint) << " " << more;
        }
    }
}

// When the backward pass begins, three more tensors of all logits are there in fp32. A layer's
// activations, which are computed again with checkpoints, are less than the logits, which are given
// back before.
TEST(Memory, TheLossAddsGradientsOfLogits) {
  nlohmann::json given = {{"model", nlohmann::json::parse(kSmall)},
                          {"machine", nlohmann::json::parse(kGpus)},
                          {"ranks", 8},
                          {"timeline", true}};
  constexpr double kLogits = 32000, kTokens = 2048;
  const auto answer = [&] { return nlohmann::json::parse(forecast_json(given.dump()).take()); };
  for (const char* checkpoint : {"none", "full"}) {
    given["checkpoint"] = checkpoint;
    given["model"]["units"][0].erase("loss_bytes");
    const nlohmann::json with = answer();
    given["model"]["units"][0]["loss_bytes"] = 0;
    const double without = answer()["memory"]["activations_bytes"].get<double>(),
                 most = with["memory"]["activations_bytes"].get<double>();
    EXPECT_EQ(most - without, 3 * 4 * kLogits * kTokens);
    double held = 0;
    for (const nlohmann::json& point : with["timeline"]["memory"])
      held = std::max(held, point["activations_bytes"].get<double>());
    EXPECT_EQ(held, most) << checkpoint;
    given["loss"] = "fused";
    given["model"]["units"][0].erase("loss_bytes");
    EXPECT_EQ(answer()["memory"]["activations_bytes"].get<double>(), without);
    given.erase("loss");
  }
}

TEST(Memory, ALossThatAFileDoesNotStateIsNotKnown) {
  nlohmann::json given = {{"model", nlohmann::json::parse(kSmall)},
                          {"machine", nlohmann::json::parse(kGpus)},
                          {"ranks", 8}};
  const auto said = [&] {
    return nlohmann::json::parse(forecast_json(given.dump()).take())["not_known"].dump();
  };
  EXPECT_NE(said().find("counted is that of torch's cross_entropy() in fp32"), std::string::npos);
  nlohmann::json& root = given["model"]["units"][0];
  root["activation_bytes"] = 1e5;
  EXPECT_NE(said().find("root gives its activations, but not the"), std::string::npos);
  root["loss_bytes"] = 0;
  EXPECT_EQ(said().find("loss"), std::string::npos);
}

}  // namespace
}  // namespace fsccl::forecast
