// A model as the forecast sees it: units in the order of the forward pass, with the shapes of their
// parameters, the floating point operations of a token, and the bytes that a token leaves for the
// backward pass.
//
// The JSON is that of perf/models ("name", "units": "name", "params": [[name, shape], ...]; groups
// with "repeat" and "first"). A unit may also give, per token: "forward_flops",
// "forward_flops_per_context" (times the length of the sequence), "activation_bytes", and
// "checkpoint_bytes" (the bytes of the layer that stay with checkpointing). Values that a unit does
// not give are estimated from the shapes of its parameters by the rules in estimate.h.
#pragma once
#include <string>
#include <vector>

#include "base/json_value.h"
#include "base/status.h"
#include "layout/layout.h"

namespace fsccl::forecast {

struct ModelParam {
  std::string name;
  ParamShape shape;
  uint64_t elements = 0;
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
  double checkpoint_bytes = kUnknown;  // bytes of a token with checkpointing: the unit's input

  uint64_t elements() const;
  // true if a component of its name ends in a digit: "layers.3", "layers.3.experts"
  bool is_layer() const;
  std::vector<ParamShape> shapes() const;
  bool same_shapes(const ModelUnit& other) const;  // compares the figures per token, too
};

struct Model {
  std::string name;
  std::vector<ModelUnit> units;
  bool estimated = false;  // some unit did not state the costs of a token

  uint64_t elements() const;
  double forward_flops(double sequence) const;  // operations of a token
};

// `experts_per_token` is the number of experts whose parameters a token uses. 0 means that it is
// not known, which is an error for a model with experts that does not give its operations.
Result<Model> read_model(const JsonValue& json, int experts_per_token);

}  // namespace fsccl::forecast
