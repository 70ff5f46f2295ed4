// Vector kernels of the decoder: contiguous rows unless a stride is named, one thread (the decoder
// hands out blocks of rows). Compiled for every instruction set and chosen at run time. Arithmetic
// is float32 throughout; activations are stored in float32 or bfloat16.
#pragma once

#include <cstdint>

namespace tsallis::lab {

// Numbers in float32, or in bfloat16 (rounded to nearest even) if `half`.
struct Cells {
  void* data = nullptr;
  bool half = false;

  Cells operator+(std::int64_t count) const {
    return {static_cast<char*>(data) + count * (half ? 2 : 4), half};
  }
};

inline constexpr float kNormEpsilon = 1e-6F;

// Settings of a length scaling below.
struct AdaptiveScale {
  std::int64_t heads;
  const float* delta;  // [heads]
  float range;
  const float* beta_bias;  // [heads]; the biases may be null
  const float* gamma_bias;
};

// The kernels of one instruction set.
struct RowKernelTable {
  // RMSNorm (Zhang and Sennrich 2019) with Gemma's gain 1 + w: scale = 1 / sqrt(mean x^2 + 1e-6),
  // y = x scale (1 + w). x: [rows, width] float32; w: [width]; y: [rows, width]; scale: [rows].
  void (*rms_norm)(const float* x, const float* w, std::int64_t rows, std::int64_t width, Cells y,
                   float* scale);

  // x_out = x + RmsNorm(branch). branch: [rows, width]; x, x_out: [rows, width] float32, may be the
  // same; scale: [rows].
  void (*add_rms_norm)(const float* x, Cells branch, const float* w, std::int64_t rows,
                       std::int64_t width, float* x_out, float* scale);

  // Gradient of RmsNorm: dx += J^T dy, dw += the gain's gradient. y (data null: not wanted)
  // receives RmsNorm(x) again. x, dx: [rows, width] float32; dy, y: [rows, width]; scale: [rows];
  // w, dw: [width].
  void (*rms_norm_backward)(const float* x, const float* scale, const float* w, Cells dy,
                            std::int64_t rows, std::int64_t width, float* dx, float* dw, Cells y);

  // Gradient of AddRmsNorm in its branch: d_branch = J^T dx, dw as above. dx: [rows, width]
  // float32.
  void (*add_rms_norm_backward)(Cells branch, const float* scale, const float* w, const float* dx,
                                std::int64_t rows, std::int64_t width, Cells d_branch, float* dw);

  // h = gelu(gate) * up, gelu in its tanh form (Hendrycks and Gimpel 2016; Shazeer 2020). gate_up:
  // [rows, 2 width], gate first; h: [rows, width].
  void (*gated_gelu)(Cells gate_up, std::int64_t rows, std::int64_t width, Cells h);

  // Its gradient, and h again. dh, h: [rows, width]; d_gate_up: [rows, 2 width], may be gate_up.
  void (*gated_gelu_backward)(Cells gate_up, Cells dh, std::int64_t rows, std::int64_t width,
                              Cells d_gate_up, Cells h);

  // Compute the same with silu(g) = g / (1 + exp(-g)).
  void (*gated_silu)(Cells gate_up, std::int64_t rows, std::int64_t width, Cells h);
  void (*gated_silu_backward)(Cells gate_up, Cells dh, std::int64_t rows, std::int64_t width,
                              Cells d_gate_up, Cells h);

  // h = max(up, 0)^2 (So et al. 2021), and as above. up, d_up, h, dh: [rows, width].
  void (*squared_relu)(Cells up, std::int64_t rows, std::int64_t width, Cells h);
  void (*squared_relu_backward)(Cells up, Cells dh, std::int64_t rows, std::int64_t width,
                                Cells d_up, Cells h);

  // Divides each of `heads` neighbouring vectors of each row by its root mean square (QK-norm), in
  // place: scale = 1 / sqrt(mean x^2 + 1e-6). x: rows of row_stride numbers, the heads from the
  // front of each; scale: [rows, heads].
  void (*norm_heads)(Cells x, std::int64_t row_stride, std::int64_t rows, std::int64_t heads,
                     std::int64_t head_dim, float* scale);
  // The gradient: dx holds that of the result y and becomes that of x. dx as y. Rotations of y may
  // come between if dx is rotated alike.
  void (*norm_heads_backward)(Cells y, std::int64_t row_stride, const float* scale,
                              std::int64_t rows, std::int64_t heads, std::int64_t head_dim,
                              Cells dx);

  // Rotates `heads` neighbouring vectors of each row, in place (docs/definitions.md, P3): pair
  // (k, k + m) of head_dim = 2m by the angle whose cosine and sine stand at [position, k] of the
  // tables. `turn` -1 rotates back. x: rows of row_stride numbers, the heads from the front of
  // each; cosine, sine: [positions, m]; position: [rows].
  void (*rotate)(Cells x, std::int64_t row_stride, std::int64_t rows, std::int64_t heads,
                 std::int64_t head_dim, const float* cosine, const float* sine,
                 const std::int32_t* position, float turn);

  // Length scaling L3 of ASEntmax, for `heads` heads: c = delta + softplus(b) exp(range tanh(g)
  // log_log), where b = beta[r, h] + beta_bias[h], g = gamma[r, h] + gamma_bias[h] and log_log[r]
  // is ln ln n of the row. beta, gamma: rows of row_stride numbers; c: rows of c_stride floats.
  void (*adaptive_scale)(const AdaptiveScale& scale, Cells beta, Cells gamma,
                         std::int64_t row_stride, const float* log_log, std::int64_t rows, float* c,
                         std::int64_t c_stride);
  // d_beta, d_gamma: rows of row_stride numbers; dc as c; d_beta_bias, d_gamma_bias: [heads], added
  // to if not null.
  void (*adaptive_scale_backward)(const AdaptiveScale& scale, Cells beta, Cells gamma,
                                  std::int64_t row_stride, const float* log_log, std::int64_t rows,
                                  const float* dc, std::int64_t c_stride, Cells d_beta,
                                  Cells d_gamma, float* d_beta_bias, float* d_gamma_bias);

  // Cross-entropy of rows of logits: loss[r] = ln sum exp logits - logits[label[r]], best[r] the
  // column of the largest logit (the first of equals). With weight > 0 the logits become the
  // gradient of weight * loss. logits: [rows, columns] float32; label, best: [rows]; loss: [rows].
  void (*cross_entropy)(float* logits, std::int64_t rows, std::int64_t columns,
                        const std::int64_t* label, float weight, float* loss, std::int64_t* best);

  // out[c, r] = in[r, c], numbers of 16 bits. in: [rows, columns]; out: columns rows of out_stride
  // numbers.
  void (*transpose_halves)(const std::uint16_t* in, std::int64_t rows, std::int64_t columns,
                           std::uint16_t* out, std::int64_t out_stride);
};

// The kernels for the best instruction set there is.
const RowKernelTable& RowKernels();

}  // namespace tsallis::lab
