// Helpers of the row-map tests.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "core/every_target.h"
#include "simplex/fast.h"
#include "tsallis/rows.h"

namespace tsallis {

template <typename T>
ConstRows Rows(const std::vector<T>& data, std::int64_t rows, DType dtype) {
  const std::int64_t length = rows > 0 ? static_cast<std::int64_t>(data.size()) / rows : 0;
  return {data.data(), dtype, rows, length, length, 1};
}

template <typename T>
MutableRows Rows(std::vector<T>& data, std::int64_t rows, DType dtype) {
  const std::int64_t length = rows > 0 ? static_cast<std::int64_t>(data.size()) / rows : 0;
  return {data.data(), dtype, rows, length, length, 1};
}

// [size] normal scores times `spread`.
template <typename T>
std::vector<T> Normal(std::size_t size, double spread, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<double> normal;
  std::vector<T> out(size);
  for (T& value : out) value = static_cast<T>(spread * normal(engine));
  return out;
}

template <typename T>
double Sum(const std::vector<T>& values) {
  double sum = 0.0;
  for (T value : values) sum += static_cast<double>(value);
  return sum;
}

inline RowMapParams Entmax(double alpha, double temperature = 1.0) {
  RowMapParams params;
  params.alpha = alpha;
  params.temperature = temperature;
  return params;
}

}  // namespace tsallis
