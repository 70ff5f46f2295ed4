// Vector kernels of the set-attention model: float32, contiguous, one thread (jobs run one to a core).
// Compiled for every instruction set and chosen at run time.
#pragma once

#include <cstdint>

namespace tsallis::lab {

// a = gelu(z), the tanh form of Hendrycks and Gimpel 2016 (flax's default). z, a: [count]; may be the same memory.
void Gelu(const float* z, float* a, std::int64_t count);

// dz = da * gelu'(z). All [count]; dz may be da.
void GeluBackward(const float* z, const float* da, float* dz, std::int64_t count);

// s[b, j] = <h[b, j, :], u[b, :]>. h: [sets, n, width], u: [sets, width], s: [sets, n].
void SetScores(const float* h, const float* u, float* s, std::int64_t sets, std::int64_t n,
               std::int64_t width);

// z[b, :] = sum_j p[b, j] h[b, j, :], skipping p = 0. p: [sets, n], h: [sets, n, width], z: [sets, width].
void SetPool(const float* p, const float* h, float* z, std::int64_t sets, std::int64_t n,
             std::int64_t width);

// Gradient before the last activation, on the rows that have one:
// dz[m, :] = (p * dpooled[b, :] + ds * u[b, :]) * gelu'(z[row, :]) with row = rows[m], b = row / n.
// rows: [count], ascending; p, ds: [sets, n]; dpooled, u: [sets, width]; z: [sets * n, width]; dz: [count, width].
void SupportGradient(const std::int64_t* rows, std::int64_t count, std::int64_t n,
                     std::int64_t width, const float* p, const float* ds, const float* dpooled,
                     const float* u, const float* z, float* dz);

// dz[m, :] = da[m, :] * gelu'(z[rows[m], :]); may be in place. da, dz: [count, width].
void GeluBackwardRows(const std::int64_t* rows, std::int64_t count, std::int64_t width,
                      const float* z, const float* da, float* dz);

// One Adam step (Kingma and Ba 2015) with the L2 term in the gradient: g += l2 w; m, v, w updated in place.
// correction1 = 1 - beta1^t, correction2 = 1 - beta2^t. All arrays [count].
struct AdamConstants {
  float lr, beta1, beta2, epsilon, l2, correction1, correction2;
};
void AdamStep(const AdamConstants& constants, std::int64_t count, const float* g, float* w,
              float* m, float* v);

}  // namespace tsallis::lab
