#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "lab/studies/analyses/sparsefinder.h"

namespace tsallis::lab::sparsefinder {
namespace {

using Points = std::vector<std::pair<double, double>>;  // sparsity, and what is measured there

constexpr const char* kLeftOut = "pairs left out (%)";

// A method's value at a sparsity, between its settings; none where it does not go there.
std::optional<double> ValueAt(Points points, double sparsity) {
  std::sort(points.begin(), points.end());
  for (std::size_t i = 1; i < points.size(); ++i) {
    if (points[i - 1].first <= sparsity && sparsity <= points[i].first) {
      const double share =
          (sparsity - points[i - 1].first) / std::max(1e-12, points[i].first - points[i - 1].first);
      return points[i - 1].second + share * (points[i].second - points[i - 1].second);
    }
  }
  return std::nullopt;
}

// Curves of a family; beside chunks and first keys the window, which looks at no key, dashed.
std::vector<Curve> CurvesOf(const char* table, const char* y, const std::string& family,
                            const std::string& layer) {
  std::vector<Curve> curves;
  const auto add = [&](const char* column, const std::string& value, const char* look) {
    Where where = {{column, value}};
    if (!layer.empty()) where.insert(where.begin(), {"layer", layer});
    curves.push_back(Curve(table, "sparsity", y).By("method").In(std::move(where)).Look(look));
  };
  if (family != "tokens") add("method", "window", "dashed");
  add("family", family, "line");
  return curves;
}

AnalysisFigure EdgesFigure(const char* name, const char* family, const char* title,
                           const char* caption) {
  AnalysisFigure figure{.name = name, .title = title, .caption = caption, .columns = 3};
  for (const auto& [y, panel, label] :
       {std::tuple("recall", "pairs", "pairs with weight that are joined (%)"),
        std::tuple("mass", "weight", "weight that is joined (%)"),
        std::tuple("exact", "rows", "queries that are exact (%)")}) {
    figure.panels.push_back({.title = panel,
                             .x_label = kLeftOut,
                             .y_label = label,
                             .curves = CurvesOf("edges", y, family, "all")});
  }
  return figure;
}

AnalysisFigure LayersFigure(const std::vector<LayerPlace>& layers) {
  AnalysisFigure figure{.name = "recall",
                        .title = "Found pairs against sparsity, layer by layer",
                        .caption =
                            "Of the pairs of query and key that have weight, the share that each "
                            "way to foretell them joins. Further up and to the right is better.",
                        .columns = 2};
  for (const LayerPlace& layer : layers) {
    figure.panels.push_back({.title = NameOf(layer),
                             .x_label = kLeftOut,
                             .y_label = "pairs with weight that are joined (%)",
                             .curves = CurvesOf("edges", "recall", "tokens", NameOf(layer))});
  }
  return figure;
}

AnalysisFigure AnswersFigure(const Metric& metric) {
  AnalysisFigure figure{
      .name = "answers",
      .title = fmt::format("{} of the model where heads see the joined pairs alone",
                           metric.higher_is_better ? "Accuracy" : "Loss"),
      .caption = fmt::format("Queries and keys are those of the restricted run itself. Grey: the "
                             "same model with all pairs. {} is better.",
                             metric.higher_is_better ? "Higher" : "Lower"),
      .columns = 3};
  for (const auto& [family, title] :
       {std::pair("tokens", "pairs"), std::pair("global", "with first keys for all"),
        std::pair("blocks", "chunks")}) {
    std::vector<Curve> curves = CurvesOf("answers", "value", family, "");
    curves.push_back(Curve("full", "sparsity", "value").Named("all pairs").Look("reference"));
    figure.panels.push_back({.title = title,
                             .x_label = kLeftOut,
                             .y_label = fmt::format("{} ({})", metric.name, metric.unit),
                             .curves = std::move(curves)});
  }
  return figure;
}

AnalysisFigure TimeFigure(const DataTable& time) {
  AnalysisFigure figure{.name = "time",
                        .title =
                            "Time of foretelling blocks and attending to them, beside exact "
                            "sparse attention",
                        .caption =
                            "All heads of all layers, forward pass, one thread of this machine. "
                            "Grey: exact attention with its usual kernel. Below it a foretold mask "
                            "pays.",
                        .columns = 2};
  for (const auto& row : time.Rows()) {
    const std::string title = CellText(row[0]) + " tokens";
    if (!figure.panels.empty() && figure.panels.back().title == title) continue;
    const Where where = {{"tokens", row[0]}};
    figure.panels.push_back(
        {.title = title,
         .x_label = "pairs left out, by blocks (%)",
         .y_label = "milliseconds",
         .curves = {
             Curve("time", "sparsity", "both").By("method").In(where),
             Curve("time", "sparsity", "exact").Named("exact").In(where).Look("reference")}});
  }
  return figure;
}

}  // namespace

std::vector<MethodValue> ValuesAt(const DataTable& table, const std::string& column,
                                  double sparsity) {
  const bool layered = table.Columns().front() == "layer";
  const std::size_t family = table.Place("family"), method = table.Place("method"),
                    x = table.Place("sparsity"), y = table.Place(column);
  std::vector<MethodValue> values;
  std::vector<Points> points;
  for (const std::vector<Cell>& row : table.Rows()) {
    if (layered && CellText(row[0]) != "all") continue;
    if (values.empty() || values.back().method != CellText(row[method])) {
      values.push_back({CellText(row[family]), CellText(row[method]), std::nullopt});
      points.emplace_back();
    }
    points.back().emplace_back(std::get<double>(row[x]), std::get<double>(row[y]));
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i].value = ValueAt(std::move(points[i]), sparsity);
  }
  return values;
}

double CommonSparsity(const DataTable& edges) {
  double best = 0.0;
  std::ptrdiff_t most = -1;
  for (double sparsity = 90.0; sparsity > 0.0; sparsity -= 10.0) {
    const std::vector<MethodValue> values = ValuesAt(edges, "recall", sparsity);
    const auto there = std::count_if(values.begin(), values.end(), [](const MethodValue& value) {
      return value.family == "tokens" && value.value;
    });
    if (there > most) {
      most = there;
      best = sparsity;
    }
  }
  return best;
}

std::vector<Fact> TimeFacts(const DataTable& time) {
  if (time.Rows().empty()) return {};
  using Row = std::vector<Cell>;
  const auto number = [&](const Row& row, const char* column) {
    return std::get<double>(row[time.Place(column)]);
  };
  const Row& last = time.Rows().back();
  // The fastest setting of every method at the longest length.
  std::map<std::string, const Row*> best;
  for (const Row& row : time.Rows()) {
    if (CellText(row[0]) != CellText(last[0])) continue;
    const Row*& there = best[CellText(row[time.Place("method")])];
    if (there == nullptr || number(row, "both") < number(*there, "both")) there = &row;
  }
  std::vector<Fact> facts = {
      {fmt::format("time (ms) of exact attention of all heads, {} tokens, one thread of this "
                   "machine",
                   CellText(last[0])),
       number(last, "exact")}};
  for (const auto& [name, row] : best) {
    facts.push_back({fmt::format("time (ms) of foretelling and attention on blocks, {} ({:.3g}), "
                                 "{:.0f} % left out, output wrong by {:.0f} %",
                                 name, number(*row, "setting"), number(*row, "sparsity"),
                                 number(*row, "error")),
                     number(*row, "both")});
  }
  return facts;
}

void AddFigures(const std::vector<LayerPlace>& layers, const Metric& metric,
                AnalysisResult& result) {
  result.figures = {
      EdgesFigure("all", "tokens", "Found pairs, found weight and exact rows against sparsity",
                  "All heads. Left: pairs that have weight. Middle: the weight on them. Right: "
                  "queries all of whose pairs are joined, whose answer is therefore exact."),
      LayersFigure(layers),
      EdgesFigure("first-keys", "global", "The same where all queries see the first keys too",
                  "All heads; the window beside them."),
      EdgesFigure("chunks", "blocks", "The same of chunks of tokens",
                  "All heads; the window beside them. A pair is joined if its chunks are."),
      AnswersFigure(metric)};
  const DataTable& time = result.Table("time");
  if (!time.Rows().empty()) result.AddFigure(TimeFigure(time));
}

}  // namespace tsallis::lab::sparsefinder
