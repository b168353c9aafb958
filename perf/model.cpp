#include "model.h"

#include <fmt/format.h>
#include <fsccl/fsccl.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/json_file.h"
#include "own_path.h"

namespace fsccl::perf {
namespace {

using Json = nlohmann::json;
// More elements than this fit in no memory; sums below it do not overflow.
constexpr uint64_t kMostElements = uint64_t{1} << 48;
constexpr uint64_t kMostFileBytes = uint64_t{64} << 20;
constexpr uint64_t kMostRepeats = 100'000;
constexpr uint64_t kMostParams = 10'000'000;
// The keys of a unit that forecasts alone use, as fsccl_torch.export_model() writes them.
constexpr std::initializer_list<const char*> kFigures{"forward_flops", "forward_flops_per_context",
                                                      "activation_bytes", "checkpoint_bytes",
                                                      "loss_bytes"};

// Reads one document. It keeps the first problem, with its place ("units[2].params[0][1]: ...").
class Reader {
 public:
  Reader(const std::string& source, std::string* error) : source_(source), error_(error) {}

  bool read(const Json& json, Model* model) {
    if (!object(json, "the document", {"name", "units"}, {"sequence"})) return false;
    if (!name(json, "name", &model->name)) return false;
    const Json& units = json["units"];
    if (!units.is_array() || units.empty())
      return fail("units", "must be a list with at least one unit");
    for (size_t u = 0; u < units.size(); u++) {
      const std::string place = fmt::format("units[{}]", u);
      const bool group = units[u].is_object() && units[u].contains("repeat");
      if (!(group ? read_group(units[u], place, model)
                  : add_unit(units[u], place, std::nullopt, model)))
        return false;
    }
    return true;
  }

 private:
  bool fail(const std::string& place, const std::string& what) {
    *error_ = fmt::format("{}: {}: {}", source_, place, what);
    return false;
  }
  // The object must have `keys`, and may have `others`.
  bool object(const Json& json, const std::string& place, std::initializer_list<const char*> keys,
              std::initializer_list<const char*> others = {}) {
    const std::string list = fmt::format("{}", fmt::join(keys, ", "));
    if (!json.is_object())
      return fail(place, fmt::format("must be an object with {}, not {}", list, json.type_name()));
    for (const char* key : keys)
      if (!json.contains(key)) return fail(place, fmt::format("\"{}\" is missing", key));
    for (const auto& item : json.items())
      if (std::find(keys.begin(), keys.end(), item.key()) == keys.end() &&
          std::find(others.begin(), others.end(), item.key()) == others.end())
        return fail(place, fmt::format("\"{}\" is not known; the keys are {}", item.key(), list));
    return true;
  }
  bool name(const Json& json, const std::string& place, std::string* out) {
    const Json& value = json["name"];
    if (!value.is_string() || value.get_ref<const std::string&>().empty())
      return fail(place, "must be a text that is not empty");
    *out = value.get<std::string>();
    return true;
  }
  bool read_group(const Json& json, const std::string& place, Model* model) {
    uint64_t repeats = 0, first = 0;
    if (!object(json, place, {"repeat", "first", "units"}) ||
        !number(json["repeat"], place + ".repeat", 1, kMostRepeats, &repeats) ||
        !number(json["first"], place + ".first", 0, kMostElements, &first))
      return false;
    const Json& units = json["units"];
    if (!units.is_array() || units.empty())
      return fail(place + ".units", "must be a list with at least one unit");
    for (uint64_t i = first; i < first + repeats; i++)
      for (size_t u = 0; u < units.size(); u++)
        if (!add_unit(units[u], fmt::format("{}.units[{}]", place, u), i, model)) return false;
    return true;
  }
  // In the name of a unit of a group, `index` takes the place of {}.
  bool add_unit(const Json& json, const std::string& place, std::optional<uint64_t> index,
                Model* model) {
    model->units.emplace_back();
    if (!read_unit(json, place, &model->units.back())) return false;
    std::string& name = model->units.back().name;
    if (index) {
      const size_t braces = name.find("{}");
      if (braces == std::string::npos)
        return fail(place + ".name", fmt::format("\"{}\" has no {{}} for the number", name));
      name.replace(braces, 2, fmt::format("{}", *index));
    }
    return seen_.insert(name).second ||
           fail(place + ".name", fmt::format("\"{}\" is also the name of an earlier unit", name));
  }
  bool number(const Json& json, const std::string& place, uint64_t least, uint64_t most,
              uint64_t* out) {
    if (!json.is_number_unsigned() || json.get<uint64_t>() < least || json.get<uint64_t>() > most)
      return fail(place, fmt::format("must be a whole number from {} to {}, not {}", least, most,
                                     json.is_structured() ? json.type_name() : json.dump()));
    *out = json.get<uint64_t>();
    return true;
  }
  bool read_unit(const Json& json, const std::string& place, ModelUnit* unit) {
    if (!object(json, place, {"name", "params"}, kFigures) ||
        !name(json, place + ".name", &unit->name))
      return false;
    const Json& params = json["params"];
    if (!params.is_array() || params.empty())
      return fail(place + ".params", "must be a list with at least one parameter");
    for (size_t i = 0; i < params.size(); i++) {
      unit->params.emplace_back();
      if (!read_param(params[i], fmt::format("{}.params[{}]", place, i), &unit->params.back()))
        return false;
    }
    return true;
  }
  bool read_param(const Json& json, const std::string& place, ModelParam* param) {
    if (json.is_array() && json.size() == 3 && json[2] == "frozen")
      return fail(place, "is frozen, but here all are trained: leave \"frozen\" out");
    if (!json.is_array() || json.size() != 2 || !json[0].is_string() || !json[1].is_array())
      return fail(place, "must be a name and a shape, like [\"weight\", [4096, 1024]]");
    if (++params_ > kMostParams)
      return fail(place,
                  fmt::format("the model has more than {} parameters up to here", kMostParams));
    param->name = json[0].get<std::string>();
    if (json[1].size() > FSCCL_MAX_DIMS)
      return fail(place + "[1]", fmt::format("has {} dimensions; at most {} are possible",
                                             json[1].size(), FSCCL_MAX_DIMS));
    for (size_t d = 0; d < json[1].size(); d++) {
      uint64_t dim = 0;
      if (!number(json[1][d], fmt::format("{}[1][{}]", place, d), 0, kMostElements, &dim))
        return false;
      param->dims.push_back(static_cast<int64_t>(dim));
    }
    uint64_t product = 1;
    for (int64_t dim : param->dims) {
      if (dim > 0 && product > kMostElements / static_cast<uint64_t>(dim))
        return fail(place + "[1]", too_many());
      product *= static_cast<uint64_t>(dim);
    }
    total_ += product;
    return total_ <= kMostElements || fail(place + "[1]", too_many());
  }
  static std::string too_many() {
    return fmt::format("the model has more than {} elements up to here", kMostElements);
  }

  const std::string& source_;
  std::string* error_;
  uint64_t total_ = 0;  // number of elements
  uint64_t params_ = 0;
  std::set<std::string> seen_;  // names of units
};

std::string lower(std::string text) {
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return text;
}

std::optional<Model> parse_file(const std::filesystem::path& path, std::string* error) {
  const Result<std::string> text = read_text_file(path.string(), kMostFileBytes);
  if (text.ok()) return parse_model(text.value(), path.string(), error);
  *error = text.status().text();
  return std::nullopt;
}

}  // namespace

uint64_t ModelParam::elements() const {
  uint64_t product = 1;
  for (int64_t dim : dims) product *= static_cast<uint64_t>(dim);
  return product;
}
uint64_t ModelUnit::elements() const {
  uint64_t sum = 0;
  for (const ModelParam& param : params) sum += param.elements();
  return sum;
}
std::string_view ModelUnit::layer() const {
  for (size_t i = 0; i < name.size(); i++)
    if (name[i] >= '0' && name[i] <= '9' && (i + 1 == name.size() || name[i + 1] == '.'))
      return std::string_view(name).substr(0, i + 1);
  return {};
}
uint64_t Model::elements() const {
  uint64_t sum = 0;
  for (const ModelUnit& unit : units) sum += unit.elements();
  return sum;
}
size_t Model::layers() const {
  std::set<std::string_view> seen;
  for (const ModelUnit& unit : units)
    if (unit.is_layer()) seen.insert(unit.layer());
  return seen.size();
}

std::optional<Model> parse_model(std::string_view text, const std::string& source,
                                 std::string* error) {
  Json json;
  try {
    json = Json::parse(text);
  } catch (const Json::exception& problem) {  // only the exception says where the parser stopped
    std::string_view what = problem.what();
    if (const size_t bracket = what.find("] "); bracket != std::string_view::npos)
      what.remove_prefix(bracket + 2);
    *error = fmt::format("{}: not JSON: {}", source, what);
    return std::nullopt;
  }
  Model model;
  if (!Reader(source, error).read(json, &model)) return std::nullopt;
  return model;
}

std::vector<std::string> model_folders() {
  std::error_code failed;
  std::filesystem::path program = std::filesystem::canonical(own_path(), failed);
  if (failed) program = std::filesystem::read_symlink("/proc/self/exe", failed);
  if (failed) return {};
  const std::filesystem::path root = program.parent_path().parent_path();
  return {(root / "perf/models").string(), (root / "share/fsccl/models").string()};
}

std::optional<Model> load_model(const std::string& name, const std::vector<std::string>& folders,
                                std::string* error) {
  if (name.find('/') != std::string::npos || name.ends_with(".json"))
    return parse_file(name, error);
  std::set<std::string> known;
  for (const std::string& folder : folders) {
    std::error_code failed;
    for (const auto& entry : std::filesystem::directory_iterator(folder, failed)) {
      if (entry.path().extension() != ".json") continue;
      if (lower(entry.path().stem().string()) == lower(name))
        return parse_file(entry.path(), error);
      known.insert(entry.path().stem().string());
    }
  }
  *error = fmt::format(
      "no model is named \"{}\"; known are: {}. A model file is given by a path with a slash or by "
      "a name that ends in .json",
      name,
      known.empty() ? "none (looked in " + fmt::format("{}", fmt::join(folders, ", ")) + ")"
                    : fmt::format("{}", fmt::join(known, ", ")));
  return std::nullopt;
}

bool keep_layers(Model* model, size_t layers, std::string* error) {
  if (layers > model->layers()) {
    *error =
        model->layers() == 0
            ? fmt::format("--layers: model {} has no layers (units with a number in their name)",
                          model->name)
            : fmt::format("--layers {}: model {} has {}", layers, model->name, model->layers());
    return false;
  }
  std::set<std::string, std::less<>> kept;
  std::erase_if(model->units, [&](const ModelUnit& unit) {
    if (!unit.is_layer() || kept.contains(unit.layer())) return false;
    if (kept.size() == layers) return true;
    kept.emplace(unit.layer());
    return false;
  });
  if (model->units.empty())
    *error = fmt::format("--layers {}: no unit of model {} is left", layers, model->name);
  return !model->units.empty();
}

void split_root(Model* model) {
  ModelUnit& root = model->units.front();
  if (root.params.size() < 2) return;
  ModelUnit last{root.name + ".last",
                 {std::make_move_iterator(root.params.begin() + 1),
                  std::make_move_iterator(root.params.end())}};
  root.params.resize(1);
  root.name += ".first";
  model->units.push_back(std::move(last));
  model->stays = model->units.size() - 1;
}

}  // namespace fsccl::perf
