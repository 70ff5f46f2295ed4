// Observations of the heads of a sequence model at a length, as data, in memory and on disk: no
// tensors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tsallis::lab {

// A quantity of one head (LayerAttention::Describe() says which there are) over the scored tokens.
struct HeadNumber {
  std::int64_t layer = 0;
  std::int64_t head = 0;
  std::string quantity;
  double mean = 0.0;
  double deviation = 0.0;  // over the tokens
};

// All heads at one length.
struct LengthHeads {
  std::int64_t n = 0;
  std::int64_t samples = 0;  // the first of the split
  std::vector<HeadNumber> numbers;
};

// Rows and columns of a map at most.
constexpr std::int64_t kMapCells = 96;

// The attention of one head on one sample. Long samples are drawn in cells of several tokens: a
// weight is then what a query of that row gives to all keys of that column, averaged over the row's
// queries, so that rows still sum to 1.
struct AttentionMap {
  std::int64_t n = 0;
  std::int64_t layer = 0;
  std::int64_t head = 0;
  std::int64_t tokens = 0;
  std::int64_t cell = 1;       // tokens of a cell; the last may have fewer
  std::vector<float> weights;  // [cells, cells], queries down

  std::int64_t Cells() const { return (tokens + cell - 1) / cell; }
};

// One object for each quantity: "quantity", and "mean" and "std" as [layers][heads] of six digits,
// null where a head has no such quantity or where it is not finite.
nlohmann::ordered_json HeadTables(const std::vector<HeadNumber>& numbers);

// As the file below has them: numbers as HeadTables, weights to three decimals.
nlohmann::ordered_json ToJson(const LengthHeads& heads);
nlohmann::ordered_json ToJson(const AttentionMap& map);

// The observations of one trained model.
struct HeadObservations {
  nlohmann::ordered_json lengths = nlohmann::ordered_json::array();  // of LengthHeads
  nlohmann::ordered_json maps = nlohmann::ordered_json::array();     // of AttentionMaps

  const nlohmann::ordered_json* At(std::int64_t n) const;  // null if it is not there
  bool HasMaps(std::int64_t n) const;
};

// Loading gives nothing if there is no such file, or if it is not one of these; saving throws
// std::runtime_error.
void SaveHeads(const std::filesystem::path& path, const HeadObservations& heads);
HeadObservations LoadHeads(const std::filesystem::path& path);

}  // namespace tsallis::lab
