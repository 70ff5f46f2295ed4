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

void AddGain(const DecoderConfig& config, const std::string& name, LeafParameters& parameters,
             Tensor& gain) {
  if (config.norm_gain) parameters.Add(name, {config.width}, Zero, &gain);
}

// Of what a branch gives, if it is normed.
void AddOutGain(const DecoderConfig& config, const std::string& name, LeafParameters& parameters,
                Tensor& gain) {
  if (config.block == "sandwich") AddGain(config, name + "out_norm.weight", parameters, gain);
}

}  // namespace

Packed Packed::Of(const std::vector<std::vector<std::int64_t>>& sequences, std::int64_t vocabulary,
                  const c10::Device& device) {
  Packed packed;
  std::vector<std::int64_t> tokens, positions, begins = {0};
  for (const std::vector<std::int64_t>& sequence : sequences) {
    const auto length = static_cast<std::int64_t>(sequence.size());
    for (const std::int64_t token : sequence) {
      if (token < 0 || token >= vocabulary) {
        throw InvalidArgument("tokens", "0 to " + std::to_string(vocabulary - 1),
                              std::to_string(token));
      }
      tokens.push_back(token);
      positions.push_back(static_cast<std::int64_t>(tokens.size()) - 1 - begins.back());
    }
    begins.push_back(begins.back() + length);
    packed.longest = std::max(packed.longest, length);
  }
  const auto there = [&](const std::vector<std::int64_t>& numbers) {
    return at::tensor(numbers, at::kLong).to(device);
  };
  packed.tokens = there(tokens);
  packed.positions = there(positions);
  packed.begins = there(begins);
  return packed;
}

void LeafParameters::Add(const std::string& name, std::vector<std::int64_t> shape, Draw draw,
                         Tensor* leaf, ParameterGroup group) {
  Leaf& made = leaves_.emplace_back(Leaf{{}, shape, leaf});
  const std::int64_t columns = shape.back();
  list_.Add({{name, std::move(shape), std::move(draw), group}}, columns, &made.parameter);
}

void LeafParameters::Add(std::vector<ParameterList::Part> parts, std::int64_t columns,
                         Tensor* leaf) {
  Leaf& made = leaves_.emplace_back(Leaf{{}, {-1, columns}, leaf});
  list_.Add(std::move(parts), columns, &made.parameter);
}

void LeafParameters::Allocate(std::uint64_t seed, bool half) {
  list_.Allocate(seed, half, device_);
  for (Leaf& leaf : leaves_) {
    *leaf.tensor = leaf.parameter.value.view(leaf.shape).detach().requires_grad_(true);
    leaf.tensor->mutable_grad() = leaf.parameter.gradient.view(leaf.shape);
  }
}

EmbeddingBlock::EmbeddingBlock(const DecoderConfig& config, LeafParameters& parameters,
                               RowWorkers& workers)
    : width_(config.width),
      call_{.workers = &workers, .parameters = &parameters.List(), .embedding = config.embedding} {
  parameters.Add("embedding.weight", {config.vocabulary, width_}, Weight, &weight_,
                 ParameterGroup::kEmbedding);
  const Positions& positions = config.attention.positions;
  if (positions.kind == "sinusoidal") base_ = positions.base;
}

Tensor EmbeddingBlock::operator()(const Tensor& tokens, const Tensor& positions,
                                  std::int64_t length) {
  if (base_ && (!sinusoids_.defined() || sinusoids_.size(0) < length)) {
    sinusoids_ = Sinusoids(2 * length, width_, *base_).to(weight_.device());
  }
  StageCall call = call_;
  call.inputs = {weight_, tokens, sinusoids_, positions.to(at::kInt)};
  return RunStage("embedding", call).front();
}

Gain::Gain(const DecoderConfig& config, const std::string& name, LeafParameters& parameters) {
  AddGain(config, name, parameters, value);
}

OutputGate::OutputGate(const DecoderConfig& config, const std::string& name,
                       LeafParameters& parameters) {
  if (!config.output_gate) return;
  parameters.Add(name + "output_gate.weight", {config.heads * config.HeadDim(), config.width},
                 Weight, &weight_, kHidden);
}

Tensor OutputGate::operator()(const Tensor& x, const Tensor& value) const {
  if (!weight_.defined()) return value;
  return value * Product(Normed(x, {}), weight_, value.scalar_type()).sigmoid();
}

JoinBlock::JoinBlock(const DecoderConfig& config, const std::string& name,
                     LeafParameters& parameters, RowWorkers& workers, at::ScalarType products)
    : call_{.workers = &workers,
            .parameters = &parameters.List(),
            .products = products,
            .norms_output = config.block == "sandwich"},
      gate_(config, name, parameters) {
  parameters.Add(name + "out.weight", {config.width, config.heads * config.HeadDim()}, Weight,
                 &weight_, kHidden);
  AddOutGain(config, name, parameters, gain_);
}

Tensor JoinBlock::operator()(const Tensor& x, const Tensor& value, std::int64_t block) const {
  StageCall call = call_;
  call.block = block;
  call.inputs = {x, gate_(x, value), weight_, gain_};
  return RunStage("join", call).front();
}

FeedForwardBlock::FeedForwardBlock(const DecoderConfig& config, const std::string& name,
                                   Layout layout, LeafParameters& parameters, RowWorkers& workers,
                                   at::ScalarType products)
    : call_{.workers = &workers,
            .parameters = &parameters.List(),
            .products = products,
            .norms_output = config.block == "sandwich",
            .activation = config.activation} {
  AddGain(config, name + "norm.weight", parameters, gains_.before);
  const std::int64_t width = config.width, hidden = config.feed_forward;
  const std::int64_t inputs = ActivationInputs(config.activation);
  if (layout == Layout::kTogether) {
    AddOutGain(config, name, parameters, gains_.after);
    parameters.Add(name + "up.weight", {inputs * hidden, width}, Weight, &up_, kHidden);
  } else {
    std::vector<ParameterList::Part> up;
    if (inputs == 2) up.push_back({name + "gate.weight", {hidden, width}, Weight, kHidden});
    up.push_back({name + "up.weight", {hidden, width}, Weight, kHidden});
    parameters.Add(std::move(up), width, &up_);
  }
  parameters.Add(name + "down.weight", {width, hidden}, Weight, &down_, kHidden);
  if (layout == Layout::kApart) AddOutGain(config, name, parameters, gains_.after);
}

Tensor FeedForwardBlock::operator()(const Tensor& x, std::int64_t block) const {
  StageCall call = call_;
  call.block = block;
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
      gate_(config, name, parameters),
      join_{.workers = &workers,
            .parameters = &parameters.List(),
            .norms_output = config.block == "sandwich"} {
  AddGain(config, name + "norm.weight", parameters, gains_.before);
  AddOutGain(config, name, parameters, gains_.after);
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
  if (const Tensor sink = Sink(); sink.defined()) options.sink = sink;
  options.causal = causal_;
  options.threads = join_.workers->threads();
  options.cu_seqlens_q = queries_begin;
  options.cu_seqlens_k = keys_begin;
  if (visit) visit(seen);
  const Tensor attended = attend_(q, keys, values, options, longest);
  return Join(x, attended.transpose(1, 2).reshape({q.size(2), heads_ * head_dim_}));
}

Tensor AttentionBlock::Sink() const {
  if (config_.sink != "zero") return sink_;
  return at::zeros({heads_}, query_.options().requires_grad(false));
}

Tensor AttentionBlock::Extend(const Tensor& x, const Tensor& in, const CachedRows& cached) const {
  const std::int64_t inner = heads_ * head_dim_;
  const Tensor q = Queries(in), value = at::zeros({x.size(0), inner});
  AttentionOptions options;
  SetMap(config_, alpha_, options);
  const auto doubles = [](const Tensor& numbers) {
    return numbers.defined() ? numbers.to(at::kDouble).contiguous() : Tensor();
  };
  const Tensor alpha = doubles(options.alpha_heads.value_or(Tensor())), sink = doubles(Sink());
  const auto rows_of = [&](std::size_t s) { return cached.end[s] - cached.begin[s]; };
  for (std::size_t s = 0; s < cached.sequences.size();) {
    // Neighbours with equally many rows share a call.
    std::size_t last = s + 1;
    while (last < cached.sequences.size() && rows_of(last) == rows_of(s)) ++last;
    DecodeParams p;
    p.setting() = options.setting();
    if (alpha.defined()) p.alpha_per_head = alpha.const_data_ptr<double>();
    if (sink.defined()) p.terms.sink = sink.const_data_ptr<double>();
    p.layer = cached.layer;
    p.sequences = cached.sequences.data() + s;
    p.batch = static_cast<std::int64_t>(last - s);
    p.heads = p.kv_heads = heads_;
    p.q_len = rows_of(s);
    p.q = {q.const_data_ptr<float>() + cached.begin[s] * q.stride(2),
           DType::kFloat32,
           {p.q_len * q.stride(2), q.stride(1), q.stride(2), 1}};
    Decode({.threads = join_.workers->threads()}, cached.cache, p,
           {.out = {value.mutable_data_ptr<float>() + cached.begin[s] * inner,
                    DType::kFloat32,
                    {p.q_len * inner, head_dim_, inner, 1}}});
    s = last;
  }
  return Join(x, value);
}

Tensor AttentionBlock::Join(const Tensor& x, const Tensor& value) const {
  StageCall join = join_;
  join.inputs = {x, gate_(x, value), out_, gains_.after};
  return RunStage("join", join).front();
}

}  // namespace tsallis::lab
