#include "lab/nn/decoder.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>

#include "lab/base/random.h"
#include "lab/nn/decoder_kernels.h"
#include "lab/nn/head_numbers.h"
#include "tsallis/cpu.h"

namespace tsallis::lab {

using at::Tensor;

Decoder::Decoder(const DecoderConfig& config, std::uint64_t seed, const c10::Device& device)
    : SequenceModel(
          WithDefaults(config, CheckDecoder,
                       device.is_cpu() && FastBfloat16(QueryCpu()) ? "bfloat16" : "float32"),
          device, Naming::kApart) {
  for (std::int64_t l = 0; l < config_.layers; ++l) {
    layers_.emplace_back(config_, LayerPlace{"layer", l}, fmt::format("layers.{}.", l), parameters_,
                         workers_, products_);
  }
  Finish(seed, true);
}

std::vector<const AttentionBranch*> Decoder::Attention() const {
  std::vector<const AttentionBranch*> all;
  for (const SelfLayer& layer : layers_) all.push_back(&layer.attention);
  return all;
}

Decoder::Samples Decoder::Read(const TokenBatch& batch, const SequencePart* part) const {
  const bool padded = !device_.is_cpu() || part != nullptr;
  return {RowsOf(batch, config_.vocabulary, device_, padded, part)};
}

// From the last attention on no other rows matter than those whose logits are wanted.
Tensor Decoder::Run(const Samples& samples, const LayerPass& pass) {
  const DecoderRows& rows = samples.target;
  Tensor x = Embed(rows);
  const bool fewer = static_cast<std::int64_t>(rows.scored.size()) < rows.rows;
  const Tensor scored = fewer ? at::tensor(rows.scored, at::kLong).to(device_) : Tensor();
  for (SelfLayer& layer : layers_) {
    if (pass.reached) {
      x.register_hook([&pass, &of = layer.attention](const Tensor& d_x) { pass.reached(of, d_x); });
    }
    x = layer.attention(x, rows, pass, &layer == &layers_.back() ? scored : Tensor());
    x = layer.feed_forward(x, rows.block);
  }
  return x;
}

Tensor Decoder::Logits(const Tensor& x, std::int64_t block) {
  return RunStage("projection", {.inputs = {x, gain_->value, Head(), {}, {}, {}},
                                 .workers = &workers_,
                                 .parameters = &parameters_,
                                 .block = block})
      .front();
}

Tensor Decoder::Extend(const DecodingState::NewTokens& more) {
  const Samples samples{
      RowsOf(more.cache, config_.vocabulary, more.sequences, more.tokens, device_)};
  const DecoderRows& rows = samples.target;
  if (more.sequences.empty()) return at::empty({0, config_.vocabulary});
  const CachedRows own(more.cache, more.sequences, rows, true);
  const Tensor logits = Logits(Run(samples, {.own = &own}), rows.block);
  return logits.narrow(0, 0, rows.Sequences()).cpu();
}

// For a vector v of independent signs, the mean of |vᵀ J|² is the squared Frobenius norm of J, so
// one backward pass from v in every sequence measures all of the Jacobians.
void Decoder::ObserveReach(const TokenBatch& batch,
                           std::vector<std::pair<std::string, double>>& observed) {
  const Running running(*this);
  const Samples samples = Read(batch, nullptr);
  const DecoderRows& rows = samples.target;
  std::vector<std::int64_t> places;  // of each sequence's last scored row, in rows.scored
  for (std::size_t s = 0; s < rows.scored.size(); ++s) {
    if (s + 1 < rows.scored.size() && rows.sequence[s + 1] == rows.sequence[s]) continue;
    places.push_back(static_cast<std::int64_t>(s));
  }
  if (places.empty()) return;
  std::vector<float> signs(places.size() * static_cast<std::size_t>(config_.width));
  RandomStream random(0, Purpose::kStudy, 0);
  for (float& sign : signs) sign = random.Next() % 2 == 0 ? 1.0F : -1.0F;
  Tensor flow;
  LayerPass pass;
  pass.reached = [&](const AttentionBranch& of, const Tensor& d_x) {
    if (of.Place().layer == 0) flow = d_x.square().sum(1).to(at::kDouble).contiguous();
  };
  const Tensor x = Run(samples, pass), at_places = at::tensor(places, at::kLong);
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

std::vector<std::pair<std::string, double>> Decoder::Observe(const TokenBatch& batch) {
  std::vector<std::pair<std::string, double>> observed;
  GradientOptions options;
  options.flow = [&](std::int64_t layer, double norm) {
    observed.insert(observed.begin(), {fmt::format("gradient {}", layer), norm});
  };
  LossAndGradient(batch, options);
  if (!device_.is_cpu()) return observed;
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
  ObserveReach(batch, observed);
  return observed;
}

Tensor Decoder::Forward(const TokenBatch& batch) {
  auto& model = static_cast<Decoder&>(OnCpu());
  const Running running(model);
  const c10::NoGradGuard no_gradient;
  const Samples samples = model.Read(batch, nullptr);
  const DecoderRows& rows = samples.target;
  const Tensor logits = model.Logits(model.Run(samples, {}), kRowBlock);
  if (batch.labels.defined() || !rows.packed) return logits;
  Tensor padded = at::zeros({batch.tokens.numel(), config_.vocabulary});
  for (std::int64_t b = 0; b < rows.Sequences(); ++b) {
    const std::int64_t begin = rows.begin[static_cast<std::size_t>(b)];
    const std::int64_t count = rows.end[static_cast<std::size_t>(b)] - begin;
    padded.narrow(0, b * batch.tokens.size(1), count).copy_(logits.narrow(0, begin, count));
  }
  return padded;
}

}  // namespace tsallis::lab
