#include "lab/nn/blocks.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "lab/nn/decoder_kernels.h"
#include "lab/nn/layer_attention.h"
#include "lab/nn/maps.h"
#include "lab/nn/positions.h"
#include "lab/nn/row_stages.h"
#include "tsallis/error.h"

namespace tsallis::lab {
namespace {

using at::Tensor;

float Weight(RandomStream& random) { return Normal(random, 0.02); }
float Zero(RandomStream&) { return 0.0F; }
constexpr ParameterGroup kHidden = ParameterGroup::kHidden;

void AddGains(const DecoderConfig& config, const std::string& name, LeafParameters& parameters,
              BranchGains& gains) {
  if (!config.norm_gain) return;
  parameters.Add(name + "norm.weight", {config.width}, Zero, &gains.before);
  if (config.block != "sandwich") return;
  parameters.Add(name + "out_norm.weight", {config.width}, Zero, &gains.after);
}

}  // namespace

Packed Packed::Of(const std::vector<std::vector<std::int64_t>>& sequences, std::int64_t vocabulary,
                  const c10::Device& device, const std::vector<std::int64_t>& past) {
  Packed packed;
  packed.begin = {0};
  std::vector<std::int64_t> tokens, positions;
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    std::int64_t position = past.empty() ? 0 : past[s];
    for (const std::int64_t token : sequences[s]) {
      if (token < 0 || token >= vocabulary) {
        throw InvalidArgument("tokens", "0 to " + std::to_string(vocabulary - 1),
                              std::to_string(token));
      }
      tokens.push_back(token);
      positions.push_back(position++);
    }
    packed.begin.push_back(static_cast<std::int64_t>(tokens.size()));
    packed.longest = std::max(packed.longest, static_cast<std::int64_t>(sequences[s].size()));
    packed.length = std::max(packed.length, position);
  }
  const auto there = [&](const std::vector<std::int64_t>& numbers) {
    return at::tensor(numbers, at::kLong).to(device);
  };
  packed.tokens = there(tokens);
  packed.positions = there(positions);
  packed.begins = there(packed.begin);
  return packed;
}

void LeafParameters::Add(const std::string& name, std::vector<std::int64_t> shape, Draw draw,
                         Tensor* leaf, ParameterGroup group) {
  Leaf& made = leaves_.emplace_back(Leaf{{}, std::move(shape), leaf});
  list_.Add({{name, made.shape, std::move(draw), group}}, made.shape.back(), &made.parameter);
}

void LeafParameters::Allocate(std::uint64_t seed) {
  list_.Allocate(seed, false, device_);
  for (Leaf& leaf : leaves_) {
    *leaf.tensor = leaf.parameter.value.view(leaf.shape).detach().requires_grad_(true);
    leaf.tensor->mutable_grad() = leaf.parameter.gradient.view(leaf.shape);
  }
}

EmbeddingBlock::EmbeddingBlock(const DecoderConfig& config)
    : width_(config.width), kind_(config.embedding) {
  const Positions& positions = config.attention.positions;
  if (positions.kind == "sinusoidal") base_ = positions.base;
}

Tensor EmbeddingBlock::operator()(const Tensor& weight, const Tensor& tokens,
                                  const Tensor& positions, std::int64_t length) {
  Tensor x = at::embedding(weight, tokens);
  if (kind_ == "scaled") x = x * std::sqrt(static_cast<double>(width_));
  if (kind_ == "normed") x = at::rms_norm(x, {width_}, {}, kNormEpsilon);
  if (!base_ || length == 0) return x;
  if (!sinusoids_.defined() || sinusoids_.size(0) < length) {
    sinusoids_ = Sinusoids(2 * length, width_, *base_).to(weight.device());
  }
  return x + sinusoids_.index_select(0, positions);
}

FeedForwardBlock::FeedForwardBlock(const DecoderConfig& config, const std::string& name,
                                   LeafParameters& parameters, RowWorkers& workers)
    : FeedForwardBlock(config, {}, {}, {}, at::kFloat, workers) {
  AddGains(config, name, parameters, gains_);
  const std::int64_t inputs = ActivationInputs(config.activation) * config.feed_forward;
  parameters.Add(name + "up.weight", {inputs, config.width}, Weight, &up_, kHidden);
  parameters.Add(name + "down.weight", {config.width, config.feed_forward}, Weight, &down_,
                 kHidden);
}

FeedForwardBlock::FeedForwardBlock(const DecoderConfig& config, BranchGains gains, Tensor up,
                                   Tensor down, at::ScalarType products, RowWorkers& workers)
    : call_{.workers = &workers,
            .products = products,
            .norms_output = config.block == "sandwich",
            .activation = config.activation},
      gains_(std::move(gains)),
      up_(std::move(up)),
      down_(std::move(down)) {}

Tensor FeedForwardBlock::operator()(const Tensor& x) const {
  StageCall call = call_;
  call.inputs = {x, gains_.before, up_, down_, gains_.after};
  return RunStage("feed-forward", call).front();
}

AttentionBlock::AttentionBlock(const DecoderConfig& config, const std::string& name, bool causal,
                               LeafParameters& parameters, RowWorkers& workers)
    : config_(config.attention),
      heads_(config.heads),
      head_dim_(config.HeadDim()),
      causal_(causal),
      qk_norm_(config.qk_norm),
      attend_(config.attention, head_dim_, at::kFloat, false, false, parameters.Device()),
      join_{.workers = &workers, .norms_output = config.block == "sandwich"} {
  AddGains(config, name, parameters, gains_);
  const std::int64_t inner = heads_ * head_dim_;
  parameters.Add(name + "query.weight", {inner, config.width}, Weight, &query_, kHidden);
  parameters.Add(name + "key_value.weight", {2 * inner, config.width}, Weight, &key_value_,
                 kHidden);
  parameters.Add(name + "out.weight", {config.width, inner}, Weight, &out_, kHidden);
  if (config_.learn_alpha != "no") {
    const auto first = static_cast<float>(AlphaParameter(config_));
    parameters.Add(
        name + "alpha", {heads_}, [first](RandomStream&) { return first; }, &alpha_);
  }
  if (config_.sink == "learned") parameters.Add(name + "sink", {heads_}, Zero, &sink_);
}

void SetMap(const AttentionConfig& config, const Tensor& alpha, AttentionOptions& options) {
  options.setting() = SettingOf(config);
  if (config.learn_alpha != "no") {
    options.alpha_heads =
        1.0 + (config.learn_alpha == "sigmoid" ? at::sigmoid(alpha) : at::softplus(alpha));
  }
}

Tensor AttentionBlock::Heads(const Tensor& rows) const {
  return rows.view({1, rows.size(0), heads_, head_dim_}).transpose(1, 2);
}

Tensor AttentionBlock::Norm(const Tensor& x) const { return Normed(x, gains_.before); }

Tensor AttentionBlock::Queries(const Tensor& in) const {
  const Tensor q = Heads(at::linear(in, query_));
  return qk_norm_ ? Normed(q, {}) : q;
}

std::pair<Tensor, Tensor> AttentionBlock::Memory(const Tensor& memory) const {
  const std::vector<Tensor> halves = at::linear(memory, key_value_).chunk(2, 1);
  const Tensor k = Heads(halves[0].contiguous());
  return {qk_norm_ ? Normed(k, {}) : k, Heads(halves[1].contiguous())};
}

Tensor AttentionBlock::Attend(const Tensor& x, const Tensor& q, const Tensor& keys,
                              const Tensor& values, const Tensor& queries_begin,
                              const Tensor& keys_begin, const LongestSequence& longest,
                              const std::function<void(Seen&)>& visit) const {
  Seen seen{q, keys, {}};
  AttentionOptions& options = seen.options;
  SetMap(config_, alpha_, options);
  if (config_.sink == "zero") options.sink = at::zeros({heads_}, q.options().dtype(at::kFloat));
  if (sink_.defined()) options.sink = sink_;
  options.causal = causal_;
  options.cu_seqlens_q = queries_begin;
  options.cu_seqlens_k = keys_begin;
  if (visit) visit(seen);
  const Tensor attended = attend_(q, keys, values, options, longest);
  StageCall join = join_;
  join.inputs = {x, attended.transpose(1, 2).reshape({q.size(2), heads_ * head_dim_}), out_,
                 gains_.after};
  return RunStage("join", join).front();
}

}  // namespace tsallis::lab
