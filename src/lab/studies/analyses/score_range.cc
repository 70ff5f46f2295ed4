// E17: the range of n normal scores and what scales it (Vasylenko et al. 2025, remark 4.1 and eq.
// 11).
//
// E[max - min] ~ 2 sigma sqrt(2 ln n). A map that subtracts a threshold sees the range: scaled by
// (ln n)^gamma it grows as (ln n)^{gamma + 1/2}, so that gamma = -1/2 holds it constant.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lab/studies/analyses/maps.h"

namespace tsallis::lab {
namespace {

constexpr double kGammas[] = {-1.0, -0.5, 0.0, 1.0, 2.0};

}  // namespace

AnalysisResult ScoreRange(const AnalysisContext& context) {
  AnalysisResult result;
  DataTable& ranges = result.AddTable("ranges", {"n", "range", "formula", "ratio"});
  DataTable& scaled = result.AddTable("scaled", {"gamma", "n", "range", "support"});
  const std::int64_t longest = context.quick ? 4096 : 1 << 20;
  for (std::int64_t n = 16; n <= longest; n *= 2) {
    const double log_n = std::log(n);
    const std::int64_t draws = std::clamp<std::int64_t>((context.quick ? 1 << 16 : 1 << 21) / n, 4,
                                                        context.quick ? 200 : 2000);
    const std::int64_t mapped = std::clamp<std::int64_t>((1 << 18) / n, 2, 64);
    std::vector<double> spread;
    std::vector<std::vector<double>> support(std::size(kGammas));
    for (std::int64_t draw = 0; draw < draws; ++draw) {
      const std::vector<double> scores = Normals(context, 20, draw, n);
      const auto [low, high] = std::minmax_element(scores.begin(), scores.end());
      spread.push_back(*high - *low);
      if (draw >= mapped) continue;
      for (std::size_t g = 0; g < std::size(kGammas); ++g) {
        const RowMapParams params = EntmaxParams(1.5, 1.0 / std::pow(log_n, kGammas[g]));
        support[g].push_back(MapRow(context, params, scores).support);
        context.Done(std::log2(n / 16.0) / 17.0);
      }
    }
    const double formula = 2.0 * std::sqrt(2.0 * log_n);
    const double range = Mean(spread);
    ranges.Add({n, range, formula, range / formula});
    for (std::size_t g = 0; g < std::size(kGammas); ++g) {
      scaled.Add({kGammas[g], n, std::pow(log_n, kGammas[g]) * range, Mean(support[g])});
    }
  }
  const double ratio = ranges.At({1024}, "ratio");
  result.facts.push_back({"E[range] / (2 σ √(2 ln n)) at n = 1 024", ratio});
  const double first = scaled.At({-0.5, 64}, "range");
  result.facts.push_back({fmt::format("range scaled by (ln n)^−½, n = {} over n = 64", longest),
                          scaled.At({-0.5, longest}, "range") / first, 1.0,
                          "asentmax, remark 4.1: the limit"});
  result.finding = fmt::format(
      "The range of normal scores grows as √(ln n), and is {:.0f} % of its limit 2σ√(2 ln n) at n "
      "= "
      "1 024. Scaled by (ln n)^−½ it changes by {:.0f} % from n = 64 to {}, and entmax's support "
      "then grows with n.",
      100.0 * ratio, 100.0 * std::abs(scaled.At({-0.5, longest}, "range") / first - 1.0), longest);
  result.setup = {
      "standard normal scores, 4 to 2 000 draws a point; supports of entmax, α = 1.5, of "
      "2 to 64 of them"};
  result.figures = {
      {.name = "range",
       .title = "The range of n normal scores, scaled by (ln n)^γ",
       .caption =
           "Left: E[max − min] beside 2σ√(2 ln n) (grey). Middle: the range after scaling. "
           "Right: keys with weight under entmax (α = 1.5) of the scaled scores. γ = −½ holds "
           "the range, and a larger γ the support.",
       .columns = 3,
       .panels = {
           {.title = "range",
            .x_label = "number of scores n",
            .y_label = "E[max − min] / σ",
            .x_scale = "log2",
            .curves = {Curve("ranges", "n", "range").Named("drawn"),
                       Curve("ranges", "n", "formula").Named("2σ√(2 ln n)").Look("reference")}},
           {.title = "scaled range",
            .x_label = "number of scores n",
            .y_label = "(ln n)^γ E[max − min]",
            .x_scale = "log2",
            .y_scale = "log",
            .curves = {Curve("scaled", "n", "range").By("gamma", "γ = ")}},
           {.title = "support, α = 1.5",
            .x_label = "number of scores n",
            .y_label = "keys with weight",
            .x_scale = "log2",
            .y_scale = "log",
            .curves = {Curve("scaled", "n", "support").By("gamma", "γ = ")}}}}};
  return result;
}

}  // namespace tsallis::lab
