/*
 * The arithmetic of a multi-layer perceptron, on plain arrays and without communication. Matrices
 * are row major; a batch of samples is a matrix with one row a sample. Sums are formed in a fixed
 * order, so one sample's result does not depend on the other samples of the batch.
 */
#ifndef MLP_H
#define MLP_H

#include <stddef.h>
#include <stdint.h>

typedef struct mlp_shape {
  size_t inputs, outputs;
} mlp_shape_t;

/* Computes y = x * transpose(weight) + bias; with relu != 0 the negative values become 0. `weight`
 * has outputs x inputs elements. */
void mlp_forward(mlp_shape_t shape, const float* weight, const float* bias, const float* x,
                 float* y, size_t samples, int relu);

/* Computes the gradients of mlp_forward, summed over the samples. weight_grad and bias_grad are
 * overwritten, and so is dx unless it is NULL. With relu != 0 an element of dx becomes 0 if that of
 * x is 0, that is, if the layer below was not active there. */
void mlp_backward(mlp_shape_t shape, const float* weight, const float* x, const float* dy,
                  float* weight_grad, float* bias_grad, float* dx, size_t samples, int relu);

/* Returns the sum of the samples' losses by softmax and cross-entropy. The logits are overwritten
 * by their gradient. */
double mlp_loss(float* logits, const int* labels, size_t samples, size_t classes);

/* Returns how many samples have their largest logit at their label. */
size_t mlp_correct(const float* logits, const int* labels, size_t samples, size_t classes);

/* Returns a starting value in (-limit, limit) for element `index` of parameter `stream`. It is the
 * same on every rank.
 */
float mlp_initial(uint64_t stream, uint64_t index, float limit);

/* Returns the next number of a splitmix64 sequence. */
uint64_t mlp_random(uint64_t* state);

/* bf16 is the upper half of an fp32: widening is exact, narrowing rounds to nearest even. */
void mlp_widen(const uint16_t* bf16, float* fp32, size_t count);
void mlp_narrow(const float* fp32, uint16_t* bf16, size_t count);

#endif
