#include "perf/model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace fsccl::perf {
namespace {

const char* const kTiny = R"({"name": "tiny", "units": [
  {"name": "root", "params": [["embedding", [10, 4]], ["scale", []]]},
  {"name": "layers.0", "params": [["w", [4, 4]]]},
  {"name": "layers.1", "params": [["w", [4, 4]]]}]})";

TEST(ParseModel, ReadsUnitsAndShapes) {
  std::string error;
  const auto model = parse_model(kTiny, "tiny.json", &error);
  ASSERT_TRUE(model) << error;
  EXPECT_EQ(model->name, "tiny");
  ASSERT_EQ(model->units.size(), 3u);
  EXPECT_EQ(model->units[0].params[0].dims, (std::vector<int64_t>{10, 4}));
  EXPECT_EQ(model->units[0].elements(), 41u);
  EXPECT_FALSE(model->units[0].is_layer());
  EXPECT_TRUE(model->units[2].is_layer());
  EXPECT_EQ(model->elements(), 73u);
  EXPECT_EQ(model->layers(), 2u);
}

const char* const kGroups = R"({"name": "groups", "units": [
  {"name": "root", "params": [["embedding", [10, 4]]]},
  {"repeat": 2, "first": 0, "units": [{"name": "layers.{}", "params": [["w", [3]]]}]},
  {"repeat": 3, "first": 2, "units": [{"name": "layers.{}.attention", "params": [["w", [5]]]},
                                      {"name": "layers.{}.experts", "params": [["w", [2,
                                       7]]]}]}]})";

TEST(ParseModel, RepeatsGroupsOfUnits) {
  std::string error;
  auto model = parse_model(kGroups, "groups.json", &error);
  ASSERT_TRUE(model) << error;
  ASSERT_EQ(model->units.size(), 9u);
  EXPECT_EQ(model->units[2].name, "layers.1");
  EXPECT_EQ(model->units[3].name, "layers.2.attention");
  EXPECT_EQ(model->units[8].name, "layers.4.experts");
  EXPECT_EQ(model->units[8].layer(), "layers.4");
  EXPECT_EQ(model->units[0].layer(), "");
  EXPECT_EQ(model->elements(), 40u + 2 * 3 + 3 * (5 + 14));
  EXPECT_EQ(model->layers(), 5u);
  ASSERT_TRUE(keep_layers(&*model, 3, &error)) << error;
  ASSERT_EQ(model->units.size(), 5u);
  EXPECT_EQ(model->units[4].name, "layers.2.experts");
}

struct Bad {
  const char *text, *place, *what;
};

// The file that export_model() writes for a forecast is a model of the other programs, too.
TEST(ParseModel, FiguresOfForecastsAreAllowed) {
  std::string error;
  const auto model = parse_model(
      R"({"name": "m", "sequence": 64, "units": [{"name": "a", "params": [["w", [2]]],
          "forward_flops": 1.5, "forward_flops_per_context": 0, "activation_bytes": 8,
          "checkpoint_bytes": 4, "loss_bytes": 2}]})",
      "m.json", &error);
  ASSERT_TRUE(model) << error;
  EXPECT_EQ(model->elements(), 2u);
}

TEST(ParseModel, NamesTheFileAndThePlaceOfAProblem) {
  const Bad kBad[] = {
      {"", "m.json", "not JSON"},
      {"{\n\"name\": }", "line 2", "not JSON"},
      {"[]", "the document", "must be an object"},
      {R"({"units": []})", "the document", "\"name\" is missing"},
      {R"({"name": "", "units": []})", "name", "not empty"},
      {R"({"name": "m", "units": []})", "units", "at least one unit"},
      {R"({"name": "m", "units": [7]})", "units[0]", "must be an object"},
      {R"({"name": "m", "units": [{"name": "a", "params": []}]})", "units[0].params",
       "at least one parameter"},
      {R"({"name": "m", "unit": [], "units": []})", "the document", "\"unit\" is not known"},
      {R"({"name": "m", "units": [{"name": "a", "params": [["w"]]}]})", "units[0].params[0]",
       "must be a name and a shape"},
      {R"({"name": "m", "units": [{"name": "a", "params": [["w", [2], "frozen"]]}]})",
       "units[0].params[0]", "leave \"frozen\" out"},
      {R"({"name": "m", "units": [{"name": "a", "params": [["w", [2, -1]]]}]})",
       "units[0].params[0][1][1]", "-1"},
      {R"({"name": "m", "units": [{"name": "a", "params": [["w", [2.5]]]}]})",
       "units[0].params[0][1][0]", "2.5"},
      {R"({"name": "m", "units": [{"name": "a", "params": [["w", ["2"]]]}]})",
       "units[0].params[0][1][0]", "whole number"},
      {R"({"name": "m", "units": [{"name": "a", "params": [["w", [1,1,1,1,1,1,1,1,1]]]}]})",
       "units[0].params[0][1]", "9 dimensions"},
      {R"({"name": "m", "units": [{"name": "a", "params": [["w", [4294967296, 4294967296]]]}]})",
       "units[0].params[0][1]", "more than"},
      {R"({"name": "m", "units": [{"name": "a", "params": [["w", [18446744073709551615]]]}]})",
       "units[0].params[0][1][0]", "whole number"},
      {R"({"name": "m", "units": [{"name": "a", "params": [["w", [1]]]}, {"name": "a", )"
       R"("params": [["w", [1]]]}]})",
       "units[1].name", "earlier"},
      {R"({"name": "m", "units": [{"repeat": 2, "units": []}]})", "units[0]",
       "\"first\" is missing"},
      {R"({"name": "m", "units": [{"repeat": 2, "first": 0, "units": []}]})", "units[0].units",
       "at least one unit"},
      {R"({"name": "m", "units": [{"repeat": 0, "first": 0, "units": [7]}]})", "units[0].repeat",
       "from 1 to"},
      {R"({"name": "m", "units": [{"repeat": 1, "first": -1, "units": [7]}]})", "units[0].first",
       "-1"},
      {R"({"name": "m", "units": [{"repeat": 2, "first": 0, "units": [{"name": "a", )"
       R"("params": [["w", [1]]]}]}]})",
       "units[0].units[0].name", "has no {}"},
      {R"({"name": "m", "units": [{"repeat": 100000, "first": 0, "units": [{"name": "a{}", )"
       R"("params": [["w", [4294967296]]]}]}]})",
       "units[0].units[0].params[0][1]", "more than"},
  };
  for (const Bad& bad : kBad) {
    std::string error;
    EXPECT_FALSE(parse_model(bad.text, "m.json", &error)) << bad.text;
    EXPECT_EQ(error.rfind("m.json: ", 0), 0u) << error;
    EXPECT_NE(error.find(bad.place), std::string::npos) << error;
    EXPECT_NE(error.find(bad.what), std::string::npos) << error;
  }
}

TEST(LoadModel, FindsNamesInFoldersAndFilesByPath) {
  char folder[] = "/tmp/fsccl-model-test-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string path = std::string(folder) + "/tiny.json";
  std::ofstream(path) << kTiny;
  std::string error;
  EXPECT_TRUE(load_model("tiny", {"/nowhere", folder}, &error)) << error;
  EXPECT_TRUE(load_model("Tiny", {"/nowhere", folder}, &error)) << error;
  EXPECT_TRUE(load_model(path, {}, &error)) << error;
  EXPECT_FALSE(load_model("huge", {folder}, &error));
  EXPECT_NE(error.find("known are: tiny"), std::string::npos) << error;
  // A device may have no end.
  EXPECT_FALSE(load_model("/dev/zero", {folder}, &error));
  EXPECT_NE(error.find("give a file"), std::string::npos) << error;
  EXPECT_FALSE(load_model("./missing.json", {folder}, &error));
  EXPECT_NE(error.find("./missing.json"), std::string::npos) << error;
  EXPECT_FALSE(load_model(std::string(folder) + "/", {folder}, &error));
  EXPECT_NE(error.find("is a folder: give a file"), std::string::npos) << error;
  EXPECT_FALSE(load_model("/dev/null", {}, &error));
  EXPECT_NE(error.find("is a device"), std::string::npos) << error;
  ASSERT_EQ(std::remove(path.c_str()), 0);
  ASSERT_EQ(std::remove(folder), 0);
}

TEST(KeepLayers, KeepsTheFirstLayersAndAllOtherUnits) {
  std::string error;
  Model model = *parse_model(kTiny, "tiny.json", &error);
  EXPECT_FALSE(keep_layers(&model, 3, &error));
  EXPECT_NE(error.find("has 2"), std::string::npos) << error;
  ASSERT_TRUE(keep_layers(&model, 1, &error));
  ASSERT_EQ(model.units.size(), 2u);
  EXPECT_EQ(model.units[1].name, "layers.0");
  ASSERT_TRUE(keep_layers(&model, 0, &error));
  EXPECT_EQ(model.units.size(), 1u);
}

TEST(SplitRoot, TheFirstParameterBeginsAndTheOthersEnd) {
  Model model{"m",
              {{"root", {{"embedding", {8, 4}}, {"norm", {4}}, {"head", {8, 4}}}},
               {"layers.0", {{"w", {4}}}}}};
  const uint64_t elements = model.elements();
  split_root(&model);
  ASSERT_EQ(model.units.size(), 3u);
  EXPECT_EQ(model.units[0].params.size(), 1u);
  EXPECT_EQ(model.units[0].params[0].name, "embedding");
  EXPECT_EQ(model.units[2].params[1].name, "head");
  EXPECT_EQ(model.stays, 2u);
  EXPECT_EQ(model.elements(), elements);
  Model tied{"m", {{"root", {{"embedding", {8, 4}}}}}};
  split_root(&tied);
  EXPECT_EQ(tied.units.size(), 1u);
  EXPECT_EQ(tied.stays, 0u);
}

// The numbers of elements are those of the model's card, or of the index of its weights.
TEST(ShippedModels, HaveTheirPublishedSizes) {
  const struct {
    const char* name;
    size_t layers;
    uint64_t elements;
  } kModels[] = {
      {"Llama-3.2-1B", 16, 1'235'814'400},  {"Llama-3-8B", 32, 8'030'261'248},
      {"Llama-3-70B", 80, 70'553'706'496},  {"Llama-3.1-405B", 126, 405'853'388'800},
      {"Qwen2.5-7B", 28, 7'615'616'512},    {"Mixtral-8x7B", 32, 46'702'792'704},
      {"DeepSeek-V3", 61, 671'026'419'200}, {"GPT-OSS-120B", 36, 116'829'156'672},
  };
  for (const auto& published : kModels) {
    std::string error;
    const auto model = load_model(published.name, {FSCCL_MODELS}, &error);
    ASSERT_TRUE(model) << error;
    EXPECT_EQ(model->layers(), published.layers) << published.name;
    EXPECT_EQ(model->elements(), published.elements) << published.name;
  }
  const auto shipped = std::filesystem::directory_iterator(FSCCL_MODELS);
  EXPECT_EQ(std::count_if(begin(shipped), end(shipped),
                          [](const auto& entry) { return entry.path().extension() == ".json"; }),
            static_cast<std::ptrdiff_t>(std::size(kModels)));
}

}  // namespace
}  // namespace fsccl::perf
