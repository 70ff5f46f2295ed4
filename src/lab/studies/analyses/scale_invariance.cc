// E9: entropy and local weight of normal scores, plain, under LogN and scale-invariant (Anson et
// al. 2025, figures 1 top, 2 and 6).
//
// Scores N(0, 1) at distances t = 1 ... N. LogN: times 0.4 ln N. Scale-invariant: a_t s + m_t,
// a_t^2 = 2 ln(t/l + 1) + 1, m_t = 1 - a_t^2, l = 10. H_t^{t D}: the entropy within [t, t D), by
// itself a distribution (eq. 6). E[sum of unnormalised weights in [t, t D)] = e^{1/2} sum 1/(t/l +
// 1) -> e^{1/2} l ln D (lemma 3.2 with alpha = e^{1/2}).
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "lab/studies/analyses/maps.h"

namespace tsallis::lab {
namespace {

enum class Law : std::uint8_t { kNone, kLogN, kScaleInvariant };
constexpr Law kLaws[] = {Law::kNone, Law::kLogN, Law::kScaleInvariant};
constexpr const char* kNames[] = {"none", "LogN", "scale-invariant"};
constexpr double kLength = 10.0;  // l
constexpr double kLogN = 0.4;
constexpr std::int64_t kLocal = 100;  // keys before the query, whose weight is looked at

const char* Name(Law law) { return kNames[static_cast<int>(law)]; }

// a_d of P7 (docs/definitions.md); m_d = 1 - a_d^2.
double ScaleInvariant(std::int64_t distance) {
  return std::sqrt(2.0 * std::log(distance / kLength + 1.0) + 1.0);
}

// The terms of a score at distance t of a row of n.
struct Terms {
  std::vector<double> a, m;  // [n], from distance 1

  Terms(Law law, std::int64_t n) {
    for (std::int64_t t = 1; t <= n; ++t) {
      const double factor = law == Law::kLogN             ? kLogN * std::log(n)
                            : law == Law::kScaleInvariant ? ScaleInvariant(t)
                                                          : 1.0;
      a.push_back(factor);
      m.push_back(law == Law::kScaleInvariant ? 1.0 - factor * factor : 0.0);
    }
  }
  std::vector<double> Apply(const std::vector<double>& scores) const {
    std::vector<double> terms(scores.size());
    for (std::size_t i = 0; i < scores.size(); ++i) terms[i] = a[i] * scores[i] + m[i];
    return terms;
  }
};

// The entropy of scores at distances [begin, end), 1-based, as a distribution by itself.
double RangeEntropy(const std::vector<double>& scores, std::int64_t begin, std::int64_t end) {
  StreamedEntropy entropy;
  for (std::int64_t t = begin; t < end; ++t) entropy.Add(scores[t - 1]);
  return entropy.Entropy();
}

// The weight of keys [begin, end).
double Sum(const Row& row, std::int64_t begin, std::int64_t end) {
  return std::accumulate(row.weights.begin() + begin, row.weights.begin() + end, 0.0);
}

// Least squares of y on one x and a constant.
struct Fit {
  double slope = 0.0, intercept = 0.0, r2 = 0.0;
};
Fit Line(const std::vector<double>& x, const std::vector<double>& y) {
  const double mx = Mean(x), my = Mean(y);
  double xx = 0.0, xy = 0.0, yy = 0.0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    xx += (x[i] - mx) * (x[i] - mx);
    xy += (x[i] - mx) * (y[i] - my);
    yy += (y[i] - my) * (y[i] - my);
  }
  return {xy / xx, my - xy / xx * mx, xy * xy / (xx * yy)};
}

// Figure 1 top.
void AddRows(const AnalysisContext& context, AnalysisResult& result) {
  DataTable& rows = result.AddTable(
      "rows", {"law", "n", "entropy", "entropy_error", "last_100", "last_100_error"});
  DataTable& ranges = result.AddTable("ranges", {"law", "range", "begin", "entropy", "share"});
  const std::int64_t longest = context.quick ? 1000 : 100000;
  const std::vector<double> lengths = LogSpaced(10.0, longest, context.quick ? 5 : 17);
  for (const Law law : kLaws) {
    for (const double length : lengths) {
      const std::int64_t n = std::llround(length);
      const std::int64_t draws =
          std::clamp<std::int64_t>((context.quick ? 40000 : 4000000) / n, 40, 200);
      const Terms terms(law, n);
      const std::vector<Row> drawn = ForDraws(context, draws, [&](std::int64_t draw) {
        return MapRow(context, EntmaxParams(1.0), terms.Apply(Normals(context, 40, draw, n)));
      });
      std::vector<double> entropy, local;
      for (const Row& row : drawn) {
        entropy.push_back(row.entropy);
        local.push_back(Sum(row, 0, std::min(n, kLocal)));
      }
      rows.Add({Name(law), n, Mean(entropy), StandardDeviation(entropy) / std::sqrt(draws),
                Mean(local), StandardDeviation(local) / std::sqrt(draws)});
      context.Done(0.5 * (static_cast<int>(law) + length / longest) / 3.0);
    }
    const Terms terms(law, longest);
    for (std::int64_t begin = 10; begin * 10 <= longest; begin *= 10) {
      std::vector<double> entropies, shares;
      for (std::int64_t d = 0; d < (context.quick ? 20 : 100); ++d) {
        const std::vector<double> scores = terms.Apply(Normals(context, 41, d, longest));
        entropies.push_back(RangeEntropy(scores, begin, begin * 10));
        shares.push_back(
            Sum(MapRow(context, EntmaxParams(1.0), scores), begin - 1, begin * 10 - 1));
      }
      ranges.Add({Name(law), fmt::format("{}–{}", begin, begin * 10), begin, Mean(entropies),
                  Mean(shares)});
      context.Done(0.5 * (static_cast<int>(law) + 1) / 3.0);
    }
  }
  const auto curve = [](const char* table, const char* x, const char* y) {
    return Curve(table, x, y).By("law");
  };
  result.figures.push_back(
      {.name = "rows",
       .title = "Normal scores under three laws",
       .caption =
           "Figure 1 (top) of the paper, and the weight of each range: entropy of the whole "
           "row; entropy within the ranges of distances 10–100, 100–1 000, …, each by itself; "
           "weight of the last 100 keys; weight of each range in the longest row.",
       .columns = 2,
       .panels = {{.title = "entropy of the row",
                   .x_label = "number of keys N",
                   .y_label = "entropy (nats)",
                   .x_scale = "log",
                   .curves = {curve("rows", "n", "entropy")}},
                  {.title = "entropy within a range",
                   .x_label = "from this distance to 10 times it",
                   .y_label = "entropy (nats)",
                   .x_scale = "log",
                   .curves = {curve("ranges", "begin", "entropy")}},
                  {.title = "weight of the last 100 keys",
                   .x_label = "number of keys N",
                   .y_label = "weight",
                   .x_scale = "log",
                   .y_scale = "log",
                   .curves = {curve("rows", "n", "last_100")}},
                  {.title = fmt::format("weight of a range, N = {}", longest),
                   .x_label = "from this distance to 10 times it",
                   .y_label = "weight",
                   .x_scale = "log",
                   .curves = {curve("ranges", "begin", "share")}}}});
  if (!context.quick) {
    const std::pair<std::int64_t, std::array<double, 3>> expected[] = {
        {1000, {6.41, 3.74, 3.75}}, {100000, {11.01, 3.74, 4.69}}};
    for (const auto& [n, entropies] : expected) {
      for (const Law law : kLaws) {
        result.facts.push_back({fmt::format("entropy of {} keys, {}", n, Name(law)),
                                rows.At({Name(law), n}, "entropy"),
                                entropies[static_cast<int>(law)], "NumPy, 400 to 2 000 draws"});
      }
    }
  }
}

// Figures 2 and 6.
void AddRangeEntropies(const AnalysisContext& context, AnalysisResult& result) {
  DataTable& table = result.AddTable("range_entropy", {"law", "ratio", "t", "log_t", "root_log_t",
                                                       "entropy", "fit_log", "fit_root"});
  DataTable& fits = result.AddTable("fits", {"law", "ratio", "against", "slope", "r2"});
  const std::int64_t last = context.quick ? 300 : 10000;
  const std::vector<double> starts = LogSpaced(10.0, last, context.quick ? 4 : 13);
  for (const Law law : {Law::kScaleInvariant, Law::kNone}) {
    const Terms terms(law, last * 10);
    for (const std::int64_t ratio : {2, 5, 10}) {
      std::vector<double> log_t, root, values;
      for (const double start : starts) {
        const std::int64_t t = std::llround(start);
        const std::int64_t draws =
            std::clamp<std::int64_t>(4000000 / (t * ratio), 40, 400) / (context.quick ? 10 : 1);
        log_t.push_back(std::log(t));
        root.push_back(std::sqrt(log_t.back()));
        values.push_back(Mean(ForDraws(context, draws, [&](std::int64_t draw) {
          return RangeEntropy(terms.Apply(Normals(context, 42, draw, t * ratio)), t, t * ratio);
        })));
        context.Done(0.5 + 0.25 * (law == Law::kNone) + 0.016 * ratio);
      }
      const Fit by_log = Line(log_t, values), by_root = Line(root, values);
      for (std::size_t i = 0; i < values.size(); ++i) {
        table.Add({Name(law), ratio, std::llround(std::exp(log_t[i])), log_t[i], root[i], values[i],
                   by_log.intercept + by_log.slope * log_t[i],
                   by_root.intercept + by_root.slope * root[i]});
      }
      fits.Add({Name(law), ratio, "ln t", by_log.slope, by_log.r2});
      fits.Add({Name(law), ratio, "√ln t", by_root.slope, by_root.r2});
    }
  }
  AnalysisFigure& figure = result.AddFigure(
      {.name = "range-entropy",
       .title = "Entropy within [t, tΔ)",
       .caption = "Figures 2 and 6 of the paper, each against ln t and against √ln t; grey: the "
                  "best lines. Scale-invariant scores follow √ln t, plain ones ln t.",
       .columns = 2});
  for (const Law law : {Law::kScaleInvariant, Law::kNone}) {
    for (const bool root : {false, true}) {
      Panel& panel = figure.panels.emplace_back(
          Panel{.title = law == Law::kNone ? "plain scores" : "scale-invariant scores",
                .x_label = root ? "√ln t" : "ln t",
                .y_label = "E[H] (nats)",
                .curves = {Curve("range_entropy", root ? "root_log_t" : "log_t", "entropy")
                               .By("ratio", "Δ = ")
                               .In({{"law", Name(law)}})
                               .Look("points")}});
      for (const std::int64_t ratio : {2, 5, 10}) {
        panel.curves.push_back(
            Curve("range_entropy", root ? "root_log_t" : "log_t", root ? "fit_root" : "fit_log")
                .In({{"law", Name(law)}, {"ratio", ratio}})
                .Look("reference"));
      }
    }
  }
  for (const std::int64_t ratio : {2, 5, 10}) {
    const std::int64_t t = 1000000;
    double sum = 0.0;
    for (std::int64_t s = t; s < t * ratio; ++s) {
      const double a = ScaleInvariant(s);
      sum += std::exp(1.0 - a * a / 2.0);
    }
    result.facts.push_back({fmt::format("expected weight in [t, {}t), t = 10⁶", ratio), sum,
                            std::exp(0.5) * kLength * std::log(ratio),
                            "scale-invariant-attention, lemma 3.2"});
  }
}

}  // namespace

AnalysisResult ScaleInvariance(const AnalysisContext& context) {
  AnalysisResult result;
  AddRows(context, result);
  AddRangeEntropies(context, result);
  const DataTable& rows = result.Table("rows");
  const std::int64_t n = context.quick ? 1000 : 100000;
  result.finding = fmt::format(
      "Of {} keys the last 100 have {:.1f} % of the weight when scores are plain, {:.1f} % under "
      "LogN and {:.0f} ± {:.0f} % under scale-invariant attention (± the standard error over "
      "draws), "
      "whose entropy still grows only from {:.1f} to {:.1f} nats.",
      n, 100.0 * rows.At({"none", n}, "last_100"), 100.0 * rows.At({"LogN", n}, "last_100"),
      100.0 * rows.At({"scale-invariant", n}, "last_100"),
      100.0 * rows.At({"scale-invariant", n}, "last_100_error"),
      rows.At({"scale-invariant", 10}, "entropy"), rows.At({"scale-invariant", n}, "entropy"));
  result.setup = {
      "independent standard normal scores at distances 1 to N, softmax",
      "LogN: times 0.4 ln N; scale-invariant: length scale 10",
      "40 to 400 draws a point; expected weights are the exact sums, because their means "
      "over draws have heavy tails"};
  return result;
}

}  // namespace tsallis::lab
