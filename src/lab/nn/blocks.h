// The parts of models whose gradients torch's autograd records: each is some lines over tensors of
// rows, [rows, width], and new architectures are made of them (encoder_decoder.cc). Blocks are made
// of stages (stages.h), compute where their parameters are, and take what they read from there.
//
// A block stays where it is made: its parameters are filled in by address.
//
// Rows of several sequences lie behind each other, without padding; `Packed` says where each
// begins.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lab/nn/decoder_config.h"
#include "lab/nn/device_attention.h"
#include "lab/nn/parameters.h"
#include "lab/nn/stages.h"
#include "torch/operators.h"
#include "tsallis/kv_cache.h"

namespace tsallis::lab {

// Sequences behind each other.
struct Packed {
  at::Tensor tokens;         // [rows] int64
  at::Tensor positions;      // [rows] int64, in the row's sequence, from 0
  at::Tensor begins;         // [sequences + 1] int64: the rows of each
  std::int64_t longest = 0;  // rows of the longest sequence

  // One list of tokens for each sequence. The tensors are of `device`. InvalidArgument for a token
  // that `vocabulary` does not have.
  static Packed Of(const std::vector<std::vector<std::int64_t>>& sequences, std::int64_t vocabulary,
                   const c10::Device& device);
};

// Learned tensors that autograd sees. Blocks declare theirs, then all are made at once.
class LeafParameters {
 public:
  explicit LeafParameters(const c10::Device& device) : device_(device) {}
  const c10::Device& Device() const { return device_; }

  using Draw = std::function<float(RandomStream&)>;

  // `leaf` becomes a leaf of this shape whose gradient is that of the list; it must live until
  // Allocate().
  void Add(const std::string& name, std::vector<std::int64_t> shape, Draw draw, at::Tensor* leaf,
           ParameterGroup group = ParameterGroup::kScalar);
  // Parts that lie behind each other as one leaf, [rows, columns].
  void Add(std::vector<ParameterList::Part> parts, std::int64_t columns, at::Tensor* leaf);
  // half: products read rounded copies, which Refresh() renews.
  void Allocate(std::uint64_t seed, bool half = false);
  void Refresh() { list_.Refresh(); }

  const ParameterList& List() const { return list_; }

 private:
  struct Leaf {
    Parameter parameter;
    std::vector<std::int64_t> shape;
    at::Tensor* tensor;
  };
  c10::Device device_;
  ParameterList list_;
  std::deque<Leaf> leaves_;
};

// Neither copied nor moved.
struct Fixed {
  Fixed() = default;
  Fixed(const Fixed&) = delete;
  Fixed& operator=(const Fixed&) = delete;
};

// The input of the first layer: embeddings by config.embedding, and sinusoids where positions are.
class EmbeddingBlock : Fixed {
 public:
  EmbeddingBlock(const DecoderConfig& config, LeafParameters& parameters, RowWorkers& workers);
  // tokens: [rows] int64; positions: [rows] integers below `length`.
  at::Tensor operator()(const at::Tensor& tokens, const at::Tensor& positions, std::int64_t length);
  const at::Tensor& Table() const { return weight_; }  // [vocabulary, width]

 private:
  std::int64_t width_;
  StageCall call_;  // without inputs
  at::Tensor weight_;
  std::optional<double> base_;  // of sinusoids
  at::Tensor sinusoids_;        // [positions so far, width]
};

// The learned gain of a norm, [width], where config.norm_gain; undefined elsewhere.
struct Gain : Fixed {
  Gain(const DecoderConfig& config, const std::string& name, LeafParameters& parameters);
  at::Tensor value;
};

// The gains of a branch's norms, as above.
struct BranchGains {
  at::Tensor before, after;
};

// value * sigmoid(W norm(x)) where config.output_gate, else value.
class OutputGate : Fixed {
 public:
  OutputGate(const DecoderConfig& config, const std::string& name, LeafParameters& parameters);
  // x: [rows, width]; value: [rows, heads head_dim].
  at::Tensor operator()(const at::Tensor& x, const at::Tensor& value) const;

 private:
  at::Tensor weight_;  // [heads head_dim, width]; undefined: no gate
};

// x + W value, or x + norm(W value) where config.block is "sandwich".
class JoinBlock : Fixed {
 public:
  JoinBlock(const DecoderConfig& config, const std::string& name, LeafParameters& parameters,
            RowWorkers& workers, at::ScalarType products);
  // x: [rows, width]; value: [rows, heads head_dim]; block: as StageCall's.
  at::Tensor operator()(const at::Tensor& x, const at::Tensor& value, std::int64_t block) const;

 private:
  StageCall call_;  // without inputs
  at::Tensor weight_, gain_;
  OutputGate gate_;
};

// x + W_d activation(W_u norm(x)), config.activation, or with a norm of the sum's second part where
// config.block is "sandwich".
class FeedForwardBlock : Fixed {
 public:
  // What parameters are called and where they lie: a gate of its own, and norms where they act, or
  // norms first and the gate as the first half of "up".
  enum class Layout : std::uint8_t { kApart, kTogether };
  // products: what they are computed in.
  FeedForwardBlock(const DecoderConfig& config, const std::string& name, Layout layout,
                   LeafParameters& parameters, RowWorkers& workers,
                   at::ScalarType products = at::kFloat);
  // block: as StageCall's.
  at::Tensor operator()(const at::Tensor& x, std::int64_t block = kRowBlock) const;

 private:
  StageCall call_;  // without inputs
  BranchGains gains_;
  at::Tensor up_, down_;  // [1 or 2 hidden, width] with the gate first, [width, hidden]
};

// How scores become weights in heads of one configuration. alpha: [heads], what is learned of
// theirs; undefined where they learn none.
void SetMap(const AttentionConfig& config, const at::Tensor& alpha, AttentionOptions& options);

// x + attention of norm(x), normed as above: queries of x, keys and values of a memory, which is
// norm(x) itself or another's output. How heads attend is config.attention.
class AttentionBlock : Fixed {
 public:
  // Queries and keys of one call, [1, heads, rows, head_dim] each, and its options. `visit` may set
  // options.mask.
  struct Seen {
    at::Tensor q, k;
    AttentionOptions options;
  };

  AttentionBlock(const DecoderConfig& config, const std::string& name, bool causal,
                 LeafParameters& parameters, RowWorkers& workers);

  at::Tensor Norm(const at::Tensor& x) const;
  at::Tensor Queries(const at::Tensor& in) const;  // [1, heads, rows, head_dim]
  // Keys and values of a memory, as Queries().
  std::pair<at::Tensor, at::Tensor> Memory(const at::Tensor& memory) const;
  // q: of Queries(Norm(x)); keys, values: of Memory(). queries_begin, keys_begin: Packed::begins of
  // both; longest: of both. Returns the sum, [rows, width]. Causal: a sequence's last query stands
  // at its last key, and no query sees a later key than its own.
  at::Tensor Attend(const at::Tensor& x, const at::Tensor& q, const at::Tensor& keys,
                    const at::Tensor& values, const at::Tensor& queries_begin,
                    const at::Tensor& keys_begin, const LongestSequence& longest,
                    const std::function<void(Seen&)>& visit = nullptr) const;

  // Rows [begin[s], end[s]) for each sequence s of a cache, and a layer of it.
  struct CachedRows {
    const KvCache& cache;
    std::int64_t layer;
    const std::vector<KvCache::Sequence>& sequences;
    const std::vector<std::int64_t>&begin, &end;
  };
  // On the CPU, without a gradient: the sum where the queries are the newest tokens of what the
  // cache has, or one query each that sees all of it. Rows of no sequence take nothing from
  // attention. in: Norm(x).
  at::Tensor Extend(const at::Tensor& x, const at::Tensor& in, const CachedRows& cached) const;

  // Tells people how the heads attend; empty: nothing.
  const std::string& Note() const { return attend_.Note(); }

 private:
  at::Tensor Heads(const at::Tensor& rows) const;
  // [heads] float32; undefined: no sink.
  at::Tensor Sink() const;
  // value: [rows, heads head_dim]
  at::Tensor Join(const at::Tensor& x, const at::Tensor& value) const;

  AttentionConfig config_;
  std::int64_t heads_, head_dim_;
  bool causal_, qk_norm_;
  DeviceAttention attend_;
  OutputGate gate_;
  StageCall join_;  // without inputs
  BranchGains gains_;
  at::Tensor query_, key_value_, out_;  // [inner, width], [2 inner, width], [width, inner]
  at::Tensor alpha_, sink_;             // [heads] each, where they are learned
};

}  // namespace tsallis::lab
