#include "forecast/estimate.h"

#include <algorithm>
#include <array>
#include <set>

namespace fsccl::forecast {
namespace {

constexpr double kWide = 4;  // bytes
// Tensors in fp32, of all logits, that the backward pass of cross_entropy() has at once: the result
// of its softmax, and the gradients of this result and of the logits.
constexpr double kOfLoss = 3;

bool contains(const std::string& text, std::initializer_list<const char*> words) {
  return std::any_of(words.begin(), words.end(),
                     [&](const char* word) { return text.find(word) != std::string::npos; });
}

}  // namespace

bool is_table(const ModelParam& param) { return contains(param.name, {"embed", "wte", "wpe"}); }

namespace {

// The biases of experts have two dimensions.
bool is_matrix(const ModelParam& param) {
  return param.shape.dims.size() == 2 && !param.name.ends_with("bias");
}
// A product multiplies the activations by the matrix. A table of embeddings is looked up, unless it
// is the head as well.
bool is_product(const ModelParam& param) { return is_matrix(param) && !is_table(param); }
// The operations of a convolution depend on the size of its input, which its parameters do not say.
bool is_convolution(const ModelParam& param) {
  const size_t dims = param.shape.dims.size();
  return dims > 3 || (dims == 3 && contains(param.name, {"conv"}));
}
bool is_experts(const ModelParam& param) {
  return param.shape.dims.size() == 3 && param.shape.dims[0] > 1 && !is_convolution(param) &&
         !is_table(param);
}
bool is_attention_output(const ModelParam& param) {
  return contains(param.name, {"o_proj", "out_proj", "attention.wo", "attn.c_proj"});
}
// Estimates the costs of one model.
class Estimator {
 public:
  Estimator(const Model& model, int experts_per_token, double value_bytes)
      : experts_per_token_(experts_per_token), value_bytes_(value_bytes) {
    for (const ModelUnit& unit : model.units)
      for (const ModelParam& param : unit.params) {
        if (unit.is_layer() || !is_matrix(param)) continue;
        if (!is_table(param)) heads_.insert(param.elements);
        if (is_words(param)) width_ = param.shape.dims[1];
      }
  }
  double flops_of(const ModelUnit& unit) const;
  double activations_of(const ModelUnit& unit) const;
  double checkpoint_of(const ModelUnit& unit) const;
  // Adds what no file gives: the figures of selective checkpointing, and the largest gradient.
  void add_backward(ModelUnit* unit) const;
  double logits_of(const ModelUnit& unit) const;

 private:
  // Experts are published as [experts, out, in] or [experts, in, out]. Returns true for the latter:
  // the side of the first ones that is as wide as the embeddings is the input's.
  bool experts_are_turned(const ModelUnit& unit) const {
    const auto first = std::find_if(unit.params.begin(), unit.params.end(), is_experts);
    return first->shape.dims[1] == width_ && first->shape.dims[2] != width_;
  }
  static bool is_words(const ModelParam& param) { return contains(param.name, {"embed", "wte"}); }
  // Returns true if the matrix is the head. A table of embeddings is the head as well if no other
  // matrix outside of the layers has its size.
  bool is_head(const ModelUnit& unit, const ModelParam& param) const {
    if (!is_matrix(param) || unit.is_layer()) return false;
    return !is_table(param) || (is_words(param) && !heads_.contains(param.elements));
  }

  const int experts_per_token_;
  const double value_bytes_;  // a value of the computation's type
  std::set<uint64_t> heads_;  // elements of the matrices outside of the layers that are no tables
  int64_t width_ = 0;         // width of the table of embeddings; 0: there is none
};

double share_of_experts(const ModelParam& param, int per_token) {
  const double experts = static_cast<double>(param.shape.dims[0]);
  return experts > 0 ? std::min(1.0, per_token / experts) : 0;
}

double Estimator::flops_of(const ModelUnit& unit) const {
  double flops = 0;
  for (const ModelParam& param : unit.params) {
    const double elements = static_cast<double>(param.elements);
    if (is_experts(param)) flops += 2 * elements * share_of_experts(param, experts_per_token_);
    if (is_product(param) || is_head(unit, param)) flops += 2 * elements;
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

// Returns true for the first matrix of an adapter, [rank, in], before its second one, [out, rank].
// Both are trained, and are added to the last frozen matrix before them, [out, in]. The rank is at
// most half of either side: two square matrices in a row are no adapter.
bool is_adapter_input(const ModelUnit& unit, size_t i) {
  if (i + 1 >= unit.params.size()) return false;
  const ModelParam &first = unit.params[i], &second = unit.params[i + 1];
  if (!is_matrix(first) || !is_matrix(second) || first.frozen || second.frozen ||
      first.shape.dims[0] != second.shape.dims[1])
    return false;
  const int64_t rank = first.shape.dims[0], in = first.shape.dims[1], out = second.shape.dims[0];
  if (2 * rank > std::min(in, out)) return false;
  for (size_t k = i; k-- > 0;)
    if (unit.params[k].frozen && is_matrix(unit.params[k]))
      return unit.params[k].shape.dims == std::vector{out, in};
  return false;
}

// Sums up the values of a token that one unit keeps.
class Kept {
 public:
  double values() const { return values_; }

  void add_matrix(double out, double in, bool keeps_input) {
    if (is_gated(out, in)) values_ += in;
    if (keeps_input && inputs_.insert(in).second) values_ += in;
    if (out != residual_) values_ += out;  // the residual adds such an output, and keeps nothing
    behind_attention_ = false;
  }
  // The copies of the token that its experts take are gathered, and their outputs are weighted.
  void add_experts(double out, double in, double each, bool keeps_input) {
    if (is_gated(out, in)) values_ += each * in;
    if (keeps_input && of_experts_.insert(in).second) values_ += each * in;
    values_ += each * out;
  }
  // The residual and the norm behind it share what is as wide as the output. Before the attention
  // they keep the input of the layer, behind it the sum.
  void add_attention_output(double out, double in) {
    values_ += in + 2 * out;
    residual_ = out;
    inputs_.clear();
    before_ = {};
    behind_attention_ = true;
  }
  void add_adapter(double rank, double in) {
    values_ += rank + (!behind_attention_ && inputs_.insert(in).second ? in : 0);
  }

 private:
  struct Matrix {
    double out = 0, in = 0;
  };
  // Returns true if the matrices before this one are a projection and its gate, whose result by
  // SiLU is kept beside both. Notes this matrix.
  bool is_gated(double out, double in) {
    const auto [last, one] = before_;
    before_ = {Matrix{out, in}, last};
    return last.out == 2 * in ||
           (last.out == in && last.in != in && last.out == one.out && last.in == one.in);
  }
  std::set<double> inputs_, of_experts_;  // widths of inputs since the attention
  std::array<Matrix, 2> before_;          // the last two matrices, the later one first
  bool behind_attention_ = false;         // no matrix came since the attention's output
  double residual_ = -1, values_ = 0;
};

double Estimator::activations_of(const ModelUnit& unit) const {
  Kept kept;
  double of_head = 0;
  for (size_t i = 0; i < unit.params.size(); i++) {
    const ModelParam& param = unit.params[i];
    const auto& dims = param.shape.dims;
    if (is_head(unit, param)) of_head += value_bytes_ * static_cast<double>(dims[0] + 2 * dims[1]);
    if (is_experts(param)) {
      double out = static_cast<double>(dims[1]), in = static_cast<double>(dims[2]);
      if (experts_are_turned(unit)) std::swap(out, in);
      kept.add_experts(out, in, experts_per_token_, !param.frozen);
    }
    // The input of an adapter's second matrix is the output of the first, and its output is added
    // to that of the frozen matrix.
    if (!is_product(param) || !unit.is_layer() || (i > 0 && is_adapter_input(unit, i - 1)))
      continue;
    const double out = static_cast<double>(dims[0]), in = static_cast<double>(dims[1]);
    if (is_adapter_input(unit, i))
      kept.add_adapter(out, in);
    else if (is_attention_output(param))
      kept.add_attention_output(out, in);
    else
      kept.add_matrix(out, in, !param.frozen);
  }
  return of_head + value_bytes_ * kept.values();
}

// Returns the number of a token's logits that the unit computes.
double Estimator::logits_of(const ModelUnit& unit) const {
  double logits = 0;
  for (const ModelParam& param : unit.params)
    if (is_head(unit, param)) logits += static_cast<double>(param.shape.dims[0]);
  return logits;
}

// A layer keeps its input, which is as wide as the last dimension of its first matrix.
double Estimator::checkpoint_of(const ModelUnit& unit) const {
  if (!unit.is_layer()) return 0;
  for (const ModelParam& param : unit.params) {
    const auto& dims = param.shape.dims;
    if (is_experts(param) && experts_are_turned(unit))
      return value_bytes_ * static_cast<double>(width_);
    if (is_table(param)) continue;
    if (is_matrix(param) || (dims.size() > 2 && !is_convolution(param)))
      return value_bytes_ * static_cast<double>(dims.back());
  }
  return 0;
}

void Estimator::add_backward(ModelUnit* unit) const {
  if (!unit->is_layer()) {
    for (const ModelParam& param : unit->params) {
      if (param.frozen) continue;
      const bool table = is_table(param), head = is_head(*unit, param);
      if (!table || head) unit->head_elements += param.elements;
      if (table && head) unit->tied_elements += param.elements;
    }
    return;
  }
  double kept = 0, kept_flops = 0;
  bool keeps = true;
  for (const ModelParam& param : unit->params) {
    if (!is_product(param) && !is_experts(param)) continue;
    const auto& dims = param.shape.dims;
    const double times = is_experts(param) ? std::max(experts_per_token_, 1) : 1;
    const auto out = static_cast<double>(dims[dims.size() - 2]),
               in = static_cast<double>(dims.back());
    unit->widest_bytes = std::max(unit->widest_bytes, value_bytes_ * times * std::max(out, in));
    if (is_experts(param)) continue;
    if (is_attention_output(param)) kept += in;
    if (keeps) kept += out, kept_flops += 2 * static_cast<double>(param.elements);
    keeps = !keeps;
  }
  unit->selective_bytes =
      std::min(unit->activation_bytes, unit->checkpoint_bytes + value_bytes_ * kept);
  unit->selective_flops = std::max(0.0, unit->forward_flops - kept_flops);
}

}  // namespace

Status estimate_missing(Model* model, int experts_per_token, double value_bytes) {
  const Estimator estimator(*model, experts_per_token, value_bytes);
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
                  "model {}: unit {} has experts ({} has three dimensions), and nothing says how "
                  "many of them a token uses: give \"experts_per_token\", or \"forward_flops\" and "
                  "\"activation_bytes\" of the unit",
                  model->name, unit.name, experts_at->name);
    model->estimated |= unit.forward_flops < 0 || unit.activation_bytes < 0;
    const bool counted = unit.forward_flops >= 0 || unit.forward_flops_per_context >= 0;
    any_attention |= counted || flops_per_context(unit) > 0;
    if (unit.forward_flops < 0 || unit.activation_bytes < 0)
      for (const ModelParam& param : unit.params)
        if (is_convolution(param) && model->convolution.empty())
          model->convolution = fmt::format("{} of {}", param.name, unit.name);
    if (!counted && unit.is_layer() && model->without_attention.empty())
      model->without_attention = unit.name;
    // A model that states a number of operations states all of them.
    if (unit.forward_flops_per_context < 0)
      unit.forward_flops_per_context = unit.forward_flops < 0 ? flops_per_context(unit) : 0;
    if (unit.forward_flops < 0) unit.forward_flops = estimator.flops_of(unit);
    if (unit.loss_bytes < 0) {
      const double logits = estimator.logits_of(unit);
      if (logits > 0 && unit.activation_bytes >= 0) model->without_loss = unit.name;
      unit.loss_bytes = unit.activation_bytes < 0 ? kOfLoss * kWide * logits : 0;
    }
    if (unit.activation_bytes < 0) unit.activation_bytes = estimator.activations_of(unit);
    if (unit.checkpoint_bytes < 0)
      unit.checkpoint_bytes = std::min(unit.activation_bytes, estimator.checkpoint_of(unit));
    estimator.add_backward(&unit);
  }
  if (any_attention) model->without_attention.clear();
  if (experts_per_token > 0 && !any_experts)
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "model {}: no unit has experts: leave \"experts_per_token\" out", model->name);
  if (model->forward_flops(1) > 0) return success();
  if (!model->convolution.empty())
    return fail(
        FSCCL_ERR_INVALID_ARGUMENT,
        "model {}: the operations of {} are not known, because those of a convolution depend "
        "on the size of its input: give \"forward_flops\" and \"activation_bytes\" of its "
        "units, which fsccl_torch.export_model() counts",
        model->name, model->convolution);
  return fail(FSCCL_ERR_INVALID_ARGUMENT,
              "model {}: its units have no operations (no matrix with elements, or forward_flops "
              "of 0): give \"forward_flops\" of its units",
              model->name);
}

}  // namespace fsccl::forecast
