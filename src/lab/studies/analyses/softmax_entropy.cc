// E12, first part: entropy of softmax over spread and temperature (Velickovic et al. 2024, figure
// 5), and what the published polynomial of adaptive temperature does to a row.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "lab/studies/analyses/maps.h"

namespace tsallis::lab {
namespace {

// lambda^0 ... lambda^9: the paper gives their number, not the exponents.
constexpr int kScores = 10;

double Entropy(const AnalysisContext& context, double lambda, double theta) {
  std::vector<double> scores;
  for (int i = 0; i < kScores; ++i) scores.push_back(std::pow(lambda, i));
  return MapRow(context, EntmaxParams(1.0, theta), scores).entropy;
}

// 1/theta of rows.h's polynomial; below its threshold 1.
double Sharpening(const AdaptiveTemperature& adaptive, double entropy) {
  if (entropy <= adaptive.threshold) return 1.0;
  return std::max(1.0, Polynomial(adaptive.coefficients, entropy));
}

// The entropy at which the sharpening begins (`off` < `on`) or ends, by bisection.
double Boundary(const AdaptiveTemperature& adaptive, double off, double on) {
  for (int i = 0; i < 60; ++i) {
    const double middle = 0.5 * (off + on);
    (Sharpening(adaptive, middle) > 1.0 ? on : off) = middle;
  }
  return on;
}

}  // namespace

AnalysisResult SoftmaxEntropy(const AnalysisContext& context) {
  AnalysisResult result;
  DataTable& surface = result.AddTable("surface", {"region", "lambda", "theta", "entropy"});
  DataTable& polynomial = result.AddTable("polynomial", {"entropy", "sharpening"});
  AnalysisFigure& figure = result.AddFigure(
      {.name = "surface",
       .title = "Entropy of softmax of λ⁰, λ¹, …, λ⁹ at temperature θ",
       .caption = "Figure 5 of the paper: four regions of λ and θ. The entropy falls with the "
                  "temperature everywhere; at λ = 1 all scores are equal and it is ln 10 = 2.30.",
       .columns = 2});
  struct Range {
    const char* sign;  // of what it is to 1
    double low, high;
  };
  const Range lambdas[] = {{"<", 0.02, 0.98}, {">", 1.02, 3.0}};
  const Range thetas[] = {{"<", 0.02, 1.0}, {">", 1.0, 10.0}};
  const int cells = context.quick ? 8 : 60;
  double rising = 0.0;
  for (const Range& of_lambda : lambdas) {
    for (const Range& of_theta : thetas) {
      const std::string region = fmt::format("λ {} 1, θ {} 1", of_lambda.sign, of_theta.sign);
      for (int i = 0; i < cells; ++i) {
        const double lambda = of_lambda.low + (of_lambda.high - of_lambda.low) * i / (cells - 1);
        double last = 0.0;
        for (int j = 0; j < cells; ++j) {
          const double theta = of_theta.low + (of_theta.high - of_theta.low) * j / (cells - 1);
          const double entropy = Entropy(context, lambda, theta);
          surface.Add({region, lambda, theta, entropy});
          if (entropy < last - 1e-12) rising += 1.0;
          last = entropy;
        }
      }
      context.Done(0.25 * (figure.panels.size() + 1));
      figure.panels.push_back({.title = region,
                               .x_label = "λ",
                               .y_label = "temperature θ",
                               .heat = Heat{.table = "surface",
                                            .x = "lambda",
                                            .y = "theta",
                                            .value = "entropy",
                                            .where = {{"region", region}},
                                            .label = "entropy (nats)"}});
    }
  }
  const AdaptiveTemperature adaptive;
  double most = 0.0;
  for (int i = 0; i <= 700; ++i) {
    const double entropy = 0.01 * i;
    polynomial.Add({entropy, Sharpening(adaptive, entropy)});
    most = std::max(most, Sharpening(adaptive, entropy));
  }
  const double begins = Boundary(adaptive, 0.5, 3.0), ends = Boundary(adaptive, 7.0, 3.0);
  result.facts = {
      {"cells where the entropy rises as the temperature falls", rising, 0.0,
       "softmax-is-not-enough, proposition 3.2"},
      {"adaptive temperature: entropy from which on it sharpens (nats)", begins, 0.849, "root"},
      {"adaptive temperature: entropy beyond which it does nothing (nats)", ends, 5.945, "root"},
      {"keys of equal weight beyond which it does nothing", std::exp(ends), 382.0, "e^5.945"},
      {"adaptive temperature: largest factor of scores", most, 2.42, "maximum of the polynomial"}};
  result.finding = fmt::format(
      "Entropy falls with the temperature for every spread of scores. The published polynomial of "
      "adaptive temperature sharpens rows between {:.2f} and {:.2f} nats, by {:.2f} at most: a row "
      "spread over more than {:.0f} keys is left as it is.",
      begins, ends, most, std::exp(ends));
  result.setup = {"ten scores λ^0 … λ^9; the paper does not give its exponents",
                  "coefficients −1.791, 4.917, −2.3, 0.481, −0.037, off below 0.5 nats"};
  result.AddFigure({.name = "polynomial",
                    .title = "What adaptive temperature multiplies scores by",
                    .caption =
                        "The published polynomial against the entropy of a row. Whoever uses it on "
                        "longer rows refits it: the study temperature-fit does so.",
                    .panels = {{.x_label = "entropy of softmax(s) (nats)",
                                .y_label = "factor 1/θ",
                                .curves = {Curve("polynomial", "entropy", "sharpening")},
                                .marks = {{begins, ""}, {ends, ""}}}}});
  return result;
}

}  // namespace tsallis::lab
