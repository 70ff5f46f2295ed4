// E1: alpha-entmax of five scores against the inverse temperature (Vasylenko et al. 2025, figure
// 2).
//
// Entry j of descending scores z has weight 0 once 1/theta >= t_j, where the entries before it have
// used up the whole weight while theirs is measured from z_j:
//
//   sum_{i < j} [(alpha - 1)(z_i - z_j) t_j]^{1/(alpha - 1)} = 1
//   t_j = (sum_{i < j} [(alpha - 1)(z_i - z_j)]^{1/(alpha - 1)})^{-(alpha - 1)}
#include <fmt/format.h>

#include <cmath>

#include "lab/studies/analyses/maps.h"

namespace tsallis::lab {
namespace {

const std::vector<double> kScores = {2.0, 1.8, 1.6, 1.4, 1.2};
constexpr double kAlphas[] = {1.0, 1.25, 1.5, 1.75, 2.0, 4.0};
constexpr double kLow = 0.01, kHigh = 40.0;  // 1/theta that is drawn

double VanishesAt(double alpha, std::size_t entry) {
  double sum = 0.0;
  for (std::size_t i = 0; i < entry; ++i) {
    sum += std::pow((alpha - 1.0) * (kScores[i] - kScores[entry]), 1.0 / (alpha - 1.0));
  }
  return std::pow(sum, -(alpha - 1.0));
}

// Measures it on the map itself: the smallest 1/theta at which the entry has weight 0.
double MeasuredAt(const AnalysisContext& context, double alpha, std::size_t entry) {
  double low = 1e-6, high = 1e6;
  for (int i = 0; i < 80; ++i) {
    const double middle = std::sqrt(low * high);
    const Row row = MapRow(context, EntmaxParams(alpha, 1.0 / middle), kScores);
    (row.weights[entry] > 0.0 ? low : high) = middle;
  }
  return high;
}

std::string Entry(std::size_t j) { return fmt::format("z = {:.1f}", kScores[j]); }

}  // namespace

AnalysisResult EntmaxTemperature(const AnalysisContext& context) {
  AnalysisResult result;
  DataTable& weights =
      result.AddTable("weights", {"alpha", "entry", "inverse_temperature", "weight"});
  DataTable& vanishing = result.AddTable("vanishing", {"alpha", "entry", "formula", "measured"});
  AnalysisFigure& figure = result.AddFigure(
      {.name = "weights",
       .title = "Five scores as the temperature falls",
       .caption = "Weight of each score against 1/θ, one panel for each α. A vertical line is "
                  "where a score loses its last weight, by the formula. As figure 2 of the paper; "
                  "softmax has no such line.",
       .columns = 3});
  const std::vector<double> inverse = LogSpaced(kLow, kHigh, context.quick ? 40 : 240);
  for (const double alpha : kAlphas) {
    for (const double t : inverse) {
      const Row row = MapRow(context, EntmaxParams(alpha, 1.0 / t), kScores);
      for (std::size_t j = 0; j < kScores.size(); ++j) {
        weights.Add({alpha, Entry(j), t, row.weights[j]});
      }
    }
    Panel& panel = figure.panels.emplace_back(Panel{
        .title = AlphaLabel(alpha),
        .x_label = "1/θ",
        .y_label = "weight",
        .x_scale = "log",
        .curves = {
            Curve("weights", "inverse_temperature", "weight").By("entry").In({{"alpha", alpha}})}});
    for (std::size_t j = 1; alpha > 1.0 && j < kScores.size(); ++j) {
      const double formula = VanishesAt(alpha, j);
      const double measured = MeasuredAt(context, alpha, j);
      vanishing.Add({alpha, static_cast<std::int64_t>(j + 1), formula, measured});
      panel.marks.push_back({formula, Entry(j)});
      result.facts.push_back({fmt::format("1/θ at which entry {} vanishes, α = {:g}", j + 1, alpha),
                              measured, formula, "closed form"});
    }
    context.Done(alpha / 4.0);
  }
  result.finding = fmt::format(
      "The larger α, the sooner scores vanish: the last of five is gone at 1/θ = {:.1f} with α = "
      "2, "
      "at {:.1f} with 1.5 and at {:.1f} with 1.25; softmax never lets go of one.",
      VanishesAt(2.0, 4), VanishesAt(1.5, 4), VanishesAt(1.25, 4));
  result.setup = {"scores 2.0, 1.8, 1.6, 1.4 and 1.2, divided by θ",
                  "the row map of the kernel library in double precision; where an entry vanishes "
                  "is found by bisection on θ and compared with the closed form"};
  return result;
}

}  // namespace tsallis::lab
