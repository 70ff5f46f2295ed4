// The row maps as operators: one call description shared by the schema's arguments, the C++
// interface and what autograd keeps.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <tuple>

#include "torch/operators.h"
#include "tsallis/rows.h"

namespace tsallis {

struct RowMapCall {
  RowMapParams params;
  std::int64_t dim = 0;  // from the front
};

using OptionalDoubles = std::optional<at::ArrayRef<double>>;

// Checks every argument but values only kernels look at (alpha's range), and wraps `dim`.
RowMapCall MakeRowMapCall(const at::Tensor& scores, const std::optional<at::Tensor>& alpha_rows,
                          std::string_view map, double alpha, std::int64_t dim, double temperature,
                          double budget, OptionalDoubles coefficients,
                          std::optional<double> threshold, std::int64_t top_k,
                          double top_k_fraction, std::optional<double> sigmoid_bias);
RowMapCall MakeRowMapCall(const at::Tensor& scores, const std::optional<at::Tensor>& alpha_rows,
                          const RowMapParams& params, std::int64_t dim);

// CPU kernels, below autograd. `stats` may be null. The gradient in alpha is undefined if not
// wanted, else of alpha's shape and dtype.
at::Tensor RowMapCpu(const at::Tensor& scores, const std::optional<at::Tensor>& alpha_rows,
                     const RowMapCall& call, RowStatTensors* stats);
std::tuple<at::Tensor, at::Tensor> RowMapBackwardCpu(const at::Tensor& d_probabilities,
                                                     const at::Tensor& scores,
                                                     const at::Tensor& probabilities,
                                                     const std::optional<at::Tensor>& alpha_rows,
                                                     const RowMapCall& call, bool want_alpha);

// With autograd, for tensors of any kind.
at::Tensor RowMapAutograd(const at::Tensor& scores, const std::optional<at::Tensor>& alpha_rows,
                          const RowMapCall& call, RowStatTensors* stats);

}  // namespace tsallis
