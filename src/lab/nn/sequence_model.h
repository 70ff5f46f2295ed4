// A model of sequences: it is trained and evaluated on batches of tokens, and continues texts.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lab/base/sequential_products.h"
#include "lab/nn/attention_branch.h"
#include "lab/nn/blocks.h"
#include "lab/nn/decoder_config.h"
#include "lab/nn/decoding_state.h"
#include "lab/nn/parameters.h"
#include "lab/tasks/token_batch.h"

namespace tsallis::lab {

// Sums over the scored positions of a batch.
struct SequenceScore {
  double loss = 0.0;        // cross-entropy, nats: a sum; Mean() is what training minimises
  std::int64_t scored = 0;  // positions
  std::int64_t hits = 0;    // positions whose label has the largest logit (the first of equals)
  std::int64_t sequences = 0;
  std::int64_t exact = 0;  // sequences with a hit at every scored position
  // [sequences]: whether each is exact.
  std::vector<bool> is_exact;
  std::vector<float> losses;  // [scored], nats

  // Sums over rows in the order of their sequences. Each row gives its loss, the token of its
  // largest logit, its label and its sequence. losses, best: of pieces of the rows, one behind the
  // other, on any device, for which the host waits.
  static SequenceScore Of(std::int64_t sequences, const std::vector<at::Tensor>& losses,
                          const std::vector<at::Tensor>& best,
                          const std::vector<std::int64_t>& label,
                          const std::vector<std::int64_t>& sequence);

  // Adds the sums of another batch; what is known of single positions and sequences stays.
  void AddSums(const SequenceScore& more) {
    loss += more.loss;
    scored += more.scored;
    hits += more.hits;
    sequences += more.sequences;
    exact += more.exact;
  }

  double Mean() const { return scored == 0 ? 0.0 : loss / static_cast<double>(scored); }
};

// InvalidArgument for what is no batch of a model with this vocabulary: shapes and dtypes, tokens,
// labels and lengths. Labels may be missing.
void CheckBatch(const TokenBatch& batch, std::int64_t vocabulary);

struct GradientOptions {
  // Divides the sum of the loss; 0: the scored positions of this batch. With several batches or
  // processes a step, it is the scored positions of all of them.
  std::int64_t denominator = 0;
  bool accumulate = false;  // adds to FlatGradients() instead of replacing it
  // Limits the logits in memory at a time; those of 4 096 rows always fit. Where the batch has
  // more, the head goes forward and back piece by piece.
  std::int64_t logits = std::int64_t{1} << 28;
  // The decoder: the batch is this process's part of every sequence, and the call is
  // collective. Score and gradient are the part's terms. Null: whole sequences.
  const SequencePart* part = nullptr;
  // Called when the gradients [begin, end) of FlatGradients() are final, from the back to the
  // front, on the calling thread.
  std::function<void(std::int64_t begin, std::int64_t end)> ready;
  // The decoder: called from the last layer to the first, on the calling thread: the Euclidean norm
  // of the loss's gradient with respect to a token's residual stream where layer `layer` reads it,
  // mean over the tokens of the batch.
  std::function<void(std::int64_t layer, double norm)> flow;
};

// An attention, and a feed-forward layer behind it.
struct SelfLayer : Fixed {
  SelfLayer(const DecoderConfig& config, LayerPlace place, const std::string& name,
            ParameterList& parameters, RowWorkers& workers, at::ScalarType products)
      : attention(config, std::move(place), name + "attention.", parameters, workers, products),
        feed_forward(config, name + "feed_forward.", parameters, workers, products) {}

  AttentionBranch attention;
  FeedForwardBlock feed_forward;
};

// A model is made of blocks (blocks.h, attention_branch.h). It adds layers to what stands here,
// embeddings and a head, and says how rows go through them.
class SequenceModel {
 public:
  SequenceModel(const SequenceModel&) = delete;
  SequenceModel& operator=(const SequenceModel&) = delete;
  virtual ~SequenceModel() = default;

  // The name in SequenceModels() of models.h.
  virtual const char* Architecture() const = 0;
  // The given configuration, with `compute` and `head_dim` filled in.
  const DecoderConfig& Config() const { return config_; }
  // One line that tells people how the model computes; empty: nothing.
  std::string Note() const;

  // Loss and its gradient, which replaces or joins FlatGradients(). On another device than the CPU
  // the host waits once, when all is under way, and gradients are ready all at once.
  SequenceScore LossAndGradient(const TokenBatch& batch, const GradientOptions& options = {});
  // Given what a layer is about to attend with, returns which of the keys that it shows its queries
  // see: bool [sequences, heads, queries, keys], those of the longest sequences, contiguous;
  // undefined: all.
  using VisibleKeys = std::function<at::Tensor(const LayerInput&)>;
  // The loss alone. `visible`: queries see only the keys that it returns. It is called layer by
  // layer on the calling thread, so a layer's queries and keys come from layers that were
  // restricted before it, and on the CPU: of a model elsewhere on a copy of its present weights. A
  // query that sees no key takes nothing from attention. Where all keys are visible the score has
  // the bits of Evaluate(batch). InvalidArgument for a tensor of another kind or shape, UsageError
  // for a layer that has fixed patterns already.
  SequenceScore Evaluate(const TokenBatch& batch, const VisibleKeys& visible = nullptr);
  // The attention of the layers, in order.
  std::vector<LayerPlace> Places() const;
  // Runs the layers and calls `visit` after the attention of each, in order, on the calling thread.
  // The view is valid only during the call. On the CPU, as above.
  void VisitLayers(const TokenBatch& batch, const std::function<void(const LayerView&)>& visit);

  // max_bytes: the limit of all sequences together; 0: none. Texts grow where the model is. The
  // state must not outlive the model. Throws as DecodingState.
  std::unique_ptr<DecodingState> StartDecoding(std::int64_t max_bytes = 0);

  // Numbers by name that show how training goes, on a batch of validation samples; none: there is
  // nothing to see. Changes nothing but FlatGradients().
  virtual std::vector<std::pair<std::string, double>> Observe(const TokenBatch& /*batch*/) {
    return {};
  }

  // All parameters, and their gradients, in one piece of memory each, on the model's device; a
  // parameter starts at a multiple of 64 bytes, the gaps stay zero. Code that writes parameters
  // through a pointer calls MarkChanged() (parameters.h).
  const at::Tensor& FlatParameters() const { return parameters_.Flat(); }
  const at::Tensor& FlatGradients() const { return parameters_.FlatGradients(); }
  // Named views into FlatParameters.
  const std::vector<std::pair<std::string, at::Tensor>>& Parameters() const {
    return parameters_.Named();
  }
  const std::vector<ParameterGroup>& Groups() const { return parameters_.Groups(); }    // of each
  const std::vector<at::Tensor>& Gradients() const { return parameters_.Gradients(); }  // likewise
  // Numbers that are learned (without the gaps).
  std::int64_t ParameterCount() const { return parameters_.Count(); }

 protected:
  // config: with defaults (WithDefaults).
  SequenceModel(DecoderConfig config, const c10::Device& device, Naming naming);
  // Adds the head, the embeddings or a matrix of its own, when all layers are added, and makes the
  // parameters.
  void Finish(std::uint64_t seed, bool own_head);

  // To be on the stack while rows go through the model: products in sequence, the work on as many
  // threads as there are, rounded weights renewed.
  class Running {
   public:
    explicit Running(SequenceModel& model) {
      model.workers_.SetThreads(sequential_.threads());
      model.parameters_.Refresh();
    }

   private:
    SequentialProducts sequential_;
  };

  // A batch as the model reads it.
  struct Samples {
    DecoderRows target, source{};  // source: of a model that reads one
  };
  virtual Samples Read(const TokenBatch& batch, const SequencePart* part) const = 0;
  // The last layer's output at the rows of the target whose logits are wanted, [scored, width].
  virtual at::Tensor Run(const Samples& samples, const LayerPass& pass) = 0;
  virtual bool ReadsSources() const { return false; }
  // Logits as DecodingState::Model.
  virtual at::Tensor Extend(const DecodingState::NewTokens& more) = 0;
  virtual std::vector<const AttentionBranch*> Attention() const = 0;

  at::Tensor Embed(const DecoderRows& rows) {
    return embed_(rows.tokens, rows.positions, rows.reach);
  }
  const at::Tensor& Head() const { return head_.defined() ? head_ : embed_.Table(); }
  // The model if it is on the CPU; else a copy there of its present weights.
  SequenceModel& OnCpu();

  DecoderConfig config_;
  c10::Device device_;
  at::ScalarType products_;
  ParameterList parameters_;
  RowWorkers workers_;
  EmbeddingBlock embed_;
  std::optional<Gain> gain_;  // of the norm before the head

 private:
  // The losses of rows and their best tokens, in pieces of at most `most` rows, and the gradient of
  // x where it is wanted.
  struct Judged {
    Tensors losses, best;
    at::Tensor d_x{};
  };
  Judged Judge(const at::Tensor& x, const DecoderRows& rows, std::int64_t most, double weight,
               bool gradient);

  at::Tensor head_;  // [vocabulary, width]; undefined: the embeddings
  std::unique_ptr<SequenceModel> copy_;
};

}  // namespace tsallis::lab
