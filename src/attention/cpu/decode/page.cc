// Computes what a page keeps beside its keys: bytes, ranges, moments.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "attention/cpu/decode/decode.h"

namespace tsallis::decode {
namespace {

// A float that is no smaller.
float Up(double value) {
  return std::nextafterf(static_cast<float>(value), std::numeric_limits<float>::infinity());
}

}  // namespace

ByteQuery PutQuery(const float* values, std::int64_t columns, std::int8_t* bytes) {
  ByteQuery query{.bytes = bytes};
  float largest = 0.0f;
  for (std::int64_t x = 0; x < columns; ++x) largest = std::max(largest, std::abs(values[x]));
  query.step = largest / 127.0f;
  const float inverse = query.step > 0.0f ? 1.0f / query.step : 0.0f;
  double norm = 0.0, lost = 0.0;
  std::fill_n(bytes, ByteColumns(columns), std::int8_t{0});
  for (std::int64_t x = 0; x < columns; ++x) {
    const float scaled = std::clamp(std::nearbyintf(values[x] * inverse), -127.0f, 127.0f);
    // NaN becomes 0, and the norm says so.
    bytes[x] = scaled == scaled ? static_cast<std::int8_t>(scaled) : std::int8_t{0};
    query.sum += bytes[x];
    const double value = static_cast<double>(values[x]);
    const double rest = value - static_cast<double>(query.step) * bytes[x];
    norm += value * value;
    lost += rest * rest;
  }
  query.norm = Up(std::sqrt(norm));
  query.lost = Up(std::sqrt(lost));
  return query;
}

void PutKey(const float* values, std::int64_t columns, std::int64_t slot, std::byte* page) {
  const std::int64_t width = ByteColumns(columns);
  std::int8_t bytes[512];
  const ByteQuery key = PutQuery(values, columns, bytes);
  auto* group = reinterpret_cast<std::uint8_t*>(page) + slot / 16 * 16 * width;
  double norm = 0.0;
  for (std::int64_t x = 0; x < width; ++x) {
    group[x / 4 * 64 + slot % 16 * 4 + x % 4] = static_cast<std::uint8_t>(bytes[x] + 128);
    norm += static_cast<double>(bytes[x]) * bytes[x];
  }
  auto* tail = reinterpret_cast<float*>(page + ByteTailAt(columns)) + slot;
  const bool finite = std::isfinite(key.norm) && std::isfinite(key.lost);
  tail[0] = finite ? key.step : 0.0f;
  tail[kPage] = finite ? key.lost : std::numeric_limits<float>::infinity();
  tail[2 * kPage] = finite ? Up(static_cast<double>(key.step) * std::sqrt(norm)) : 0.0f;
}

float NormOf(const float* values, std::int64_t columns) {
  double norm = 0.0;
  for (std::int64_t x = 0; x < columns; ++x) {
    const double value = static_cast<double>(values[x]);
    norm += value * value;
  }
  const float root = Up(std::sqrt(norm));
  return std::isfinite(root) ? root : std::numeric_limits<float>::infinity();
}

PageFacts FactsAt(const std::byte* facts, std::int64_t columns) {
  const auto* numbers =
      reinterpret_cast<const float*>(facts + static_cast<std::int64_t>(sizeof(std::int64_t)));
  return {numbers, numbers + columns};
}

std::int64_t CountAt(const std::byte* facts) {
  std::int64_t count = 0;
  std::memcpy(&count, facts, sizeof count);
  return count;
}

namespace {

// The two floats of every column, and a new count.
float* Begin(std::int64_t slot, std::byte* facts) {
  const std::int64_t count = slot + 1;
  std::memcpy(facts, &count, sizeof count);
  return reinterpret_cast<float*>(facts + sizeof count);
}

}  // namespace

void PutRange(const float* values, std::int64_t columns, std::int64_t slot, std::byte* facts) {
  float* least = Begin(slot, facts);
  float* most = least + columns;
  for (std::int64_t x = 0; x < columns; ++x) {
    const float value = values[x];
    const bool first = slot == 0 || std::isnan(value);
    // A NaN that is there stays: it is neither above nor below.
    least[x] = first || value < least[x] ? value : least[x];
    most[x] = first || value > most[x] ? value : most[x];
  }
}

// Welford's recurrence (1962, note on a method for calculating corrected sums of squares).
void PutMoments(const float* values, std::int64_t columns, std::int64_t slot, std::byte* facts) {
  float* mean = Begin(slot, facts);
  float* squares = mean + columns;
  const float share = 1.0f / static_cast<float>(slot + 1);
  for (std::int64_t x = 0; x < columns; ++x) {
    const float before = slot == 0 ? 0.0f : mean[x];
    const float from = values[x] - before;
    mean[x] = before + from * share;
    squares[x] = (slot == 0 ? 0.0f : squares[x]) + from * (values[x] - mean[x]);
  }
}

}  // namespace tsallis::decode
