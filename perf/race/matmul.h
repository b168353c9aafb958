// The rate of a product of matrices in fp32 on one core, by a kernel for the processor's best
// instruction set. Its blocks stay in registers and caches, as those of a library of matrices do.
#pragma once

struct MatmulRate {
  double tflops = 0;
  const char* instructions = "";  // such as "AVX-512"
};
MatmulRate measured_matmul();
