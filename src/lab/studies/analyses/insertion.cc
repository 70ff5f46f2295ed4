// E16: one more score in a row (Vasylenko et al. 2025, lemma 3.1 and proposition 3.2 (i)).
//
// With x of n scores and threshold tau(x), a score b <= tau(x) / (alpha - 1) takes no weight and
// changes no other. Above that the weight p_n of a score falls without a jump, and as b grows it
// goes to 0: the difference to p_n takes every value in [0, p_n]. (The paper's appendix C.1 says
// "iff entmax(x*)_n = 0" and means the inserted entry; what is meant is checked here.)
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lab/studies/analyses/maps.h"

namespace tsallis::lab {
namespace {

constexpr double kAlphas[] = {1.0, 1.25, 1.5, 2.0, 4.0};

std::vector<double> With(std::vector<double> scores, double inserted) {
  scores.push_back(inserted);
  return scores;
}

// The largest change of a weight of x when b is inserted.
double Change(const Row& before, const Row& after) {
  double most = 0.0;
  for (std::size_t i = 0; i < before.weights.size(); ++i) {
    most = std::max(most, std::abs(before.weights[i] - after.weights[i]));
  }
  return most;
}

}  // namespace

AnalysisResult Insertion(const AnalysisContext& context) {
  AnalysisResult result;
  DataTable& sweep = result.AddTable("sweep", {"map", "inserted", "weight"});
  DataTable& changes =
      result.AddTable("changes", {"alpha", "rows", "largest_below", "smallest_above"});
  Panel panel{.title = "weight of the largest of 16 scores",
              .x_label = "inserted score − largest score",
              .y_label = "weight",
              .curves = {Curve("sweep", "inserted", "weight").By("map")}};
  const std::vector<double> row = Normals(context, 10, 0, 16);
  const auto best = std::max_element(row.begin(), row.end()) - row.begin();
  const double top = row[best];
  const int points = context.quick ? 60 : 300;
  for (const double alpha : kAlphas) {
    for (int i = 0; i <= points; ++i) {
      const double b = -3.0 + 6.0 * i / points;
      const Row after = MapRow(context, EntmaxParams(alpha), With(row, top + b));
      sweep.Add({AlphaLabel(alpha), b, after.weights[best]});
    }
    if (alpha > 1.0) {
      const double limit = MapRow(context, EntmaxParams(alpha), row).tau / (alpha - 1.0);
      panel.marks.push_back({limit - top, AlphaLabel(alpha)});
    }
  }
  // Drawn rows: just below the limit nothing changes, just above something does.
  const std::int64_t rows = context.quick ? 200 : 5000;
  for (const double alpha : kAlphas) {
    if (alpha == 1.0) continue;
    double below = 0.0, above = 1.0;
    for (std::int64_t draw = 0; draw < rows; ++draw) {
      const std::vector<double> x =
          Normals(context, 11, draw, 2 + draw % 127, 0.5 + 0.01 * (draw % 300));
      const Row before = MapRow(context, EntmaxParams(alpha), x);
      const double limit = before.tau / (alpha - 1.0);
      for (const double under : {1e-9, 1e-3, 1.0}) {
        const Row after = MapRow(context, EntmaxParams(alpha), With(x, limit - under));
        below = std::max({below, Change(before, after), after.weights.back()});
      }
      above = std::min(above,
                       MapRow(context, EntmaxParams(alpha), With(x, limit + 0.1)).weights.back());
      if (draw % 50 == 0) {
        context.Done((alpha - 1.0) / 3.0 * draw / rows);
      }
    }
    changes.Add({alpha, rows, below, above});
    result.facts.push_back(
        {fmt::format("largest change by a score below τ/(α − 1), α = {:g}", alpha), below, 0.0,
         "asentmax, lemma 3.1"});
  }
  result.finding =
      "A score below the threshold changes nothing at all, wherever it stands; softmax loses "
      "weight "
      "to every score that is added.";
  result.setup = {
      "figure: 16 normal scores and one more; vertical lines: τ(x)/(α − 1), below which "
      "the inserted score has no weight",
      fmt::format("numbers: {} drawn rows of 2 to 128 normal scores, σ from 0.5 to 3.5; a "
                  "score 1e-9, 1e-3 and 1 below the threshold, in double precision",
                  rows)};
  result.figures = {{.name = "sweep",
                     .title = "What one more score takes away",
                     .caption =
                         "Left of its line a map does not notice the inserted score; right of "
                         "it the weight falls to 0 without a jump, so that the difference "
                         "takes every value up to the weight itself.",
                     .panels = {std::move(panel)}}};
  return result;
}

}  // namespace tsallis::lab
