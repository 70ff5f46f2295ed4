// The stages that models are made of, each in two forms: fused kernels of the host with their
// gradient, and torch's operations for other devices, whose gradient autograd records. A stage is a
// row of Stages(); one test holds the two forms of every row to each other.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "lab/nn/host_pass.h"
#include "lab/nn/row_chain.h"

namespace tsallis::lab {

// What a stage is told. A stage reads those of the settings that concern it.
struct StageCall {
  Tensors inputs{};               // in the order of Stage::inputs; undefined: left out
  RowWorkers* workers = nullptr;  // of the host's kernels; null: the calling thread
  // Inputs of this list are read in its rounded copies, and their gradients are added to its own:
  // autograd does not see them. Null: none are.
  const ParameterList* parameters = nullptr;
  at::ScalarType products = at::kFloat;  // what matrix products are computed in
  std::int64_t block = kRowBlock;  // rows that products take at a time where no gradient is wanted
  std::string embedding{};         // "embedding": as DecoderConfig's
  bool norms_output = false;       // a branch is normed before it joins the stream
  std::string activation{};        // of a feed-forward layer
  std::int64_t parts = 2, heads = 0, head_dim = 0;  // of a projection, as HeadRows
  bool qk_norm = false;                             // likewise
  std::int64_t column = 0;                          // "length-scale": the first that it reads
  double gamma_range = 0.0;                         // likewise
  double weight = 1.0;                              // "cross-entropy": of the sum
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

// - "embedding": rows of a table for tokens, by call.embedding, and rows of sinusoids at positions.
// - "projection": x [rows, width] -> W norm(x), with queries and keys normed and rotated as
//   HeadRows says (row_stages.h); and x.
// - "length-scale": projection, 2 heads columns of which it reads -> ASEntmax's c, [rows, heads];
//   and the projection.
// - "join": x and a value -> x + W value, or x + norm(W value).
// - "feed-forward": x -> x + W_d activation(W_u norm(x)), or the same with a norm as above.
// - "rows": x -> some of its rows.
// - "cross-entropy": x and labels -> call.weight times the sum of the losses of logits W norm(x);
//   and without gradients the losses [rows] and the best columns [rows].
// What a stage hands on beside its result comes back with a gradient that it adds to, in place.
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
