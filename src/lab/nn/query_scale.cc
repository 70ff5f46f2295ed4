#include "lab/nn/query_scale.h"

#include <ATen/ATen.h>

namespace tsallis::lab {
namespace {

using at::Tensor;

Tensor Doubles(const Tensor& row) { return row.detach().to(at::kDouble).unsqueeze(0); }

// L1, SSMax (Nakanishi 2025): c = b ln n.
class SsmaxScale : public QueryScale {
 public:
  using QueryScale::QueryScale;

  void Declare(const std::string& prefix, ParameterList& parameters) override {
    const auto draw = [](RandomStream& random) { return 1.0F + Normal(random, 0.01); };
    parameters.Add(prefix + "b", {heads_}, draw, &b_);
  }
  Tensor operator()(const ScaleRows& rows, Tensor&, std::int64_t) const override {
    return (rows.log_n.unsqueeze(1) * b_).narrow(0, 0, rows.position.numel());
  }
  NamedTerms Terms(const Tensor&, std::int64_t) const override { return {{"b", Doubles(b_)}}; }

 private:
  Tensor b_;  // [heads]
};

// L2: c = delta + b (ln n)^g. Here and below delta may be learned (L5; Vasylenko et al. 2025, eq.
// 9).
class ScalarScale : public QueryScale {
 public:
  using QueryScale::QueryScale;

  void Declare(const std::string& prefix, ParameterList& parameters) override {
    const auto uniform = [](RandomStream& random) { return 0.1F + 0.9F * random.Uniform(); };
    const auto normal = [](RandomStream& random) { return Normal(random, 0.1); };
    parameters.Add({{prefix + "b", {heads_}, uniform}, {prefix + "g", {heads_}, normal}}, heads_,
                   &bg_);
    DeclareDelta(prefix, parameters);
  }
  Tensor operator()(const ScaleRows& rows, Tensor&, std::int64_t) const override {
    const Tensor power = (rows.log_log_n.unsqueeze(1) * bg_[1]).exp();
    return (Delta(bg_) + bg_[0] * power).narrow(0, 0, rows.position.numel());
  }
  NamedTerms Terms(const Tensor&, std::int64_t) const override {
    return WithDelta({{"b", Doubles(bg_[0])}, {"g", Doubles(bg_[1])}});
  }

 private:
  Tensor bg_;  // [2, heads]
};

// L3, ASEntmax (Vasylenko et al. 2025): c = delta + softplus(w_b x + c_b) (ln n)^(s tanh(w_g x +
// c_g)).
class AdaptiveQueryScale : public QueryScale {
 public:
  using QueryScale::QueryScale;

  std::vector<ParameterList::Part> Projection(const std::string& prefix,
                                              std::int64_t width) const override {
    const auto draw = [deviation = config_.init](RandomStream& random) {
      return Normal(random, deviation);
    };
    return {{prefix + "beta.weight", {heads_, width}, draw},
            {prefix + "gamma.weight", {heads_, width}, draw}};
  }
  void Declare(const std::string& prefix, ParameterList& parameters) override {
    DeclareDelta(prefix, parameters);
    if (!config_.bias) return;
    const auto zero = [](RandomStream&) { return 0.0F; };
    parameters.Add(
        {{prefix + "beta.bias", {heads_}, zero}, {prefix + "gamma.bias", {heads_}, zero}}, heads_,
        &bias_);
  }
  Tensor operator()(const ScaleRows& rows, Tensor& projected, std::int64_t column) const override {
    const Tensor log_log_n = rows.log_log_n.narrow(0, 0, rows.position.numel());
    const Tensors scaled = RunStage(
        "length-scale", {.inputs = {projected, Bias(0), Bias(1), Delta(projected), log_log_n},
                         .workers = &workers_,
                         .column = column,
                         .gamma_range = config_.gamma_range});
    projected = scaled[1];
    return scaled[0];
  }
  NamedTerms Terms(const Tensor& projected, std::int64_t column) const override {
    const auto part = [&](std::int64_t index) {
      const Tensor read =
          projected.detach().narrow(1, column + index * heads_, heads_).to(at::kDouble);
      return config_.bias ? read + Doubles(bias_[index]) : read;
    };
    return WithDelta(
        {{"beta", at::softplus(part(0))}, {"gamma", config_.gamma_range * part(1).tanh()}});
  }

 private:
  Tensor Bias(std::int64_t index) const { return config_.bias ? bias_[index] : Tensor(); }

  Tensor bias_;  // [2, heads]
};

// L4: c = table[head, position], the last entry beyond its end.
class TableScale : public QueryScale {
 public:
  using QueryScale::QueryScale;

  void Declare(const std::string& prefix, ParameterList& parameters) override {
    const auto one = [](RandomStream&) { return 1.0F; };
    parameters.Add(prefix + "table", {config_.positions, heads_}, one, &table_);
  }
  Tensor operator()(const ScaleRows& rows, Tensor&, std::int64_t) const override {
    return table_.index_select(0, rows.position.clamp_max(config_.positions - 1));
  }

 private:
  Tensor table_;  // [positions, heads]
};

}  // namespace

ScaleRows ScaleRows::Of(const Tensor& positions) {
  const std::int64_t more = (kScaleRows - positions.numel() % kScaleRows) % kScaleRows;
  const Tensor n = at::cat({positions, positions.new_zeros({more})}).to(at::kDouble) + 2.0;
  const Tensor log_n = n.log();
  return {positions, log_n.to(at::kFloat), log_n.log().to(at::kFloat)};
}

void QueryScale::DeclareDelta(const std::string& prefix, ParameterList& parameters) {
  if (!config_.learn_delta) return;
  const auto start = [this](RandomStream&) { return static_cast<float>(config_.delta); };
  parameters.Add(prefix + "delta", {heads_}, start, &delta_);
}

Tensor QueryScale::Delta(const Tensor& like) const {
  return config_.learn_delta ? delta_
                             : at::full({heads_}, config_.delta,
                                        like.options().dtype(at::kFloat).requires_grad(false));
}

QueryScale::NamedTerms QueryScale::WithDelta(NamedTerms terms) const {
  if (config_.learn_delta) terms.emplace_back("delta", Doubles(delta_));
  return terms;
}

std::unique_ptr<QueryScale> MakeQueryScale(const QueryScaling& config, std::int64_t heads,
                                           RowWorkers& workers) {
  if (config.kind == "ssmax") return std::make_unique<SsmaxScale>(config, heads, workers);
  if (config.kind == "scalar") return std::make_unique<ScalarScale>(config, heads, workers);
  if (config.kind == "adaptive")
    return std::make_unique<AdaptiveQueryScale>(config, heads, workers);
  if (config.kind == "table") return std::make_unique<TableScale>(config, heads, workers);
  return nullptr;
}

}  // namespace tsallis::lab
