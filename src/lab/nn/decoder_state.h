// The decoder's parameters, memory and passes. Only for decoder*.cc.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "lab/nn/decoder.h"
#include "lab/nn/layer_view.h"
#include "lab/nn/parameters.h"

namespace tsallis::lab {

// Rows that one thread works on at a time. Wide enough for the matrix products, small enough that a
// block's activations stay in the second-level cache.
inline constexpr std::int64_t kRowBlock = 1024;

// A buffer that grows when it has to; memory given back to the system and fetched again at every
// step costs more than many an operation (docs/log.md).
class Buffer {
 public:
  // [rows, columns], contents undefined; what was taken before is gone.
  at::Tensor Rows(std::int64_t rows, std::int64_t columns, at::ScalarType dtype);

 private:
  at::Tensor memory_;  // [numbers]
};

// A batch as the passes take it.
struct DecoderRows : SequenceRows {
  std::vector<std::int64_t> token;     // [rows]
  std::vector<std::int64_t> scored;    // rows whose logits are wanted, ascending
  std::vector<std::int64_t> label;     // [scored]; empty without labels
  std::vector<std::int64_t> sequence;  // [scored]
};

struct DecoderLayer {
  DecoderLayer(const DecoderConfig& config, std::int64_t layer) : attention(config, layer) {}

  LayerAttention attention;
  Parameter attention_norm, attention_out, attention_out_norm;
  Parameter feed_forward_norm, gate_up, down, feed_forward_out_norm;
};

// Activations of one layer. "After" are the rows behind attention: all of them, in the last layer
// only those whose logits are wanted.
struct LayerActivations {
  Buffer x;                     // [rows, width] float32: the residual stream before the layer
  Buffer projected;             // [rows, columns]
  Buffer attended;              // [rows, heads * head_dim]
  Buffer selected;              // [after, heads * head_dim], if these are fewer
  Buffer branch;                // [after, width]: attention's output projection
  Buffer middle;                // [after, width] float32: the residual stream between the sublayers
  Buffer gate_up;               // [after, 2 feed_forward]
  Buffer fed;                   // [after, width]: the feed-forward's output
  std::vector<float> scale[4];  // of the four norms
  LayerAttention::Kept kept;
};

struct Decoder::State {
  State(const DecoderConfig& config, std::uint64_t seed);

  // ---- decoder.cc
  DecoderRows RowsOf(const TokenBatch& batch) const;
  // Checks the batch and runs the layers on it with `team` threads, weights as they are now.
  using Look = std::function<void(const LayerView&)>;
  DecoderRows Run(const TokenBatch& batch, int team, bool keep, const Look& look = nullptr);
  // Calls body(begin, end, scratch) on blocks of rows, each on one thread, products included.
  struct Scratch;
  void ForBlocks(std::int64_t rows,
                 const std::function<void(std::int64_t, std::int64_t, Scratch&)>& body);

  // ---- decoder_forward.cc
  // Runs the layers; what leaves the last one stands in final_x: [scored, width] float32. `keep`:
  // activations stay for the backward pass; otherwise one layer's memory serves all. `look` may be
  // null.
  void ForwardLayers(const DecoderRows& rows, bool keep, const Look& look);
  void Embed(const DecoderRows& rows, const at::Tensor& x);
  // Final norm and head of rows [begin, end) of final_x: [end - begin, vocabulary] float32.
  at::Tensor Logits(std::int64_t begin, std::int64_t end, Scratch& scratch);
  // Cross-entropy of the scored rows.
  SequenceScore Losses(const DecoderRows& rows);

  // ---- decoder_backward.cc
  // Cross-entropy and the gradient of weight times its sum, down to final_x.
  SequenceScore LossesAndGradient(const DecoderRows& rows, float weight);
  // From there to those of all parameters.
  void BackwardLayers(const DecoderRows& rows, const GradientOptions& options);
  void BackwardAfter(DecoderLayer& layer, LayerActivations& a, std::int64_t after,
                     const at::Tensor& attended, const at::Tensor& d_x,
                     const at::Tensor& d_attended);
  void BackwardBefore(const DecoderRows& rows, DecoderLayer& layer, LayerActivations& a,
                      const at::Tensor& d_x, const at::Tensor& d_projected);
  // Adds dy x to the gradient of each. dy: [out, rows]; x: [rows, in].
  struct WeightGradient {
    at::Tensor dy, x;
    const Parameter* weight;
  };
  void AddWeightGradients(const std::vector<WeightGradient>& gradients);

  DecoderConfig config;
  at::ScalarType dtype;
  std::int64_t inner;  // heads * head_dim
  ParameterList parameters;
  Parameter embedding, final_norm, head;
  std::vector<DecoderLayer> layers;
  int threads = 1;

  std::vector<LayerActivations> activations;
  at::Tensor final_x;
  std::vector<float> final_scale;
  Buffer final_buffer;
  // Gradients of the layer at hand, named as what they are the gradient of; and its normalised
  // inputs and hidden layer, made again.
  struct {
    Buffer final_x, logits, final_normal;
    Buffer x, projected, transposed, attended, selected, branch, gate_up, fed;
    Buffer normal, after_normal, hidden;
    Buffer gains;  // partial gradients of the norms, of every block
  } backward;
  // Of one worker, for one block.
  struct Scratch {
    Buffer normal, branch, gate_up, hidden, fed, logits;
    Buffer d_normal, d_hidden, product;
  };
  std::vector<Scratch> scratch;
};

// ---- tensors as the kernels take them -----------------------------------------------------------

inline float* Data(const at::Tensor& tensor) { return tensor.mutable_data_ptr<float>(); }

// loss, best: [scored].
SequenceScore ScoreOf(const DecoderRows& rows, const std::vector<float>& loss,
                      const std::vector<std::int64_t>& best);

}  // namespace tsallis::lab
