#include "lab/report/weight_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace tsallis::lab {
namespace {

constexpr double kBin = 0.1;

std::string BlockLabel(std::int64_t size) {
  return size == 1 ? std::string("weights") : fmt::format("blocks of {}²", size);
}

// Mean over the heads of a layer, of what `of` gives; NaN where it gives nothing.
template <class Of>
double LayerMean(const WeightStatistics& statistics, std::int64_t layer, const Of& of) {
  double sum = 0.0, count = 0.0;
  for (const HeadWeights& head : statistics.heads) {
    const std::optional<double> value = of(head);
    if (head.layer != layer || !value) continue;
    sum += *value;
    count += 1.0;
  }
  return count > 0.0 ? sum / count : NAN;
}

// Alphas of heads, and how many heads of a layer have one in each bin, if not all have the same.
void AddAlphas(const WeightStatistics& statistics, AnalysisResult& result, AnalysisFigure& figure) {
  DataTable alphas("alpha", {"layer", "head", "alpha"});
  std::map<std::int64_t, std::map<std::int64_t, std::int64_t>> bins;  // layer, bin
  double least = INFINITY, most = -INFINITY;
  for (const HeadWeights& head : statistics.heads) {
    if (!head.alpha) continue;
    alphas.Add({head.layer + 1, head.head + 1, *head.alpha});
    ++bins[head.layer][static_cast<std::int64_t>(std::floor(*head.alpha / kBin + 1e-9))];
    least = std::min(least, *head.alpha);
    most = std::max(most, *head.alpha);
  }
  if (!(most > least)) return;
  const auto first = static_cast<std::int64_t>(std::floor(least / kBin + 1e-9));
  const auto last = static_cast<std::int64_t>(std::floor(most / kBin + 1e-9));
  DataTable histogram("histogram", {"layer", "alpha", "heads"});
  for (auto& [layer, counts] : bins) {
    for (std::int64_t bin = first - 1; bin <= last + 1; ++bin) {
      histogram.Add({fmt::format("layer {}", layer + 1), (static_cast<double>(bin) + 0.5) * kBin,
                     counts[bin]});
    }
  }
  figure.panels.push_back({.title = "α, in bins of 0.1",
                           .x_label = "α",
                           .y_label = "heads",
                           .curves = {Curve("histogram", "alpha", "heads").By("layer")}});
  result.facts.push_back({"smallest α of a head", least});
  result.facts.push_back({"largest α of a head", most});
  result.tables.push_back(std::move(alphas));
  result.tables.push_back(std::move(histogram));
}

}  // namespace

AnalysisResult WeightPage(const WeightStatistics& statistics) {
  AnalysisResult result;
  DataTable heads("heads", {"layer", "head", "density"});
  DataTable density("density", {"of", "layer", "share"});
  DataTable divergence("divergence", {"layer", "divergence"});
  double least = 1.0, most = 0.0, sum = 0.0;
  for (const HeadWeights& head : statistics.heads) {
    heads.Add({head.layer + 1, head.head + 1, head.density});
    least = std::min(least, head.density);
    most = std::max(most, head.density);
    sum += head.density;
  }
  const double mean = sum / static_cast<double>(statistics.heads.size());
  for (const LayerWeights& layer : statistics.layers) {
    divergence.Add({layer.layer + 1, layer.divergence});
    const auto own = [](const HeadWeights& head) { return std::optional(head.density); };
    density.Add({BlockLabel(1), layer.layer + 1, LayerMean(statistics, layer.layer, own)});
    for (std::size_t s = 0; s < kWeightBlocks.size(); ++s) {
      const auto blocks = [&](const HeadWeights& head) { return head.blocks[s]; };
      const double share = LayerMean(statistics, layer.layer, blocks);
      if (std::isnan(share)) continue;
      density.Add({BlockLabel(kWeightBlocks[s]), layer.layer + 1, share});
    }
  }
  result.facts = {{"weights above 0, of the keys so far, mean over heads", mean},
                  {"the same, the sparsest head", least},
                  {"the same, the densest head", most}};
  for (std::size_t s = 0; s < kWeightBlocks.size(); ++s) {
    double blocks = 0.0, count = 0.0;
    for (const HeadWeights& head : statistics.heads) {
      if (!head.blocks[s]) continue;
      blocks += *head.blocks[s];
      count += 1.0;
    }
    if (count == 0.0) continue;
    result.facts.push_back(
        {fmt::format("{} with a weight above 0, mean over heads", BlockLabel(kWeightBlocks[s])),
         blocks / count});
  }
  const auto by_divergence = [](const LayerWeights& a, const LayerWeights& b) {
    return a.divergence < b.divergence;
  };
  const auto [alike, apart] =
      std::minmax_element(statistics.layers.begin(), statistics.layers.end(), by_divergence);
  result.facts.push_back(
      {fmt::format("Jensen–Shannon divergence of the heads of layer {}, nats", apart->layer + 1),
       apart->divergence});
  result.finding = fmt::format(
      "A head gives {:.1f} % of the keys so far a weight above 0 (from {:.1f} to {:.1f} % by "
      "head); "
      "the heads of a layer differ by {:.2f} nats (layer {}) to {:.2f} (layer {}).",
      100.0 * mean, 100.0 * least, 100.0 * most, alike->divergence, alike->layer + 1,
      apart->divergence, apart->layer + 1);
  result.setup = {
      fmt::format("the first {} test samples of length {}, up to {} tokens each",
                  statistics.samples, statistics.n, statistics.tokens),
      "density: weights above 0, or blocks that hold one, as a share of the keys (blocks) "
      "up to the query's own",
      "divergence: H(mean of the heads' weights) − mean H, in nats, mean over queries; "
      "weights of maps whose rows do not sum to 1 are divided by their sum"};
  AnalysisFigure figure{
      .name = "heads",
      .title = "What the weights of the heads look like",
      .caption =
          "Density by layer, of single weights and of blocks: a kernel may leave out a block "
          "without one. "
          "Divergence: how far the heads of a layer attend to different tokens. α by layer where "
          "heads have their own. Heads one by one below.",
      .columns = 2};
  figure.panels.push_back({.title = "Weights above 0",
                           .x_label = "layer",
                           .y_label = "share of the keys so far",
                           .y_scale = "log",
                           .curves = {Curve("density", "layer", "share").By("of")}});
  figure.panels.push_back({.title = "How far heads differ",
                           .x_label = "layer",
                           .y_label = "Jensen–Shannon divergence, nats",
                           .curves = {Curve("divergence", "layer", "divergence")}});
  AddAlphas(statistics, result, figure);
  AnalysisFigure single{.name = "densities",
                        .title = "Weights above 0, head by head",
                        .caption = "A point is a head."};
  single.panels.push_back(
      {.x_label = "head",
       .y_label = "share of the keys so far",
       .y_scale = "log",
       .curves = {Curve("heads", "head", "density").By("layer", "layer ").Look("points")}});
  result.figures = {std::move(figure), std::move(single)};
  result.tables.insert(result.tables.begin(),
                       {std::move(heads), std::move(density), std::move(divergence)});
  return result;
}

}  // namespace tsallis::lab
