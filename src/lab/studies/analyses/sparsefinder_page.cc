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

std::size_t Place(const DataTable& table, const std::string& column) {
  const auto& columns = table.Columns();
  return static_cast<std::size_t>(std::find(columns.begin(), columns.end(), column) -
                                  columns.begin());
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

AnalysisFigure LayersFigure(const std::vector<Layer>& layers) {
  AnalysisFigure figure{.name = "recall",
                        .title = "Found pairs against sparsity, layer by layer",
                        .caption =
                            "Of the pairs of query and key that have weight, the share that each "
                            "way to foretell them joins. Further up and to the right is better.",
                        .columns = 2};
  for (const Layer& layer : layers) {
    figure.panels.push_back({.title = layer.name,
                             .x_label = kLeftOut,
                             .y_label = "pairs with weight that are joined (%)",
                             .curves = CurvesOf("edges", "recall", "tokens", layer.name)});
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
  const std::size_t layer = Place(table, "layer"), family = Place(table, "family"),
                    method = Place(table, "method"), x = Place(table, "sparsity"),
                    y = Place(table, column);
  std::vector<MethodValue> values;
  std::vector<Points> points;
  for (const std::vector<Cell>& row : table.Rows()) {
    if (layer < row.size() && CellText(row[layer]) != "all") continue;
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
  const std::size_t method = Place(time, "method"), setting = Place(time, "setting"),
                    left_out = Place(time, "sparsity"), exact = Place(time, "exact"),
                    both = Place(time, "both"), error = Place(time, "error");
  if (time.Rows().empty()) return {};
  const std::vector<Cell>& last = time.Rows().back();
  // The fastest setting of every method at the longest length.
  std::map<std::string, const std::vector<Cell>*> best;
  for (const std::vector<Cell>& row : time.Rows()) {
    if (CellText(row[0]) != CellText(last[0])) continue;
    const std::vector<Cell>*& there = best[CellText(row[method])];
    if (there == nullptr || std::get<double>(row[both]) < std::get<double>((*there)[both])) {
      there = &row;
    }
  }
  std::vector<Fact> facts = {
      {fmt::format("time (ms) of exact attention of all heads, {} tokens, one thread of this "
                   "machine",
                   CellText(last[0])),
       std::get<double>(last[exact])}};
  for (const auto& [name, row] : best) {
    facts.push_back(
        {fmt::format("time (ms) of foretelling and attention on blocks, {} ({:.3g}), "
                     "{:.0f} % left out, output wrong by {:.0f} %",
                     name, std::get<double>((*row)[setting]), std::get<double>((*row)[left_out]),
                     std::get<double>((*row)[error])),
         std::get<double>((*row)[both])});
  }
  return facts;
}

std::vector<AnalysisFigure> FiguresOf(const std::vector<Layer>& layers, const Metric& metric,
                                      const DataTable& time) {
  std::vector<AnalysisFigure> figures = {
      EdgesFigure("all", "tokens", "Found pairs, found weight and exact rows against sparsity",
                  "All heads. Left: pairs that have weight. Middle: the weight on them. Right: "
                  "queries all of whose pairs are joined, whose answer is therefore exact."),
      LayersFigure(layers),
      EdgesFigure("first-keys", "global", "The same where all queries see the first keys too",
                  "All heads; the window beside them."),
      EdgesFigure("chunks", "blocks", "The same of chunks of tokens",
                  "All heads; the window beside them. A pair is joined if its chunks are."),
      AnswersFigure(metric)};
  if (!time.Rows().empty()) figures.push_back(TimeFigure(time));
  return figures;
}

}  // namespace tsallis::lab::sparsefinder
