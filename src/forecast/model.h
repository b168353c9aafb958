// A model as the forecast sees it: units in the order of the forward pass, with the shapes of their
// parameters, the floating point operations of a token, and the bytes that a token leaves for the
// backward pass.
//
// The JSON is that of perf/models ("name", "units": "name", "params": [[name, shape], ...]; groups
// with "repeat" and "first"). A unit may also give, per token: "forward_flops",
// "forward_flops_per_context" (times the length of the sequence), "activation_bytes",
// "checkpoint_bytes" (the bytes of the layer that stay with full checkpointing), and "loss_bytes"
// (the bytes that the loss of what the unit computes takes besides, when its backward pass begins).
// Values that a unit does not give are estimated from the shapes of its parameters by the rules in
// estimate.h. A parameter is frozen, that is it has no gradient, if "frozen" follows its shape:
// [name, shape, "frozen"].
#pragma once
#include <string>
#include <vector>

#include "base/json_value.h"
#include "base/status.h"
#include "forecast/step_config.h"
#include "layout/layout.h"

namespace fsccl::forecast {

struct ModelParam {
  std::string name;
  ParamShape shape;
  uint64_t elements = 0;
  bool frozen = false;  // it has no gradient
};

struct ModelUnit {
  static constexpr double kUnknown = -1;
  std::string name;
  std::vector<ModelParam> params;
  double forward_flops = kUnknown;  // operations of a token
  // operations of a token for each token of its sequence
  double forward_flops_per_context = kUnknown;
  // bytes that a token needs until the unit's backward pass is over
  double activation_bytes = kUnknown;
  double checkpoint_bytes = kUnknown;  // bytes of a token with full checkpointing: the unit's input
  // Bytes of a token with selective checkpointing, and the operations that it makes again.
  double selective_bytes = 0, selective_flops = 0;
  // Bytes of a token that the largest gradient of an activation takes in a layer's backward pass.
  double widest_bytes = 0;
  // In a unit that is no layer, the trained elements of the head and of what else comes behind the
  // layers: all but those of tables that are only looked up. `tied_elements` are those among them
  // that are of a table.
  uint64_t head_elements = 0, tied_elements = 0;
  double loss_bytes =
      kUnknown;  // bytes of a token that the backward pass of the loss takes besides

  uint64_t elements() const;
  uint64_t trained_elements() const;  // leaves frozen parameters out
  bool trains() const;                // some parameter is not frozen
  // true if a component of its name ends in a digit: "layers.3", "layers.3.experts"
  bool is_layer() const;
  // Returns the bytes of a token that the unit keeps. Only layers are checkpointed.
  double kept_bytes(Checkpoint checkpoint) const;
  std::vector<ParamShape> shapes() const;
  std::vector<ParamShape> trained_shapes() const;
  bool same_shapes(const ModelUnit& other) const;  // compares the figures per token, too
};

struct Model {
  std::string name;
  std::vector<ModelUnit> units;
  bool estimated = false;  // some unit did not state the costs of a token
  // The first layer whose operations are estimated, if no attention was found in any layer.
  std::string without_attention;
  std::string convolution;   // the first one whose operations are not known
  std::string without_loss;  // a unit with a head, of whose loss nothing is known
  double counted_at = 0;  // tokens of the sequence of which activations were counted; 0: not known

  uint64_t elements() const;
  uint64_t trained_elements() const;
  double forward_flops(double sequence) const;  // operations of a token
  // Operations of a token in the backward pass of each unit: as many as in its forward pass for the
  // gradients of its inputs, and for those of its parameters the share that is not frozen. The
  // backward pass ends at the first unit that trains. The root's norm and head come behind all
  // units, its tables of embeddings before them.
  std::vector<double> backward_flops_by_unit(double sequence) const;
  double backward_flops(double sequence) const;
  // Returns the first unit with a parameter that is not frozen. The root is that only if one of its
  // tables of embeddings is trained.
  size_t first_trained() const;
  bool trains() const;  // some parameter is not frozen
  // The first unit is the root, with the embeddings and the head, unless its name is that of a
  // layer.
  bool has_root() const { return !units[0].is_layer(); }
  // Returns true if the backward pass computes this unit. `first` is first_trained(). The root is
  // computed in any case, because of its head.
  bool has_backward(size_t u, size_t first) const { return u >= first || (u == 0 && has_root()); }
};

// `experts_per_token` is the number of experts whose parameters a token uses. 0 means that it is
// not known, which is an error for a model with experts that does not give its operations.
// `value_bytes` are those of a value that the computation keeps: activations are estimated with it.
Result<Model> read_model(const JsonValue& json, int experts_per_token, double value_bytes);

}  // namespace fsccl::forecast
