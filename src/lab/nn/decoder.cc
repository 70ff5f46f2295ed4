#include "lab/nn/decoder.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <deque>
#include <optional>

#include "lab/base/errors.h"
#include "lab/base/random.h"
#include "lab/base/sequential_products.h"
#include "lab/nn/attention_branch.h"
#include "lab/nn/decoder_kernels.h"
#include "lab/nn/head_numbers.h"
#include "tsallis/cpu.h"
#include "tsallis/error.h"

namespace tsallis::lab {
namespace {

using at::Tensor;

// Rows whose logits stand in memory at a time, at least: four blocks, so that threads have work.
constexpr std::int64_t kLeastRows = 4 * kRowBlock;
// Logits of an evaluation on a device.
constexpr std::int64_t kEvaluatedLogits = std::int64_t{1} << 28;

// x += n2(attention(n1(x))), x += n4(feed_forward(n3(x))).
struct DecoderLayer : Fixed {
  DecoderLayer(const DecoderConfig& config, std::int64_t layer, ParameterList& parameters,
               RowWorkers& workers, at::ScalarType products, const std::string& name)
      : attention(config, {"layer", layer}, name + "attention.", parameters, workers, products),
        feed_forward(config, name + "feed_forward.", parameters, workers, products) {}

  AttentionBranch attention;
  FeedForwardBlock feed_forward;
};

using Observation = std::vector<std::pair<std::string, double>>;

}  // namespace

struct Decoder::State {
  State(const DecoderConfig& given, std::uint64_t seed, const c10::Device& on)
      : config(WithDefaults(given, CheckDecoder,
                            on.is_cpu() && FastBfloat16(QueryCpu()) ? "bfloat16" : "float32")),
        device(on),
        products(config.compute == "bfloat16" ? at::kBFloat16 : at::kFloat),
        parameters(on),
        embed(config, parameters, workers) {
    for (std::int64_t l = 0; l < config.layers; ++l) {
      layers.emplace_back(config, l, parameters, workers, products, fmt::format("layers.{}.", l));
    }
    gain.emplace(config, "norm.weight", parameters);
    const auto normal = [](RandomStream& random) { return Normal(random, 0.02); };
    parameters.Add("head.weight", {config.vocabulary, config.width}, normal, &head);
    parameters.Allocate(seed, products == at::kBFloat16);
  }

  // The last layer's output at the rows whose logits are wanted, [scored, width]: from the last
  // attention on no others matter.
  Tensor Run(const DecoderRows& rows, const LayerPass& pass) {
    parameters.Refresh();
    Tensor x = embed(rows.tokens, rows.positions, rows.reach);
    const bool fewer = static_cast<std::int64_t>(rows.scored.size()) < rows.rows;
    const Tensor scored = fewer ? at::tensor(rows.scored, at::kLong).to(device) : Tensor();
    for (DecoderLayer& layer : layers) {
      if (pass.reached) {
        x.register_hook([&pass, l = layer.attention.Place().layer](const Tensor& d_x) {
          pass.reached(l, d_x);
        });
      }
      x = layer.attention(x, rows, pass, &layer == &layers.back() ? scored : Tensor());
      x = layer.feed_forward(x, rows.block);
    }
    return x;
  }

  // weight times the sum of the cross-entropies of rows, each of them, and the best tokens.
  Tensors Judge(const Tensor& x, const Tensor& labels, double weight) {
    return RunStage("cross-entropy", {.inputs = {x, gain->value, head, labels},
                                      .workers = &workers,
                                      .parameters = &parameters,
                                      .weight = weight});
  }

  // [rows, vocabulary] float32
  Tensor Logits(const Tensor& x, std::int64_t block) {
    return RunStage("projection", {.inputs = {x, gain->value, head, {}, {}, {}},
                                   .workers = &workers,
                                   .parameters = &parameters,
                                   .block = block})
        .front();
  }

  Tensor Extend(const DecodingState::NewTokens& more) {
    const SequentialProducts guard;
    const c10::NoGradGuard no_gradient;
    workers.SetThreads(guard.threads());
    const DecoderRows rows =
        RowsOf(more.cache, config.vocabulary, more.sequences, more.tokens, device);
    if (more.sequences.empty()) return at::empty({0, config.vocabulary});
    const CachedRows own(more.cache, more.sequences, rows, true);
    const Tensor logits = Logits(Run(rows, {.own = &own}), rows.block);
    return logits.narrow(0, 0, rows.Sequences()).cpu();
  }

  // The head forward and back, by as many rows as options.logits allows. Returns the gradient of x,
  // and writes the score.
  Tensor JudgeAndGradient(const DecoderRows& rows, const Tensor& x, const GradientOptions& options,
                          Tensors& losses, Tensors& best) {
    const Tensor labels = at::tensor(rows.label, at::kLong).to(device);
    const std::int64_t scored = x.size(0);
    const std::int64_t blocks = options.logits / config.vocabulary / kRowBlock;
    const std::int64_t most = std::max(kLeastRows, blocks * kRowBlock);
    const double weight =
        1.0 / static_cast<double>(options.denominator > 0 ? options.denominator : scored);
    Tensors gradients;
    for (std::int64_t begin = 0; begin < scored; begin += most) {
      const std::int64_t count = std::min(most, scored - begin);
      const Tensor piece = x.detach().narrow(0, begin, count).requires_grad_(true);
      const Tensors judged = Judge(piece, labels.narrow(0, begin, count), weight);
      judged[0].backward();
      losses.push_back(judged[1]);
      best.push_back(judged[2]);
      gradients.push_back(piece.grad());
    }
    if (gradients.empty()) return at::zeros_like(x);
    return gradients.size() == 1 ? gradients.front() : at::cat(gradients);
  }

  // For a vector v of independent signs, the mean of |vᵀ J|² is the squared Frobenius norm of J, so
  // one backward pass from v in every sequence measures all of the Jacobians.
  void ObserveReach(const TokenBatch& batch, Observation& observed) {
    const SequentialProducts guard;
    workers.SetThreads(guard.threads());
    const DecoderRows rows = RowsOf(batch, config.vocabulary, device, false);
    std::vector<std::int64_t> places;  // of each sequence's last scored row, in rows.scored
    for (std::size_t s = 0; s < rows.scored.size(); ++s) {
      if (s + 1 < rows.scored.size() && rows.sequence[s + 1] == rows.sequence[s]) continue;
      places.push_back(static_cast<std::int64_t>(s));
    }
    if (places.empty()) return;
    std::vector<float> signs(places.size() * static_cast<std::size_t>(config.width));
    RandomStream random(0, Purpose::kStudy, 0);
    for (float& sign : signs) sign = random.Next() % 2 == 0 ? 1.0F : -1.0F;
    Tensor flow;
    LayerPass pass;
    pass.reached = [&](std::int64_t layer, const Tensor& d_x) {
      if (layer == 0) flow = d_x.square().sum(1).to(at::kDouble).contiguous();
    };
    const Tensor x = Run(rows, pass), at_places = at::tensor(places, at::kLong);
    const Tensor piece = x.detach().index_select(0, at_places).requires_grad_(true);
    const Tensor y = piece * (piece.square().mean(1, true) + kNormEpsilon).rsqrt();
    (y * at::tensor(signs).view_as(y)).sum().backward();
    x.backward(at::zeros_like(x).index_copy(0, at_places, piece.grad()));
    std::vector<Moments> squares;  // by the power of two of the distance
    for (const std::int64_t place : places) {
      const auto s = static_cast<std::size_t>(place);
      const std::int64_t row = rows.scored[s];
      for (std::int64_t i = rows.begin[static_cast<std::size_t>(rows.sequence[s])]; i < row; ++i) {
        const auto bin =
            static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(row - i))) - 1;
        if (bin >= squares.size()) squares.resize(bin + 1);
        squares[bin].Add(flow.const_data_ptr<double>()[i]);
      }
    }
    for (std::size_t bin = 0; bin < squares.size(); ++bin) {
      observed.emplace_back(fmt::format("reach {}", std::int64_t{1} << bin),
                            std::sqrt(squares[bin].Mean()));
    }
  }

  DecoderConfig config;
  c10::Device device;
  at::ScalarType products;
  ParameterList parameters;
  RowWorkers workers;
  EmbeddingBlock embed;
  std::deque<DecoderLayer> layers;
  std::optional<Gain> gain;
  Tensor head;                    // [vocabulary, width]
  std::unique_ptr<Decoder> copy;  // of a model elsewhere, on the CPU
};

Decoder::Decoder(const DecoderConfig& config, std::uint64_t seed, const c10::Device& device)
    : state_(std::make_unique<State>(config, seed, device)) {}
Decoder::Decoder(Decoder&&) noexcept = default;
Decoder::~Decoder() = default;

const DecoderConfig& Decoder::Config() const { return state_->config; }
const ParameterList& Decoder::Learned() const { return state_->parameters; }

std::string Decoder::Note() const {
  std::vector<std::string> notes;
  for (const DecoderLayer& layer : state_->layers) {
    for (const std::string& note : layer.attention.Notes()) {
      if (std::find(notes.begin(), notes.end(), note) == notes.end()) notes.push_back(note);
    }
  }
  return fmt::format("{}", fmt::join(notes, "; "));
}

Decoder& Decoder::OnCpu() { return lab::OnCpu(*this, state_->copy); }

SequenceScore Decoder::LossAndGradient(const TokenBatch& batch, const GradientOptions& options) {
  const SequentialProducts guard;
  State& state = *state_;
  state.workers.SetThreads(guard.threads());
  const SequencePart* part = options.part;
  const bool whole = state.device.is_cpu() && part == nullptr;
  const DecoderRows rows = RowsOf(batch, state.config.vocabulary, state.device, !whole, part);
  if (!options.accumulate) FlatGradients().zero_();
  // Gradients lie in the order of the layers, and become final from the back.
  std::int64_t ready = FlatGradients().numel();
  const auto report = [&](std::int64_t begin) {
    if (options.ready && (whole || begin == 0)) {
      options.ready(begin, ready);
      ready = begin;
    }
  };
  LayerPass pass{.part = part};
  if (options.flow || options.ready)
    pass.reached = [&](std::int64_t layer, const Tensor& d_x) {
      if (options.flow) options.flow(layer, rows.MeanNorm(d_x));
      const DecoderLayer& reached = state.layers[static_cast<std::size_t>(layer)];
      report(reached.attention.First().storage_offset());
    };
  Tensors losses, best;
  // Other processes may score what they get from this one, and expect the same reports.
  if (whole || part != nullptr || !rows.scored.empty()) {
    const Tensor x = state.Run(rows, pass);
    const Tensor d_x = state.JudgeAndGradient(rows, x, options, losses, best);
    report((state.gain->value.defined() ? state.gain->value : state.head).storage_offset());
    x.backward(d_x);
  }
  report(0);
  return SequenceScore::Of(rows.Sequences(), losses, best, rows.label, rows.sequence);
}

SequenceScore Decoder::Evaluate(const TokenBatch& batch, const VisibleKeys& visible) {
  if (visible && !state_->device.is_cpu()) return OnCpu().Evaluate(batch, visible);
  const SequentialProducts guard;
  const c10::NoGradGuard no_gradient;
  State& state = *state_;
  state.workers.SetThreads(guard.threads());
  const bool host = state.device.is_cpu();
  const DecoderRows rows = RowsOf(batch, state.config.vocabulary, state.device, !host);
  const Tensor x = state.Run(rows, {.visible = visible});
  const Tensor labels = at::tensor(rows.label, at::kLong).to(state.device);
  // Kernels of the host have few logits in memory anyway.
  const std::int64_t most = host ? std::max<std::int64_t>(1, x.size(0))
                                 : std::max(kLeastRows, kEvaluatedLogits / state.config.vocabulary);
  Tensors losses, best;
  for (std::int64_t begin = 0; begin < labels.numel(); begin += most) {
    const std::int64_t count = std::min(most, labels.numel() - begin);
    const Tensors judged =
        state.Judge(x.narrow(0, begin, count), labels.narrow(0, begin, count), 1.0);
    losses.push_back(judged[1]);
    best.push_back(judged[2]);
  }
  return SequenceScore::Of(rows.Sequences(), losses, best, rows.label, rows.sequence);
}

std::unique_ptr<DecodingState> Decoder::StartDecoding(std::int64_t max_bytes) {
  State& state = *state_;
  return std::make_unique<DecodingState>(
      state.config, false, max_bytes, state.device,
      [&state](const DecodingState::NewTokens& more) { return state.Extend(more); });
}

std::vector<std::pair<std::string, double>> Decoder::Observe(const TokenBatch& batch) {
  Observation observed;
  GradientOptions options;
  options.flow = [&](std::int64_t layer, double norm) {
    observed.insert(observed.begin(), {fmt::format("gradient {}", layer), norm});
  };
  LossAndGradient(batch, options);
  if (!state_->device.is_cpu()) return observed;
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
  state_->ObserveReach(batch, observed);
  return observed;
}

std::vector<LayerPlace> Decoder::Places() const {
  std::vector<LayerPlace> places;
  for (const DecoderLayer& layer : state_->layers) places.push_back(layer.attention.Place());
  return places;
}

void Decoder::VisitLayers(const TokenBatch& batch,
                          const std::function<void(const LayerView&)>& visit) {
  State& state = *OnCpu().state_;
  const SequentialProducts guard;
  const c10::NoGradGuard no_gradient;
  state.workers.SetThreads(guard.threads());
  state.Run(RowsOf(batch, state.config.vocabulary, state.device, false), {.visit = visit});
}

Tensor Decoder::Forward(const TokenBatch& batch) {
  State& state = *OnCpu().state_;
  const SequentialProducts guard;
  const c10::NoGradGuard no_gradient;
  state.workers.SetThreads(guard.threads());
  const DecoderRows rows = RowsOf(batch, state.config.vocabulary, state.device, false);
  const Tensor logits = state.Logits(state.Run(rows, {}), kRowBlock);
  if (batch.labels.defined() || !rows.packed) return logits;
  Tensor padded = at::zeros({batch.tokens.numel(), state.config.vocabulary});
  for (std::int64_t b = 0; b < rows.Sequences(); ++b) {
    const std::int64_t begin = rows.begin[static_cast<std::size_t>(b)];
    const std::int64_t count = rows.end[static_cast<std::size_t>(b)] - begin;
    padded.narrow(0, b * batch.tokens.size(1), count).copy_(logits.narrow(0, begin, count));
  }
  return padded;
}

}  // namespace tsallis::lab
