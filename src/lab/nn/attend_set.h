// Encoding the items of a set and attending over them, as one differentiable operation whose backward visits only the
// items in the support: entmax gives most items of a trained model weight and gradient exactly zero, and their rows
// are left out of both matrix products of the encoder's gradient. For softmax every row is visited.
#pragma once

#include <torch/torch.h>

#include "tsallis/rows.h"

namespace tsallis::lab {

// What a caller may want to see of the attention itself. Tensors are [sets, n] or [sets].
struct AttentionView {
  torch::Tensor weights;       // float32
  torch::Tensor entropy;       // float64, nats
  torch::Tensor support_size;  // int64
};

// h = gelu(W2 gelu(W1 x + b1) + b2); s_bj = <h_bj, u_b>; pooled_b = sum_j map(s_b)_j h_bj.
//   items  [sets, n, features]   u [sets, width]: the query in the space of h, scaled
//   w1 [width, features]   b1 [width]   w2 [width, width]   b2 [width]
// All float32 on the CPU. Returns pooled, [sets, width]; differentiable in u and the four parameters.
torch::Tensor AttendSet(const torch::Tensor& items, const torch::Tensor& u, const torch::Tensor& w1,
                        const torch::Tensor& b1, const torch::Tensor& w2, const torch::Tensor& b2,
                        const RowMapParams& map, AttentionView* view = nullptr);

}  // namespace tsallis::lab
