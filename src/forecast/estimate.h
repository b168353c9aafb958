// Estimates the costs of a token that a model does not state, from the shapes of its parameters.
//
// Operations: 2 for each element of a matrix (a multiplication and an addition). None for a table
// that is looked up: a name with "embed", "wte" or "wpe", unless no other matrix of the unit has
// its size, because the table is then the head as well. Only the experts that a token uses count.
// Attention adds 4 times the width of its output projection for each token of the sequence: scores
// and weighted sums (Korthikanti et al., arXiv 2205.05198, section 4). Causal masks are not
// subtracted, as MFU counts.
//
// Activations, 16-bit: the input and the output of each matrix once, inputs of one width that
// follow each other once, and two copies of the widest input for norm and residual. A head adds its
// output, in 16 bits and in fp32.
//
// Checkpoint: the input of the layer, 16-bit.
//
// fsccl_torch.export_model() counts the values that are estimated here.
#pragma once
#include "forecast/model.h"

namespace fsccl::forecast {

Status estimate_missing(Model* model, int experts_per_token);

}  // namespace fsccl::forecast
