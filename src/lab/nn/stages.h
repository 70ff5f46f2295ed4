// The stages that models of blocks are made of, each in two forms: fused kernels of the host with
// their gradient, and torch's operations for other devices, whose gradient autograd records. A
// stage is a row of Stages(); one test holds the two forms of every row to each other.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "lab/nn/device_attention.h"
#include "lab/nn/row_chain.h"

namespace tsallis::lab {

using Tensors = std::vector<at::Tensor>;

// What a stage is told. A stage reads those of the settings that concern it.
struct StageCall {
  Tensors inputs{};                      // in the order of Stage::inputs; undefined: left out
  RowWorkers* workers = nullptr;         // of the host's kernels; null: the calling thread
  at::ScalarType products = at::kFloat;  // what matrix products are computed in
  bool norms_output = false;             // a branch is normed before it joins the stream
  std::string activation{};              // of a feed-forward layer
  std::int64_t heads = 0, head_dim = 0;  // "heads"
  bool qk_norm = false;                  // "heads"
  double gamma_range = 0.0;              // "length-scale"
  const AttentionOptions* attention = nullptr;
  LongestSequence longest{};  // of attention's packed sequences
};

struct Stage {
  struct Input {
    const char* name;
    const char* sizes;  // one letter a dimension: equal letters are equal sizes
    bool optional = false;
  };
  using Form = Tensors (*)(const StageCall& call);

  std::string name;
  std::vector<Input> inputs;
  Form host;        // with a gradient, on the CPU
  Form operations;  // on any device
};

// "projection"     x [rows, width] -> W norm(x)
// "join"           x and a value -> x + W value, or x + norm(W value)
// "feed-forward"   x -> x + W_d activation(W_u norm(x)), or the same with a norm as above
// "heads"          products of queries, keys and values [rows, 3 heads head_dim] -> the same with
//                  queries and keys normed (QK-norm) and rotated by tables [1 or heads, positions,
//                  head_dim / 2]
// "length-scale"   products [rows, 2 heads] -> ASEntmax's c, [rows, heads]
// "attention"      queries, keys, values -> outputs, as tsallis::Attention
// "cross-entropy"  x and labels -> the loss of logits W norm(x) [rows] and their best column [rows]
const std::vector<Stage>& Stages();

// Runs the kernels where the inputs are on the CPU, else torch's operations. std::logic_error that
// names a stage that there is not, or that lacks the form.
Tensors RunStage(const std::string& name, const StageCall& call);

// x / rms(x) (1 + gain) along the last dimension, RMSNorm (Zhang and Sennrich 2019), in float32.
// gain: of its size, undefined: none.
at::Tensor Normed(const at::Tensor& x, const at::Tensor& gain);

// x W^T, computed in a dtype. weight: [out, in].
at::Tensor Product(const at::Tensor& x, const at::Tensor& weight,
                   at::ScalarType dtype = at::kFloat);

}  // namespace tsallis::lab
