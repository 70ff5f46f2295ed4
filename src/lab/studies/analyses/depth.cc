// E18: cumulative attention on the first token (Vasylenko et al. 2025, proposition E.1).
//
// Of causal heads P^(1), ..., P^(L) the product P^(L) ... P^(1) says how much of token j reaches
// token i. Its first column is u <- P^(l) u from u = e_1. Softmax's goes to 1. Entmax's need not
// where rows are cut off from token 1 and stay so: that takes the same graph in every layer, as in
// a row whose whole weight is its own. (The paper's part (b) has it for one layer with a cut; where
// the layers that follow differ, they connect such rows again.)
#include <fmt/format.h>

#include <cmath>

#include "lab/studies/analyses/maps.h"

namespace tsallis::lab {
namespace {

constexpr std::int64_t kTokens = 128;
constexpr double kAlphas[] = {1.0, 1.25, 1.5, 2.0};

struct Column {
  std::vector<double> mass;  // mean over tokens 2 ... n, by layer
  std::vector<double> last;  // of the last token
  std::vector<double> cut;   // share of tokens that nothing of token 1 reaches
};

// One network: `fresh` scores in every layer, or the same.
Column Run(const AnalysisContext& context, double alpha, double deviation, bool fresh,
           std::int64_t draw, int layers) {
  Column column;
  std::vector<double> u(kTokens, 0.0), next(kTokens);
  u[0] = 1.0;
  std::vector<std::vector<double>> rows;
  for (int layer = 0; layer < layers; ++layer) {
    if (fresh || layer == 0) {
      rows.clear();
      for (std::int64_t i = 0; i < kTokens; ++i) {
        rows.push_back(
            MapRow(context, EntmaxParams(alpha),
                   Normals(context, 60, (draw * layers + layer) * kTokens + i, i + 1, deviation))
                .weights);
      }
    }
    double mass = 0.0, cut = 0.0;
    for (std::int64_t i = 0; i < kTokens; ++i) {
      double sum = 0.0;
      for (std::int64_t j = 0; j <= i; ++j) {
        sum += rows[i][j] * u[j];
      }
      next[i] = sum;
      if (i == 0) continue;
      mass += sum;
      if (sum == 0.0) cut += 1.0;
    }
    u = next;
    column.mass.push_back(mass / (kTokens - 1));
    column.last.push_back(u.back());
    column.cut.push_back(cut / (kTokens - 1));
  }
  return column;
}

std::string Graph(bool fresh) {
  return fresh ? "new scores in every layer" : "the same in every layer";
}

}  // namespace

AnalysisResult Depth(const AnalysisContext& context) {
  AnalysisResult result;
  DataTable& table = result.AddTable(
      "first_token", {"graph", "deviation", "map", "layer", "mass", "last", "cut_off"});
  const int layers = context.quick ? 16 : 64;
  const std::int64_t draws = context.quick ? 2 : 16;
  double done = 0.0;
  for (const bool fresh : {true, false}) {
    for (const double deviation : {1.0, 4.0}) {
      for (const double alpha : kAlphas) {
        const std::vector<Column> columns = ForDraws(context, draws, [&](std::int64_t draw) {
          return Run(context, alpha, deviation, fresh, draw, layers);
        });
        for (int layer = 0; layer < layers; ++layer) {
          double mass = 0.0, last = 0.0, cut = 0.0;
          for (const Column& column : columns) {
            mass += column.mass[layer] / draws;
            last += column.last[layer] / draws;
            cut += column.cut[layer] / draws;
          }
          table.Add({Graph(fresh), deviation, AlphaLabel(alpha), layer + 1, mass, last, cut});
        }
        context.Done((done += 1.0) / 16.0);
      }
    }
  }
  const auto at = [&](bool fresh, double deviation, double alpha, const char* column) {
    return table.At({Graph(fresh), deviation, AlphaLabel(alpha), layers}, column);
  };
  result.facts = {{fmt::format("mass on token 1 after {} layers, softmax, σ = 1", layers),
                   at(true, 1.0, 1.0, "mass"), 1.0, "asentmax, proposition E.1: its limit"},
                  {fmt::format("the same, α = 1.5, new scores in every layer, σ = 4", layers),
                   at(true, 4.0, 1.5, "mass")},
                  {fmt::format("the same, α = 1.5, the same scores in every layer, σ = 4", layers),
                   at(false, 4.0, 1.5, "mass")}};
  result.finding = fmt::format(
      "After {} layers of random causal heads {:.0f} % of what tokens see comes from the first "
      "token "
      "with softmax. With entmax (α = 1.5, σ = 4) it is {:.0f} % where every layer is new, and "
      "{:.0f} "
      "% where the same keys are cut in every layer: {:.0f} % of the tokens never see it.",
      layers, 100.0 * at(true, 1.0, 1.0, "mass"), 100.0 * at(true, 4.0, 1.5, "mass"),
      100.0 * at(false, 4.0, 1.5, "mass"), 100.0 * at(false, 4.0, 1.5, "cut_off"));
  result.setup = {
      fmt::format("{} tokens, scores N(0, σ²), no residual, {} networks a point", kTokens, draws),
      "first column of the product of all attention matrices, mean over tokens 2 to 128"};
  AnalysisFigure& figure = result.AddFigure(
      {.name = "first-token",
       .title = "How much of every token comes from the first one",
       .caption = "Left: mass on token 1 against depth. Right: tokens that nothing of token 1 "
                  "reaches. Softmax goes to 1. Entmax stays below it where the same keys are cut "
                  "in every layer; one cut alone is undone by the layers that follow.",
       .columns = 2});
  for (const bool fresh : {true, false}) {
    for (const double deviation : {1.0, 4.0}) {
      for (const char* column : {"mass", "cut_off"}) {
        figure.panels.push_back(
            {.title = fmt::format("{}, σ = {:g}", Graph(fresh), deviation),
             .x_label = "layers",
             .y_label = std::string(column) == "mass" ? "mass on token 1" : "tokens cut off, share",
             .x_scale = "log2",
             .curves = {Curve("first_token", "layer", column)
                            .By("map")
                            .In({{"graph", Graph(fresh)}, {"deviation", deviation}})}});
      }
    }
  }
  return result;
}

}  // namespace tsallis::lab
