// Vector kernels of the set-attention model: float32, contiguous, one thread (jobs run one to a
// core). Compiled for every instruction set and chosen at run time.
#pragma once

#include <cstdint>

namespace tsallis::lab {

// The kernels of one instruction set.
struct SetKernelTable {
  // a = gelu(z + bias), the tanh form of Hendrycks and Gimpel 2016 (flax's default), and slope =
  // gelu'(z + bias). z, a, slope: [rows, width], a may be z, slope may be null; bias: [width].
  void (*bias_gelu)(const float* z, const float* bias, float* a, float* slope, std::int64_t rows,
                    std::int64_t width);

  // x += bias in every row. x: [rows, width].
  void (*add_bias)(float* x, const float* bias, std::int64_t rows, std::int64_t width);

  // sums[k] = sum over rows of x[., k]. x: [rows, width], sums: [width].
  void (*column_sums)(const float* x, float* sums, std::int64_t rows, std::int64_t width);

  // Layer norm (Ba et al. 2016) with the gain 1 + w, as the decoder's norms have it: normal = (x -
  // mean x) scale, scale = 1 / sqrt(var x + 1e-6), y = normal (1 + w) + bias. x, normal, y: [rows,
  // width]; w, bias: [width]; scale: [rows].
  void (*layer_norm)(const float* x, const float* w, const float* bias, std::int64_t rows,
                     std::int64_t width, float* normal, float* scale, float* y);

  // Its gradient: dx, d_w and d_bias are replaced. dy, dx: [rows, width], may be the same; d_w,
  // d_bias: [width].
  void (*layer_norm_backward)(const float* normal, const float* scale, const float* w,
                              const float* dy, std::int64_t rows, std::int64_t width, float* dx,
                              float* d_w, float* d_bias);

  // x *= y. [count].
  void (*multiply)(float* x, const float* y, std::int64_t count);

  // s[b, j] = <h[b, j, :], u[b, :]>. h: [sets, n, width], u: [sets, width], s: [sets, n].
  void (*scores)(const float* h, const float* u, float* s, std::int64_t sets, std::int64_t n,
                 std::int64_t width);

  // z[b, :] = sum_j p[b, j] h[b, j, :], skipping p = 0. p: [sets, n], h: [sets, n, width], z:
  // [sets, width].
  void (*pool)(const float* p, const float* h, float* z, std::int64_t sets, std::int64_t n,
               std::int64_t width);

  // Gradient before the encoder's last activation, on the rows that have one: dz[m, :] = (p *
  // dpooled[b, :] + ds * u[b, :]) * slope[row, :] with row = rows[m], b = row / n. rows: [count],
  // ascending; p, ds: [sets, n]; dpooled, u: [sets, width]; slope: [sets * n, width]; dz: [count,
  // width].
  void (*support_gradient)(const std::int64_t* rows, std::int64_t count, std::int64_t n,
                           std::int64_t width, const float* p, const float* ds,
                           const float* dpooled, const float* u, const float* slope, float* dz);

  // x[m, :] *= y[rows[m], :]. x: [count, width].
  void (*multiply_rows)(const std::int64_t* rows, std::int64_t count, std::int64_t width,
                        const float* y, float* x);
};

// The kernels for the best instruction set there is.
const SetKernelTable& SetKernels();

}  // namespace tsallis::lab
