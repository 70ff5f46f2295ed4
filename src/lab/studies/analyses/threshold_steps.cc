// E22, first part: passes over a row until entmax's threshold is found (Goncalves, Treviso and
// Martins 2025, AdaSplash, and its slides: bisection, Halley's method; ours: Newton's on the norm).
//
// With z = (alpha - 1) s, b = 1/(alpha - 1) and u_j = [z_j - tau]_+:
//   f = sum u^b - 1, f' = -b sum u^{b-1}, f'' = b (b - 1) sum u^{b-2}
//   Halley: tau - 2 f f' / (2 f'^2 - f f''), bisection where that leaves the bracket
//   Newton on ||u||_b = 1 from tau <= the solution: tau + (S_b - S_b^{1 - 1/b}) / S_{b-1}; it never
//   overshoots, because the norm is convex in tau.
// The bracket is [max - 1, max - n^{1 - alpha}].
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "lab/studies/analyses/maps.h"

namespace tsallis::lab {
namespace {

constexpr double kTolerance = 1e-6;  // of |sum p - 1|
constexpr std::size_t kMost = 64;    // passes
constexpr int kBins = 64;

enum class Method : std::uint8_t { kBisection, kHalley, kNewton, kHistogram };
constexpr Method kMethods[] = {Method::kBisection, Method::kHalley, Method::kNewton,
                               Method::kHistogram};
const char* Name(Method method) {
  switch (method) {
    case Method::kBisection: return "bisection";
    case Method::kHalley: return "Halley and bisection";
    case Method::kNewton: return "Newton on the norm (ours)";
    case Method::kHistogram: return "histogram, then Newton";
  }
  return "";
}

struct Sums {
  double s0 = 0.0, s1 = 0.0, s2 = 0.0;  // of u^b, u^{b-1}, u^{b-2}
};

// z: relative to the maximum.
Sums Pass(const std::vector<double>& z, double tau, double b) {
  Sums sums;
  for (const double value : z) {
    const double u = value - tau;
    if (u <= 0.0) continue;
    const double low = std::pow(u, b - 2.0);
    sums.s2 += low;
    sums.s1 += low * u;
    sums.s0 += low * u * u;
  }
  return sums;
}

// |sum p - 1| after each pass, and the threshold.
struct Trace {
  std::vector<double> errors;
  double tau = 0.0;
};

double NewtonStep(const Sums& sums, double b) {
  return (sums.s0 - std::pow(sums.s0, 1.0 - 1.0 / b)) / sums.s1;
}

// A lower bound of the threshold from counts alone: every entry at the lower end of its bin.
double FromHistogram(const std::vector<double>& z, double b) {
  std::array<double, kBins> counts{};
  for (const double value : z) {
    const int bin = static_cast<int>(std::floor((value + 1.0) * kBins));
    if (bin >= 0) counts[std::min(bin, kBins - 1)] += 1.0;
  }
  double low = -1.0 - 1.0 / kBins, high = 0.0;
  for (int i = 0; i < 50; ++i) {
    const double middle = 0.5 * (low + high);
    double sum = 0.0;
    for (int bin = 0; bin < kBins; ++bin) {
      const double u = static_cast<double>(bin) / kBins - 1.0 - middle;
      if (u > 0.0) sum += counts[bin] * std::pow(u, b);
    }
    (sum >= 1.0 ? low : high) = middle;
  }
  return std::max(low, -1.0);
}

Trace Find(Method method, const std::vector<double>& z, double alpha) {
  const double b = 1.0 / (alpha - 1.0);
  double low = -1.0, high = -std::pow(z.size(), 1.0 - alpha);
  Trace trace;
  trace.tau = 0.5 * (low + high);
  if (method == Method::kNewton) trace.tau = low;
  if (method == Method::kHistogram) {
    trace.tau = FromHistogram(z, b);
    trace.errors.push_back(1.0);  // the pass that counts; nothing is known of the sum yet
  }
  while (trace.errors.size() < kMost) {
    const Sums sums = Pass(z, trace.tau, b);
    const double f = sums.s0 - 1.0;
    trace.errors.push_back(std::abs(f));
    if (std::abs(f) < kTolerance) break;
    (f > 0.0 ? low : high) = trace.tau;
    double next = 0.5 * (low + high);
    if (method == Method::kHalley) {
      const double first = -b * sums.s1, second = b * (b - 1.0) * sums.s2;
      const double halley = trace.tau - 2.0 * f * first / (2.0 * first * first - f * second);
      if (halley > low && halley < high) next = halley;
    } else if (method != Method::kBisection) {
      next = trace.tau + NewtonStep(sums, b);
    }
    trace.tau = next;
  }
  return trace;
}

std::vector<double> Relative(std::vector<double> scores, double alpha) {
  const double top = *std::max_element(scores.begin(), scores.end());
  for (double& score : scores) score = (alpha - 1.0) * (score - top);
  return scores;
}

}  // namespace

AnalysisResult ThresholdSteps(const AnalysisContext& context) {
  AnalysisResult result;
  DataTable& passes = result.AddTable("passes", {"alpha", "method", "n", "mean", "most"});
  DataTable& traces = result.AddTable("traces", {"alpha", "method", "pass", "error"});
  const std::int64_t longest = context.quick ? 1024 : 1 << 18;
  double worst = 0.0, done = 0.0;
  for (const double alpha : {1.1, 1.25, 1.5, 1.75, 2.0}) {
    for (std::int64_t n = 64; n <= longest; n *= 4) {
      const std::int64_t draws = std::clamp<std::int64_t>((1 << 18) / n, 4, 64);
      struct Found {
        std::array<double, std::size(kMethods)> passes;
        double wrong = 0.0;
      };
      const std::vector<Found> drawn = ForDraws(context, draws, [&](std::int64_t draw) {
        const std::vector<double> scores = Normals(context, 70, draw, n);
        const std::vector<double> z = Relative(scores, alpha);
        const double top = *std::max_element(scores.begin(), scores.end());
        const Row row = MapRow(context, EntmaxParams(alpha), scores);
        Found found;
        for (std::size_t m = 0; m < std::size(kMethods); ++m) {
          const Trace trace = Find(kMethods[m], z, alpha);
          found.passes[m] = trace.errors.size();
          found.wrong = std::max(found.wrong, std::abs(trace.tau + (alpha - 1.0) * top - row.tau));
        }
        return found;
      });
      for (const Found& found : drawn) worst = std::max(worst, found.wrong);
      for (std::size_t m = 0; m < std::size(kMethods); ++m) {
        std::vector<double> counts;
        for (const Found& found : drawn) counts.push_back(found.passes[m]);
        passes.Add({alpha, Name(kMethods[m]), n, Mean(counts),
                    *std::max_element(counts.begin(), counts.end())});
      }
      context.Done((done += 1.0) / 35.0);
    }
    const std::vector<double> z = Relative(Normals(context, 71, 0, 4096), alpha);
    for (const Method method : kMethods) {
      const std::vector<double> errors = Find(method, z, alpha).errors;
      for (int pass = 0; pass < std::ssize(errors); ++pass) {
        traces.Add({alpha, Name(method), pass + 1, std::max(errors[pass], 1e-12)});
      }
    }
  }
  const std::int64_t n = context.quick ? 1024 : 4096;
  const auto mean = [&](Method method) { return passes.At({1.5, Name(method), n}, "mean"); };
  result.finding = fmt::format(
      "Over {} normal scores bisection takes {:.0f} passes to a sum of 1 ± 1e-6 (α = 1.5), "
      "Halley's "
      "method {:.1f}, Newton's on the norm {:.1f}, and {:.1f} with a histogram first.",
      n, mean(Method::kBisection), mean(Method::kHalley), mean(Method::kNewton),
      mean(Method::kHistogram));
  result.facts = {{"bisection's passes over Halley's, α = 1.5",
                   mean(Method::kBisection) / mean(Method::kHalley), 7.0,
                   "slides-sparse-flash-attention: to which error, they do not say"},
                  {"bisection's passes, α = 1.5", mean(Method::kBisection), 20.0,
                   "slides-sparse-flash-attention: about"},
                  {"largest difference to the kernel library's threshold", worst}};
  result.setup = {
      "standard normal scores, 4 to 64 rows a point, double precision",
      "a pass reads the row once; bisection and Halley's method begin in the middle of "
      "[max − 1, max − n^(1−α)], Newton's at its lower end; the histogram's pass counts"};
  AnalysisFigure& first =
      result.AddFigure({.name = "passes",
                        .title = "Passes over a row until its threshold is found",
                        .caption = "Mean passes until |Σp − 1| < 1e-6 against the number of keys.",
                        .columns = 3});
  AnalysisFigure& second =
      result.AddFigure({.name = "errors",
                        .title = "What is missing from a sum of 1 after each pass",
                        .caption = "One row of 4 096 normal scores.",
                        .columns = 3});
  for (const double alpha : {1.25, 1.5, 2.0}) {
    first.panels.push_back(
        {.title = AlphaLabel(alpha),
         .x_label = "number of keys n",
         .y_label = "passes",
         .x_scale = "log2",
         .curves = {Curve("passes", "n", "mean").By("method").In({{"alpha", alpha}})}});
    second.panels.push_back(
        {.title = AlphaLabel(alpha),
         .x_label = "pass",
         .y_label = "|Σp − 1|",
         .y_scale = "log",
         .curves = {Curve("traces", "pass", "error").By("method").In({{"alpha", alpha}})}});
  }
  return result;
}

}  // namespace tsallis::lab
