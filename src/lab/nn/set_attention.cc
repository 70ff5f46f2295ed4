#include "lab/nn/set_attention.h"

#include <cmath>

#include "lab/nn/gelu.h"

namespace tsallis::lab {
namespace {

using torch::Tensor;

// Standard normal cut at two standard deviations, rescaled to unit variance (the paper's library's initialiser).
float TruncatedNormal(RandomStream& random) {
  constexpr double kDeviation = 0.87962566103423978;  // of a normal truncated to [-2, 2]
  for (;;) {
    const double radius = std::sqrt(-2.0 * std::log(1.0 - random.Uniform()));
    const double value = radius * std::cos(2.0 * M_PI * random.Uniform());
    if (std::abs(value) <= 2.0) return static_cast<float>(value / kDeviation);
  }
}

}  // namespace

RowMapParams MapOf(const MethodConfig& method) {
  RowMapParams map;
  if (method.map == "softmax") {
    map.map = RowMap::kSoftmax;
  } else if (method.map == "adaptive-temperature") {
    map.map = RowMap::kAdaptiveTemperature;
  } else if (method.map == "entmax") {
    map.map = RowMap::kEntmax;
    map.alpha = method.alpha;
  } else {
    throw UsageError("method " + method.name + ": unknown map \"" + method.map + "\"");
  }
  return map;
}

SetAttention::SetAttention(const ModelConfig& model, std::int64_t features, std::int64_t classes,
                           const MethodConfig& method, std::uint64_t seed)
    : width_(model.width) {
  struct Slot {
    std::string name;
    std::vector<std::int64_t> shape;
    std::int64_t fan_in;  // 0: starts at zero
    Tensor* view;
  };
  std::vector<Slot> slots;
  const auto weight = [&](const std::string& name, std::int64_t in, std::int64_t out,
                          Tensor& view) {
    slots.push_back({name, {out, in}, in, &view});
  };
  const auto linear = [&](const std::string& name, std::int64_t in, std::int64_t out,
                          Linear& layer) {
    weight(name + ".weight", in, out, layer.weight);
    slots.push_back({name + ".bias", {out}, 0, &layer.bias});
  };
  linear("item.0", features, width_, item1_);
  linear("item.1", width_, width_, item2_);
  linear("query.0", 1, width_, query1_);
  linear("query.1", width_, width_, query2_);
  linear("attention.query", width_, width_, attention_query_);
  weight("attention.key.weight", width_, width_, attention_key_);
  linear("attention.value", width_, width_, attention_value_);
  linear("attention.out", width_, width_, attention_out_);
  linear("head.0", width_, width_, head1_);
  linear("head.1", width_, classes, head2_);
  if (method.length_scaling.kind != LengthScaling::Kind::kNone) {
    slots.push_back({"attention.length_scale", {1}, 0, &length_scale_});
  }

  constexpr std::int64_t kAlign = 16;  // floats in 64 bytes
  std::int64_t total = 0;
  std::vector<std::int64_t> offsets;
  for (const Slot& slot : slots) {
    offsets.push_back(total);
    total += (c10::multiply_integers(slot.shape) + kAlign - 1) / kAlign * kAlign;
  }
  flat_ = torch::zeros({total});
  flat_gradients_ = torch::zeros({total});
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const Slot& slot = slots[i];
    const std::int64_t count = c10::multiply_integers(slot.shape);
    RandomStream random(seed, Purpose::kInit, i);
    float* values = flat_.mutable_data_ptr<float>() + offsets[i];
    for (std::int64_t k = 0; k < count && slot.fan_in > 0; ++k) {
      values[k] = TruncatedNormal(random) / std::sqrt(static_cast<float>(slot.fan_in));
    }
    *slot.view = flat_.narrow(0, offsets[i], count).view(slot.shape).detach();
    slot.view->requires_grad_();
    slot.view->mutable_grad() = flat_gradients_.narrow(0, offsets[i], count).view(slot.shape);
    parameters_.emplace_back(slot.name, *slot.view);
  }
  if (length_scale_.defined()) {
    // SSMax starts at N(1, 0.01), the learned scalar at U(0.1, 1), as the ASEntmax reference does.
    RandomStream random(seed, Purpose::kInit, 1U << 20);
    const float start = method.length_scaling.kind == LengthScaling::Kind::kSSMax
                            ? 1.0F + 0.01F * TruncatedNormal(random)
                            : 0.1F + 0.9F * random.Uniform();
    length_scale_.mutable_data_ptr<float>()[0] = start;
  }
  SetMethod(method);
}

void SetAttention::SetMethod(const MethodConfig& method) {
  if ((method.length_scaling.kind != LengthScaling::Kind::kNone) != length_scale_.defined()) {
    throw UsageError("method " + method.name +
                     ": its weights were trained with another length scaling");
  }
  method_ = method;
  map_ = MapOf(method);
  theta_ = method.theta.value_or(std::sqrt(static_cast<double>(width_)));
}

Tensor SetAttention::Forward(const SetBatch& batch, AttentionView* view) const {
  const auto apply = [](const Linear& layer, const Tensor& x) {
    return torch::linear(x, layer.weight, layer.bias);
  };
  const Tensor query = apply(query2_, GeluOp(apply(query1_, batch.query)));
  Tensor u = torch::mm(apply(attention_query_, query), attention_key_) / theta_;
  const double log_n = std::log(static_cast<double>(batch.items.size(1)));
  const LengthScaling& scaling = method_.length_scaling;
  switch (scaling.kind) {
    case LengthScaling::Kind::kNone: break;
    case LengthScaling::Kind::kSSMax: u = u * (length_scale_ * log_n); break;
    case LengthScaling::Kind::kScalar:
      u = u * (length_scale_ * std::pow(log_n, scaling.gamma) + scaling.delta);
      break;
  }
  const Tensor pooled =
      AttendSet(batch.items, u, item1_.weight, item1_.bias, item2_.weight, item2_.bias, map_, view);
  const Tensor attended = apply(attention_out_, apply(attention_value_, pooled));
  return apply(head2_, GeluOp(apply(head1_, attended)));
}

}  // namespace tsallis::lab
