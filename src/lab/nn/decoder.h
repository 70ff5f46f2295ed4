// A decoder for the sequence tasks T2-T9 and for language (docs/definitions.md). As configured
// unless told otherwise it is Gemma-2-like (ASEntmax, appendix G). For a token t at position i:
//
//   x = E[t] sqrt(width)                                             (+ sinusoids)
//   x += n2(attention(n1(x))),  x += n4(W_d (gelu(W_g n3(x)) * W_u n3(x)))      in every layer
//   logits = W_h n5(x),  n(x) = x / rms(x) (1 + w)
//
// without biases, soft-capping or windows; gelu in its tanh form; E and W_h are not tied. Attention
// is causal, 1 / sqrt(head_dim) scaled, with as many key heads as query heads; what a head does
// beyond that is its AttentionConfig. Weights and embeddings start at N(0, 0.02^2), norms at w = 0.
// DecoderConfig has other norms, activations and embeddings. docs/decoder.md lists how this departs
// from the reference implementation.
//
// Between attentions a model is a chain of stages that treat every row alone, each with its
// gradient (row_chain.h). Results do not depend on the number of threads, to the bit.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lab/nn/decoder_config.h"
#include "lab/tasks/metric.h"
#include "lab/tasks/token_batch.h"
#include "tsallis/kv_cache.h"

namespace tsallis::lab {

// Sums over the scored positions of a batch.
struct SequenceScore {
  double loss = 0.0;        // cross-entropy, nats: a sum; Mean() is what training minimises
  std::int64_t scored = 0;  // positions
  std::int64_t hits = 0;    // positions whose label has the largest logit (the first of equals)
  std::int64_t sequences = 0;
  std::int64_t exact = 0;  // sequences with a hit at every scored position
  // Of every sequence, whether it is exact.
  std::vector<bool> is_exact;
  std::vector<float> losses;  // [scored], nats

  // As a task counts.
  Answers Of(Scoring scoring) const {
    return scoring == Scoring::kExact ? Answers{sequences, exact, loss}
                                      : Answers{scored, hits, loss};
  }

  double Mean() const { return scored == 0 ? 0.0 : loss / static_cast<double>(scored); }
};

struct GradientOptions {
  // What the sum of the loss is divided by; 0: the scored positions of this batch. With several
  // batches or processes a step, the scored positions of all of them.
  std::int64_t denominator = 0;
  bool accumulate = false;  // adds to FlatGradients() instead of replacing it
  // Logits that stand in memory at a time, at least those of 4 096 rows. Where the batch has more,
  // the head goes forward and back piece by piece.
  std::int64_t logits = std::int64_t{1} << 28;
  // Called when the gradients [begin, end) of FlatGradients() are final, from the back to the
  // front, on the calling thread.
  std::function<void(std::int64_t begin, std::int64_t end)> ready;
  // Called from the last layer to the first, on the calling thread: the Euclidean norm of the
  // loss's gradient with respect to a token's residual stream where layer `layer` reads it, mean
  // over the tokens of the batch.
  std::function<void(std::int64_t layer, double norm)> flow;
};

struct LayerInput;
struct LayerView;

class Decoder {
 public:
  // Parameters drawn from `seed`, each from a stream of its own. Throws UsageError (CheckDecoder).
  Decoder(const DecoderConfig& config, std::uint64_t seed);
  Decoder(Decoder&&) noexcept;
  ~Decoder();

  // As given, but with `compute` and `head_dim` settled.
  const DecoderConfig& Config() const;

  // Loss and its gradient, which replaces or joins FlatGradients().
  SequenceScore LossAndGradient(const TokenBatch& batch, const GradientOptions& options = {});

  // The loss alone, in memory that grows with the longest sequence by little more than keys,
  // values and the residual stream.
  SequenceScore Evaluate(const TokenBatch& batch);

  // Which keys the queries of a layer see among those so far, from what it is about to attend with:
  // bool [sequences, heads, n, n], n tokens of the longest sequence, contiguous; undefined: all.
  using VisibleKeys = std::function<at::Tensor(const LayerInput&)>;
  // The same of a model whose queries see no other keys: called layer by layer on the calling
  // thread, so a layer's queries and keys are those that the layers before it give under their own
  // restriction. A query that sees nothing takes nothing from attention. Where all keys are
  // visible the score has the bits of Evaluate(batch). InvalidArgument for a tensor of another kind
  // or shape, UsageError for a layer that has fixed patterns already.
  SequenceScore Evaluate(const TokenBatch& batch, const VisibleKeys& visible);

  // Logits of the scored positions, in order: [scored, vocabulary] float32. Without labels, of all
  // positions: [batch * n, vocabulary]; those beyond a sequence's length are 0.
  at::Tensor Forward(const TokenBatch& batch);

  // A cache for the keys and values of sequences of this model, of at most `max_bytes` (0: no
  // limit). UsageError for positions that change with the length of the text (NTK-aware scaling):
  // what is cached would be wrong for the next token.
  std::unique_ptr<KvCache> MakeCache(std::int64_t max_bytes = 0) const;

  // Adds tokens to sequences of such a cache, one list of one or more for each; [sequences,
  // vocabulary] float32: the logits behind the last token of each. Where every list has one token,
  // the logits of a sequence have the same bits whatever other sequences share the call. Throws
  // CacheFull and InvalidArgument, and then no sequence has changed.
  at::Tensor Extend(KvCache& cache, const std::vector<KvCache::Sequence>& sequences,
                    const std::vector<std::vector<std::int64_t>>& tokens);

  // Runs the layers and shows the attention of each, in order, while its queries and keys are
  // there: `look` is called on the calling thread, and what it gets is gone afterwards.
  void Look(const TokenBatch& batch, const std::function<void(const LayerView&)>& look);

  // All parameters, and their gradients, in one piece of memory each; a parameter starts at a
  // multiple of 64 bytes, the gaps stay zero. Who writes parameters through a pointer tells
  // MarkChanged() (parameters.h).
  const at::Tensor& FlatParameters() const;
  const at::Tensor& FlatGradients() const;

  // Named views into FlatParameters, and the same of the gradients.
  const std::vector<std::pair<std::string, at::Tensor>>& Parameters() const;
  const std::vector<at::Tensor>& Gradients() const;
  // Numbers that are learned (without the gaps).
  std::int64_t ParameterCount() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tsallis::lab
