#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "lab/base/errors.h"
#include "lab/eval/observe_packed.h"
#include "lab/nn/encoder_decoder.h"
#include "lab/nn/layer_view.h"
#include "lab/studies/analyses/sparsefinder.h"

namespace tsallis::lab::sparsefinder {
namespace {

using at::Tensor;

// alpha: of the heads, or undefined for another map than entmax.
void CheckZeros(const std::string& layer, const Tensor& alpha, const std::string& map) {
  if (alpha.defined() && alpha.min().item<double>() > 1.0) return;
  throw UsageError(fmt::format(
      "--decoder: expected a model whose heads have entmax with alpha above 1, got {} in {}: every "
      "pair has weight there",
      alpha.defined() ? "a smaller alpha" : map, layer));
}

Tensor DenseWeights(const SparseRows& rows, std::int64_t n) {
  Tensor dense = at::zeros({n, n});
  auto* to = dense.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < n; ++i) {
    for (auto e = rows.offsets[static_cast<std::size_t>(i)];
         e < rows.offsets[static_cast<std::size_t>(i + 1)]; ++e) {
      to[i * n + rows.keys[static_cast<std::size_t>(e)]] =
          rows.weights[static_cast<std::size_t>(e)];
    }
  }
  return dense;
}

class DecoderSubject : public Subject {
 public:
  explicit DecoderSubject(Decoder& model) : model_(model) {
    for (std::int64_t l = 0; l < model.Config().layers; ++l) {
      layers_.push_back({fmt::format("layer {}", l + 1), Sight::kBefore});
    }
  }

  const std::vector<Layer>& Layers() const override { return layers_; }

  void VisitLayers(
      const TokenBatch& sample,
      const std::function<void(const LayerQueriesKeys&, const Weights&)>& visit) override {
    model_.VisitLayers(sample, [&](const LayerView& view) {
      const HeadArrays arrays = view.Arrays(0);
      const auto layer = static_cast<std::size_t>(view.layer);
      CheckZeros(layers_[layer].name, arrays.alpha, arrays.map);
      const std::int64_t tokens = arrays.q.size(1);
      visit(Of(layer, arrays), [&](std::int64_t head) {
        return DenseWeights(view.Weights(0, head, 0, tokens), tokens);
      });
    });
  }

  SequenceScore Evaluate(const TokenBatch& batch, const Joined& joined) override {
    if (!joined) return model_.Evaluate(batch);
    return model_.Evaluate(batch, [&](const LayerInput& input) {
      const std::int64_t n = input.rows.length, sequences = input.rows.Sequences();
      Tensor visible;
      for (std::int64_t s = 0; s < sequences; ++s) {
        const LayerQueriesKeys own = Of(static_cast<std::size_t>(input.layer), input.Arrays(s));
        if (s == 0) visible = at::zeros({sequences, own.q.size(0), n, n}, at::kBool);
        const std::int64_t tokens = own.q.size(1);
        visible[s].narrow(1, 0, tokens).narrow(2, 0, tokens).copy_(joined(own));
      }
      return visible;
    });
  }

  Decoder* AsDecoder() override { return &model_; }

 private:
  static LayerQueriesKeys Of(std::size_t layer, const HeadArrays& arrays) {
    return {layer, arrays.q.to(at::kFloat), arrays.k.to(at::kFloat)};
  }

  Decoder& model_;
  std::vector<Layer> layers_;
};

// Layers in the order of the model: the encoder's, then the decoder's, each followed by its
// attention to the source.
class EncoderDecoderSubject : public Subject {
 public:
  explicit EncoderDecoderSubject(EncoderDecoder& model)
      : model_(model), depth_(model.Config().layers) {
    for (std::int64_t l = 0; l < depth_; ++l) {
      layers_.push_back({fmt::format("encoder {}", l + 1), Sight::kAll});
    }
    for (std::int64_t l = 0; l < depth_; ++l) {
      layers_.push_back({fmt::format("decoder {}", l + 1), Sight::kBefore});
      layers_.push_back({fmt::format("context {}", l + 1), Sight::kOther});
    }
  }

  const std::vector<Layer>& Layers() const override { return layers_; }

  void VisitLayers(
      const TokenBatch& sample,
      const std::function<void(const LayerQueriesKeys&, const Weights&)>& visit) override {
    model_.VisitLayers(sample, [&](const PackedAttention& attention) {
      const std::size_t layer = LayerOf(attention);
      const AttentionOptions& options = attention.seen.options;
      Tensor alpha;
      if (options.map == RowMap::kEntmax) {
        alpha = options.alpha_heads ? *options.alpha_heads : at::full({1}, options.alpha);
      }
      CheckZeros(layers_[layer].name, alpha, Name(options.map));
      const Tensor weights = WeightsOf(attention, 0);
      visit(Of(layer, attention, 0), [&](std::int64_t head) { return weights[head]; });
    });
  }

  SequenceScore Evaluate(const TokenBatch& batch, const Joined& joined) override {
    if (!joined) return model_.Evaluate(batch);
    return model_.Evaluate(batch, [&](const PackedAttention& attention) {
      const std::size_t layer = LayerOf(attention);
      const Tensor& q = attention.seen.q;
      Tensor visible = at::zeros({q.size(1), q.size(2), attention.seen.k.size(2)}, at::kBool);
      for (std::int64_t s = 0; s + 1 < attention.queries_begin.size(0); ++s) {
        const Tensor own = joined(Of(layer, attention, s));
        visible.narrow(1, Begin(attention.queries_begin, s), own.size(1))
            .narrow(2, Begin(attention.keys_begin, s), own.size(2))
            .copy_(own);
      }
      return visible;
    });
  }

 private:
  std::size_t LayerOf(const PackedAttention& attention) const {
    const std::string kind = attention.kind;
    if (kind == "encoder") return static_cast<std::size_t>(attention.layer);
    return static_cast<std::size_t>(depth_ + 2 * attention.layer + (kind == "context" ? 1 : 0));
  }
  static std::int64_t Begin(const Tensor& begins, std::int64_t s) {
    return begins[s].item<std::int64_t>();
  }
  static LayerQueriesKeys Of(std::size_t layer, const PackedAttention& attention, std::int64_t s) {
    const auto part = [s](const Tensor& rows, const Tensor& begins) {
      const std::int64_t begin = Begin(begins, s);
      return rows[0].narrow(1, begin, Begin(begins, s + 1) - begin);
    };
    return {layer, part(attention.seen.q, attention.queries_begin),
            part(attention.seen.k, attention.keys_begin)};
  }

  EncoderDecoder& model_;
  std::int64_t depth_;
  std::vector<Layer> layers_;
};

}  // namespace

Tensor Visible(Sight sight, std::int64_t queries, std::int64_t keys) {
  const Tensor all = at::ones({queries, keys}, at::kBool);
  return sight == Sight::kBefore ? all.tril() : all;
}

std::unique_ptr<Subject> SubjectOf(SequenceModel& model) {
  if (auto* decoder = dynamic_cast<Decoder*>(&model)) {
    return std::make_unique<DecoderSubject>(*decoder);
  }
  if (auto* both = dynamic_cast<EncoderDecoder*>(&model)) {
    return std::make_unique<EncoderDecoderSubject>(*both);
  }
  throw UsageError(fmt::format("--decoder: expected a decoder or an encoder-decoder, got {}",
                               model.Architecture()));
}

}  // namespace tsallis::lab::sparsefinder
