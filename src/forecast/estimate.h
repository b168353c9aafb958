// Estimates the costs of a token that a model does not state, from the shapes of its parameters.
//
// Operations: each element of a matrix counts 2, for a multiplication and an addition. A table that
// is looked up counts none. A parameter is such a table if its name contains "embed", "wte" or
// "wpe", unless no other matrix outside of the layers has its size: the table is then the head as
// well. Only the experts that a token uses count. Attention adds 4 times the width of its output
// projection for each token of the sequence, for scores and weighted sums (Korthikanti et al.,
// arXiv 2205.05198, section 4). Causal masks are not subtracted, as is usual in MFU.
//
// Activations: each matrix keeps its input and its output once, in the type of the computation (16
// bits for fp8). Successive inputs of the same width count once. The norm and the residual add two
// copies of the widest input. A head adds its output in that type and in fp32. A frozen matrix
// keeps no input, because only the gradient of a matrix needs it (torch's linear saves it only
// then), unless it is the output projection, whose input attention keeps. The two matrices of an
// adapter (LoRA) keep the input that they share with a frozen one, and the few values between them.
//
// Convolutions (four dimensions, or three and "conv" in the name) are not estimated, and the answer
// says so.
//
// Checkpoint: the unit keeps its input, in the type of the computation.
//
// fsccl_torch.export_model() counts the values that are estimated here.
#pragma once
#include "forecast/model.h"

namespace fsccl::forecast {

// `value_bytes` are those of a value that the computation keeps.
Status estimate_missing(Model* model, int experts_per_token, double value_bytes);
// Returns true if the parameter is a table of embeddings, by its name.
bool is_table(const ModelParam& param);

}  // namespace fsccl::forecast
