// E14, second part: dispersion against depth (Velickovic et al. 2024, appendix C.1). Random
// Transformers without masks over a vocabulary of 16 tokens: once a layer disperses, its outputs
// are equal where there is no residual, and every later layer disperses too.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lab/studies/analyses/maps.h"
#include "torch/operators.h"

namespace tsallis::lab {
namespace {

constexpr std::int64_t kWidth = 64, kHeads = 4, kHeadDim = kWidth / kHeads, kWords = 16;
constexpr int kLayers = 6;
constexpr double kGain = 2.0;  // of the query projection: scores of deviation 2 at first

at::Tensor Matrix(const AnalysisContext& context, std::uint64_t what, std::int64_t draw,
                  std::int64_t rows, std::int64_t columns, double gain = 1.0) {
  const std::vector<double> values =
      Normals(context, what, draw, rows * columns, gain / std::sqrt(columns));
  return at::tensor(values).reshape({rows, columns});
}

struct Layer {
  double entropy = 0.0;  // over ln n, mean over heads and tokens
  double spread = 0.0;   // max - min of the scores of a token, mean over heads and tokens
};

// Entropies and spreads of every layer of one network on n tokens, each word at least once.
std::vector<Layer> Run(const AnalysisContext& context, double alpha, bool residual, std::int64_t n,
                       std::int64_t draw) {
  const at::Tensor words = Matrix(context, 90, draw, kWords, kWidth, 8.0);  // of unit variance
  std::vector<std::int64_t> ids;
  for (const double value : Uniforms(context, 91, draw, n, 0.0, kWords)) {
    ids.push_back(std::min<std::int64_t>(kWords - 1, static_cast<std::int64_t>(value)));
  }
  for (std::int64_t w = 0; w < std::min(n, kWords); ++w) ids[w] = w;
  at::Tensor x = words.index_select(0, at::tensor(at::ArrayRef<std::int64_t>(ids)));
  const auto norm = [](const at::Tensor& t) {
    return t / (t.square().mean(1, true) + 1e-12).sqrt();
  };
  std::vector<Layer> layers;
  for (int l = 0; l < kLayers; ++l) {
    const std::int64_t at_draw = draw * kLayers + l;
    // [n, width] -> [1, heads, n, head_dim]
    const auto heads = [&](const at::Tensor& weight) {
      return norm(x).matmul(weight.t()).reshape({1, n, kHeads, kHeadDim}).transpose(1, 2);
    };
    const at::Tensor q = heads(Matrix(context, 92, at_draw, kWidth, kWidth, kGain));
    const at::Tensor k = heads(Matrix(context, 93, at_draw, kWidth, kWidth));
    const at::Tensor v = heads(Matrix(context, 94, at_draw, kWidth, kWidth));
    AttentionOptions options;
    options.map = alpha == 1.0 ? RowMap::kSoftmax : RowMap::kEntmax;
    options.alpha = alpha;
    options.threads = context.kernels.threads;
    AttentionStatTensors stats;
    const at::Tensor out = Attention(q, k, v, options, &stats);
    const at::Tensor scores = q.matmul(k.transpose(2, 3)) / std::sqrt(kHeadDim);
    layers.push_back({stats.entropy.mean().item<double>() / std::log(n),
                      (scores.amax(3) - scores.amin(3)).mean().item<double>()});
    const at::Tensor mixed = out.transpose(1, 2)
                                 .reshape({n, kWidth})
                                 .matmul(Matrix(context, 95, at_draw, kWidth, kWidth).t());
    x = residual ? x + mixed : mixed;
    const at::Tensor hidden =
        norm(x).matmul(Matrix(context, 96, at_draw, 2 * kWidth, kWidth).t()).relu();
    const at::Tensor fed = hidden.matmul(Matrix(context, 97, at_draw, kWidth, 2 * kWidth).t());
    x = residual ? x + fed : fed;
    context.Done(-1.0);
  }
  return layers;
}

// Networks at n tokens: the double reference takes n^2 time.
std::int64_t Draws(const AnalysisContext& context, std::int64_t n) {
  return context.quick ? 1 : std::clamp<std::int64_t>(1024 / n, 1, 4);
}

}  // namespace

AnalysisResult DispersionDepth(const AnalysisContext& context) {
  AnalysisResult result;
  DataTable& table =
      result.AddTable("layers", {"residual", "map", "n", "layer", "normalised_entropy", "spread"});
  const std::vector<std::int64_t> lengths = context.quick
                                                ? std::vector<std::int64_t>{16, 64}
                                                : std::vector<std::int64_t>{16, 64, 256, 1024};
  double done = 0.0, total = 0.0;
  for (const std::int64_t n : lengths) total += 4.0 * n * n;
  AnalysisContext inner = context;
  inner.progress = [&](double) { context.Done(done / total); };
  for (const bool residual : {false, true}) {
    for (const double alpha : {1.0, 1.5}) {
      for (const std::int64_t n : lengths) {
        const std::int64_t draws = Draws(context, n);
        std::vector<Layer> mean(kLayers);
        for (std::int64_t draw = 0; draw < draws; ++draw) {
          const std::vector<Layer> layers = Run(inner, alpha, residual, n, draw);
          for (int l = 0; l < kLayers; ++l) {
            mean[l].entropy += layers[l].entropy / draws;
            mean[l].spread += layers[l].spread / draws;
          }
        }
        for (int l = 0; l < kLayers; ++l) {
          table.Add({residual ? "with" : "without", AlphaLabel(alpha), n, l + 1, mean[l].entropy,
                     std::max(mean[l].spread, 1e-16)});
        }
        done += n * n;
      }
    }
  }
  const std::int64_t n = lengths.back(), last = kLayers;
  const auto spread = [&](const char* residual, double alpha, std::int64_t layer) {
    return table.At({residual, AlphaLabel(alpha), n, layer}, "spread");
  };
  result.facts = {
      {fmt::format("spread of scores in layer {} over layer 1, softmax, no residual", last),
       spread("without", 1.0, last) / spread("without", 1.0, 1), 0.0,
       "softmax-is-not-enough, remark C.1: the limit"},
      {"the same with a residual", spread("with", 1.0, last) / spread("with", 1.0, 1)}};
  result.finding = fmt::format(
      "In random Transformers without residuals the spread of the scores ({} tokens) falls from "
      "{:.1f} "
      "in the first layer to {:.1g} in the sixth with softmax and to {:.1g} with entmax (α = 1.5); "
      "with residuals it stays, at {:.1f}.",
      n, spread("without", 1.0, 1), spread("without", 1.0, last), spread("without", 1.5, last),
      spread("with", 1.0, last));
  result.setup = {
      fmt::format("{} layers of width {}, {} heads, random normal weights, RMS norm before "
                  "each part, feed-forward of width {} with ReLU; 1 to 4 networks a point",
                  kLayers, kWidth, kHeads, 2 * kWidth),
      "no mask, no positions; 16 words, double precision"};
  AnalysisFigure& figure = result.AddFigure(
      {.name = "layers",
       .title = "What dispersion in one layer does to the next ones",
       .caption = "Spread of the scores (max − min of a token's) and entropy by layer, one line "
                  "for each number of tokens. Without a residual a layer that averages leaves the "
                  "next one nothing to tell tokens apart by.",
       .columns = 4});
  for (const char* residual : {"without", "with"}) {
    for (const char* column : {"spread", "normalised_entropy"}) {
      const bool is_spread = std::string(column) == "spread";
      for (const double alpha : {1.0, 1.5}) {
        figure.panels.push_back(
            {.title = fmt::format("{}, {} residual", AlphaLabel(alpha), residual),
             .x_label = "layer",
             .y_label = is_spread ? "spread of scores" : "H / ln n",
             .y_scale = is_spread ? "log" : "linear",
             .curves = {Curve("layers", "layer", column)
                            .By("n", "n = ")
                            .In({{"residual", residual}, {"map", AlphaLabel(alpha)}})}});
      }
    }
  }
  return result;
}

}  // namespace tsallis::lab
