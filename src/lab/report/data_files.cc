#include "lab/report/data_files.h"

#include <fmt/format.h>

#include <stdexcept>

#include "lab/report/csv.h"

namespace tsallis::lab {
namespace {

namespace fs = std::filesystem;

std::string EntropyCsv(const StudyResults& results) {
  std::string csv = "method,n,entropy_mean,entropy_std,normalised_entropy,support_mean\n";
  for (const EntropyRow& row : results.entropies) {
    csv += fmt::format("{},{},{},{},{:.6g},{}\n", Quoted(row.method), row.n, row.entropy_mean,
                       row.entropy_std, row.normalised_mean, row.support_mean);
  }
  return csv;
}

std::string PositionsCsv(const StudyResults& results) {
  if (results.positions.empty()) return "";
  std::string csv = "method,n,begin,end,mean,std\n";
  for (const PositionRow& row : results.positions) {
    csv += fmt::format("{},{},{},{},{:.6g},{:.6g}\n", Quoted(row.method), row.n, row.begin, row.end,
                       row.mean, row.deviation);
  }
  return csv;
}

std::string SpreadCsv(const StudyResults& results) {
  std::string csv = "method,step,mean,least,most,bound_mean,bound_least,bound_most\n";
  for (const SpreadRow& row : results.spreads) {
    csv += fmt::format("{},{},{:.6g},{:.6g},{:.6g},{:.6g},{:.6g},{:.6g}\n", Quoted(row.method),
                       row.step, row.mean, row.least, row.most, row.bound_mean, row.bound_least,
                       row.bound_most);
  }
  return csv;
}

std::string MeasuresCsv(const StudyResults& results) {
  std::string csv = "method,n,measure,mean,std\n";
  for (const MeasureRow& row : results.measures) {
    csv += fmt::format("{},{},{},{:.6g},{:.6g}\n", Quoted(row.method), row.n, Quoted(row.measure),
                       row.mean, row.deviation);
  }
  return csv;
}

std::string GroupsCsv(const StudyResults& results) {
  std::string csv = "method,n,group,mean,std\n";
  for (const GroupRow& row : results.groups) {
    csv += fmt::format("{},{},{},{:.6g},{:.6g}\n", Quoted(row.method), row.n, Quoted(row.group),
                       row.mean, row.deviation);
  }
  return csv;
}

std::string FlowCsv(const StudyResults& results) {
  std::string csv = "method,step,layer,gradient,keys\n";
  for (const FlowRow& row : results.flows) {
    csv += fmt::format("{},{},{},{:.6g},{:.6g}\n", Quoted(row.method), row.step, row.layer,
                       row.gradient, row.keys);
  }
  return csv;
}

// One line per weight; rank 1 is the largest item, the last column of HeatMap.
std::string HeatMapCsv(const StudyResults& results) {
  std::string csv = "method,n,set,rank,weight\n";
  for (const HeatMap& map : results.heat_maps) {
    if (static_cast<std::int64_t>(map.weights.size()) != map.samples * map.items) {
      throw std::runtime_error(fmt::format("heat map of {} at n = {}: {} weights for {} sets of {}",
                                           map.method, map.n, map.weights.size(), map.samples,
                                           map.items));
    }
    const std::string method = Quoted(map.method);
    for (std::int64_t set = 0; set < map.samples; ++set) {
      for (std::int64_t column = 0; column < map.items; ++column) {
        csv += fmt::format("{},{},{},{},{}\n", method, map.n, set, map.items - column,
                           map.weights[set * map.items + column]);
      }
    }
  }
  return csv;
}

std::string HeadsCsv(const StudyResults& results) {
  std::string csv = "method,n,samples,layer,head,quantity,mean,std\n";
  for (const auto& [method, heads] : results.heads) {
    const std::string name = Quoted(method);
    for (const LengthHeads& at : heads.lengths) {
      for (const HeadNumber& number : at.numbers) {
        csv += fmt::format("{},{},{},{},{},{},{},{}\n", name, at.n, at.samples, number.layer,
                           number.head, Quoted(number.quantity), number.mean, number.deviation);
      }
    }
  }
  return csv;
}

// One line per cell with weight; row and column count cells.
std::string AttentionCsv(const StudyResults& results) {
  std::string csv = "method,n,layer,head,tokens,cell,row,column,weight\n";
  for (const auto& [method, heads] : results.heads) {
    const std::string name = Quoted(method);
    for (const AttentionMap& map : heads.maps) {
      const std::int64_t cells = map.Cells();
      for (std::int64_t i = 0; i < cells * cells; ++i) {
        const float weight = map.weights.at(static_cast<std::size_t>(i));
        if (weight == 0.0F) continue;
        csv += fmt::format("{},{},{},{},{},{},{},{},{}\n", name, map.n, map.layer, map.head,
                           map.tokens, map.cell, i / cells, i % cells, weight);
      }
    }
  }
  return csv;
}

std::string SamplesCsv(const StudyResults& results) {
  std::string csv = "n,position,token,scored\n";
  for (const DrawnSample& sample : results.samples) {
    for (std::size_t i = 0; i < sample.words.size(); ++i) {
      csv += fmt::format("{},{},{},{}\n", sample.n, i, Quoted(sample.words[i]),
                         sample.scored[i] ? 1 : 0);
    }
  }
  return csv;
}

}  // namespace

std::vector<std::pair<fs::path, std::string>> DataFiles(const StudyResults& results) {
  std::vector<std::pair<fs::path, std::string>> files = {
      {"data/entropy.csv", EntropyCsv(results)},     {"data/heatmap.csv", HeatMapCsv(results)},
      {"data/positions.csv", PositionsCsv(results)}, {"data/heads.csv", HeadsCsv(results)},
      {"data/attention.csv", AttentionCsv(results)}, {"data/samples.csv", SamplesCsv(results)},
      {"data/spread.csv", SpreadCsv(results)},       {"data/flow.csv", FlowCsv(results)},
      {"data/groups.csv", GroupsCsv(results)},       {"data/measures.csv", MeasuresCsv(results)}};
  for (auto& [path, text] : files) {
    if (text.find('\n') + 1 == text.size()) text.clear();  // column names alone
  }
  return files;
}

}  // namespace tsallis::lab
