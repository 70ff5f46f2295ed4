// Attention of one layer: of tokens to those before them, to all of their sequence, or to another
// sequence, a memory. Heads may differ in map, length scaling and positions, and are attended in as
// few calls as there are maps (a head without ALiBi has slope 0, one without length scaling c = 1).
// On the CPU a call reads queries, keys and values where the projections put them, and its gradient
// is written there.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lab/nn/blocks.h"
#include "lab/nn/decoder_config.h"
#include "lab/nn/device_attention.h"
#include "lab/nn/positions.h"
#include "lab/nn/query_scale.h"
#include "lab/nn/sequence_part.h"
#include "lab/nn/sequence_rows.h"
#include "lab/nn/text_cache.h"
#include "tsallis/attention.h"
#include "tsallis/patterns.h"

namespace tsallis::lab {

// The keys that queries see.
enum class Sight : std::uint8_t {
  kBefore,  // the keys of their own sequence up to themselves
  kAll,     // all keys of their own sequence
  kOther,   // all keys of another sequence
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

// Writes a head's scale-invariant scores into `terms`.
void SetDistances(const AttentionConfig& head, AttentionTerms& terms);

class LayerAttention : Fixed {
 public:
  // Names of parameters begin with `prefix`. products: what they are computed in.
  LayerAttention(const DecoderConfig& config, std::int64_t layer, Sight sight,
                 const std::string& prefix, ParameterList& parameters, RowWorkers& workers,
                 at::ScalarType products);

  const AttentionConfig& HeadOf(std::int64_t head) const {
    return head_[static_cast<std::size_t>(head)];
  }
  // [columns, width]: queries, keys and values unless they are of a memory, then what length
  // scalings read.
  const at::Tensor& Projection() const { return projection_; }
  // Lines that tell people how heads attend on another device than the CPU.
  std::vector<std::string> Notes() const;

  // Keys and values of another sequence for each.
  struct Memory {
    at::Tensor stream;                   // what was projected, as its gradient comes back with
    at::Tensor projected;                // [its rows, 2 heads head_dim]
    const SequenceRows* rows = nullptr;  // which must outlive the gradient
  };
  // stream: [rows, width]; gain: of its norm. Of Sight::kOther.
  Memory ProjectMemory(const at::Tensor& stream, const at::Tensor& gain, const SequenceRows& rows);

  // What a layer attends with.
  struct Inputs {
    at::Tensor stream;     // what was projected, as its gradient comes back with
    at::Tensor projected;  // [rows, columns]: queries and keys, rotated, values, and more
    at::Tensor c;          // [rows, heads] float32; undefined without length scaling
    // [heads]: float64, float32, and float64 with -inf for heads without; undefined: no head has
    // one.
    at::Tensor alpha, slopes, sinks;
    Memory memory{};  // of Sight::kOther, for whoever projects; on a cache it stays empty

    const SequenceRows& KeyRows(const SequenceRows& rows) const {
      return memory.rows != nullptr ? *memory.rows : rows;
    }
  };
  // stream: [rows, width]; gain: of its norm.
  Inputs Project(const at::Tensor& stream, const at::Tensor& gain, const SequenceRows& rows);

  // Which rows attend.
  enum class Queries : std::uint8_t {
    kAll,
    kLast,  // of each sequence those from SequenceRows::last_begin on; all rows are attended to
  };
  // What the heads give, [rows, heads head_dim]; what rows that do not attend get is undefined.
  // part: the rows are that of every sequence; null: whole sequences. `rows` must outlive the
  // gradient.
  at::Tensor operator()(const Inputs& inputs, const SequenceRows& rows, Queries queries,
                        const SequencePart* part);

  // ---- without a gradient

  // Adds the rows' keys and values to a layer of the cache, and each row attends to the tokens of
  // its sequence up to its own; of Sight::kOther it adds nothing, and a row attends to all of its
  // sequence. Positions go on from the cache's length. Rows after those of the last sequence belong
  // to no sequence, and their output is 0. Throws CacheFull; then some sequences may be longer in
  // this layer.
  at::Tensor Extend(const Inputs& inputs, const SequenceRows& rows, const CachedRows& cached,
                    std::int64_t layer);
  // Adds a memory to a layer of the cache. Throws as above.
  void Append(const Memory& memory, const CachedRows& cached, std::int64_t layer) const;

  // ---- on the CPU, without a gradient

  // Statistics of the weights of every row.
  struct Statistics {
    std::vector<std::vector<double>> entropy;        // of every call: [batch, heads, length] or, of
    std::vector<std::vector<std::int64_t>> support;  // packed ones, [heads, rows]; weights > 0
  };
  // As above. `statistics`: filled if not null, of all rows only. `visible`: where defined, the
  // keys that queries see among those that the layer shows, in the form of
  // SequenceModel::VisibleKeys. Throws as SequenceModel::Evaluate(batch, visible).
  at::Tensor Look(const Inputs& inputs, const SequenceRows& rows, Queries queries,
                  Statistics* statistics, const at::Tensor& visible) const;

 private:
  friend struct LayerInput;  // which look at what heads do (layer_view.h)
  friend struct LayerView;
  class Pass;

  // Heads first, first + step, ... of one call.
  struct CallHeads {
    std::int64_t first, step, count;
  };
  // Numbers that their maps need: [heads of the call].
  struct MapNumbers {
    std::vector<double> alphas;
    std::vector<double> sinks;  // empty where no head has one
  };
  // Which keys heads see that have this pattern: the beginning of `mask` is that of shorter
  // sequences.
  struct PatternTable {
    PatternConfig config;
    PatternMask mask;
    at::Tensor visible, blocks;  // its arrays where the model is; undefined where they are empty
  };
  struct Scaling {
    ScaledHeads heads;
    std::int64_t column;  // where its part of the projection begins
    std::unique_ptr<QueryScale> scale;
  };
  // What the forward pass keeps for the gradient, of every call.
  struct Kept {
    std::vector<at::Tensor> tau;    // [batch, heads, length] or [heads, rows], float64
    std::vector<at::Tensor> lists;  // bytes
  };

  // ---- layer_attention.cc
  void PlanCalls();
  void PlanPatterns();
  void DeclareProjections(const DecoderConfig& config, std::int64_t layer,
                          const std::string& prefix, ParameterList& parameters);
  void Declare(const std::string& prefix, ParameterList& parameters);
  void PrepareRotation(std::int64_t length);
  // c of all heads; a scaling that reads the projection changes it.
  at::Tensor Scales(const SequenceRows& rows, at::Tensor& projected) const;
  // Numbers of the heads: `learned` where `learns` says so, `fixed` elsewhere.
  static at::Tensor Numbers(const at::Tensor& learns, const at::Tensor& learned,
                            const at::Tensor& fixed);

  // ---- layer_attention_host.cc
  Context Threads() const { return {.threads = workers_.threads()}; }
  // Heads of a call in [rows, columns], from a row and a column on: [batch, heads, length,
  // head_dim].
  template <class Array>
  Array HeadsIn(const at::Tensor& matrix, std::int64_t row, std::int64_t column,
                const CallHeads& call, std::int64_t length) const;
  // Where keys, or values, lie.
  struct Columns {
    const at::Tensor& matrix;
    std::int64_t first;
  };
  Columns KeysOf(const Inputs& inputs) const;
  Columns ValuesOf(const Inputs& inputs) const;
  at::Tensor OnHost(const Inputs& inputs, const SequenceRows& rows, Queries queries) const;
  at::Tensor OutputOf(const Inputs& inputs) const;  // not filled
  // out: rows that do not attend stay as they are. keep: null without a gradient.
  void Forward(const Inputs& inputs, const SequenceRows& rows, Queries queries,
               const at::Tensor& out, Kept* keep, Statistics* statistics,
               const at::Tensor& visible) const;
  // The gradients of inputs.projected, c, alpha, slopes, sinks and the memory; undefined where
  // these are.
  Tensors Backward(const Inputs& inputs, const SequenceRows& rows, Queries queries,
                   const at::Tensor& d_out, const Kept& kept) const;
  AttentionParams ParamsOf(const CallHeads& call, const SequenceRows& rows, Queries queries,
                           const Inputs& inputs) const;
  // The terms, but for sinks, of rows from `begin` on, `count` for each sequence.
  AttentionTerms TermsOf(const CallHeads& call, std::int64_t begin, std::int64_t count,
                         const Inputs& inputs) const;
  MapNumbers NumbersOf(const CallHeads& call, const Inputs& inputs) const;
  // numbers: must outlive the params.
  void SetMap(AttentionParams& params, const CallHeads& call, const MapNumbers& numbers) const;
  // New queries of sequences [first, last), which have the same number of rows, on the cache.
  struct Chunk {
    std::size_t first, last;
    std::int64_t begin, count;  // the first row, rows of each sequence
  };
  // One layer of a cache, and the sequences in it that the rows continue.
  struct CacheLayer {
    KvCache& cache;
    const std::vector<KvCache::Sequence>& sequences;  // as the rows'
    std::int64_t layer;
  };
  void Append(const Columns& keys, const Columns& values, const SequenceRows& rows,
              const CacheLayer& cached) const;
  at::Tensor ExtendOnHost(const Inputs& inputs, const SequenceRows& rows,
                          const CacheLayer& cached) const;
  void ExtendCall(const Chunk& chunk, const CacheLayer& cached, const CallHeads& call,
                  const Inputs& inputs, const at::Tensor& out) const;

  // ---- layer_attention_pattern.cc
  // The number of keys that a head's query in a row sees.
  std::int64_t VisibleKeys(const SequenceRows& rows, const Inputs& inputs, std::int64_t head,
                           std::int64_t row) const;
  void PreparePatterns(std::int64_t length);
  // Checks `visible` as Look says and returns it, or an undefined tensor if it hides no key:
  // without a mask every kernel serves.
  at::Tensor Checked(const SequenceRows& rows, const Inputs& inputs,
                     const at::Tensor& visible) const;
  // AttentionForward and AttentionBackward under the call's pattern, or on `visible` keys alone:
  // where sequences are packed, one by one, since masks count along the axes of queries and keys.
  void Attend(const CallHeads& call, const AttentionParams& params, const at::Tensor& visible,
              const AttentionOutputs& outputs) const;
  void AttendBackward(const CallHeads& call, const AttentionParams& params,
                      const AttentionGradients& gradients) const;
  // Rows of a batch that attend by themselves, as one sequence.
  struct Piece {
    std::int64_t q_begin, q_len, k_begin, k_len;
  };
  static AttentionParams Alone(AttentionParams params, const Piece& piece);
  static std::vector<Piece> PiecesOf(const AttentionParams& params);  // of packed sequences
  const PatternTable* PatternOf(const CallHeads& call) const;         // null without
  // The call's pattern, if it has one, for queries at positions from `begin` on and keys from 0 on.
  void SetPattern(const CallHeads& call, std::int64_t begin, AttentionMask& mask) const;
  // The same for sequences of `length` tokens.
  void SetPattern(const CallHeads& call, std::int64_t length, AttentionOptions& options) const;
  // The same for rows that have keys before them: [rows, keys], undefined without a pattern.
  at::Tensor PatternOf(const CallHeads& call, const SequenceRows& rows) const;
  // Sets the mask to `visible`, where it is defined, from a sequence on.
  void SetMask(const CallHeads& call, const at::Tensor& visible, std::int64_t sequence,
               std::int64_t begin, AttentionMask& mask) const;

  // ---- layer_attention_device.cc
  // Heads that attend in one call. Numbers of heads count from the first of the plan.
  struct Group {
    std::vector<std::int64_t> heads;
    AttentionConfig config;
    at::Tensor index;  // [heads of the group] int64; undefined: all of the plan
    DeviceAttention attend;
  };
  // Neighbouring heads that this process attends with.
  struct Plan {
    std::int64_t first = 0, count = 0;
    std::vector<Group> groups;
    // [count] int64: the heads of the groups one after the other, and where a head stands among
    // them; undefined: one group
    at::Tensor order, back;
  };
  Plan PlanOf(std::int64_t first, std::int64_t count) const;
  // How a group attends, but for length scale and which keys it sees.
  AttentionOptions OptionsOf(const Plan& plan, const Group& group, const Inputs& inputs) const;
  // By torch's operations and the operators of attention, sequences of equal length unless rows
  // have bounds there (SequenceRows::begins).
  at::Tensor OnDevice(const Inputs& inputs, const SequenceRows& rows, const SequencePart* part);
  // k, v: [rows, heads, head_dim]. Pages have heads in the order of the groups.
  void Write(const at::Tensor& k, const at::Tensor& v, const CachedRows& cached,
             std::int64_t layer) const;
  at::Tensor ExtendOnDevice(const Inputs& inputs, const SequenceRows& rows,
                            const CachedRows& cached, std::int64_t layer);

  Sight sight_;
  std::int64_t heads_, head_dim_;
  std::int64_t parts_;    // of the projection: queries alone, or keys and values too
  std::int64_t columns_;  // of the projection
  RowWorkers& workers_;
  c10::Device device_;
  std::vector<AttentionConfig> head_;  // [heads]
  std::vector<CallHeads> calls_;
  std::vector<Scaling> scalings_;
  std::vector<PatternTable> patterns_;
  std::vector<int> pattern_of_;  // [heads], in patterns_; -1: none
  Plan whole_, own_;             // of all heads, of those of a part; empty until they are needed
  StageCall project_;            // without inputs
  at::Tensor projection_, memory_projection_;
  at::Tensor alpha_, slopes_, sink_;                     // [heads], where some are learned
  at::Tensor fixed_alpha_, fixed_slopes_, fixed_sinks_;  // [heads]; undefined as in Inputs
  at::Tensor learns_alpha_, free_alpha_, learns_slope_, learns_sink_;  // [heads] bool
  // Tables of the positions so far: [heads or 1, positions, head_dim / 2]; undefined: no head
  // turns.
  at::Tensor cosine_, sine_;
  std::int64_t table_length_ = 0;
};

}  // namespace tsallis::lab
