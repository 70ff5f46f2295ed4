// E3: representational collapse (Vasylenko et al. 2025, figures 3 left and 6, appendix C.2).
//
// Two sequences, (prefix, v_a) and (prefix, v_a, v_a), run through layers of causal attention with
// d = 1, identity projections and a residual, v_i <- v_i + sum_j p_ij v_j. Do the last
// representations differ? Attention is causal, so the first sequence is the beginning of the
// second: one run of n + 1 tokens gives both.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lab/studies/analyses/maps.h"
#include "torch/operators.h"

namespace tsallis::lab {
namespace {

constexpr double kAlphas[] = {1.0, 1.5, 1.75, 2.0};
constexpr int kLayers = 6;
constexpr double kPhi = 1.2;    // of the last token with itself
constexpr double kConst = 1.0;  // of the last token with the constant prefix
// Up to here the double reference, beyond it the float32 kernels, which are far faster.
constexpr std::int64_t kDouble = 1024;

// All rows of a constant prefix are equal, and attention over equal values gives the value: it
// doubles in a layer. So three numbers say it all.
double ConstantPrefix(const AnalysisContext& context, double alpha, std::int64_t n) {
  double prefix = kConst / std::sqrt(kPhi), first = std::sqrt(kPhi), second = first;
  for (int layer = 0; layer < kLayers; ++layer) {
    // The first v_a sees the prefix and itself, the second both of them.
    std::vector<double> scores(n, first * prefix);
    scores.back() = first * first;
    const auto share = [&](std::int64_t last) {
      const Row row = MapRow(context, EntmaxParams(alpha), scores);
      double weight = 0.0;
      for (std::int64_t i = n - 1; i <= last; ++i) weight += row.weights[i];
      return std::pair(weight, row.weights.back());
    };
    const double own = share(n - 1).first;
    const double new_first = first + own * first + (1.0 - own) * prefix;
    std::fill(scores.begin(), scores.end(), second * prefix);
    scores.back() = second * first;
    scores.push_back(second * second);
    const auto [both, last] = share(n);
    second += (both - last) * first + last * second + (1.0 - both) * prefix;
    first = new_first;
    prefix *= 2.0;
  }
  return std::abs(first - second);
}

// The same difference with prefix tokens b_i / sqrt(phi), b_i in [0, 1), and all rows.
double RandomPrefix(const AnalysisContext& context, double alpha, const std::vector<double>& b) {
  const double root = std::sqrt(kPhi);
  at::Tensor values = at::cat({at::tensor(b) / root, at::tensor({root, root})}).view({1, 1, -1, 1});
  if (values.numel() > kDouble + 1) values = values.to(at::kFloat);
  AttentionOptions options;
  options.map = alpha == 1.0 ? RowMap::kSoftmax : RowMap::kEntmax;
  options.alpha = alpha;
  options.causal = true;
  options.terms.scale = 1.0;
  options.threads = context.kernels.threads;
  for (int layer = 0; layer < kLayers; ++layer) {
    values = values + Attention(values, values, values, options);
    context.Done(-1.0);
  }
  const at::Tensor last = values.flatten().slice(0, -2).to(at::kDouble);
  return (last[0] - last[1]).abs().item<double>();
}

// One layer without a residual: n - 1 scores b, then phi.
double WorkedExample(const AnalysisContext& context, std::int64_t n) {
  const double phi = 0.5;
  std::vector<double> scores(n, 0.0);
  scores.back() = phi;
  const double own = MapRow(context, EntmaxParams(2.0), scores).weights.back();
  scores.push_back(phi);
  const Row row = MapRow(context, EntmaxParams(2.0), scores);
  const double both = row.weights.back() + row.weights[row.weights.size() - 2];
  return (both - own) * std::sqrt(phi);
}

}  // namespace

AnalysisResult Collapse(const AnalysisContext& context) {
  AnalysisResult result;
  DataTable& constant = result.AddTable("constant", {"map", "n", "difference"});
  DataTable& random =
      result.AddTable("random", {"map", "n", "difference", "mean", "deviation", "draws"});
  const std::int64_t longest = context.quick ? 2048 : 131072;
  for (const double alpha : kAlphas) {
    for (std::int64_t n = 128; n <= longest; n *= 2) {
      constant.Add({AlphaLabel(alpha), n, ConstantPrefix(context, alpha, n)});
    }
  }
  // Work of all runs, for the progress: n^2 a run, softmax has to read every value.
  const std::int64_t most = context.quick ? 512 : 65536;
  const auto draws = [&](std::int64_t n) {
    return std::clamp<std::int64_t>((context.quick ? 1024 : 65536) / n, 1, 10);
  };
  double total = 0.0, done = 0.0;
  const auto work = [&](double alpha, std::int64_t n) {
    const double speed = n <= kDouble ? 0.05 : alpha == 1.0 ? 0.4 : 1.0;
    return n * (n / speed);
  };
  for (const double alpha : kAlphas) {
    for (std::int64_t n = 128; n <= most; n *= 2) total += work(alpha, n) * draws(n);
  }
  AnalysisContext inner = context;
  inner.progress = [&](double) { context.Done(done / total); };
  for (std::int64_t n = 128; n <= most; n *= 2) {
    for (const double alpha : kAlphas) {
      std::vector<double> values;
      for (std::int64_t draw = 0; draw < draws(n); ++draw) {
        const std::vector<double> b = Uniforms(context, 30, draw, n - 1, 0.0, 1.0);
        values.push_back(RandomPrefix(inner, alpha, b));
        done += work(alpha, n);
      }
      random.Add({AlphaLabel(alpha), n, Median(values), Mean(values), StandardDeviation(values),
                  draws(n)});
    }
  }
  result.finding = fmt::format(
      "After a constant prefix of {} tokens one more last token changes the representation by "
      "{:.2g} "
      "with softmax and by {:.2g} with entmax, α = 1.5: softmax collapses, entmax does not. Random "
      "prefixes reach {} tokens here, 131 072 in the paper's text.",
      longest, constant.At({"softmax", longest}, "difference"),
      constant.At({"α = 1.5", longest}, "difference"), most);
  result.facts = {{"worked example: α = 2, one layer, φ = 0.5, n = 131 072",
                   WorkedExample(context, 131072), 0.5 * std::sqrt(0.5), "asentmax, appendix C.2"}};
  for (const double alpha : kAlphas) {
    result.facts.push_back({fmt::format("constant prefix, n = {}, {}", longest, AlphaLabel(alpha)),
                            constant.At({AlphaLabel(alpha), longest}, "difference")});
  }
  result.setup = {
      fmt::format("{} layers, d = 1, identity projections, residual, no norm and no feed-forward, "
                  "v_a = √{}",
                  kLayers, kPhi),
      "constant prefix: every token has the product 1 with v_a; its rows are equal, so that three "
      "numbers a layer are exact",
      fmt::format("random prefix: products uniform in [0, 1), the median of 10 draws up to n = 4 "
                  "096, then fewer, "
                  "one at 65 536; double precision up to {} tokens, float32 kernels beyond",
                  kDouble)};
  const auto panel = [](const std::string& title, const std::string& table) {
    return Panel{.title = title,
                 .x_label = "tokens n",
                 .y_label = "difference of the last representations",
                 .x_scale = "log2",
                 .y_scale = "log",
                 .curves = {Curve(table, "n", "difference").By("map")}};
  };
  result.figures = {
      {.name = "difference",
       .title = "What one more last token changes after 6 layers",
       .caption =
           "|v_n − v*_{n+1}|, figures 3 (left) and 6 of the paper. Without the "
           "residual all maps collapse: it is part of the claim. Some random prefixes collapse "
           "later than most, so that the right panel shows medians.",
       .columns = 2,
       .panels = {panel("constant prefix", "constant"), panel("random prefix", "random")}}};
  return result;
}

}  // namespace tsallis::lab
