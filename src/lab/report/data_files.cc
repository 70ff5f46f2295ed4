#include "lab/report/data_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
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

std::vector<EntropyRow> ReadEntropies(const fs::path& path) {
  std::vector<EntropyRow> rows;
  if (!fs::exists(path)) return rows;
  const CsvTable table(path);
  for (std::size_t i = 0; i < table.size(); ++i) {
    rows.push_back({table.Text(i, "method"), table.Number<std::int64_t>(i, "n"),
                    table.Number<double>(i, "entropy_mean"), table.Number<double>(i, "entropy_std"),
                    table.Number<double>(i, "normalised_entropy"),
                    table.Number<double>(i, "support_mean")});
  }
  return rows;
}

std::vector<HeatMap> ReadHeatMaps(const fs::path& path) {
  std::vector<HeatMap> maps;
  if (!fs::exists(path)) return maps;
  const CsvTable table(path);
  struct Entry {
    std::int64_t set, rank;
    float weight;
  };
  std::vector<std::vector<Entry>> entries;  // one list per map
  std::map<std::pair<std::string, std::int64_t>, std::size_t> places;
  for (std::size_t i = 0; i < table.size(); ++i) {
    const std::string& method = table.Text(i, "method");
    const auto n = table.Number<std::int64_t>(i, "n");
    const Entry entry{table.Number<std::int64_t>(i, "set"), table.Number<std::int64_t>(i, "rank"),
                      table.Number<float>(i, "weight")};
    if (entry.set < 0 || entry.rank < 1) {
      throw std::runtime_error(
          fmt::format("{}: set {}, rank {} of {}: sets count from 0, ranks from 1", path.string(),
                      entry.set, entry.rank, method));
    }
    const auto [place, is_new] = places.try_emplace({method, n}, maps.size());
    if (is_new) {
      maps.push_back({method, n, 0, 0, {}});
      entries.emplace_back();
    }
    HeatMap& map = maps[place->second];
    map.samples = std::max(map.samples, entry.set + 1);
    map.items = std::max(map.items, entry.rank);
    entries[place->second].push_back(entry);
  }
  for (std::size_t m = 0; m < maps.size(); ++m) {
    HeatMap& map = maps[m];
    // Before any memory is asked for: a stray index must not cost gigabytes.
    if (static_cast<double>(map.samples) * static_cast<double>(map.items) !=
        static_cast<double>(entries[m].size())) {
      throw std::runtime_error(fmt::format("{}: {} at n = {} has {} weights for {} sets of {}",
                                           path.string(), map.method, map.n, entries[m].size(),
                                           map.samples, map.items));
    }
    map.weights.resize(entries[m].size());
    for (const Entry& entry : entries[m]) {
      map.weights[entry.set * map.items + map.items - entry.rank] = entry.weight;
    }
  }
  return maps;
}

// The heads of a method, added if they are new.
HeadObservations& HeadsOf(std::vector<MethodHeads>& all, const std::string& method) {
  for (MethodHeads& heads : all) {
    if (heads.method == method) return heads.heads;
  }
  return all.emplace_back(MethodHeads{method, {}}).heads;
}

void ReadHeads(const fs::path& path, std::vector<MethodHeads>& all) {
  if (!fs::exists(path)) return;
  const CsvTable table(path);
  for (std::size_t i = 0; i < table.size(); ++i) {
    HeadObservations& heads = HeadsOf(all, table.Text(i, "method"));
    const auto n = table.Number<std::int64_t>(i, "n");
    if (heads.lengths.empty() || heads.lengths.back().n != n) {
      heads.lengths.push_back({n, table.Number<std::int64_t>(i, "samples"), {}});
    }
    heads.lengths.back().numbers.push_back(
        {table.Number<std::int64_t>(i, "layer"), table.Number<std::int64_t>(i, "head"),
         table.Text(i, "quantity"), table.Number<double>(i, "mean"),
         table.Number<double>(i, "std")});
  }
}

void ReadAttention(const fs::path& path, std::vector<MethodHeads>& all) {
  if (!fs::exists(path)) return;
  const CsvTable table(path);
  for (std::size_t i = 0; i < table.size(); ++i) {
    const auto integer = [&](const char* column) { return table.Number<std::int64_t>(i, column); };
    std::vector<AttentionMap>& maps = HeadsOf(all, table.Text(i, "method")).maps;
    AttentionMap place{.n = integer("n"),
                       .layer = integer("layer"),
                       .head = integer("head"),
                       .tokens = integer("tokens"),
                       .cell = integer("cell"),
                       .weights = {}};
    // A stray number must not cost gigabytes.
    if (place.tokens < 1 || place.cell < 1 || place.Cells() > kMapCells) {
      throw std::runtime_error(
          fmt::format("{}: a map of {} tokens in cells of {}: expected 1 to {} "
                      "cells",
                      path.string(), place.tokens, place.cell, kMapCells));
    }
    if (maps.empty() || maps.back().n != place.n || maps.back().layer != place.layer ||
        maps.back().head != place.head) {
      place.weights.resize(static_cast<std::size_t>(place.Cells() * place.Cells()));
      maps.push_back(std::move(place));
    }
    AttentionMap& map = maps.back();
    const std::int64_t row = integer("row");
    const std::int64_t column = integer("column");
    if (row < 0 || row >= map.Cells() || column < 0 || column >= map.Cells()) {
      throw std::runtime_error(fmt::format("{}: cell {}, {} of a map of {} by {}", path.string(),
                                           row, column, map.Cells(), map.Cells()));
    }
    map.weights[static_cast<std::size_t>(row * map.Cells() + column)] =
        table.Number<float>(i, "weight");
  }
}

std::vector<DrawnSample> ReadSamples(const fs::path& path) {
  std::vector<DrawnSample> samples;
  if (!fs::exists(path)) return samples;
  const CsvTable table(path);
  for (std::size_t i = 0; i < table.size(); ++i) {
    const auto n = table.Number<std::int64_t>(i, "n");
    if (samples.empty() || samples.back().n != n) samples.push_back({n, {}, {}});
    samples.back().words.push_back(table.Text(i, "token"));
    samples.back().scored.push_back(table.Number<int>(i, "scored") != 0);
  }
  return samples;
}

}  // namespace

std::vector<std::pair<fs::path, std::string>> DataFiles(const StudyResults& results) {
  std::vector<std::pair<fs::path, std::string>> files = {
      {"data/entropy.csv", EntropyCsv(results)},
      {"data/heatmap.csv", HeatMapCsv(results)},
      {"data/heads.csv", HeadsCsv(results)},
      {"data/attention.csv", AttentionCsv(results)},
      {"data/samples.csv", SamplesCsv(results)}};
  for (auto& [path, text] : files) {
    if (text.find('\n') + 1 == text.size()) text.clear();  // column names alone
  }
  return files;
}

void ReadDataFiles(const fs::path& dir, StudyResults& results) {
  results.entropies = ReadEntropies(dir / "data" / "entropy.csv");
  results.heat_maps = ReadHeatMaps(dir / "data" / "heatmap.csv");
  results.heads.clear();
  ReadHeads(dir / "data" / "heads.csv", results.heads);
  ReadAttention(dir / "data" / "attention.csv", results.heads);
  results.samples = ReadSamples(dir / "data" / "samples.csv");
}

}  // namespace tsallis::lab
