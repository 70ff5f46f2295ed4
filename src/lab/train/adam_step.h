// Adam's update in vectors, on one thread. Compiled for every instruction set and chosen at run
// time.
#pragma once

#include <cstdint>

namespace tsallis::lab {

// One Adam step (Kingma and Ba 2015) with the L2 term in the gradient: g += l2 w; m, v, w updated
// in place. correction1 = 1 - beta1^t, correction2 = 1 - beta2^t. All arrays [count].
struct AdamConstants {
  float lr, beta1, beta2, epsilon, l2, correction1, correction2;
};
void AdamStep(const AdamConstants& constants, std::int64_t count, const float* g, float* w,
              float* m, float* v);

}  // namespace tsallis::lab
