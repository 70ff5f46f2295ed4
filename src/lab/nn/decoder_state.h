// The decoder's parameters, memory and passes. Only for decoder*.cc.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lab/nn/decoder.h"
#include "lab/nn/layer_view.h"
#include "lab/nn/row_stages.h"

namespace tsallis::lab {

// A batch as the passes take it.
struct DecoderRows : SequenceRows {
  std::vector<std::int64_t> token;     // [rows]
  std::vector<std::int64_t> scored;    // rows whose logits are wanted, ascending
  std::vector<std::int64_t> label;     // [scored]; empty without labels
  std::vector<std::int64_t> sequence;  // [scored]
  std::int64_t block = kRowBlock;      // rows that products take at a time
};

// One layer: a chain from the stream to queries, keys and values, their attention, and a chain
// from what it gives back to the stream, through the feed-forward layer.
struct DecoderLayer {
  DecoderLayer(const DecoderConfig& config, std::int64_t layer) : attention(config, layer) {}

  LayerAttention attention;
  Parameter attention_norm, attention_out, attention_out_norm;
  Parameter feed_forward_norm, up, down, feed_forward_out_norm;
  std::optional<RowChain> before, after;
  std::int64_t begin = 0;  // of its parameters in the flat memory
};

// Activations of one layer. "After" are the rows behind attention: all of them, in the last layer
// only those whose logits are wanted.
struct LayerActivations {
  Buffer x;           // [rows, width] float32: the residual stream before the layer
  Buffer selected_x;  // [after, width] float32, if these are fewer
  Buffer projected;   // [rows, columns]
  Buffer attended;    // [rows, heads * head_dim]
  Buffer selected;    // [after, heads * head_dim], if these are fewer
  ChainActivations before, after;
  LayerAttention::Kept kept;
};

struct Decoder::State {
  State(const DecoderConfig& config, std::uint64_t seed);

  // ---- decoder.cc
  void DeclareParameters();
  void BuildChains();
  DecoderRows RowsOf(const TokenBatch& batch) const;
  // Functions that every layer calls; null: none.
  struct Visitors {
    std::function<void(const LayerView&)> visit = nullptr;  // after its attention
    VisibleKeys visible = nullptr;                          // before it
  };
  // Checks the batch and runs the layers on it with `team` threads, weights as they are now.
  DecoderRows Run(const TokenBatch& batch, int team, bool keep, const Visitors& visitors);

  DecoderRows RowsOf(const KvCache& cache, const std::vector<KvCache::Sequence>& sequences,
                     const std::vector<std::vector<std::int64_t>>& tokens) const;
  void AddRow(DecoderRows& rows, std::int64_t token, std::int64_t position) const;

  // ---- decoder_passes.cc
  // Runs the layers; the last one's output stands in final_x: [scored, width] float32. `keep`:
  // activations stay for the backward pass; otherwise one layer's memory serves all. `cached`: the
  // cached sequences that these rows continue; null: none.
  struct CacheSequences {
    KvCache& cache;
    const std::vector<KvCache::Sequence>& sequences;
  };
  void ForwardLayers(const DecoderRows& rows, bool keep, const Visitors& visitors,
                     const CacheSequences* cached = nullptr);
  void Embed(const DecoderRows& rows, const at::Tensor& x);
  // Cross-entropy of the scored rows; without labels there is none. logits: receives them unless
  // undefined, [scored, vocabulary] float32.
  SequenceScore Head(const DecoderRows& rows, const at::Tensor& logits);
  // Computes the same, and the gradient of weight times the sum of the losses: the head's is added,
  // d_x receives that of final_x.
  SequenceScore HeadAndGradient(const DecoderRows& rows, float weight, std::int64_t most_logits,
                                const at::Tensor& d_x);
  // From there to the gradients of all parameters. d_x: of final_x.
  void BackwardLayers(const DecoderRows& rows, const GradientOptions& options, at::Tensor d_x);
  void BackwardEmbedding(const DecoderRows& rows, const at::Tensor& d_x);

  RowChain::Pass PassOf(const DecoderRows& rows, std::int64_t count) {
    return {workers, rows, count, rows.block};
  }
  Context Threads() const { return {.threads = workers.threads()}; }

  DecoderConfig config;
  at::ScalarType dtype;
  std::int64_t inner;  // heads * head_dim
  ParameterList parameters;
  Parameter embedding, final_norm, head;
  std::vector<DecoderLayer> layers;
  std::optional<RowChain> last;  // norm, head, loss
  CrossEntropyStage* loss = nullptr;
  RowWorkers workers;

  std::vector<LayerActivations> activations;
  ChainActivations last_kept;
  at::Tensor final_x;
  std::vector<float> embedding_scale;  // [rows], where embeddings are normed
  at::Tensor sinusoids;                // [positions so far, width], where they are added
  Buffer final_buffer, logits;
  // Gradients of the layer at hand, named as what they are the gradient of.
  struct {
    Buffer final_x, x, projected, attended, selected;
    ChainGradients before, after, last;
  } backward;
};

}  // namespace tsallis::lab
