/* These are textbook loops: they are clear, and fast enough for a network of this size. */
#include "mlp.h"

#include <math.h>
#include <string.h>

void mlp_forward(mlp_shape_t shape, const float* weight, const float* bias, const float* x,
                 float* y, size_t samples, int relu) {
  size_t s, o, i;
  for (s = 0; s < samples; ++s) {
    for (o = 0; o < shape.outputs; ++o) {
      const float* row = weight + o * shape.inputs;
      const float* in = x + s * shape.inputs;
      float sum = bias[o];
      for (i = 0; i < shape.inputs; ++i) sum += row[i] * in[i];
      y[s * shape.outputs + o] = relu && sum < 0.0f ? 0.0f : sum;
    }
  }
}

void mlp_backward(mlp_shape_t shape, const float* weight, const float* x, const float* dy,
                  float* weight_grad, float* bias_grad, float* dx, size_t samples, int relu) {
  size_t s, o, i;
  memset(weight_grad, 0, shape.outputs * shape.inputs * sizeof *weight_grad);
  memset(bias_grad, 0, shape.outputs * sizeof *bias_grad);
  if (dx != NULL) memset(dx, 0, samples * shape.inputs * sizeof *dx);
  for (s = 0; s < samples; ++s) {
    const float* in = x + s * shape.inputs;
    for (o = 0; o < shape.outputs; ++o) {
      const float slope = dy[s * shape.outputs + o];
      bias_grad[o] += slope;
      for (i = 0; i < shape.inputs; ++i) weight_grad[o * shape.inputs + i] += slope * in[i];
      if (dx == NULL) continue;
      for (i = 0; i < shape.inputs; ++i)
        dx[s * shape.inputs + i] += slope * weight[o * shape.inputs + i];
    }
    if (dx == NULL || !relu) continue;
    for (i = 0; i < shape.inputs; ++i)
      if (in[i] <= 0.0f) dx[s * shape.inputs + i] = 0.0f;
  }
}

double mlp_loss(float* logits, const int* labels, size_t samples, size_t classes) {
  double loss = 0.0;
  size_t s, c;
  for (s = 0; s < samples; ++s) {
    float* row = logits + s * classes;
    double largest = row[0], sum = 0.0;
    for (c = 1; c < classes; ++c)
      if (row[c] > largest) largest = row[c];
    for (c = 0; c < classes; ++c) sum += exp(row[c] - largest);
    loss += log(sum) + largest - row[labels[s]];
    for (c = 0; c < classes; ++c)
      row[c] = (float)(exp(row[c] - largest) / sum) - ((int)c == labels[s] ? 1.0f : 0.0f);
  }
  return loss;
}

size_t mlp_correct(const float* logits, const int* labels, size_t samples, size_t classes) {
  size_t correct = 0, s, c;
  for (s = 0; s < samples; ++s) {
    const float* row = logits + s * classes;
    size_t best = 0;
    for (c = 1; c < classes; ++c)
      if (row[c] > row[best]) best = c;
    if ((int)best == labels[s]) ++correct;
  }
  return correct;
}

uint64_t mlp_random(uint64_t* state) {
  uint64_t z = *state += UINT64_C(0x9E3779B97F4A7C15);
  z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
  return z ^ (z >> 31);
}

float mlp_initial(uint64_t stream, uint64_t index, float limit) {
  uint64_t state = (stream << 40) + index;
  /* 53 random bits make a number in [0, 1). */
  const double unit = (double)(mlp_random(&state) >> 11) / 9007199254740992.0;
  return limit * (float)(2.0 * unit - 1.0);
}

void mlp_widen(const uint16_t* bf16, float* fp32, size_t count) {
  size_t i;
  for (i = 0; i < count; ++i) {
    const uint32_t bits = (uint32_t)bf16[i] << 16;
    memcpy(&fp32[i], &bits, sizeof bits);
  }
}

void mlp_narrow(const float* fp32, uint16_t* bf16, size_t count) {
  size_t i;
  for (i = 0; i < count; ++i) {
    uint32_t bits;
    memcpy(&bits, &fp32[i], sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
      bf16[i] = 0x7fc0u; /* a NaN stays a NaN */
    else
      bf16[i] = (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
  }
}
