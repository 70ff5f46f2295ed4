#include "lab/eval/head_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <initializer_list>
#include <map>

#include "lab/base/files.h"

namespace tsallis::lab {
namespace {

using Json = nlohmann::ordered_json;

// Six digits are more than any figure shows. JSON has no NaN: null stands for it.
Json Short(double value) {
  return std::isfinite(value) ? Json(std::strtod(fmt::format("{:.6g}", value).c_str(), nullptr))
                              : Json(nullptr);
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

// Whether these are objects that have whole numbers of these names.
bool HaveNumbers(const Json& entries, std::initializer_list<const char*> names) {
  return entries.is_array() && std::all_of(entries.begin(), entries.end(), [&](const Json& entry) {
           return entry.is_object() &&
                  std::all_of(names.begin(), names.end(), [&](const char* name) {
                    return entry.contains(name) && entry[name].is_number_integer();
                  });
         });
}

const Json* Find(const Json& entries, std::int64_t n) {
  const auto found = std::find_if(entries.begin(), entries.end(),
                                  [&](const Json& entry) { return entry["n"] == n; });
  return found == entries.end() ? nullptr : &*found;
}

}  // namespace

const Json* HeadObservations::At(std::int64_t n) const { return Find(lengths, n); }
bool HeadObservations::HasMaps(std::int64_t n) const { return Find(maps, n) != nullptr; }

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

Json ToJson(const LengthHeads& heads) {
  return {{"n", heads.n}, {"samples", heads.samples}, {"tables", HeadTables(heads.numbers)}};
}

Json ToJson(const AttentionMap& map) {
  return {{"n", map.n},           {"layer", map.layer}, {"head", map.head},
          {"tokens", map.tokens}, {"cell", map.cell},   {"thousandths", Sparse(map.weights)}};
}

void SaveHeads(const std::filesystem::path& path, const HeadObservations& heads) {
  const Json json = {{"lengths", heads.lengths}, {"maps", heads.maps}};
  WriteFileAtomically(path, json.dump() + "\n");
}

HeadObservations LoadHeads(const std::filesystem::path& path) {
  const Json json = ReadJson(path);
  if (!json.is_object()) return {};
  const Json lengths = json.value("lengths", Json()), maps = json.value("maps", Json());
  if (!HaveNumbers(lengths, {"n", "samples"}) ||
      !HaveNumbers(maps, {"n", "layer", "head", "tokens", "cell"}) ||
      !std::all_of(lengths.begin(), lengths.end(),
                   [](const Json& at) { return at.contains("tables"); })) {
    return {};
  }
  return {lengths, maps};
}

}  // namespace tsallis::lab
