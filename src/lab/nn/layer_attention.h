// Attention of one layer of the decoder on projected rows: heads may differ in map, length scaling
// and positions, and are attended in as few calls as there are maps (a head without ALiBi has slope
// 0, one without length scaling c = 1).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lab/nn/decoder_config.h"
#include "lab/nn/head_numbers.h"
#include "lab/nn/parameters.h"
#include "lab/nn/positions.h"
#include "lab/nn/query_scale.h"
#include "lab/nn/row_chain.h"
#include "lab/nn/sequence_rows.h"
#include "tsallis/attention.h"
#include "tsallis/kv_cache.h"
#include "tsallis/patterns.h"

namespace tsallis::lab {

// Queries, keys and values of a layer's heads for one sequence of n tokens, for callers that
// compute the causal attention of this layer with other code.
struct HeadArrays {
  std::string map;
  at::Tensor q, k, v;  // [heads, n, head_dim], rotated; q times its length scaling c
  at::Tensor alpha;    // [heads] float64; undefined for softmax
  at::Tensor slopes;   // [heads] float32, ALiBi's; undefined where no head has one
  at::Tensor c;        // [heads, n] float32; undefined without length scaling
  std::optional<double> scale_invariant;  // length scale
};

// The learned number that gives a head its first alpha (AttentionConfig::learn_alpha).
double AlphaParameter(const AttentionConfig& head);

// Whether two heads can be attended in one call of attention.
bool SameCall(const AttentionConfig& a, const AttentionConfig& b);

// Neighbouring heads of a layer that share a length scaling. The names of its parameters, below
// those of the layer's attention, begin with `prefix`. If a layer has several such runs of heads,
// `prefix` holds the number of the first head.
struct ScaledHeads {
  std::int64_t first, count;
  std::string prefix;
};
std::vector<ScaledHeads> ScaledHeadsOf(const DecoderConfig& config, std::int64_t layer);

// Whether two heads have the same scale-invariant scores. SetDistances writes a head's own into
// `terms`.
bool SameDistances(const AttentionConfig& a, const AttentionConfig& b);
void SetDistances(const AttentionConfig& head, AttentionTerms& terms);

class LayerAttention {
 public:
  LayerAttention(const DecoderConfig& config, std::int64_t layer);

  // Names of parameters begin with `prefix`.
  void Declare(const std::string& prefix, ParameterList& list);

  // [columns, width]: rows of queries, keys, values, then what length scalings read.
  const Parameter& Projection() const { return projection_; }
  std::int64_t Columns() const { return columns_; }

  // Builds what depends on lengths; before the rest, once a batch.
  void Prepare(const SequenceRows& rows);

  // The stage between the projection and attention: QK-norm and rotation of queries and keys. It
  // must not outlive this.
  std::unique_ptr<RowStage> InputStage() const;

  // The forward pass keeps these for the backward pass.
  struct Kept {
    std::vector<at::Tensor> tau;  // of every call: [batch, heads, length] or [heads, rows], float64
    std::vector<at::Tensor> lists;  // bytes
    at::Tensor c;                   // [rows, heads] float32; undefined without length scaling
  };

  // Statistics of the weights of every row.
  struct Statistics {
    std::vector<std::vector<double>> entropy;        // of every call, as tau; nats
    std::vector<std::vector<std::int64_t>> support;  // weights > 0
  };

  // Which rows attend.
  enum class Queries : std::uint8_t {
    kAll,
    kLast,  // of each sequence those from SequenceRows::last_begin on; all rows are attended to
  };

  // Writes the length scalings of all rows into `kept`. Forward does this itself; a caller that
  // uses Arrays or Weights before Forward calls it first.
  void Scale(const SequenceRows& rows, const at::Tensor& projected, Kept& kept) const;

  // out: [rows, heads * head_dim], of the dtype of `projected`; rows that do not attend stay as
  // they are. `keep`: for Backward. `statistics`: filled if not null, of all rows only.
  // `visible`: where defined, the keys that queries see among those so far, in the form of
  // Decoder::VisibleKeys; not with `keep`. Throws as Decoder::Evaluate(batch, visible).
  void Forward(const Context& context, const SequenceRows& rows, Queries queries,
               const at::Tensor& projected, const at::Tensor& out, bool keep, Kept& kept,
               Statistics* statistics = nullptr, const at::Tensor& visible = {}) const;

  // One layer of a cache, and the sequences in it that the rows continue.
  struct CacheLayer {
    KvCache& cache;
    const std::vector<KvCache::Sequence>& sequences;  // as the rows'
    std::int64_t layer;
  };

  // Adds the rows' keys and values to the cache. Each row attends to the tokens of its sequence up
  // to its own. Positions go on from the cache's length. Rows after those of the last sequence
  // belong to no sequence, and their output is 0. `out` and `kept` as in Forward. Throws CacheFull;
  // then some sequences may be longer in this layer.
  void Extend(const Context& context, const SequenceRows& rows, const CacheLayer& cached,
              const at::Tensor& projected, const at::Tensor& out, Kept& kept) const;

  // Gradient of the projection (rotated still), and of the layer's parameters, which it adds.
  // d_out as out, d_projected as projected. `queries` as in Forward.
  void Backward(const Context& context, const SequenceRows& rows, Queries queries,
                const at::Tensor& projected, const at::Tensor& d_out, const Kept& kept,
                const at::Tensor& d_projected);

  // After Forward. Adds the rows `scored` to the quantities of each head: [heads].
  //   entropy             of the weights, nats
  //   normalised entropy  entropy / ln keys, of rows that see at least two keys
  //   support             weights > 0
  //   keys                that the row sees
  //   slope               of ALiBi ("learned slope" if it is), where the head has one
  //   alpha, sink         where it is learned
  //   c                   the length scaling, where there is one, and its QueryScale::Terms()
  void Describe(const SequenceRows& rows, const std::vector<std::int64_t>& scored,
                const at::Tensor& projected, const Kept& kept, const Statistics& statistics,
                std::vector<HeadQuantities>& heads) const;
  // The number of tokens that a head's query at a position sees.
  std::int64_t VisibleKeys(std::int64_t head, std::int64_t position) const;
  // After Scale or Forward. The heads' arrays for one sequence. UsageError for heads that
  // HeadArrays cannot describe: of several kinds, of maps other than softmax and entmax, with sinks
  // or patterns.
  HeadArrays Arrays(const SequenceRows& rows, const at::Tensor& projected, const Kept& kept,
                    std::int64_t sequence) const;
  // After Forward. The weights of queries [begin, end) of a sequence.
  SparseRows Weights(const Context& context, const SequenceRows& rows, const at::Tensor& projected,
                     const Kept& kept, std::int64_t sequence, std::int64_t head, std::int64_t begin,
                     std::int64_t end) const;

 private:
  class Input;

  // Heads first, first + step, ... of one call.
  struct CallHeads {
    std::int64_t first, step, count;
  };
  // Numbers that their maps need in this pass: [heads of the call].
  struct MapNumbers {
    std::vector<double> alphas;
    std::vector<double> sinks;  // empty where no head has one
  };
  struct Rotation {
    std::int64_t first, count;
    Positions positions;
    RopeTable table;
    std::int64_t table_length = 0;  // that the frequencies are for
  };
  // Which keys heads see that have this pattern: the beginning of `mask` is that of shorter
  // sequences.
  struct PatternTable {
    PatternConfig config;
    PatternMask mask;
  };
  struct Scaling {
    ScaledHeads heads;
    std::int64_t column;  // where its part of the projection begins
    std::unique_ptr<QueryScale> scale;
  };

  // New queries of sequences [first, last), which have the same number of rows, on the cache.
  struct Chunk {
    std::size_t first, last;
    std::int64_t begin, count;  // the first row, rows of each sequence
  };
  // Checks `visible` as Forward says and returns it, or an undefined tensor if it hides no key:
  // without a mask every kernel serves.
  at::Tensor Checked(const SequenceRows& rows, const at::Tensor& visible) const;
  // AttentionForward and AttentionBackward under the call's pattern, or on `visible` keys alone:
  // where sequences are packed, one by one, since masks count along the axes of queries and keys.
  void Attend(const Context& context, const CallHeads& call, const AttentionParams& params,
              const at::Tensor& visible, const AttentionOutputs& outputs) const;
  void AttendBackward(const Context& context, const CallHeads& call, const AttentionParams& params,
                      const AttentionGradients& gradients) const;
  const PatternTable* PatternOf(const CallHeads& call) const;  // null without
  // The call's pattern, if it has one, for queries at positions from `begin` on and keys from 0 on.
  void SetPattern(const CallHeads& call, std::int64_t begin, AttentionMask& mask) const;
  // Sets the mask to `visible`, where it is defined, from a sequence on.
  void SetMask(const CallHeads& call, const at::Tensor& visible, std::int64_t sequence,
               std::int64_t begin, AttentionMask& mask) const;
  void ExtendCall(const Context& context, const Chunk& chunk, const CacheLayer& cached,
                  const CallHeads& call, const at::Tensor& projected, const at::Tensor& out,
                  const at::Tensor& c) const;
  // The terms, but for sinks, of rows from `begin` on, `count` for each sequence.
  AttentionTerms TermsOf(const CallHeads& call, std::int64_t begin, std::int64_t count,
                         const at::Tensor& c) const;
  AttentionParams ParamsOf(const CallHeads& call, const SequenceRows& rows, Queries queries,
                           const at::Tensor& projected, const at::Tensor& c) const;
  // Rotates queries and keys of a block of rows of the projection. `turn` 1, or -1 for gradients.
  void Rotate(const RowSpan& span, Cells projected, float turn) const;
  // numbers: must outlive the params.
  void SetMap(AttentionParams& params, const CallHeads& call, const MapNumbers& numbers) const;
  double AlphaOf(std::int64_t head) const;
  MapNumbers NumbersOf(const CallHeads& call) const;
  bool LearnsSlope(std::int64_t head) const;
  void PlanCalls();
  void PlanPatterns();
  void PreparePatterns(std::int64_t length);
  void PlanRotations();
  void PlanScalings(const DecoderConfig& config, std::int64_t layer);

  std::int64_t heads_, head_dim_, width_, columns_;
  bool qk_norm_;
  std::vector<AttentionConfig> head_;  // [heads]
  std::vector<CallHeads> calls_;
  std::vector<Rotation> rotations_;
  std::vector<Scaling> scalings_;
  std::vector<PatternTable> patterns_;
  std::vector<int> pattern_of_;      // [heads], in patterns_; -1: none
  std::vector<bool> has_slope_;      // [heads]
  std::vector<float> fixed_slopes_;  // [heads]
  bool sloped_ = false, learned_slopes_ = false, learned_alpha_ = false, learned_sinks_ = false;
  std::vector<double> alphas_;  // [heads], of this pass
  std::vector<double> sinks_;   // likewise; -inf: none
  std::vector<float> slopes_;   // [heads], of this pass
  Parameter projection_;
  Parameter slope_parameters_, alpha_parameters_, sink_parameters_;  // [1, heads]
};

}  // namespace tsallis::lab
