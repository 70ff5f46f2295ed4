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

std::string Gamma(double gamma) { return fmt::format("{:g}", gamma); }

}  // namespace

AnalysisResult ScoreRange(const AnalysisContext& context) {
  DataTable ranges("ranges", {"n", "range", "formula", "ratio"});
  DataTable scaled("scaled", {"gamma", "n", "range", "support"});
  AnalysisResult result;
  const std::int64_t longest = context.quick ? 4096 : 1 << 20;
  for (std::int64_t n = 16; n <= longest; n *= 2) {
    const double log_n = std::log(static_cast<double>(n));
    const std::int64_t draws = std::clamp<std::int64_t>((context.quick ? 1 << 16 : 1 << 21) / n, 4,
                                                        context.quick ? 200 : 2000);
    const std::int64_t mapped = std::clamp<std::int64_t>((1 << 18) / n, 2, 64);
    std::vector<double> spread;
    std::vector<std::vector<double>> support(std::size(kGammas));
    for (std::int64_t draw = 0; draw < draws; ++draw) {
      std::vector<double> scores = Normals(context, 20, draw, n);
      const auto [low, high] = std::minmax_element(scores.begin(), scores.end());
      spread.push_back(*high - *low);
      if (draw >= mapped) continue;
      for (std::size_t g = 0; g < std::size(kGammas); ++g) {
        RowMapParams params = EntmaxParams(1.5, 1.0 / std::pow(log_n, kGammas[g]));
        support[g].push_back(static_cast<double>(MapRow(context, params, scores).support));
        context.Done(std::log2(static_cast<double>(n) / 16.0) / 17.0);
      }
    }
    const double formula = 2.0 * std::sqrt(2.0 * log_n);
    const double range = Mean(spread);
    ranges.Add({n, range, formula, range / formula});
    for (std::size_t g = 0; g < std::size(kGammas); ++g) {
      scaled.Add({Gamma(kGammas[g]), n, std::pow(log_n, kGammas[g]) * range, Mean(support[g])});
    }
  }
  const std::int64_t middle = 1024;
  result.facts.push_back({"E[range] / (2 σ √(2 ln n)) at n = 1 024", ranges.At({middle}, "ratio")});
  const double first = scaled.At({Gamma(-0.5), std::int64_t{64}}, "range");
  result.facts.push_back({fmt::format("range scaled by (ln n)^−½, n = {} over n = 64", longest),
                          scaled.At({Gamma(-0.5), longest}, "range") / first, 1.0,
                          "asentmax, remark 4.1: the limit"});
  result.finding = fmt::format(
      "The range of normal scores grows as √(ln n), and is {:.0f} % of its limit 2σ√(2 ln n) at n "
      "= "
      "1 024. Scaled by (ln n)^−½ it changes by {:.0f} % from n = 64 to {}, and entmax's support "
      "then grows with n.",
      100.0 * ranges.At({middle}, "ratio"),
      100.0 * std::abs(scaled.At({Gamma(-0.5), longest}, "range") / first - 1.0), longest);
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
  result.tables = {std::move(ranges), std::move(scaled)};
  return result;
}

}  // namespace tsallis::lab
