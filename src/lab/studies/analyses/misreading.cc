// E14, first part: the smallest set that a trained model misreads (Velickovic et al. 2024,
// corollary B.1).
//
// One item v_a of the largest priority among n - 1 copies of v_b. Softmax gives v_a the weight 1/(1
// + (n - 1) e^{-d/theta}), d the difference of their scores: from n = e^{d/theta} on the others
// have more. Whatever the head makes of it, some n is too large.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lab/base/sequential_products.h"
#include "lab/studies/analyses/maps.h"
#include "lab/studies/analyses/trained_model.h"

namespace tsallis::lab {
namespace {

constexpr double kGaps[] = {0.02, 0.05, 0.1, 0.2, 0.4};

struct Pair {
  double low, gap;           // priorities: v_b has `low`, v_a `low` + `gap`
  std::int64_t a, b;         // classes
  double ratio = 0.0;        // e^{d/theta}
  std::int64_t misread = 0;  // 0: none up to the longest
};

// A set of n items: v_a, then copies of v_b.
SetBatch BatchOf(const Pair& pair, std::int64_t n, const MaxRetrieval& task) {
  const at::Tensor items = at::zeros({n, task.Features()});
  items.select(1, 0).fill_(pair.low);
  items.select(1, 1 + pair.b).fill_(1.0);
  items[0].zero_();
  items[0][0] = pair.low + pair.gap;
  items[0][1 + pair.a] = 1.0;
  return {items.unsqueeze(0), at::full({1, 1}, 0.5), at::full({1}, pair.a, at::kLong)};
}

bool Reads(TrainedModel& trained, const Pair& pair, std::int64_t n) {
  const SetBatch batch = BatchOf(pair, n, trained.task);
  return trained.model.Forward(batch).argmax(1).eq(batch.target).item<bool>();
}

std::string GapLabel(double gap) { return fmt::format("priorities {:g} apart", gap); }

}  // namespace

AnalysisResult Misreading(const AnalysisContext& context) {
  const SequentialProducts one_thread;
  TrainedModel trained = SoftmaxModel(context, 0.6);
  const std::int64_t longest = context.quick ? 512 : 16384;
  std::vector<Pair> pairs;
  const std::int64_t each = context.quick ? 4 : 24;
  for (const double gap : kGaps) {
    for (std::int64_t i = 0; i < each; ++i) {
      const double low = (1.0 - gap) * (0.1 + 0.85 * i / each);
      const std::int64_t a = i % trained.task.Classes();
      const std::int64_t b =
          (a + 1 + i / 3 % (trained.task.Classes() - 1)) % trained.task.Classes();
      pairs.push_back({low, gap, a, b});
    }
  }
  AnalysisResult result;
  DataTable& table = result.AddTable("misread", {"gap", "low", "ratio", "n", "weight"});
  double bound = 0.0, above = 0.0, misread = 0.0;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    Pair& pair = pairs[i];
    AttentionView view;
    trained.model.Forward(BatchOf(pair, 2, trained.task), &view);
    const at::Tensor scores = ScoresOf(view.weights);
    pair.ratio = std::exp((scores[0][0] - scores[0][1]).item<double>());
    std::int64_t good = 1;
    for (std::int64_t n = 2; n <= longest; n *= 2) {
      if (!Reads(trained, pair, n)) {
        pair.misread = n;
        break;
      }
      good = n;
    }
    while (pair.misread > 0 && pair.misread - good > std::max<std::int64_t>(1, good / 64)) {
      const std::int64_t middle = (good + pair.misread) / 2;
      (Reads(trained, pair, middle) ? good : pair.misread) = middle;
    }
    if (pair.misread > 0 && pair.ratio > 1.0) {
      const double weight = 1.0 / (1.0 + (pair.misread - 1.0) / pair.ratio);
      table.Add({GapLabel(pair.gap), pair.low, pair.ratio, pair.misread, weight});
      misread += 1.0;
      bound += weight;
      above += pair.misread > pair.ratio ? 1.0 : 0.0;
    }
    context.Done(0.6 + 0.4 * i / pairs.size());
  }
  DataTable& line = result.AddTable("line", {"ratio", "n"});
  for (const double x : {1.0, 1.0 * longest}) line.Add({x, x});
  const double share = misread / pairs.size();
  result.facts = {
      {fmt::format("pairs that are misread at {} items or fewer, share", longest), share},
      {"weight that the largest item has left when it is misread, mean",
       misread > 0.0 ? bound / misread : NAN},
      {"of those, share with n above e^(δ/θ)", misread > 0.0 ? above / misread : NAN}};
  result.finding = fmt::format(
      "A trained softmax head misreads one item among equal ones in {:.0f} % of the pairs with {} "
      "items or fewer, on average when its weight has fallen to {:.0f} %: the number of items at "
      "which "
      "it happens grows with e^(δ/θ).",
      100.0 * share, longest, misread > 0.0 ? 100.0 * bound / misread : 0.0);
  result.setup = {
      fmt::format("model: {}", trained.about),
      fmt::format("{} pairs of items of different classes, up to {} items; the smallest "
                  "set that is misread is found by doubling and halving, to 1/64",
                  pairs.size(), longest)};
  result.figures = {
      {.name = "misread",
       .title = "The smallest set {v_a, v_b, …, v_b} that is misread",
       .caption = "A point for each pair of items. Grey: n = e^(δ/θ), where v_a has as "
                  "much weight as all copies of v_b together.",
       .panels = {{.x_label = "e^(δ/θ), δ the difference of the two scores",
                   .y_label = "items",
                   .x_scale = "log2",
                   .y_scale = "log2",
                   .curves = {Curve("line", "ratio", "n").Named("n = e^(δ/θ)").Look("reference"),
                              Curve("misread", "ratio", "n").By("gap").Look("points")}}}}};
  return result;
}

}  // namespace tsallis::lab
