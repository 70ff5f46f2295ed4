#include "lab/nn/decoder.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lab/base/errors.h"
#include "lab/base/sequential_products.h"
#include "lab/nn/decoder_state.h"
#include "lab/nn/layer_view.h"
#include "tsallis/cpu.h"
#include "tsallis/error.h"

namespace tsallis::lab {
namespace {

// Rows of a product when sequences are extended by one token each: eight cost hardly more than one
// where weights come from memory.
constexpr std::int64_t kStepRows = 8;

}  // namespace

Decoder::State::State(const DecoderConfig& given, std::uint64_t seed)
    : config(WithDefaults(given, CheckDecoder, FastBfloat16(QueryCpu()) ? "bfloat16" : "float32")),
      dtype(config.compute == "bfloat16" ? at::kBFloat16 : at::kFloat),
      inner(config.heads * config.head_dim) {
  DeclareParameters();
  parameters.Allocate(seed, dtype == at::kBFloat16);
  for (DecoderLayer& layer : layers) {
    layer.begin =
        parameters.Begin(config.norm_gain ? layer.attention_norm : layer.attention.Projection());
  }
  BuildChains();
  activations.resize(layers.size());
}

// The order is that of the flat memory: a step's gradients become ready from the back.
void Decoder::State::DeclareParameters() {
  const auto normal = [](RandomStream& random) { return Normal(random, 0.02); };
  const auto zero = [](RandomStream&) { return 0.0F; };
  const std::int64_t width = config.width;
  const bool sandwich = config.block == "sandwich";
  constexpr ParameterGroup of_layer = ParameterGroup::kHidden;
  const auto matrix = [&](const std::string& name, std::int64_t out, std::int64_t in,
                          Parameter& parameter, ParameterGroup group = ParameterGroup::kHidden) {
    parameters.Add({{name, {out, in}, normal, group}}, in, &parameter);
  };
  const auto norm = [&](const std::string& name, Parameter& parameter) {
    if (config.norm_gain) parameters.Add({{name, {width}, zero}}, width, &parameter);
  };
  matrix("embedding.weight", config.vocabulary, width, embedding, ParameterGroup::kEmbedding);
  layers.reserve(static_cast<std::size_t>(config.layers));  // parameters are filled in by address
  for (std::int64_t l = 0; l < config.layers; ++l) {
    DecoderLayer& layer = layers.emplace_back(config, l);
    const std::string prefix = "layers." + std::to_string(l) + ".";
    norm(prefix + "attention.norm.weight", layer.attention_norm);
    layer.attention.Declare(prefix + "attention.", parameters);
    matrix(prefix + "attention.out.weight", width, inner, layer.attention_out);
    if (sandwich) norm(prefix + "attention.out_norm.weight", layer.attention_out_norm);
    norm(prefix + "feed_forward.norm.weight", layer.feed_forward_norm);
    std::vector<ParameterList::Part> up;
    if (ActivationInputs(config.activation) == 2) {
      up.push_back(
          {prefix + "feed_forward.gate.weight", {config.feed_forward, width}, normal, of_layer});
    }
    up.push_back(
        {prefix + "feed_forward.up.weight", {config.feed_forward, width}, normal, of_layer});
    parameters.Add(std::move(up), width, &layer.up);
    matrix(prefix + "feed_forward.down.weight", width, config.feed_forward, layer.down);
    if (sandwich) norm(prefix + "feed_forward.out_norm.weight", layer.feed_forward_out_norm);
  }
  norm("norm.weight", final_norm);
  matrix("head.weight", config.vocabulary, width, head, ParameterGroup::kScalar);
}

void Decoder::State::BuildChains() {
  const std::int64_t width = config.width;
  const std::int64_t hidden = config.feed_forward;
  const auto gain = [&](const Parameter& norm) { return config.norm_gain ? &norm : nullptr; };
  const auto add = [&](const Parameter& norm) {
    return config.block == "sandwich" ? MakeAddNorm(width, gain(norm)) : MakeAdd(width);
  };
  for (DecoderLayer& layer : layers) {
    RowStages before;
    before.push_back(MakeNorm(width, gain(layer.attention_norm)));
    before.push_back(MakeLinear(layer.attention.Columns(), &layer.attention.Projection()));
    before.push_back(layer.attention.InputStage());
    layer.before.emplace(std::move(before), dtype);
    RowStages after;
    after.push_back(MakeLinear(width, &layer.attention_out));
    after.push_back(add(layer.attention_out_norm));
    after.push_back(MakeNorm(width, gain(layer.feed_forward_norm)));
    after.push_back(MakeLinear(ActivationInputs(config.activation) * hidden, &layer.up));
    after.push_back(MakeActivation(config.activation, hidden));
    after.push_back(MakeLinear(width, &layer.down));
    after.push_back(add(layer.feed_forward_out_norm));
    layer.after.emplace(std::move(after), dtype);
  }
  RowStages stages;
  stages.push_back(MakeNorm(width, gain(final_norm)));
  stages.push_back(MakeLinear(config.vocabulary, &head, true));
  auto cross_entropy = std::make_unique<CrossEntropyStage>(config.vocabulary);
  loss = cross_entropy.get();
  stages.push_back(std::move(cross_entropy));
  last.emplace(std::move(stages), at::kFloat);
}

void Decoder::State::AddRow(DecoderRows& rows, std::int64_t token, std::int64_t position) const {
  if (token < 0 || token >= config.vocabulary) {
    throw InvalidArgument("tokens", "0 to " + std::to_string(config.vocabulary - 1),
                          std::to_string(token));
  }
  rows.token.push_back(token);
  rows.position.push_back(static_cast<std::int32_t>(position));
  const double log_n = std::log(static_cast<double>(position + 2));
  rows.log_n.push_back(static_cast<float>(log_n));
  rows.log_log_n.push_back(static_cast<float>(std::log(log_n)));
  ++rows.rows;
}

DecoderRows Decoder::State::RowsOf(const KvCache& cache,
                                   const std::vector<KvCache::Sequence>& sequences,
                                   const std::vector<std::vector<std::int64_t>>& tokens) const {
  if (tokens.size() != sequences.size()) {
    throw InvalidArgument("tokens", std::to_string(sequences.size()) + " lists, one a sequence",
                          std::to_string(tokens.size()));
  }
  DecoderRows rows;
  std::size_t shortest = tokens.empty() ? 0 : tokens.front().size();
  std::size_t longest = 0;
  for (std::size_t b = 0; b < tokens.size(); ++b) {
    if (tokens[b].empty()) {
      throw InvalidArgument("tokens[" + std::to_string(b) + "]", "one token or more", "none");
    }
    if (std::count(sequences.begin(), sequences.end(), sequences[b]) > 1) {
      throw InvalidArgument("sequences", "each once", std::to_string(sequences[b]) + " again");
    }
    shortest = std::min(shortest, tokens[b].size());
    longest = std::max(longest, tokens[b].size());
    const std::int64_t past = cache.Length(sequences[b]);
    rows.begin.push_back(rows.rows);
    for (std::size_t i = 0; i < tokens[b].size(); ++i) {
      AddRow(rows, tokens[b][i], past + static_cast<std::int64_t>(i));
    }
    rows.length = std::max(rows.length, past + static_cast<std::int64_t>(tokens[b].size()));
    rows.end.push_back(rows.rows);
    rows.last_begin.push_back(rows.rows - 1);
    rows.scored.push_back(rows.rows - 1);
    rows.sequence.push_back(static_cast<std::int64_t>(b));
  }
  rows.packed = shortest < longest;
  if (longest == 1) {
    // Every product has kStepRows rows, however many sequences share the call: torch's sums depend
    // on the number of rows.
    rows.block = kStepRows;
    while (rows.rows % kStepRows != 0) {
      rows.scored.push_back(rows.rows);
      AddRow(rows, 0, 0);
    }
  }
  return rows;
}

DecoderRows Decoder::State::RowsOf(const TokenBatch& batch) const {
  const bool labelled = batch.labels.defined();
  CheckBatch(batch, config.vocabulary);
  const std::int64_t sequences = batch.tokens.size(0);
  const std::int64_t n = batch.tokens.size(1);
  const at::Tensor tokens = batch.tokens.contiguous();
  const at::Tensor labels = labelled ? batch.labels.contiguous() : at::Tensor();
  const at::Tensor lengths =
      batch.lengths.defined() ? batch.lengths.to(at::kLong).contiguous() : at::Tensor();
  DecoderRows rows;
  std::int64_t shortest = n;
  for (std::int64_t b = 0; b < sequences; ++b) {
    const std::int64_t length = lengths.defined() ? lengths.const_data_ptr<std::int64_t>()[b] : n;
    shortest = std::min(shortest, length);
    rows.length = std::max(rows.length, length);
    rows.begin.push_back(rows.rows);
    const std::size_t scored_before = rows.scored.size();
    for (std::int64_t i = 0; i < length; ++i) {
      const std::int64_t label =
          labelled ? labels.const_data_ptr<std::int64_t>()[b * n + i] : kNotScored;
      AddRow(rows, tokens.const_data_ptr<std::int64_t>()[b * n + i], i);
      if (!labelled || label != kNotScored) {
        rows.scored.push_back(rows.rows - 1);
        rows.sequence.push_back(b);
        if (labelled) rows.label.push_back(label);
      }
    }
    rows.end.push_back(rows.rows);
    rows.last_begin.push_back(rows.scored.size() > scored_before ? rows.scored[scored_before]
                                                                 : rows.rows - 1);
  }
  rows.packed = shortest < rows.length;
  return rows;
}

DecoderRows Decoder::State::Run(const TokenBatch& batch, int team, bool keep,
                                const Visitors& visitors) {
  workers.SetThreads(team);
  DecoderRows rows = RowsOf(batch);
  parameters.Refresh();
  ForwardLayers(rows, keep, visitors);
  return rows;
}

Decoder::Decoder(const DecoderConfig& config, std::uint64_t seed)
    : state_(std::make_unique<State>(config, seed)) {}
Decoder::Decoder(Decoder&&) noexcept = default;
Decoder::~Decoder() = default;

const DecoderConfig& Decoder::Config() const { return state_->config; }
const at::Tensor& Decoder::FlatParameters() const { return state_->parameters.Flat(); }
const at::Tensor& Decoder::FlatGradients() const { return state_->parameters.FlatGradients(); }
const std::vector<std::pair<std::string, at::Tensor>>& Decoder::Parameters() const {
  return state_->parameters.Named();
}
const std::vector<ParameterGroup>& Decoder::Groups() const { return state_->parameters.Groups(); }
const std::vector<at::Tensor>& Decoder::Gradients() const { return state_->parameters.Gradients(); }
std::int64_t Decoder::ParameterCount() const { return state_->parameters.Count(); }

SequenceScore Decoder::LossAndGradient(const TokenBatch& batch, const GradientOptions& options) {
  CheckWhole(options);
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const SequentialProducts guard;
  State& state = *state_;
  const DecoderRows rows = state.Run(batch, guard.threads(), true, {});
  if (!options.accumulate) state.parameters.FlatGradients().zero_();
  const std::int64_t denominator =
      options.denominator > 0 ? options.denominator : static_cast<std::int64_t>(rows.label.size());
  const at::Tensor d_x = state.backward.final_x.Rows(static_cast<std::int64_t>(rows.scored.size()),
                                                     state.config.width, at::kFloat);
  const float weight = denominator > 0 ? 1.0F / static_cast<float>(denominator) : 0.0F;
  SequenceScore score = state.HeadAndGradient(rows, weight, options.logits, d_x);
  state.BackwardLayers(rows, options, d_x);
  return score;
}

SequenceScore Decoder::Evaluate(const TokenBatch& batch) { return Evaluate(batch, nullptr); }

SequenceScore Decoder::Evaluate(const TokenBatch& batch, const VisibleKeys& visible) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const SequentialProducts guard;
  State& state = *state_;
  const DecoderRows rows = state.Run(batch, guard.threads(), false, {.visible = visible});
  return state.Head(rows, {});
}

std::unique_ptr<KvCache> Decoder::MakeCache(std::int64_t max_bytes) const {
  const DecoderConfig& config = state_->config;
  bool sparse = false;
  for (std::int64_t l = 0; l < config.layers; ++l) {
    for (std::int64_t h = 0; h < config.heads; ++h) {
      const AttentionConfig& head = config.Head(l, h);
      sparse = sparse || head.map == "entmax";
      if (head.positions.scaling.kind == "ntk") {
        throw UsageError(
            "a model whose positions are scaled by \"ntk\" turns its keys by the length of the "
            "text: they cannot be kept from one token to the next");
      }
    }
  }
  const DType dtype = state_->dtype == at::kBFloat16 ? DType::kBFloat16 : DType::kFloat32;
  return std::make_unique<KvCache>(
      KvCacheShape{config.layers, config.heads, config.head_dim, config.head_dim, dtype},
      KvCacheOptions{.screen = sparse ? KeyScreen::kBytes : KeyScreen::kNone,
                     .max_bytes = max_bytes});
}

at::Tensor Decoder::Extend(KvCache& cache, const std::vector<KvCache::Sequence>& sequences,
                           const std::vector<std::vector<std::int64_t>>& tokens) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const SequentialProducts guard;
  State& state = *state_;
  state.workers.SetThreads(guard.threads());
  const DecoderRows rows = state.RowsOf(cache, sequences, tokens);
  const auto count = static_cast<std::int64_t>(sequences.size());
  const at::Tensor logits =
      at::empty({static_cast<std::int64_t>(rows.scored.size()), state.config.vocabulary});
  if (sequences.empty()) return logits;
  state.parameters.Refresh();
  const State::CacheSequences cached{cache, sequences};
  try {
    state.ForwardLayers(rows, false, {}, &cached);
  } catch (...) {
    for (std::size_t b = 0; b < sequences.size(); ++b) {
      cache.Truncate(sequences[b], rows.position[static_cast<std::size_t>(rows.begin[b])]);
    }
    throw;
  }
  state.Head(rows, logits);
  return logits.narrow(0, 0, count);
}

namespace {

class CacheDecodingState : public DecodingState {
 public:
  CacheDecodingState(Decoder& model, std::int64_t max_bytes)
      : model_(model), cache_(model.MakeCache(max_bytes)) {}

  Sequence Create() override { return cache_->Create(); }
  Sequence Fork(Sequence sequence) override { return cache_->Fork(sequence); }
  void Free(Sequence sequence) override { cache_->Free(sequence); }
  at::Tensor Extend(const std::vector<Sequence>& sequences,
                    const std::vector<std::vector<std::int64_t>>& tokens) override {
    return model_.Extend(*cache_, sequences, tokens);
  }

 private:
  Decoder& model_;
  std::unique_ptr<KvCache> cache_;
};

}  // namespace

std::unique_ptr<DecodingState> Decoder::StartDecoding(std::int64_t max_bytes) {
  return std::make_unique<CacheDecodingState>(*this, max_bytes);
}

std::vector<std::pair<std::string, double>> Decoder::Observe(const TokenBatch& batch) {
  std::vector<std::pair<std::string, double>> observed;
  GradientOptions options;
  options.flow = [&](std::int64_t layer, double norm) {
    observed.insert(observed.begin(), {fmt::format("gradient {}", layer), norm});
  };
  LossAndGradient(batch, options);
  VisitLayers(batch, [&](const LayerView& view) {
    std::vector<HeadQuantities> heads;
    view.Describe(heads);
    double keys = 0.0;
    for (const HeadQuantities& head : heads) {
      for (const auto& [name, moments] : head) {
        if (name == "support") keys += moments.Mean() / static_cast<double>(heads.size());
      }
    }
    observed.emplace_back(fmt::format("keys {}", view.layer), keys);
  });
  return observed;
}

void Decoder::VisitLayers(const TokenBatch& batch,
                          const std::function<void(const LayerView&)>& visit) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const SequentialProducts guard;
  state_->Run(batch, guard.threads(), false, {.visit = visit});
}

at::Tensor Decoder::Forward(const TokenBatch& batch) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const SequentialProducts guard;
  State& state = *state_;
  DecoderRows rows = state.Run(batch, guard.threads(), false, {});
  const auto scored = static_cast<std::int64_t>(rows.scored.size());
  at::Tensor logits = at::empty({scored, state.config.vocabulary});
  rows.label.clear();  // logits are wanted, no losses
  state.Head(rows, logits);
  if (batch.labels.defined() || !rows.packed) return logits;
  at::Tensor padded = at::zeros({batch.tokens.numel(), state.config.vocabulary});
  for (std::int64_t b = 0; b < rows.Sequences(); ++b) {
    const std::int64_t begin = rows.begin[static_cast<std::size_t>(b)];
    const std::int64_t count = rows.end[static_cast<std::size_t>(b)] - begin;
    padded.narrow(0, b * batch.tokens.size(1), count).copy_(logits.narrow(0, begin, count));
  }
  return padded;
}

}  // namespace tsallis::lab
