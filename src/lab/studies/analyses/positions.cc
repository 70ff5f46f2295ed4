// E5: where positions and alpha-entmax meet (Vasylenko et al. 2025, appendix E).
//
// Centroids (appendix E.4, figure 8): sum_j j p_ij of drawn scores, eq. 131. ALiBi (E.2): weight
// beyond d_max = floor((z_max - z_min + 1/(alpha - 1)) / m_h + 1) is 0, eq. 106. RoPE (E.3): one
// frequency g of aligned q and k has weight where |d - 2 pi r / g| <= arccos(tau' / (|q||k|)) / g
// for a whole r, with tau' = tau/(alpha - 1) (eq. 126 mixes an angle with a distance: its numerator
// is taken as 2 pi r +- g d_0 here), and for small angles d_max = floor(sqrt((z_max - tau') / (c
// g^2))), c = |q||k|/2 (eq. 122).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "lab/studies/analyses/maps.h"

namespace tsallis::lab {
namespace {

constexpr std::int64_t kTokens = 128;
constexpr int kHeads = 8;
constexpr double kAlpha = 1.5;
constexpr double kLow = -5.0, kHigh = 5.0, kNoise = 0.5;
constexpr std::int64_t kDim = 64;  // of q and k under RoPE
constexpr double kRopeBase = 10000.0;

// "2^(−h/H)" and "1/h", h from 1.
double GentleSlope(int h) { return std::exp2(-1.0 * h / kHeads); }
double HarmonicSlope(int h) { return 1.0 / h; }

double Proximity(std::int64_t i, std::int64_t j) {  // i, j from 1
  return 0.2 * (kHigh - kLow) * (1.0 - 0.5 * (i - j) / i);
}

// Scores of query i, 1-based, with the keys 1 ... i of one head.
std::vector<double> DrawnScores(const AnalysisContext& context, std::int64_t head, std::int64_t i) {
  const std::int64_t draw = head * 1000 + i;
  std::vector<double> scores = Uniforms(context, 50, draw, i, kLow, kHigh);
  const std::vector<double> noise = Normals(context, 51, draw, i, kNoise);
  for (std::int64_t j = 1; j <= i; ++j) {
    scores[j - 1] += Proximity(i, j) + noise[j - 1];
  }
  return scores;
}

// Draws them with a rotated product of vectors in the place of the uniform part, of the same
// standard deviation: the paper does not say how it rotates a number.
std::vector<double> RopeScores(const AnalysisContext& context, std::int64_t head, std::int64_t i) {
  const double deviation = (kHigh - kLow) / std::sqrt(12.0);
  std::vector<double> scores = Normals(context, 51, head * 1000 + i, i, kNoise);
  const std::vector<double> q = Normals(context, 52, head * 1000 + i, kDim, deviation);
  for (std::int64_t j = 1; j <= i; ++j) {
    const std::vector<double> k = Normals(context, 53, head * 1000 + j, kDim);
    double product = 0.0;
    for (std::int64_t c = 0; c < kDim / 2; ++c) {
      const double angle = (j - i) * std::pow(kRopeBase, -2.0 * c / kDim);
      const std::int64_t a = c, b = c + kDim / 2;
      product += q[a] * (std::cos(angle) * k[a] - std::sin(angle) * k[b]) +
                 q[b] * (std::sin(angle) * k[a] + std::cos(angle) * k[b]);
    }
    scores[j - 1] += product / std::sqrt(kDim) + Proximity(i, j);
  }
  return scores;
}

void AddCentroids(const AnalysisContext& context, AnalysisResult& result) {
  DataTable& table =
      result.AddTable("centroids", {"head", "position", "query", "centroid", "support"});
  DataTable& summary = result.AddTable("lags", {"position", "lag", "step"});
  DataTable& identity = result.AddTable("identity", {"query", "centroid"});
  AnalysisFigure& figure = result.AddFigure(
      {.name = "centroids",
       .title = "Where each of eight heads looks",
       .caption = "The mean position of the keys, weighted by attention, against the position of "
                  "the query: figure 8 of the paper. Grey: looking at itself. ALiBi with the "
                  "slopes 2^(−h/8) of this paper and with the 1/h of its models.",
       .columns = 4});
  struct Position {
    const char* name;
    double (*slope)(int h);
  };
  const Position positions[] = {{"NoPE", nullptr},
                                {"RoPE", nullptr},
                                {"ALiBi, 2^(−h/8)", GentleSlope},
                                {"ALiBi, 1/h", HarmonicSlope}};
  for (const Position& position : positions) {
    double lag = 0.0, step = 0.0;
    for (int h = 1; h <= kHeads; ++h) {
      double last = 1.0;
      for (std::int64_t i = 1; i <= kTokens; ++i) {
        std::vector<double> scores = std::string(position.name) == "RoPE"
                                         ? RopeScores(context, h, i)
                                         : DrawnScores(context, h, i);
        for (std::int64_t j = 1; position.slope != nullptr && j <= i; ++j) {
          scores[j - 1] += position.slope(h) * (j - i);
        }
        const Row row = MapRow(context, EntmaxParams(kAlpha), scores);
        double centroid = 0.0;
        for (std::int64_t j = 1; j <= i; ++j) {
          centroid += j * row.weights[j - 1];
        }
        table.Add({h, position.name, i, centroid, row.support});
        lag += i - centroid;
        step += std::abs(centroid - last);
        last = centroid;
      }
      context.Done(0.3);
    }
    summary.Add({position.name, lag / (kHeads * kTokens), step / (kHeads * kTokens)});
  }
  for (const std::int64_t i : {std::int64_t{1}, kTokens}) identity.Add({i, i});
  for (int h = 1; h <= kHeads; ++h) {
    figure.panels.push_back(
        {.title = fmt::format("head {}", h),
         .x_label = h > kHeads - 4 ? "query" : "",
         .y_label = h % 4 == 1 ? "centroid" : "",
         .curves = {Curve("identity", "query", "centroid").Look("reference"),
                    Curve("centroids", "query", "centroid").By("position").In({{"head", h}})}});
  }
}

void AddWindow(const AnalysisContext& context, AnalysisResult& result) {
  DataTable& table = result.AddTable("window", {"alpha", "slope", "bound", "furthest"});
  AnalysisFigure& figure = result.AddFigure(
      {.name = "window",
       .title = "ALiBi ends the row",
       .caption =
           "The furthest key with any weight, of scores within ±5 (points), and the "
           "distance beyond which there is none (grey): ⌊(z_max − z_min + 1/(α − 1))/m + 1⌋.",
       .panels = {
           {.x_label = "slope m",
            .y_label = "distance",
            .x_scale = "log2",
            .y_scale = "log2",
            .curves = {Curve("window", "slope", "furthest").By("alpha", "α = ").Look("points")}}}});
  const std::int64_t rows = context.quick ? 200 : 10000;
  bool beyond = false;
  double tightest = 0.0;
  for (const double alpha : {1.25, 1.5, 2.0}) {
    figure.panels.front().curves.push_back(
        Curve("window", "slope", "bound").In({{"alpha", alpha}}).Look("reference"));
    for (int h = 1; h <= kHeads; ++h) {
      const double slope = HarmonicSlope(h);
      const double bound = std::floor((kHigh - kLow + 1.0 / (alpha - 1.0)) / slope + 1.0);
      const std::int64_t n = static_cast<std::int64_t>(bound) + 16;
      std::int64_t furthest = 0;
      for (std::int64_t draw = 0; draw < rows / kHeads; ++draw) {
        std::vector<double> scores = Uniforms(context, 54, draw, n, kLow, kHigh);
        // Distance d stands at n - 1 - d. Some rows are made to reach far: low scores up to one
        // high.
        if (draw % 2 == 1) {
          std::fill(scores.begin(), scores.end(), kLow);
          scores[draw % n] = kHigh;
        }
        for (std::int64_t j = 0; j < n; ++j) {
          scores[j] -= slope * (n - 1 - j);
        }
        const Row row = MapRow(context, EntmaxParams(alpha), scores);
        for (std::int64_t j = 0; j < n; ++j) {
          if (row.weights[j] <= 0.0) continue;
          furthest = std::max(furthest, n - 1 - j);
          break;
        }
      }
      table.Add({alpha, slope, bound, furthest});
      beyond = beyond || furthest > bound;
      tightest = std::max(tightest, furthest / bound);
      context.Done(0.6);
    }
  }
  result.facts.push_back(
      {"rows with weight beyond ALiBi's window", beyond ? 1.0 : 0.0, 0.0, "asentmax, eq. 106"});
  result.facts.push_back({"furthest key with weight over the window, most", tightest});
}

void AddFrequencies(const AnalysisContext& context, AnalysisResult& result) {
  DataTable& table = result.AddTable("frequencies", {"pair", "frequency", "distance", "weight"});
  DataTable& cutoffs =
      result.AddTable("cutoffs", {"pair", "frequency", "first", "small_angle", "wrong"});
  AnalysisFigure& figure = result.AddFigure(
      {.name = "frequencies",
       .title = "RoPE: each frequency by itself returns",
       .caption = "Weight against distance of one pair of dimensions of 64, q and k aligned with "
                  "|q||k| = 4, α = 1.5. Lines: the predicted ends of the support, which repeats "
                  "with every turn.",
       .columns = 3});
  const std::int64_t n = 1000;
  const double norm = 4.0;
  std::int64_t wrong_total = 0;
  for (const std::int64_t pair : {8, 12, 16}) {
    const double g = std::pow(kRopeBase, -2.0 * pair / kDim);
    std::vector<double> scores;
    for (std::int64_t d = 0; d < n; ++d) scores.push_back(norm * std::cos(g * d));
    const Row row = MapRow(context, EntmaxParams(kAlpha), scores);
    const double threshold = row.tau / (kAlpha - 1.0);
    const double half = std::acos(threshold / norm) / g;  // of each stretch of support
    const double turn = 2.0 * std::numbers::pi / g;
    std::int64_t wrong = 0;
    for (std::int64_t d = 0; d < n; ++d) {
      const bool predicted = std::abs(d - turn * std::round(d / turn)) < half;
      if (predicted != (row.weights[d] > 0.0)) ++wrong;
      table.Add({pair, g, d, row.weights[d]});
    }
    const double first = std::floor(half);
    const double small = std::floor(std::sqrt((norm - threshold) / (0.5 * norm * g * g)));
    cutoffs.Add({pair, g, first, small, wrong});
    wrong_total += wrong;
    Panel& panel = figure.panels.emplace_back(Panel{
        .title = fmt::format("frequency {:.3g}", g),
        .x_label = "distance",
        .y_label = "weight",
        .curves = {
            Curve("frequencies", "distance", "weight").Named("weight").In({{"pair", pair}})}});
    for (double middle = 0.0; middle - half < n; middle += turn) {
      if (middle > 0.0) panel.marks.push_back({middle - half, ""});
      if (middle + half < n) panel.marks.push_back({middle + half, ""});
    }
    result.facts.push_back(
        {fmt::format("first end of the support, frequency {:.3g}: small angles", g), small, first,
         "arccos, exact for one frequency"});
  }
  result.facts.push_back({"distances whose weight the ends of RoPE's support get wrong",
                          1.0 * wrong_total, 0.0, "asentmax, eq. 126, mended"});
}

// p_j/p_i exceeds softmax's e^{-D}, D = z_i - z_j, if and only if z_j - tau' > D/(e^{(alpha-1)D} -
// 1) (eq. 99).
void AddRatioRule(const AnalysisContext& context, AnalysisResult& result) {
  const std::int64_t rows = context.quick ? 30 : 600;
  std::int64_t pairs = 0, broken = 0;  // of the support
  for (std::int64_t draw = 0; draw < rows; ++draw) {
    const std::vector<double> scores = Normals(context, 55, draw, 32);
    const double alpha = 1.2 + 0.05 * (draw % 30);
    const Row row = MapRow(context, EntmaxParams(alpha), scores);
    const double threshold = row.tau / (alpha - 1.0);
    for (std::size_t i = 0; i < scores.size(); ++i) {
      for (std::size_t j = 0; j < scores.size(); ++j) {
        const double gap = scores[i] - scores[j];
        if (gap < 1e-6 || row.weights[j] <= 1e-12) continue;
        const double limit = gap / std::expm1((alpha - 1.0) * gap);
        const double height = scores[j] - threshold;
        if (std::abs(height - limit) < 1e-9) continue;
        ++pairs;
        const bool more = row.weights[j] / row.weights[i] > std::exp(-gap);
        if (more != (height > limit)) ++broken;
      }
    }
  }
  result.facts.push_back(
      {fmt::format("of {} pairs of weights, those that break the rule of ratios", pairs),
       1.0 * broken, 0.0, "asentmax, eq. 99"});
}

}  // namespace

AnalysisResult PositionLimits(const AnalysisContext& context) {
  AnalysisResult result;
  AddCentroids(context, result);
  AddWindow(context, result);
  AddFrequencies(context, result);
  AddRatioRule(context, result);
  const DataTable& lags = result.Table("lags");
  result.finding = fmt::format(
      "Of 128 tokens, entmax heads look {:.0f} tokens back on average without positions, {:.0f} "
      "with "
      "RoPE and {:.1f} with ALiBi (slopes 2^(−h/8)), where no weight lies beyond a fixed distance.",
      lags.At({"NoPE"}, "lag"), lags.At({"RoPE"}, "lag"), lags.At({"ALiBi, 2^(−h/8)"}, "lag"));
  result.setup = {
      "centroids: 128 tokens, 8 heads, α = 1.5; scores U(−5, 5) + 2 (1 − |j − i|/2i) + N(0, 0.5²)",
      "RoPE: the uniform part is a product of normal vectors of 64 dimensions with the same "
      "standard "
      "deviation, rotated with base 10 000; the paper does not say how it rotates a score",
      fmt::format(
          "window: {} rows of scores within ±5, half of them made to reach far; slopes 1 to "
          "1/8",
          context.quick ? 200 : 10000)};
  return result;
}

}  // namespace tsallis::lab
