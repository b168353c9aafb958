#include "forecast/model.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "base/json_file.h"
#include "forecast/estimate.h"

namespace fsccl::forecast {
namespace {

constexpr double kMostElements = 1e15, kMostPerToken = 1e15;
constexpr size_t kMostRepeats = 100'000, kMostParams = 1'000'000;

class ModelReader : JsonReader {
 public:
  ModelReader() : JsonReader("model") {}

  Result<Model> read(const Json& json) {
    if (!object(json, "the model", {"name", "units", "sequence"}) ||
        !whole(json, "sequence", "the model", kMostElements, &model_.counted_at) ||
        !text(json, "name", "the model", true, &model_.name))
      return problem();
    if (!json.contains("units") || !json["units"].is_array() || json["units"].empty()) {
      wrong("units must be a list with at least one unit");
      return problem();
    }
    for (size_t u = 0; u < json["units"].size(); u++)
      if (!entry(json["units"][u], fmt::format("units[{}]", u))) return problem();
    if (!model_.trains()) {
      wrong(
          "all parameters are frozen, so there is no step of training: leave \"frozen\" out of "
          "those that are trained");
      return problem();
    }
    return std::move(model_);
  }

 private:
  bool entry(const Json& json, const std::string& place) {
    if (!json.is_object() || !json.contains("repeat")) return unit(json, place, nullptr);
    double repeat = 0, first = 0;
    if (!object(json, place, {"repeat", "first", "units"}) ||
        !whole(json, "repeat", place, kMostRepeats, &repeat) ||
        !whole(json, "first", place, kMostElements, &first))
      return false;
    if (repeat < 1) return wrong("{}.repeat is 0: give how often its units come", place);
    if (!json.contains("units") || !json["units"].is_array())
      return wrong("{}.units must be a list", place);
    for (size_t i = 0; i < static_cast<size_t>(repeat); i++) {
      const std::string index = fmt::format("{}", static_cast<uint64_t>(first) + i);
      for (const Json& one : json["units"])
        if (!unit(one, place + ".units", &index)) return false;
    }
    return true;
  }

  // Reads a unit. `index` replaces {} in its name.
  bool unit(const Json& json, const std::string& place, const std::string* index) {
    ModelUnit unit;
    if (!object(json, place,
                {"name", "params", "forward_flops", "forward_flops_per_context", "activation_bytes",
                 "checkpoint_bytes", "loss_bytes"}) ||
        !text(json, "name", place, true, &unit.name))
      return false;
    if (const size_t at = unit.name.find("{}"); index && at != std::string::npos)
      unit.name.replace(at, 2, *index);
    if (!unit_names_.insert(unit.name).second)
      return wrong(
          "{}.name: \"{}\" is also the name of an earlier unit: give each unit its own name{}",
          place, unit.name, index ? ", with {} for the number" : "");
    if (!number(json, "forward_flops", place, kMostPerToken, &unit.forward_flops) ||
        !number(json, "forward_flops_per_context", place, kMostPerToken,
                &unit.forward_flops_per_context) ||
        !number(json, "activation_bytes", place, kMostPerToken, &unit.activation_bytes) ||
        !number(json, "checkpoint_bytes", place, kMostPerToken, &unit.checkpoint_bytes) ||
        !number(json, "loss_bytes", place, kMostPerToken, &unit.loss_bytes))
      return false;
    if (!json.contains("params") || !json["params"].is_array() || json["params"].empty())
      return wrong("{}.params must be a list with at least one parameter", place);
    param_names_.clear();
    for (size_t p = 0; p < json["params"].size(); p++)
      if (!param(json["params"][p], fmt::format("{}.params[{}]", place, p), &unit)) return false;
    model_.units.push_back(std::move(unit));
    return true;
  }

  bool param(const Json& json, const std::string& place, ModelUnit* unit) {
    const bool frozen = json.is_array() && json.size() == 3 && json[2] == "frozen";
    if (!json.is_array() || (json.size() != 2 && !frozen) || !json[0].is_string() ||
        !json[1].is_array())
      return wrong(
          "{} must be a name and a shape, like [\"weight\", [4096, 1024]], and may have \"frozen\" "
          "behind it",
          place);
    if (++params_ > kMostParams)
      return wrong("{}: the model has more than {} parameters", place, kMostParams);
    ModelParam made{json[0].get<std::string>(), {}, 1, frozen};
    if (!param_names_.insert(made.name).second)
      return wrong("{}: \"{}\" is also the name of an earlier parameter of the unit", place,
                   made.name);
    double product = 1;
    for (const Json& dim : json[1]) {
      if (!dim.is_number_unsigned() || dim.get<double>() > kMostElements)
        return wrong("{}: a dimension is {}: give whole numbers, 0 or more", place, dim.dump());
      made.shape.dims.push_back(dim.get<int64_t>());
      product *= static_cast<double>(made.shape.dims.back());
      if (product > kMostElements)
        return wrong("{} has more than {} elements", place, kMostElements);
      made.elements *= static_cast<uint64_t>(made.shape.dims.back());
    }
    elements_ += product;
    if (elements_ > kMostElements)
      return wrong("the model has more than {} elements up to {}", kMostElements, place);
    unit->params.push_back(std::move(made));
    return true;
  }

  Model model_;
  std::set<std::string> unit_names_, param_names_;  // param_names_: those of the present unit
  size_t params_ = 0;
  double elements_ = 0;
};

}  // namespace

uint64_t ModelUnit::elements() const {
  return std::accumulate(
      params.begin(), params.end(), uint64_t{0},
      [](uint64_t sum, const ModelParam& param) { return sum + param.elements; });
}
uint64_t ModelUnit::trained_elements() const {
  uint64_t sum = 0;
  for (const ModelParam& param : params) sum += param.frozen ? 0 : param.elements;
  return sum;
}
bool ModelUnit::trains() const {
  return std::any_of(params.begin(), params.end(), [](const auto& param) { return !param.frozen; });
}
bool ModelUnit::is_layer() const {
  for (size_t i = 0; i < name.size(); i++)
    if (name[i] >= '0' && name[i] <= '9' && (i + 1 == name.size() || name[i + 1] == '.'))
      return true;
  return false;
}
double ModelUnit::kept_bytes(Checkpoint checkpoint) const {
  if (!is_layer() || checkpoint == Checkpoint::none) return activation_bytes;
  return checkpoint == Checkpoint::full ? checkpoint_bytes : selective_bytes;
}
std::vector<ParamShape> ModelUnit::shapes() const {
  std::vector<ParamShape> shapes;
  for (const ModelParam& param : params) shapes.push_back(param.shape);
  return shapes;
}
std::vector<ParamShape> ModelUnit::trained_shapes() const {
  std::vector<ParamShape> shapes;
  for (const ModelParam& param : params)
    if (!param.frozen) shapes.push_back(param.shape);
  return shapes;
}
bool ModelUnit::same_shapes(const ModelUnit& other) const {
  return forward_flops == other.forward_flops &&
         forward_flops_per_context == other.forward_flops_per_context &&
         activation_bytes == other.activation_bytes && checkpoint_bytes == other.checkpoint_bytes &&
         loss_bytes == other.loss_bytes &&
         std::equal(params.begin(), params.end(), other.params.begin(), other.params.end(),
                    [](const ModelParam& a, const ModelParam& b) {
                      return a.shape.dims == b.shape.dims && a.frozen == b.frozen;
                    });
}
uint64_t Model::elements() const {
  uint64_t sum = 0;
  for (const ModelUnit& unit : units) sum += unit.elements();
  return sum;
}
uint64_t Model::trained_elements() const {
  uint64_t sum = 0;
  for (const ModelUnit& unit : units) sum += unit.trained_elements();
  return sum;
}
bool Model::trains() const {
  return std::any_of(units.begin(), units.end(), [](const auto& unit) { return unit.trains(); });
}
size_t Model::first_trained() const {
  const std::vector<ModelParam>& root = units[0].params;
  const bool embeds =
      has_root() && std::any_of(root.begin(), root.end(), [](const ModelParam& param) {
        return is_table(param) && !param.frozen;
      });
  if (embeds || units.size() == 1) return 0;
  const auto first = std::find_if(units.begin() + (has_root() ? 1 : 0), units.end(),
                                  [](const ModelUnit& unit) { return unit.trains(); });
  return static_cast<size_t>(first - units.begin());
}
std::vector<double> Model::backward_flops_by_unit(double sequence) const {
  const size_t first = first_trained();
  std::vector<double> flops(units.size());
  for (size_t u = 0; u < units.size(); u++) {
    if (!has_backward(u, first)) continue;
    const ModelUnit& unit = units[u];
    const double of_context = unit.forward_flops_per_context * sequence,
                 elements = static_cast<double>(std::max<uint64_t>(unit.elements(), 1)),
                 trained = static_cast<double>(unit.trained_elements()) / elements;
    flops[u] = unit.forward_flops * (1 + trained) + 2 * of_context;
  }
  return flops;
}
double Model::backward_flops(double sequence) const {
  const std::vector<double> flops = backward_flops_by_unit(sequence);
  return std::accumulate(flops.begin(), flops.end(), 0.0);
}
double Model::forward_flops(double sequence) const {
  double sum = 0;
  for (const ModelUnit& unit : units)
    sum += unit.forward_flops + unit.forward_flops_per_context * sequence;
  return sum;
}

Result<Model> read_model(const JsonValue& json, int experts_per_token, double value_bytes) {
  FSCCL_ASSIGN(Model model, ModelReader().read(json));
  FSCCL_TRY(estimate_missing(&model, experts_per_token, value_bytes));
  return model;
}

}  // namespace fsccl::forecast
