#include "forecast/estimate.h"

#include <algorithm>

namespace fsccl::forecast {
namespace {

constexpr double kWide = 4, kHalf = 2;  // bytes

bool contains(const std::string& text, std::initializer_list<const char*> words) {
  return std::any_of(words.begin(), words.end(),
                     [&](const char* word) { return text.find(word) != std::string::npos; });
}

}  // namespace

bool is_table(const ModelParam& param) { return contains(param.name, {"embed", "wte", "wpe"}); }

namespace {

bool is_matrix(const ModelParam& param) { return param.shape.dims.size() == 2; }
bool is_experts(const ModelParam& param) { return param.shape.dims.size() == 3; }
bool is_attention_output(const ModelParam& param) {
  return contains(param.name, {"o_proj", "out_proj", "attention.wo", "attn.c_proj"});
}
// Returns true if the matrix is the head. A table of embeddings is the head as well if the unit has
// no other matrix of its size.
bool is_head(const ModelUnit& unit, const ModelParam& param) {
  if (!is_matrix(param) || unit.is_layer()) return false;
  if (!is_table(param)) return true;
  return contains(param.name, {"embed", "wte"}) &&
         std::none_of(unit.params.begin(), unit.params.end(), [&](const ModelParam& other) {
           return &other != &param && !is_table(other) && other.elements == param.elements;
         });
}

double share_of_experts(const ModelParam& param, int per_token) {
  const double experts = static_cast<double>(param.shape.dims[0]);
  return experts > 0 ? std::min(1.0, per_token / experts) : 0;
}

double flops_of(const ModelUnit& unit, int per_token) {
  double flops = 0;
  for (const ModelParam& param : unit.params) {
    const double elements = static_cast<double>(param.elements);
    if (is_experts(param)) flops += 2 * elements * share_of_experts(param, per_token);
    if (is_matrix(param) && (!is_table(param) || is_head(unit, param))) flops += 2 * elements;
  }
  return flops;
}

double flops_per_context(const ModelUnit& unit) {
  double flops = 0;
  for (const ModelParam& param : unit.params)
    if (is_matrix(param) && is_attention_output(param))
      flops += 4 * static_cast<double>(param.shape.dims[1]);
  return flops;
}

double activations_of(const ModelUnit& unit, int per_token) {
  double kept = 0, widest = 0, before = 0;
  for (const ModelParam& param : unit.params) {
    const auto& dims = param.shape.dims;
    if (is_head(unit, param)) kept += static_cast<double>(dims[0]) * (kHalf + kWide);
    if (is_experts(param)) {  // published weights are [experts, out, in]
      kept += kHalf * per_token *
              static_cast<double>(dims[1] + (static_cast<double>(dims[2]) != before ? dims[2] : 0));
      before = static_cast<double>(dims[2]);
    }
    if (!is_matrix(param) || !unit.is_layer()) continue;
    const double out = static_cast<double>(dims[0]), in = static_cast<double>(dims[1]);
    kept += kHalf * (out + (in != before ? in : 0));
    before = in;
    widest = std::max(widest, is_attention_output(param) ? out : 0.0);
  }
  return kept + 2 * kHalf * widest;
}

// Returns the width of the model if the unit is a layer: the last dimension of its first matrix or
// list of matrices. Returns 0 if it is not.
double width_of(const ModelUnit& unit) {
  double width = 0;
  for (const ModelParam& param : unit.params)
    if (param.shape.dims.size() >= 2 && unit.is_layer() && width == 0)
      width = static_cast<double>(param.shape.dims.back());
  return width;
}

}  // namespace

Status estimate_missing(Model* model, int experts_per_token) {
  bool any_experts = false, any_attention = false;
  for (ModelUnit& unit : model->units) {
    const auto experts_at = std::find_if(unit.params.begin(), unit.params.end(), is_experts);
    const bool experts = experts_at != unit.params.end();
    any_experts |= experts;
    if (experts && experts_per_token > experts_at->shape.dims[0])
      return fail(FSCCL_ERR_INVALID_ARGUMENT,
                  "model {}: unit {} has {} experts, so a token cannot use {} of them: give a "
                  "smaller \"experts_per_token\"",
                  model->name, unit.name, experts_at->shape.dims[0], experts_per_token);
    if (experts && experts_per_token <= 0 && (unit.forward_flops < 0 || unit.activation_bytes < 0))
      return fail(FSCCL_ERR_INVALID_ARGUMENT,
                  "model {}: unit {} has experts, and nothing says how many of them a token uses: "
                  "give \"experts_per_token\", or "
                  "\"forward_flops\" and \"activation_bytes\" of the unit",
                  model->name, unit.name);
    model->estimated |= unit.forward_flops < 0 || unit.activation_bytes < 0;
    const bool counted = unit.forward_flops >= 0 || unit.forward_flops_per_context >= 0;
    any_attention |= counted || flops_per_context(unit) > 0;
    if (!counted && unit.is_layer() && model->without_attention.empty())
      model->without_attention = unit.name;
    // A model that states a number of operations states all of them.
    if (unit.forward_flops_per_context < 0)
      unit.forward_flops_per_context = unit.forward_flops < 0 ? flops_per_context(unit) : 0;
    if (unit.forward_flops < 0) unit.forward_flops = flops_of(unit, experts_per_token);
    if (unit.activation_bytes < 0) unit.activation_bytes = activations_of(unit, experts_per_token);
    if (unit.checkpoint_bytes < 0)
      unit.checkpoint_bytes = std::min(unit.activation_bytes, kHalf * width_of(unit));
  }
  if (any_attention) model->without_attention.clear();
  if (experts_per_token > 0 && !any_experts)
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "model {}: no unit has experts: leave \"experts_per_token\" out", model->name);
  if (model->forward_flops(1) > 0) return success();
  return fail(FSCCL_ERR_INVALID_ARGUMENT,
              "model {}: its units have no operations (no matrix with elements, or forward_flops "
              "of 0): give \"forward_flops\" of its units",
              model->name);
}

}  // namespace fsccl::forecast
