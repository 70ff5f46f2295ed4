// E12, second part: the polynomial of adaptive temperature, fitted anew to a trained model
// (Velickovic et al. 2024, appendix F and figure 6).
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "lab/base/sequential_products.h"
#include "lab/eval/evaluate_sets.h"
#include "lab/studies/analyses/maps.h"
#include "lab/studies/analyses/trained_model.h"

namespace tsallis::lab {
namespace {

constexpr std::int64_t kDrawn = 2000;  // samples of the figure

// Rows of scores of sets of n items, the others -inf up to `width`, and where the largest item is.
struct ScoreRows {
  std::vector<float> scores;          // [rows, width]
  std::vector<std::int64_t> lengths;  // [rows]
  std::vector<std::int64_t> targets;  // [rows]
};

void AddSets(TrainedModel& trained, std::int64_t n, std::int64_t sets, std::int64_t width,
             ScoreRows& rows) {
  const std::int64_t chunk = std::max<std::int64_t>(1, 4096 / n);
  for (std::int64_t first = 0; first < sets; first += chunk) {
    const std::int64_t count = std::min(chunk, sets - first);
    const SetBatch batch = trained.task.EvalBatch(Split::kValidation, n, first, count);
    AttentionView view;
    trained.model.Forward(batch, &view);
    const at::Tensor scores = ScoresOf(view.weights).to(at::kFloat).contiguous();
    const at::Tensor targets = batch.items.select(2, 0).argmax(1).contiguous();
    const float* from = scores.const_data_ptr<float>();
    for (std::int64_t s = 0; s < count; ++s) {
      rows.scores.insert(rows.scores.end(), from + s * n, from + (s + 1) * n);
      rows.scores.resize(rows.scores.size() + static_cast<std::size_t>(width - n),
                         -std::numeric_limits<float>::infinity());
      rows.lengths.push_back(n);
      rows.targets.push_back(targets.const_data_ptr<std::int64_t>()[s]);
    }
  }
}

}  // namespace

AnalysisResult TemperatureFit(const AnalysisContext& context) {
  const SequentialProducts one_thread;
  TrainedModel trained = SoftmaxModel(context, 0.5);
  const std::int64_t width = context.quick ? 256 : 4096;
  const std::int64_t sets = context.quick ? 64 : 256;
  ScoreRows rows;
  for (std::int64_t n = 16; n <= width; n *= 2) {
    AddSets(trained, n, sets, width, rows);
    context.Done(0.5 + 0.1 * n / width);
  }
  const auto count = static_cast<std::int64_t>(rows.targets.size());
  const ConstRows all{rows.scores.data(), DType::kFloat32, count, width, width, 1};
  const AdaptiveTemperatureFit fit =
      FitAdaptiveTemperature(context.kernels, all, rows.targets.data());
  AnalysisResult result;
  result.setup = {
      fmt::format("model: {}", trained.about),
      fmt::format("{} validation sets of each of 16, 32, …, {} items; kept are the {} in which the "
                  "largest item has not the largest score",
                  sets, width, fit.samples),
      "of each the θ of 0.1, 0.2, …, 10 that gives the largest item its largest weight; then least "
      "squares of 1/θ on powers of the entropy of softmax up to the fourth",
      "the paper does not say how many sets of which sizes it takes"};
  if (fit.samples == 0) {
    result.finding =
        "The model gives the largest item the largest score in every set: there is "
        "nothing to fit.";
    return result;
  }

  // The figure's samples: a fit of degree 0 to one row is that row's own 1/theta.
  DataTable& samples = result.AddTable("samples", {"entropy", "inverse_temperature"});
  double highest = 0.0;
  const std::int64_t step = std::max<std::int64_t>(1, fit.samples / kDrawn);
  for (std::int64_t row = 0, kept = 0; row < count; ++row) {
    const float* scores = rows.scores.data() + row * width;
    const std::int64_t n = rows.lengths[row];
    const AdaptiveTemperatureFit own = FitAdaptiveTemperature(
        context.kernels, {scores, DType::kFloat32, 1, n, n, 1}, &rows.targets[row], {.degree = 0});
    if (own.samples == 0 || kept++ % step != 0) continue;
    StreamedEntropy entropy;
    for (std::int64_t j = 0; j < n; ++j) entropy.Add(scores[j]);
    samples.Add({entropy.Entropy(), own.coefficients[0]});
    highest = std::max(highest, entropy.Entropy());
    context.Done(0.6 + 0.2 * row / count);
  }
  const std::vector<double> published = AdaptiveTemperature().coefficients;
  DataTable& curves = result.AddTable("curves", {"entropy", "fitted", "published"});
  for (int i = 0; i <= 200; ++i) {
    const double entropy = 0.5 + (highest - 0.5) * i / 200.0;
    curves.Add({entropy, Polynomial(fit.coefficients, entropy), Polynomial(published, entropy)});
  }

  DataTable& accuracy = result.AddTable("accuracy", {"method", "n", "accuracy"});
  SetAttentionConfig config = trained.config;
  const std::int64_t most = context.quick ? 128 : 4096;
  const std::vector<std::pair<std::string, std::optional<std::vector<double>>>> methods = {
      {"softmax", std::nullopt},
      {"published polynomial", published},
      {"own polynomial", fit.coefficients}};
  double done = 0.0;
  for (const auto& [name, coefficients] : methods) {
    config.map = coefficients ? "adaptive-temperature" : "softmax";
    config.coefficients = coefficients;
    trained.model.Attend(config);
    for (std::int64_t n = 16; n <= most; n *= 2) {
      const std::int64_t asked =
          std::clamp<std::int64_t>((1 << 19) / n, 256, context.quick ? 256 : 2048);
      const Score score = EvaluateSets(trained.model, trained.task, Split::kTest, n, asked,
                                       /*heat=*/false, context.Stop());
      accuracy.Add({name, n, trained.task.GetMetric().Value(score)});
      context.Done(0.8 + 0.2 * (done += 1.0) / (3.0 * std::log2(most / 8.0)));
    }
  }
  const std::int64_t n = context.quick ? 128 : 1024;
  const auto at = [&](const char* name) { return accuracy.At({name, n}, "accuracy"); };
  for (std::size_t c = 0; c < fit.coefficients.size(); ++c) {
    result.facts.push_back({fmt::format("coefficient of H^{}", c), fit.coefficients[c],
                            published[c], "softmax-is-not-enough, figure 6: its own model"});
  }
  result.facts.push_back({"root mean square of 1/θ about the fit", fit.rms_error});
  result.finding = fmt::format(
      "Fitted to our model, adaptive temperature has {:.1f} % at {} items, with the published "
      "polynomial {:.1f} % and plain softmax {:.1f} %.",
      at("own polynomial"), n, at("published polynomial"), at("softmax"));
  result.setup.push_back(
      fmt::format("to use the fit in a recipe: map = \"adaptive-temperature\", coefficients = "
                  "[{:.4g}]",
                  fmt::join(fit.coefficients, ", ")));
  result.figures = {
      {.name = "fit",
       .title = "The best temperature of a row against its entropy",
       .caption =
           "Figure 6 of the paper: a point for each set whose largest item has not the largest "
           "score. A value of 1/θ below 1 is taken as 1.",
       .panels = {{.x_label = "entropy of softmax (nats)",
                   .y_label = "best 1/θ",
                   .curves = {Curve("samples", "entropy", "inverse_temperature")
                                  .Named("sets")
                                  .Look("points"),
                              Curve("curves", "entropy", "fitted").Named("own polynomial"),
                              Curve("curves", "entropy", "published")
                                  .Named("published polynomial")
                                  .Look("dashed")}}}},
      {.name = "accuracy",
       .title = "Accuracy under the polynomials",
       .caption = "Max retrieval, test sets; the same weights read in three ways.",
       .panels = {{.x_label = "items of a set",
                   .y_label = "accuracy (%)",
                   .x_scale = "log2",
                   .curves = {Curve("accuracy", "n", "accuracy").By("method")}}}}};
  return result;
}

}  // namespace tsallis::lab
