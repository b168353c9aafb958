// Estimates the costs of a token that a model does not state, from the shapes of its parameters.
//
// Operations: each element of a matrix counts 2, for a multiplication and an addition. A table that
// is looked up counts none. A parameter is such a table if its name contains "embed", "wte" or
// "wpe", unless no other matrix outside of the layers has its size: the table is then the head as
// well. Only the experts that a token uses count. Attention adds 4 times the width of its output
// projection for each token of the sequence, for scores and weighted sums (Korthikanti et al.,
// arXiv 2205.05198, section 4). Causal masks are not subtracted, as is usual in MFU.
//
// Activations: what torch keeps with fused kernels for attention and norms, in the type of the
// computation (16 bits for fp8). tests/torch/export_test.py compares them with what autograd saves.
//
//   a layer's attention   its input and that of the next norm (the sums of the residual); the input
//                         of the projections; q, k and v; the result of attention
//   its feed-forward      the output of the norm; that of each projection; SiLU's result, if two
//                         projections of one shape, or one of twice the width, come before one
//                         back; the input of the one back
//   other layers          the input and the output of each matrix
//   a token of experts    the same, once for each expert that it uses, and their outputs
//   a head                the input of the norm and its output; the logits
//
// A matrix that follows one of equally wide input shares this input, unless the attention lies
// between the two. The output projection of attention is found by its name. The statistics of norms
// and of attention are left out (4 bytes a norm or head), and so are the keys that latent attention
// puts together from parts. Norms that are written by hand, as those of transformers, keep two
// values in fp32 and one in the type of the computation more than is estimated;
// fsccl_torch.export_model() counts them. A frozen matrix keeps no input, because only the gradient
// of a matrix needs it (torch's linear saves it only then), unless it is the output projection,
// whose input attention keeps. The two matrices of an adapter (LoRA) keep the input that they share
// with a frozen one, and the few values between them.
//
// Convolutions (four dimensions, or three and "conv" in the name) are not estimated, and the answer
// says so.
//
// Checkpoint: the unit keeps its input, in the type of the computation. With selective
// checkpointing it also keeps the result of attention, and those of the first matrix, the third,
// and so on, as torchtitan does ("selective" with "op"; its activation_checkpoint.py). It makes all
// other operations again, which are those of the unit less the products that it keeps. Files do not
// give these figures.
//
// Loss: that of torch's cross_entropy() in fp32. When its backward pass begins, all activations are
// still held, and three more tensors of all logits are in fp32 (kOfLoss). If a unit gives its
// activations, the loss is not estimated, because they may have a part of it.
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
