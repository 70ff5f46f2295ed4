#include "lab/nn/set_attention.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "lab/base/errors.h"
#include "lab/base/random.h"
#include "lab/nn/set_kernels.h"

namespace tsallis::lab {
namespace {

using at::Tensor;

constexpr Context kOneThread{.threads = 1};  // a job has one core

// Standard normal cut at two standard deviations, rescaled to unit variance (the paper's library's
// initialiser).
float TruncatedNormal(RandomStream& random) {
  constexpr double kDeviation = 0.87962566103423978;  // of a normal truncated to [-2, 2]
  for (;;) {
    const double radius = std::sqrt(-2.0 * std::log(1.0 - random.Uniform()));
    const double value = radius * std::cos(2.0 * M_PI * random.Uniform());
    if (std::abs(value) <= 2.0) return static_cast<float>(value / kDeviation);
  }
}

float* Data(const Tensor& tensor) { return tensor.mutable_data_ptr<float>(); }
const float* Read(const Tensor& tensor) { return tensor.const_data_ptr<float>(); }

MutableRows Rows(const Tensor& matrix) {
  return {Data(matrix), DType::kFloat32, matrix.size(0), matrix.size(1), matrix.size(1)};
}

// out = a b. Torch's matrix product, with the output in place.
void Product(const Tensor& a, const Tensor& b, Tensor out) { at::mm_out(out, a, b); }

// Recipes are checked when they are read; what a damaged config.json says is found here.
void CheckOutputNorm(const std::string& norm) {
  const std::vector<std::string> known = Names(SetOutputNorms());
  if (std::find(known.begin(), known.end(), norm) != known.end()) return;
  throw UsageError(
      fmt::format("output_norm: expected \"{}\", got \"{}\"", fmt::join(known, "\" or \""), norm));
}

}  // namespace

const std::vector<CatalogueEntry>& SetLengthScalings() {
  static const std::vector<CatalogueEntry> entries = {
      {"none", "scores as they are"},
      {"ssmax", "scores times b ln n, b learned"},
      {"scalar", "scores times delta + beta (ln n)^gamma, beta learned"}};
  return entries;
}

const std::vector<CatalogueEntry>& SetOutputNorms() {
  static const std::vector<CatalogueEntry> entries = {
      {"none", "the output of attention as it is"},
      {"layer-norm", "minus its mean, divided by its standard deviation; gain and bias learned"}};
  return entries;
}

RowMapParams MapOf(const SetAttentionConfig& config) {
  RowMapParams map;
  map.setting() = SettingOf(config);
  return map;
}

// Activations and gradients of one batch, kept between batches: memory that is given back to the
// system and fetched again at every step cost a third of the time.
struct SetAttention::Workspace {
  // [sets, width] but for class_scores, [sets, classes].
  Tensor query_a, query_slope, query, projected, folded, u;
  Tensor pooled, value, attended, normal, normed, head_a, head_slope, class_scores;
  Tensor norm_scale;  // [sets, 1]
  Tensor d_class, d_head, d_attended, d_value, d_pooled, d_u, d_projected, d_query, d_query_a;
  // [sets * n, width], and [sets, n].
  Tensor a1, slope1, h, slope2, dz2, dz1, a1_kept;
  Tensor scores, weights, d_weights, d_scores;
  Tensor items_kept;  // [sets * n, features]
  std::vector<std::int64_t> support;

  // The first `rows` rows of a buffer that grows when it has to.
  static Tensor Room(Tensor& buffer, std::int64_t rows, std::int64_t columns) {
    if (!buffer.defined() || buffer.size(0) < rows || buffer.size(1) != columns)
      buffer = at::empty({rows, columns});
    return buffer.size(0) == rows ? buffer : buffer.narrow(0, 0, rows);
  }
};

SetAttention::SetAttention(std::int64_t width, std::int64_t features, std::int64_t classes,
                           const SetAttentionConfig& config, std::uint64_t seed)
    : width_(width), classes_(classes), work_(std::make_unique<Workspace>()) {
  // Every parameter draws from the stream of its place in the list.
  std::uint64_t place = 0;
  const auto add = [&](const std::string& name, std::vector<std::int64_t> shape, Tensor& leaf,
                       const ParameterList::Draw& draw) {
    const std::int64_t columns = shape.back();
    list_.Add({{.name = name, .shape = std::move(shape), .draw = draw, .stream = place++}}, columns,
              &leaf);
  };
  const auto zero = [](RandomStream&) { return 0.0F; };
  const auto weight = [&](const std::string& name, std::int64_t in, std::int64_t out,
                          Layer& layer) {
    const float root = std::sqrt(static_cast<float>(in));
    add(name + ".weight", {out, in}, layer.weight,
        [root](RandomStream& random) { return TruncatedNormal(random) / root; });
  };
  const auto linear = [&](const std::string& name, std::int64_t in, std::int64_t out,
                          Layer& layer) {
    weight(name, in, out, layer);
    add(name + ".bias", {out}, layer.bias, zero);
  };
  linear("item.0", features, width_, item1_);
  linear("item.1", width_, width_, item2_);
  linear("query.0", 1, width_, query1_);
  linear("query.1", width_, width_, query2_);
  linear("attention.query", width_, width_, attend_query_);
  weight("attention.key", width_, width_, attend_key_);
  linear("attention.value", width_, width_, attend_value_);
  linear("attention.out", width_, width_, attend_out_);
  linear("head.0", width_, width_, head1_);
  linear("head.1", width_, classes, head2_);
  if (config.length_scaling.kind != LengthScaling::Kind::kNone) {
    // SSMax starts at N(1, 0.01), the learned scalar at U(0.1, 1), as the ASEntmax reference does.
    const bool ssmax = config.length_scaling.kind == LengthScaling::Kind::kSSMax;
    const auto start = [ssmax](RandomStream& random) {
      return ssmax ? 1.0F + 0.01F * TruncatedNormal(random) : 0.1F + 0.9F * random.Uniform();
    };
    list_.Add({{.name = "attention.length_scale", .shape = {1}, .draw = start, .stream = 1U << 20}},
              1, &length_scale_);
  }
  // The last, because a parameter's random numbers depend on its place: the others keep theirs.
  if (config.output_norm != "none") {
    add("attention.out_norm.weight", {width_}, out_norm_.weight, zero);
    add("attention.out_norm.bias", {width_}, out_norm_.bias, zero);
  }
  list_.Allocate(seed);
  Attend(config);
}

SetAttention::SetAttention(SetAttention&&) noexcept = default;
SetAttention::~SetAttention() = default;

void SetAttention::Attend(const SetAttentionConfig& config) {
  CheckOutputNorm(config.output_norm);
  if ((config.length_scaling.kind != LengthScaling::Kind::kNone) != length_scale_.defined()) {
    throw UsageError("the weights were trained with another length scaling");
  }
  if ((config.output_norm != "none") != out_norm_.weight.defined()) {
    throw UsageError(
        fmt::format("output_norm: expected \"{}\", which the weights were trained with, "
                    "got \"{}\"",
                    config_.output_norm, config.output_norm));
  }
  config_ = config;
  map_ = MapOf(config);
  theta_ = config.theta.value_or(std::sqrt(static_cast<double>(width_)));
}

SetAttention::QueryScale SetAttention::ScaleFor(std::int64_t n) const {
  const LengthScaling& scaling = config_.length_scaling;
  if (scaling.kind == LengthScaling::Kind::kNone) return {1.0 / theta_, 0.0};
  const double log_n = std::log(static_cast<double>(n));
  const double learned = Read(length_scale_)[0];
  if (scaling.kind == LengthScaling::Kind::kSSMax)
    return {learned * log_n / theta_, log_n / theta_};
  const double power = std::pow(log_n, scaling.gamma);
  return {(scaling.delta + learned * power) / theta_, power / theta_};
}

void SetAttention::RunForward(const SetBatch& batch, bool slopes, const RowStats& stats) {
  Workspace& w = *work_;
  const std::int64_t sets = batch.items.size(0);
  const std::int64_t n = batch.items.size(1);
  const auto room = [&](Tensor& buffer, std::int64_t rows) {
    return Workspace::Room(buffer, rows, width_);
  };
  const auto linear = [](const Tensor& x, const Layer& layer, const Tensor& out) {
    Product(x, layer.weight.t(), out);
    SetKernels().add_bias(Data(out), Read(layer.bias), out.size(0), out.size(1));
  };
  const auto linear_gelu = [&](const Tensor& x, const Layer& layer, const Tensor& out,
                               Tensor& slope) {
    Product(x, layer.weight.t(), out);
    float* to = slopes ? Data(room(slope, out.size(0))) : nullptr;
    SetKernels().bias_gelu(Read(out), Read(layer.bias), Data(out), to, out.size(0), out.size(1));
  };

  linear_gelu(batch.query, query1_, room(w.query_a, sets), w.query_slope);
  linear(room(w.query_a, sets), query2_, room(w.query, sets));
  linear(room(w.query, sets), attend_query_, room(w.projected, sets));
  Product(room(w.projected, sets), attend_key_.weight, room(w.folded, sets));
  Tensor u = room(w.u, sets);
  u.copy_(room(w.folded, sets));
  u.mul_(ScaleFor(n).value);

  linear_gelu(batch.items.view({sets * n, batch.items.size(2)}), item1_, room(w.a1, sets * n),
              w.slope1);
  linear_gelu(room(w.a1, sets * n), item2_, room(w.h, sets * n), w.slope2);
  const Tensor scores = Workspace::Room(w.scores, sets, n);
  const Tensor weights = Workspace::Room(w.weights, sets, n);
  SetKernels().scores(Read(w.h), Read(u), Data(scores), sets, n, width_);
  RowsForward(kOneThread, map_, Rows(scores), Rows(weights), stats);
  SetKernels().pool(Read(weights), Read(w.h), Data(room(w.pooled, sets)), sets, n, width_);

  linear(room(w.pooled, sets), attend_value_, room(w.value, sets));
  linear(room(w.value, sets), attend_out_, room(w.attended, sets));
  Tensor head_in = room(w.attended, sets);
  if (out_norm_.weight.defined()) {
    const Tensor normed = room(w.normed, sets);
    SetKernels().layer_norm(Read(head_in), Read(out_norm_.weight), Read(out_norm_.bias), sets,
                            width_, Data(room(w.normal, sets)),
                            Data(Workspace::Room(w.norm_scale, sets, 1)), Data(normed));
    head_in = normed;
  }
  linear_gelu(head_in, head1_, room(w.head_a, sets), w.head_slope);
  linear(room(w.head_a, sets), head2_, Workspace::Room(w.class_scores, sets, classes_));
}

void SetAttention::RunBackward(const SetBatch& batch) {
  Workspace& w = *work_;
  const std::int64_t sets = batch.items.size(0);
  const std::int64_t n = batch.items.size(1);
  const std::int64_t features = batch.items.size(2);
  const auto room = [&](Tensor& buffer, std::int64_t rows) {
    return Workspace::Room(buffer, rows, width_);
  };
  // Gradients of layer's parameters from d_out and its input; d_in receives the input's gradient if
  // defined.
  const auto back = [](const Tensor& d_out, const Tensor& in, const Layer& layer,
                       const Tensor& d_in) {
    Product(d_out.t(), in, layer.weight.grad());
    SetKernels().column_sums(Read(d_out), Data(layer.bias.grad()), d_out.size(0), d_out.size(1));
    if (d_in.defined()) Product(d_out, layer.weight, d_in);
  };

  const Tensor d_head = room(w.d_head, sets);
  back(Workspace::Room(w.d_class, sets, classes_), room(w.head_a, sets), head2_, d_head);
  SetKernels().multiply(Data(d_head), Read(w.head_slope), d_head.numel());
  const Tensor d_attended = room(w.d_attended, sets);
  const bool normed = out_norm_.weight.defined();
  back(d_head, room(normed ? w.normed : w.attended, sets), head1_, d_attended);
  if (normed) {
    SetKernels().layer_norm_backward(Read(w.normal), Read(w.norm_scale), Read(out_norm_.weight),
                                     Read(d_attended), sets, width_, Data(d_attended),
                                     Data(out_norm_.weight.grad()), Data(out_norm_.bias.grad()));
  }
  back(d_attended, room(w.value, sets), attend_out_, room(w.d_value, sets));
  back(room(w.d_value, sets), room(w.pooled, sets), attend_value_, room(w.d_pooled, sets));

  const Tensor scores = Workspace::Room(w.scores, sets, n);
  const Tensor weights = Workspace::Room(w.weights, sets, n);
  const Tensor d_weights = Workspace::Room(w.d_weights, sets, n);
  const Tensor d_scores = Workspace::Room(w.d_scores, sets, n);
  SetKernels().scores(Read(w.h), Read(w.d_pooled), Data(d_weights), sets, n, width_);
  RowsBackward(kOneThread, map_, Rows(scores), Rows(weights), Rows(d_weights), Rows(d_scores));
  Tensor d_u = room(w.d_u, sets);
  SetKernels().pool(Read(d_scores), Read(w.h), Data(d_u), sets, n, width_);

  // Items with a weight or a score gradient; every other item's gradient is exactly zero.
  w.support.resize(static_cast<std::size_t>(sets * n));
  std::int64_t kept = 0;
  std::int64_t* support = w.support.data();
  const float* weight = Read(weights);
  const float* d_score = Read(d_scores);
  for (std::int64_t i = 0; i < sets * n; ++i) {
    support[kept] = i;
    kept += static_cast<std::int64_t>(weight[i] != 0.0F || d_score[i] != 0.0F);
  }
  const Tensor dz2 = room(w.dz2, kept);
  SetKernels().support_gradient(support, kept, n, width_, Read(weights), Read(d_scores),
                                Read(w.d_pooled), Read(w.u), Read(w.slope2), Data(dz2));
  Tensor a1 = room(w.a1, sets * n);
  Tensor items = batch.items.view({sets * n, features});
  if (kept < sets * n) {
    const auto gather = [&](const Tensor& from, const Tensor& to) {
      const std::int64_t width = from.size(1);
      for (std::int64_t m = 0; m < kept; ++m) {
        std::memcpy(Data(to) + m * width, Read(from) + support[m] * width,
                    static_cast<std::size_t>(width) * sizeof(float));
      }
      return to;
    };
    a1 = gather(a1, room(w.a1_kept, kept));
    items = gather(items, Workspace::Room(w.items_kept, kept, features));
  }
  const Tensor dz1 = room(w.dz1, kept);
  back(dz2, a1, item2_, dz1);
  SetKernels().multiply_rows(support, kept, width_, Read(w.slope1), Data(dz1));
  back(dz1, items, item1_, Tensor());

  // u = scale * projected K: through the scale, then the folded projections.
  const QueryScale scale = ScaleFor(n);
  if (length_scale_.defined()) {
    double sum = 0.0;
    const float* d = Read(d_u);
    const float* folded = Read(w.folded);
    for (std::int64_t i = 0; i < sets * width_; ++i) sum += double{d[i]} * folded[i];
    Data(length_scale_.grad())[0] = static_cast<float>(sum * scale.slope);
  }
  d_u.mul_(scale.value);
  Product(room(w.projected, sets).t(), d_u, attend_key_.weight.grad());
  Product(d_u, attend_key_.weight.t(), room(w.d_projected, sets));
  back(room(w.d_projected, sets), room(w.query, sets), attend_query_, room(w.d_query, sets));
  const Tensor d_query_a = room(w.d_query_a, sets);
  back(room(w.d_query, sets), room(w.query_a, sets), query2_, d_query_a);
  SetKernels().multiply(Data(d_query_a), Read(w.query_slope), d_query_a.numel());
  back(d_query_a, batch.query, query1_, Tensor());
}

Tensor SetAttention::Forward(const SetBatch& batch, AttentionView* view) {
  const c10::InferenceMode no_autograd;
  const std::int64_t sets = batch.items.size(0);
  RowStats stats;
  if (view != nullptr) {
    view->entropy = at::empty({sets}, at::kDouble);
    view->support_size = at::empty({sets}, at::kLong);
    stats.entropy = view->entropy.mutable_data_ptr<double>();
    stats.support_size = view->support_size.mutable_data_ptr<std::int64_t>();
  }
  RunForward(batch, false, stats);
  if (view != nullptr) view->weights = Workspace::Room(work_->weights, sets, batch.items.size(1));
  return Workspace::Room(work_->class_scores, sets, classes_);
}

LogitSpread SetAttention::Spread(const SetBatch& batch) {
  const c10::InferenceMode no_autograd;
  const std::int64_t sets = batch.items.size(0);
  const std::int64_t n = batch.items.size(1);
  RunForward(batch, false, {});
  const auto norms = [](const Tensor& rows) { return rows.to(at::kDouble).norm(2, {-1}); };
  const auto largest_singular_value = [](const Tensor& matrix) {
    return at::linalg_svdvals(matrix.to(at::kDouble))[0].item<double>();
  };
  const Tensor scores = Workspace::Room(work_->scores, sets, n).to(at::kDouble);
  const Tensor query = largest_singular_value(attend_query_.weight) *
                           norms(Workspace::Room(work_->query, sets, width_)) +
                       norms(attend_query_.bias);
  const Tensor items = norms(Workspace::Room(work_->h, sets * n, width_)).view({sets, n}).amax(1);
  const double factor =
      2.0 * std::abs(ScaleFor(n).value) * largest_singular_value(attend_key_.weight);
  return {(scores.amax(1) - scores.amin(1)).mean().item<double>(),
          factor * (query * items).mean().item<double>()};
}

BatchScore SetAttention::LossAndGradient(const SetBatch& batch, std::int64_t denominator) {
  const c10::InferenceMode no_autograd;
  RunForward(batch, true, {});
  const std::int64_t sets = batch.items.size(0);
  const auto divisor = static_cast<double>(denominator > 0 ? denominator : sets);
  const std::int64_t* target = batch.target.const_data_ptr<std::int64_t>();
  float* gradient = Data(Workspace::Room(work_->d_class, sets, classes_));
  const float* row = Read(work_->class_scores);
  BatchScore score;
  for (std::int64_t b = 0; b < sets; ++b, row += classes_, gradient += classes_) {
    const float* best = std::max_element(row, row + classes_);
    double sum = 0.0;
    for (std::int64_t k = 0; k < classes_; ++k) sum += std::exp(double{row[k]} - *best);
    for (std::int64_t k = 0; k < classes_; ++k) {
      const double p = std::exp(double{row[k]} - *best) / sum;
      gradient[k] = static_cast<float>((p - (k == target[b] ? 1.0 : 0.0)) / divisor);
    }
    score.loss += std::log(sum) + *best - row[target[b]];
    score.hits += static_cast<std::int64_t>(best - row == target[b]);
  }
  score.loss /= divisor;
  RunBackward(batch);
  return score;
}

}  // namespace tsallis::lab
