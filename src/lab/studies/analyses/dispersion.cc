// E2: how entropy grows with the number of keys (Vasylenko et al. 2025, section 3.2 and appendix D;
// Velickovic et al. 2024, lemma 2.1).
//
// Two-level lemma (appendix D): k scores at M, the others at m. alpha-entmax leaves only the k any
// weight, 1/k each, once M - m >= k^{-(alpha - 1)} / (alpha - 1), whatever n is. Softmax gives the
// k a share c only from (M - m)/theta >= ln((n - k)/k c/(1 - c)) on (eq. 62).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lab/studies/analyses/maps.h"

namespace tsallis::lab {
namespace {

struct Method {
  std::string label;
  double alpha;
  double theta;
  double (*factor)(double log_n);  // of scores, for ln n
};

double One(double) { return 1.0; }

// ASEntmax: 1 + 0.5 (ln n)^gamma, alpha = 1.5; LogN as Anson et al. 2025 have it, 0.4 ln n.
const std::vector<Method>& Methods() {
  static const std::vector<Method> methods = {
      {"softmax", 1.0, 1.0, One},
      {"softmax, θ = 0.1", 1.0, 0.1, One},
      {"LogN", 1.0, 1.0, [](double log_n) { return 0.4 * log_n; }},
      {"α = 1.25", 1.25, 1.0, One},
      {"α = 1.5", 1.5, 1.0, One},
      {"α = 2", 2.0, 1.0, One},
      {"ASEntmax, γ = −0.5", 1.5, 1.0, [](double l) { return 1.0 + 0.5 / std::sqrt(l); }},
      {"ASEntmax, γ = 1", 1.5, 1.0, [](double l) { return 1.0 + 0.5 * l; }},
      {"ASEntmax, γ = 2", 1.5, 1.0, [](double l) { return 1.0 + 0.5 * l * l; }}};
  return methods;
}

std::vector<double> Levels(std::int64_t k, std::int64_t n, double gap) {
  std::vector<double> scores(n, 0.0);
  std::fill_n(scores.begin(), std::min(k, n), gap);
  return scores;
}

struct Family {
  std::string name;
  std::string title;  // of a panel, with the parameter
  bool random;
  std::vector<double> parameters;
  std::vector<double> (*draw)(const AnalysisContext&, double parameter, std::int64_t draw,
                              std::int64_t n);
};

const std::vector<Family>& Families() {
  static const std::vector<Family> families = {
      {"bounded",
       "scores within ±{:g}",
       true,
       {1.0, 3.0, 10.0},
       [](const AnalysisContext& context, double bound, std::int64_t draw, std::int64_t n) {
         return Uniforms(context, 1, draw, n, -bound, bound);
       }},
      {"two levels",
       "{:g} of n scores 2 above the rest",
       false,
       {1.0, 4.0, 16.0},
       [](const AnalysisContext&, double k, std::int64_t, std::int64_t n) {
         return Levels(static_cast<std::int64_t>(k), n, 2.0);
       }},
      {"normal",
       "normal scores, σ = {:g}",
       true,
       {1.0, 2.0, 4.0},
       [](const AnalysisContext& context, double deviation, std::int64_t draw, std::int64_t n) {
         return Normals(context, 2, draw, n, deviation);
       }}};
  return families;
}

double Normalised(const AnalysisContext& context, const Method& method,
                  std::vector<double> scores) {
  const double log_n = std::log(scores.size());
  for (double& score : scores) score *= method.factor(log_n);
  return MapRow(context, EntmaxParams(method.alpha, method.theta), scores).entropy / log_n;
}

// The smallest gap at which k of n two-level scores have the share c.
double MeasuredGap(const AnalysisContext& context, double alpha, std::int64_t k, std::int64_t n,
                   double share) {
  double low = 0.0, high = 64.0;
  for (int i = 0; i < 44; ++i) {
    const double middle = 0.5 * (low + high);
    const Row row = MapRow(context, EntmaxParams(alpha), Levels(k, n, middle));
    const bool enough = alpha == 1.0 ? k * row.weights[0] >= share : row.support == k;
    (enough ? high : low) = middle;
  }
  return high;
}

double SoftmaxGap(double k, double n, double share) {
  return std::log((n - k) / k * share / (1.0 - share));
}
double EntmaxGap(double alpha, double k) { return std::pow(k, -(alpha - 1.0)) / (alpha - 1.0); }

constexpr double kShare = 0.9;

void AddEntropies(const AnalysisContext& context, const std::vector<std::int64_t>& lengths,
                  AnalysisResult& result) {
  DataTable& table =
      result.AddTable("entropy", {"scores", "parameter", "method", "n", "normalised_entropy"});
  AnalysisFigure& figure = result.AddFigure(
      {.name = "entropy",
       .title = "Entropy over its largest value against the number of keys",
       .caption = "1 is uniform attention. Rows: scores within bounds, some scores above the "
                  "rest, normal scores. LogN multiplies scores by 0.4 ln n, ASEntmax (α = 1.5) by "
                  "1 + 0.5 (ln n)^γ.",
       .columns = 3});
  const double total = 3.0 * Families().size();
  double done = 0.0;
  for (const Family& family : Families()) {
    for (const double parameter : family.parameters) {
      for (const std::int64_t n : lengths) {
        const std::int64_t draws =
            family.random ? std::clamp<std::int64_t>((context.quick ? 1 << 12 : 1 << 18) / n, 4, 64)
                          : 1;
        const auto methods = static_cast<std::int64_t>(Methods().size());
        std::vector<std::vector<double>> rows;
        for (std::int64_t d = 0; d < draws; ++d) {
          rows.push_back(family.draw(context, parameter, d, n));
        }
        const std::vector<double> values = ForDraws(context, methods * draws, [&](std::int64_t i) {
          return Normalised(context, Methods()[i / draws], rows[i % draws]);
        });
        for (std::int64_t m = 0; m < methods; ++m) {
          const auto first = values.begin() + m * draws;
          table.Add({family.name, parameter, Methods()[m].label, n, Mean({first, first + draws})});
        }
        context.Done(0.8 * (done + 1.0 * n / lengths.back()) / total);
      }
      done += 1.0;
      figure.panels.push_back(
          {.title = fmt::format(fmt::runtime(family.title), parameter),
           .x_label = "number of keys n",
           .y_label = "H / ln n",
           .x_scale = "log2",
           .curves = {Curve("entropy", "n", "normalised_entropy")
                          .By("method")
                          .In({{"scores", family.name}, {"parameter", parameter}})}});
    }
  }
}

void AddGaps(const AnalysisContext& context, const std::vector<std::int64_t>& lengths,
             AnalysisResult& result) {
  DataTable& table = result.AddTable("gap", {"map", "k", "n", "gap", "formula"});
  AnalysisFigure& figure = result.AddFigure(
      {.name = "gap",
       .title = "How far the scores that matter must stand out",
       .caption = "The least difference between k high scores and n − k low ones at which the k "
                  "have 90 % of softmax's weight, or all of entmax's. Grey: the formulas of the "
                  "paper's appendix D.",
       .columns = 3});
  for (const std::int64_t k : {1, 4, 16}) {
    Panel& panel = figure.panels.emplace_back(
        Panel{.title = fmt::format("k = {}", k),
              .x_label = "number of keys n",
              .y_label = "difference of scores",
              .x_scale = "log2",
              .curves = {Curve("gap", "n", "gap").By("map").In({{"k", k}})}});
    for (const double alpha : {1.0, 1.25, 1.5, 2.0}) {
      for (const std::int64_t n : lengths) {
        if (n <= 2 * k || n > 65536) continue;
        const double formula = alpha == 1.0 ? SoftmaxGap(k, n, kShare) : EntmaxGap(alpha, k);
        table.Add({AlphaLabel(alpha), k, n, MeasuredGap(context, alpha, k, n, kShare), formula});
        context.Done(0.8);
      }
      panel.curves.push_back(Curve("gap", "n", "formula")
                                 .In({{"k", k}, {"map", AlphaLabel(alpha)}})
                                 .Look("reference"));
    }
  }
  const std::int64_t n = context.quick ? 1024 : 16384;
  result.facts.push_back({"difference that 4 of n scores need, α = 1.5",
                          table.At({"α = 1.5", 4, n}, "gap"), EntmaxGap(1.5, 4.0),
                          "asentmax, appendix D"});
  result.facts.push_back({"difference that 4 of n scores need, α = 2",
                          table.At({"α = 2", 4, n}, "gap"), EntmaxGap(2.0, 4.0),
                          "asentmax, appendix D"});
  result.facts.push_back({fmt::format("difference that 4 of {} scores need for 90 %, softmax", n),
                          table.At({"softmax", 4, n}, "gap"), SoftmaxGap(4.0, n, kShare),
                          "asentmax, eq. 62"});
}

// k = n^beta scores stand out.
void AddGrowing(const AnalysisContext& context, const std::vector<std::int64_t>& lengths,
                AnalysisResult& result) {
  DataTable& table = result.AddTable("growing", {"map", "exponent", "n", "normalised_entropy"});
  DataTable& limits = result.AddTable("limits", {"exponent", "n", "limit"});
  AnalysisFigure& figure =
      result.AddFigure({.name = "growing",
                        .title = "When more scores stand out the longer the row is",
                        .caption = "n^β of n scores are 4 higher than the rest. Grey: H/ln n = β, "
                                   "which entmax reaches; softmax goes to 1, uniform attention.",
                        .columns = 2});
  for (const double exponent : {0.0, 0.25, 0.5, 0.75}) {
    for (const std::int64_t n : lengths) {
      const double log_n = std::log(n);
      const std::vector<double> scores = Levels(std::llround(std::pow(n, exponent)), n, 4.0);
      for (const double alpha : {1.0, 1.5}) {
        table.Add({AlphaLabel(alpha), exponent, n,
                   MapRow(context, EntmaxParams(alpha), scores).entropy / log_n});
      }
      limits.Add({exponent, n, exponent});
      context.Done(0.9);
    }
  }
  for (const double alpha : {1.0, 1.5}) {
    Panel& panel =
        figure.panels.emplace_back(Panel{.title = AlphaLabel(alpha),
                                         .x_label = "number of keys n",
                                         .y_label = "H / ln n",
                                         .x_scale = "log2",
                                         .curves = {Curve("growing", "n", "normalised_entropy")
                                                        .By("exponent", "β = ")
                                                        .In({{"map", AlphaLabel(alpha)}})}});
    for (const double exponent : {0.0, 0.25, 0.5, 0.75}) {
      panel.curves.push_back(
          Curve("limits", "n", "limit").In({{"exponent", exponent}}).Look("reference"));
    }
  }
  const std::int64_t n = lengths.back();
  for (const double exponent : {0.25, 0.5, 0.75}) {
    result.facts.push_back(
        {fmt::format("H / ln n where n^{:g} of {} scores stand out, α = 1.5", exponent, n),
         table.At({"α = 1.5", exponent, n}, "normalised_entropy"), exponent,
         "asentmax, proposition 3.2"});
  }
}

}  // namespace

AnalysisResult Dispersion(const AnalysisContext& context) {
  std::vector<std::int64_t> lengths;
  for (std::int64_t n = 16; n <= (context.quick ? 1024 : 1 << 20); n *= 2) lengths.push_back(n);
  AnalysisResult result;
  AddEntropies(context, lengths, result);
  AddGaps(context, lengths, result);
  AddGrowing(context, lengths, result);
  const std::int64_t n = lengths.back();
  const DataTable& entropy = result.Table("entropy");
  const auto at = [&](const std::string& method) {
    return entropy.At({"normal", 2.0, method, n}, "normalised_entropy");
  };
  result.finding = fmt::format(
      "With {} normal scores (σ = 2) softmax has {:.0f} % of the entropy of uniform attention, "
      "entmax with α = 1.5 {:.2g} % and ASEntmax with γ = 2 {:.2g} %.",
      n, 100.0 * at("softmax"), 100.0 * at("α = 1.5"), 100.0 * at("ASEntmax, γ = 2"));
  result.setup = {fmt::format("rows of {} to {} scores in double precision; 4 to 64 draws a point",
                              lengths.front(), n),
                  "the same draws for every method"};
  return result;
}

}  // namespace tsallis::lab
