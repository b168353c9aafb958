// Tests what is estimated from the shapes of parameters.
#include <gmock/gmock.h>

#include "fixtures.h"
#include "forecast/report.h"

namespace fsccl::forecast {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

// Returns a unit of one parameter.
Json unit_of(const char* name, const char* param, const Json& shape) {
  return {{"name", name}, {"params", Json::array({Json::array({param, shape})})}};
}

// Returns the bytes of a token that a layer keeps in 16 bits. In it, q and up have an input of the
// width 1024, o the result of attention, and down an input of the width 4096. A matrix that is
// named in `adapters` has an adapter of rank 8 behind it.
double kept_values(bool frozen, const std::vector<std::string>& adapters) {
  Json params = Json::array();
  for (const auto& [name, out, in] :
       {std::tuple("q_proj", 1024, 1024), std::tuple("o_proj", 1024, 1024),
        std::tuple("up_proj", 4096, 1024), std::tuple("down_proj", 1024, 4096)}) {
    params.push_back(Json::array({std::string(name) + ".weight", {out, in}}));
    if (frozen) params.back().push_back("frozen");
    if (std::find(adapters.begin(), adapters.end(), name) == adapters.end()) continue;
    params.push_back(Json::array({std::string(name) + ".lora_a", {8, in}}));
    params.push_back(Json::array({std::string(name) + ".lora_b", {out, 8}}));
  }
  const Json head = unit_of("root", "head.weight", {64, 64});
  const Json layer = {{"name", "layers.0"}, {"params", params}};
  const Json model = {{"name", "m"}, {"units", Json::array({head, layer})}};
  return model_of(model.dump().c_str()).units[1].activation_bytes / 2;
}

// The layer's input, q, attention's result, the sum before the second norm, and up's output.
constexpr double kAnyway = 4 * 1024 + 4096;

TEST(Estimate, AFrozenMatrixKeepsNoInput) {
  // the outputs of the two norms, and the result of the activation
  EXPECT_EQ(kept_values(false, {}), kAnyway + 2 * 1024 + 4096);
  EXPECT_EQ(kept_values(true, {}), kAnyway);
}

TEST(Estimate, AnAdapterSharesTheInputOfItsFrozenMatrix) {
  EXPECT_EQ(kept_values(true, {"q_proj"}), kAnyway + 1024 + 8);
  EXPECT_EQ(kept_values(true, {"o_proj"}), kAnyway + 8);  // attention's result is kept anyway
  EXPECT_EQ(kept_values(true, {"q_proj", "up_proj"}), kAnyway + 2 * (1024 + 8));
  EXPECT_EQ(kept_values(true, {"down_proj"}), kAnyway + 8 + 4096);
  // Two trained matrices beside no frozen one of their product are no adapter.
  EXPECT_GT(kept_values(false, {"q_proj"}), kept_values(false, {}) + 1024);
}

TEST(Estimate, SquareMatricesBesideAFrozenOneAreNoAdapter) {
  const auto kept = [](bool frozen) {
    Json params = Json::array();
    for (const char* name : {"q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight"})
      params.push_back(Json::array({name, {64, 64}}));
    if (frozen) params[0].push_back("frozen");
    const Json model = {{"name", "m"},
                        {"units", Json::array({unit_of("root", "head.weight", {64, 64}),
                                               {{"name", "layers.0"}, {"params", params}}})}};
    return model_of(model.dump().c_str()).units[1].activation_bytes;
  };
  EXPECT_EQ(kept(true), kept(false));  // k and v need the input of q
}

TEST(Estimate, AModelIsAsWideAsItsFirstMatrix) {
  const Json layer = {{"name", "layers.0"},
                      {"params", Json::array({Json::array({"conv1d.weight", {2304, 1, 4}}),
                                              Json::array({"in_proj.weight", {4096, 1024}})})}};
  const Json model = {{"name", "m"},
                      {"units", Json::array({unit_of("root", "head.weight", {64, 64}), layer})}};
  EXPECT_EQ(model_of(model.dump().c_str()).units[1].checkpoint_bytes, 2 * 1024);
}

TEST(Estimate, TablesOfThreeDimensionsAreNoExperts) {
  const Json model = {{"name", "m"},
                      {"units", Json::array({unit_of("root", "pos_embed", {1, 197, 768}),
                                             unit_of("layers.0", "fc.weight", {64, 64})})}};
  EXPECT_EQ(model_of(model.dump().c_str()).units.size(), 2u);
}

TEST(Estimate, ActivationsAreOfTheTypeOfTheComputation) {
  const auto kept = [](const char* compute, const char* checkpoint) {
    const Json given = {{"model", Json::parse(kSmall)},
                        {"machine", Json::parse(kGpus)},
                        {"ranks", 8},
                        {"checkpoint", checkpoint},
                        {"compute", compute}};
    Json fp32 = given;
    fp32["machine"]["tflops"] = {{compute, 100}};
    return Json::parse(forecast_json(fp32.dump()).take())["memory"]["activations_bytes"]
        .get<double>();
  };
  for (const char* checkpoint : {"none", "full"}) {
    const double half = kept("bf16", checkpoint);
    EXPECT_EQ(kept("fp8", checkpoint), half);
    EXPECT_EQ(kept("tf32", checkpoint), kept("fp32", checkpoint));
    // A layer that is computed again is less than the loss: the softmax of the 32,000 logits and
    // its two gradients are in fp32 in any case.
    EXPECT_EQ(kept("fp32", checkpoint), 2 * half - 3 * 4.0 * 32000 * 2048) << checkpoint;
  }
}

TEST(Estimate, AHeadOfItsOwnUnitIsCountedOnce) {
  const auto model = [](bool apart) {
    Json root = {{"name", "root"},
                 {"params", Json::array({Json::array({"embed.weight", {512, 64}})})}};
    Json units = Json::array({root, unit_of("layers.0", "up_proj.weight", {64, 64})});
    if (apart)
      units.push_back(unit_of("lm_head", "lm_head.weight", {512, 64}));
    else
      units[0]["params"].push_back(Json::array({"lm_head.weight", {512, 64}}));
    return model_of(Json{{"name", "m"}, {"units", units}}.dump().c_str());
  };
  EXPECT_EQ(model(true).forward_flops(1), model(false).forward_flops(1));
  EXPECT_EQ(model(true).units[0].activation_bytes, 0);
}

// Experts of some models are published as [experts, in, out], and their biases are no matrices.
TEST(Estimate, ExpertsAreAsWideAsTheEmbeddings) {
  const auto layer = [](const Json& shape) {
    Json experts = unit_of("layers.0", "gate_up_proj", shape);
    experts["params"].push_back(Json::array({"gate_up_proj_bias", {8, 256}}));
    const Json units = Json::array({unit_of("root", "embed.weight", {512, 64}), experts});
    return model_of(Json{{"name", "m"}, {"units", units}}.dump().c_str(), 2).units[1];
  };
  EXPECT_EQ(layer({8, 64, 256}).checkpoint_bytes, 2 * 64);
  EXPECT_EQ(layer({8, 256, 64}).checkpoint_bytes, 2 * 64);
  EXPECT_EQ(layer({8, 64, 256}).forward_flops, 2 * 2 * 64 * 256);
}

// A token of two experts of width 256 passes each of three matrices twice. `fused`: the gate and
// the projection beside it are one tensor. The copies of its input, the two projections, SiLU's
// result, the product, and the output are kept.
TEST(Estimate, EachExpertKeepsWhatALayerKeeps) {
  const auto kept = [](const Json& params, int per_token) {
    const Json layer = {{"name", "layers.0"}, {"params", params}},
               units = Json::array({unit_of("root", "embed.weight", {512, 64}), layer});
    return model_of(Json{{"name", "m"}, {"units", units}}.dump().c_str(), per_token)
               .units[1]
               .activation_bytes /
           2;
  };
  const auto params = [](std::initializer_list<Json> shapes) {
    Json list = Json::array();
    for (const Json& shape : shapes) list.push_back({"experts" + shape.dump(), shape});
    return list;
  };
  constexpr double kEach = 64 + 2 * 256 + 256 + 256 + 64;
  const Json fused = params({{8, 512, 64}, {8, 64, 256}}),
             turned = params({{8, 64, 512}, {8, 256, 64}});
  Json apart = params({{8, 256, 64}, {8, 64, 256}});
  apart.insert(apart.begin(), Json::array({"gate", {8, 256, 64}}));
  for (const int per_token : {1, 2})
    for (const Json& one : {fused, turned, apart})
      EXPECT_EQ(kept(one, per_token), per_token * kEach) << one;
}

TEST(Estimate, ConvolutionsAreNamed) {
  const Json machine = Json::parse(kGpus);
  const auto said = [&](const Json& layer) {
    const Json model = {{"name", "m"},
                        {"units", Json::array({unit_of("root", "head.weight", {64, 64}), layer})}};
    const Result<std::string> text =
        forecast_json(Json{{"model", model}, {"machine", machine}, {"ranks", 8}}.dump());
    if (!text.ok()) return text.status().text();
    return Json::parse(text.value())["not_known"].dump();
  };
  Json layer = unit_of("layers.0", "conv1.weight", {64, 3, 7, 7});
  EXPECT_THAT(said(layer), HasSubstr("operations and activations of conv1.weight of layers.0"));
  layer["forward_flops"] = 1e6;
  EXPECT_THAT(said(layer), HasSubstr("conv1"));
  layer["activation_bytes"] = 1e6;
  EXPECT_THAT(said(layer), ::testing::Not(HasSubstr("conv1")));
  const Json narrow = unit_of("layers.0", "conv1d.weight", {64, 1, 4});
  EXPECT_THAT(said(narrow), HasSubstr("conv1d.weight of layers.0"));
  const Result<Model> alone = read_model(
      value_of(R"({"name": "m", "units": [{"name": "a", "params": [["conv", [8, 3, 3, 3]]]}]})"), 0,
      2);
  ASSERT_FALSE(alone.ok());
  EXPECT_THAT(alone.status().text(), HasSubstr("give \"forward_flops\" and \"activation_bytes\""));
}

}  // namespace
}  // namespace fsccl::forecast
