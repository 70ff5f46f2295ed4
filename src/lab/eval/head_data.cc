#include "lab/eval/head_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "lab/base/files.h"

namespace tsallis::lab {
namespace {

using Json = nlohmann::ordered_json;

// Six digits are more than any figure shows. JSON has no NaN: null stands for it.
Json Short(double value) {
  return std::isfinite(value) ? Json(std::strtod(fmt::format("{:.6g}", value).c_str(), nullptr))
                              : Json(nullptr);
}

double Number(const Json& json) {
  return json.is_null() ? std::numeric_limits<double>::quiet_NaN() : json.get<double>();
}

std::vector<HeadNumber> NumbersOf(const Json& tables) {
  std::vector<HeadNumber> numbers;
  for (const Json& table : tables) {
    const Json& means = table.at("mean");
    for (std::size_t layer = 0; layer < means.size(); ++layer) {
      for (std::size_t head = 0; head < means[layer].size(); ++head) {
        if (means[layer][head].is_null()) continue;
        numbers.push_back({static_cast<std::int64_t>(layer), static_cast<std::int64_t>(head),
                           table.at("quantity"), means[layer][head],
                           Number(table.at("std").at(layer).at(head))});
      }
    }
  }
  std::stable_sort(numbers.begin(), numbers.end(), [](const HeadNumber& a, const HeadNumber& b) {
    return std::pair(a.layer, a.head) < std::pair(b.layer, b.head);
  });
  return numbers;
}

// Weights that are not 0, as [cells since the last, thousandths, ...]: a picture needs three
// digits, and these files are kept with the results, of which maps are the largest part.
Json Sparse(const std::vector<float>& weights) {
  Json entries = Json::array();
  std::size_t last = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const auto thousandths = std::lround(weights[i] * 1e3);
    if (thousandths == 0) continue;
    entries.push_back(i - last);
    entries.push_back(thousandths);
    last = i;
  }
  return entries;
}

AttentionMap MapOf(const Json& json) {
  AttentionMap map{.n = json.at("n"),
                   .layer = json.at("layer"),
                   .head = json.at("head"),
                   .tokens = json.at("tokens"),
                   .cell = json.at("cell"),
                   .weights = {}};
  if (map.tokens < 1 || map.cell < 1) throw std::out_of_range("no tokens");
  map.weights.assign(static_cast<std::size_t>(map.Cells() * map.Cells()), 0.0F);
  const Json& entries = json.at("thousandths");
  std::size_t cell = 0;
  for (std::size_t i = 0; i + 1 < entries.size(); i += 2) {
    cell += entries[i].get<std::size_t>();
    map.weights.at(cell) = static_cast<float>(entries[i + 1].get<std::int64_t>()) / 1e3F;
  }
  return map;
}

}  // namespace

const LengthHeads* HeadObservations::At(std::int64_t n) const {
  const auto found = std::find_if(lengths.begin(), lengths.end(),
                                  [&](const LengthHeads& heads) { return heads.n == n; });
  return found == lengths.end() ? nullptr : &*found;
}

bool HeadObservations::HasMaps(std::int64_t n) const {
  return std::any_of(maps.begin(), maps.end(), [&](const AttentionMap& map) { return map.n == n; });
}

Json HeadTables(const std::vector<HeadNumber>& numbers) {
  std::int64_t layers = 0;
  std::int64_t heads = 0;
  for (const HeadNumber& number : numbers) {
    layers = std::max(layers, number.layer + 1);
    heads = std::max(heads, number.head + 1);
  }
  const Json nothing(std::vector<Json>(static_cast<std::size_t>(layers),
                                       std::vector<Json>(static_cast<std::size_t>(heads))));
  Json tables = Json::array();  // in the order of their first number
  std::map<std::string, std::size_t> place;
  for (const HeadNumber& number : numbers) {
    const auto [found, is_new] = place.try_emplace(number.quantity, tables.size());
    if (is_new) {
      tables.push_back({{"quantity", number.quantity}, {"mean", nothing}, {"std", nothing}});
    }
    Json& table = tables[found->second];
    table["mean"][number.layer][number.head] = Short(number.mean);
    table["std"][number.layer][number.head] = Short(number.deviation);
  }
  return tables;
}

void SaveHeads(const std::filesystem::path& path, const HeadObservations& heads) {
  Json json = {{"lengths", Json::array()}, {"maps", Json::array()}};
  for (const LengthHeads& at : heads.lengths) {
    json["lengths"].push_back(
        {{"n", at.n}, {"samples", at.samples}, {"tables", HeadTables(at.numbers)}});
  }
  for (const AttentionMap& map : heads.maps) {
    json["maps"].push_back({{"n", map.n},
                            {"layer", map.layer},
                            {"head", map.head},
                            {"tokens", map.tokens},
                            {"cell", map.cell},
                            {"thousandths", Sparse(map.weights)}});
  }
  WriteFileAtomically(path, json.dump() + "\n");
}

HeadObservations LoadHeads(const std::filesystem::path& path) {
  const Json json = ReadJson(path);
  HeadObservations heads;
  try {
    for (const Json& at : json.at("lengths")) {
      heads.lengths.push_back(
          {.n = at.at("n"), .samples = at.at("samples"), .numbers = NumbersOf(at.at("tables"))});
    }
    for (const Json& map : json.at("maps")) heads.maps.push_back(MapOf(map));
  } catch (const Json::exception&) {
    return {};
  } catch (const std::out_of_range&) {  // a map without tokens, a cell beyond its map
    return {};
  }
  return heads;
}

}  // namespace tsallis::lab
