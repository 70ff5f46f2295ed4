#include "lab/nn/query_scale.h"

#include <c10/util/BFloat16.h>

#include <algorithm>
#include <cmath>

namespace tsallis::lab {
namespace {

float* Values(const Parameter& parameter) { return parameter.value.mutable_data_ptr<float>(); }
float* Gradients(const Parameter& parameter) {
  return parameter.gradient.mutable_data_ptr<float>();
}

double NumberAt(Cells cells) {
  return cells.half ? static_cast<float>(*static_cast<const c10::BFloat16*>(cells.data))
                    : *static_cast<const float*>(cells.data);
}

// L1, SSMax (Nakanishi 2025): c = b ln n.
class SsmaxScale : public QueryScale {
 public:
  using QueryScale::QueryScale;

  void Declare(const std::string& prefix, ParameterList& list) override {
    const auto draw = [](RandomStream& random) { return 1.0F + Normal(random, 0.01); };
    list.Add({{prefix + "b", {heads_}, draw}}, heads_, &b_);
  }
  void Forward(const ScaleRows& rows, HeadMatrix, HeadFloats c) const override {
    for (std::int64_t r = 0; r < rows.rows; ++r) {
      for (std::int64_t h = 0; h < heads_; ++h) {
        c.data[r * c.stride + h] = Values(b_)[h] * rows.log_n[r];
      }
    }
  }
  void Backward(const ScaleRows& rows, HeadMatrix, HeadFloats dc, HeadMatrix) override {
    for (std::int64_t h = 0; h < heads_; ++h) {
      double sum = 0.0;
      for (std::int64_t r = 0; r < rows.rows; ++r) {
        sum += double{dc.data[r * dc.stride + h]} * rows.log_n[r];
      }
      Gradients(b_)[h] += static_cast<float>(sum);
    }
  }
  std::vector<std::string> Terms() const override { return {"b"}; }
  void ReadTerms(HeadMatrix, std::int64_t, std::int64_t head, double* values) const override {
    values[0] = Values(b_)[head];
  }

 private:
  Parameter b_;  // [1, heads]
};

// L2: c = delta + b (ln n)^g. Here and below delta may be learned (L5; Vasylenko et al. 2025, eq.
// 9).
class ScalarScale : public QueryScale {
 public:
  using QueryScale::QueryScale;

  void Declare(const std::string& prefix, ParameterList& list) override {
    const auto uniform = [](RandomStream& random) { return 0.1F + 0.9F * random.Uniform(); };
    const auto normal = [](RandomStream& random) { return Normal(random, 0.1); };
    list.Add({{prefix + "b", {heads_}, uniform}, {prefix + "g", {heads_}, normal}}, heads_, &bg_);
    DeclareDelta(prefix, list);
  }
  void Forward(const ScaleRows& rows, HeadMatrix, HeadFloats c) const override {
    const float* b = Values(bg_);
    const float* g = b + heads_;
    for (std::int64_t r = 0; r < rows.rows; ++r) {
      for (std::int64_t h = 0; h < heads_; ++h) {
        c.data[r * c.stride + h] = Delta()[h] + b[h] * std::exp(g[h] * rows.log_log_n[r]);
      }
    }
  }
  void Backward(const ScaleRows& rows, HeadMatrix, HeadFloats dc, HeadMatrix) override {
    const float* b = Values(bg_);
    const float* g = b + heads_;
    for (std::int64_t h = 0; h < heads_; ++h) {
      double to_b = 0.0;
      double to_g = 0.0;
      for (std::int64_t r = 0; r < rows.rows; ++r) {
        const double power = std::exp(g[h] * rows.log_log_n[r]) * dc.data[r * dc.stride + h];
        to_b += power;
        to_g += power * b[h] * rows.log_log_n[r];
      }
      Gradients(bg_)[h] += static_cast<float>(to_b);
      Gradients(bg_)[heads_ + h] += static_cast<float>(to_g);
    }
    DeltaBackward(rows, dc);
  }
  std::vector<std::string> Terms() const override { return WithDelta({"b", "g"}); }
  void ReadTerms(HeadMatrix, std::int64_t, std::int64_t head, double* values) const override {
    values[0] = Values(bg_)[head];
    values[1] = Values(bg_)[heads_ + head];
    if (config_.learn_delta) values[2] = Delta()[head];
  }

 private:
  Parameter bg_;  // [2, heads]
};

// L3, ASEntmax (Vasylenko et al. 2025): c = delta + softplus(w_b x + c_b) (ln n)^(s tanh(w_g x +
// c_g)).
class AdaptiveQueryScale : public QueryScale {
 public:
  using QueryScale::QueryScale;

  std::int64_t Columns() const override { return 2 * heads_; }
  std::vector<ParameterList::Part> Projection(const std::string& prefix,
                                              std::int64_t width) const override {
    const auto draw = [deviation = config_.init](RandomStream& random) {
      return Normal(random, deviation);
    };
    return {{prefix + "beta.weight", {heads_, width}, draw},
            {prefix + "gamma.weight", {heads_, width}, draw}};
  }
  void Declare(const std::string& prefix, ParameterList& list) override {
    DeclareDelta(prefix, list);
    if (!config_.bias) return;
    const auto zero = [](RandomStream&) { return 0.0F; };
    list.Add({{prefix + "beta.bias", {heads_}, zero}, {prefix + "gamma.bias", {heads_}, zero}},
             heads_, &bias_);
  }
  void Forward(const ScaleRows& rows, HeadMatrix projected, HeadFloats c) const override {
    AdaptiveScaleForward(Settings(), projected.data, projected.data + heads_, projected.stride,
                         rows.log_log_n, rows.rows, c.data, c.stride);
  }
  void Backward(const ScaleRows& rows, HeadMatrix projected, HeadFloats dc,
                HeadMatrix d_projected) override {
    float* d_bias = config_.bias ? Gradients(bias_) : nullptr;
    AdaptiveScaleBackward(Settings(), projected.data, projected.data + heads_, projected.stride,
                          rows.log_log_n, rows.rows, dc.data, dc.stride, d_projected.data,
                          d_projected.data + heads_, d_bias,
                          config_.bias ? d_bias + heads_ : nullptr);
    DeltaBackward(rows, dc);
  }
  std::vector<std::string> Terms() const override { return WithDelta({"beta", "gamma"}); }
  void ReadTerms(HeadMatrix projected, std::int64_t row, std::int64_t head,
                 double* values) const override {
    const Cells cells = projected.data + (row * projected.stride + head);
    double b = NumberAt(cells);
    double g = NumberAt(cells + heads_);
    if (config_.bias) {
      b += Values(bias_)[head];
      g += Values(bias_)[heads_ + head];
    }
    values[0] = std::max(b, 0.0) + std::log1p(std::exp(-std::abs(b)));
    values[1] = config_.gamma_range * std::tanh(g);
    if (config_.learn_delta) values[2] = Delta()[head];
  }

 private:
  AdaptiveScale Settings() const {
    const float* bias = config_.bias ? Values(bias_) : nullptr;
    return {heads_, Delta(), static_cast<float>(config_.gamma_range), bias,
            config_.bias ? bias + heads_ : nullptr};
  }

  Parameter bias_;  // [2, heads]
};

// L4: c = table[head, position], the last entry beyond its end.
class TableScale : public QueryScale {
 public:
  using QueryScale::QueryScale;

  void Declare(const std::string& prefix, ParameterList& list) override {
    const auto one = [](RandomStream&) { return 1.0F; };
    list.Add({{prefix + "table", {config_.positions, heads_}, one}}, heads_, &table_);
  }
  void Forward(const ScaleRows& rows, HeadMatrix, HeadFloats c) const override {
    for (std::int64_t r = 0; r < rows.rows; ++r) {
      std::copy_n(Values(table_) + Entry(rows, r), heads_, c.data + r * c.stride);
    }
  }
  void Backward(const ScaleRows& rows, HeadMatrix, HeadFloats dc, HeadMatrix) override {
    for (std::int64_t r = 0; r < rows.rows; ++r) {
      float* to = Gradients(table_) + Entry(rows, r);
      for (std::int64_t h = 0; h < heads_; ++h) to[h] += dc.data[r * dc.stride + h];
    }
  }

 private:
  std::int64_t Entry(const ScaleRows& rows, std::int64_t r) const {
    return std::min<std::int64_t>(rows.position[r], config_.positions - 1) * heads_;
  }

  Parameter table_;  // [positions, heads]
};

}  // namespace

std::vector<ParameterList::Part> QueryScale::Projection(const std::string&, std::int64_t) const {
  return {};
}

void QueryScale::DeclareDelta(const std::string& prefix, ParameterList& list) {
  if (!config_.learn_delta) return;
  const auto start = [this](RandomStream&) { return static_cast<float>(config_.delta); };
  list.Add({{prefix + "delta", {heads_}, start}}, heads_, &delta_);
}

const float* QueryScale::Delta() const {
  return config_.learn_delta ? Values(delta_) : fixed_delta_.data();
}

void QueryScale::DeltaBackward(const ScaleRows& rows, HeadFloats dc) {
  for (std::int64_t h = 0; config_.learn_delta && h < heads_; ++h) {
    double sum = 0.0;
    for (std::int64_t r = 0; r < rows.rows; ++r) sum += dc.data[r * dc.stride + h];
    Gradients(delta_)[h] += static_cast<float>(sum);
  }
}

std::vector<std::string> QueryScale::WithDelta(std::vector<std::string> terms) const {
  if (config_.learn_delta) terms.emplace_back("delta");
  return terms;
}

void QueryScale::ReadTerms(HeadMatrix, std::int64_t, std::int64_t, double*) const {}

std::unique_ptr<QueryScale> MakeQueryScale(const QueryScaling& config, std::int64_t heads) {
  if (config.kind == "ssmax") return std::make_unique<SsmaxScale>(config, heads);
  if (config.kind == "scalar") return std::make_unique<ScalarScale>(config, heads);
  if (config.kind == "adaptive") return std::make_unique<AdaptiveQueryScale>(config, heads);
  if (config.kind == "table") return std::make_unique<TableScale>(config, heads);
  return nullptr;
}

}  // namespace tsallis::lab
