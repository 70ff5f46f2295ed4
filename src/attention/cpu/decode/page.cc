// Computes what a page keeps beside its keys: bytes, ranges, moments.
#include <algorithm>
#include <bit>
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

namespace {

// Sums of squares of a row, and of what rounding took from it.
struct Squares {
  double norm = 0.0, lost = 0.0;
};

// Rounds to multiples of the step whatever the numbers are: NaN becomes 0, and the norm says so.
Squares RoundAny(const float* values, std::int64_t columns, float step, std::int8_t* bytes) {
  const float inverse = step > 0.0f ? 1.0f / step : 0.0f;
  Squares squares;
  for (std::int64_t x = 0; x < columns; ++x) {
    const float scaled = std::clamp(std::nearbyintf(values[x] * inverse), -127.0f, 127.0f);
    bytes[x] = scaled == scaled ? static_cast<std::int8_t>(scaled) : std::int8_t{0};
    const double value = static_cast<double>(values[x]);
    const double rest = value - static_cast<double>(step) * bytes[x];
    squares.norm += value * value;
    squares.lost += rest * rest;
  }
  return squares;
}

// The same for numbers of usual size, without calls and in four sums, which is four times as fast
// where the compiler may use no more than SSE2.
Squares RoundUsual(const float* values, std::int64_t columns, float step, std::int8_t* bytes) {
  constexpr std::int64_t kSums = 4;
  // The sum has no binary digits behind the point: adding it rounds to the nearest integer.
  constexpr float kRounds = 0x1.8p23f;
  const float inverse = 1.0f / step;
  double norm[kSums] = {}, lost[kSums] = {};
  const auto add = [&](std::int64_t x, std::int64_t sum) {
    const float whole = (values[x] * inverse + kRounds) - kRounds;
    bytes[x] = static_cast<std::int8_t>(static_cast<std::int32_t>(whole));
    const double value = static_cast<double>(values[x]);
    const double rest = value - static_cast<double>(step) * static_cast<double>(whole);
    norm[sum] += value * value;
    lost[sum] += rest * rest;
  };
  std::int64_t x = 0;
  for (; x + kSums <= columns; x += kSums) {
    for (std::int64_t i = 0; i < kSums; ++i) add(x + i, i);
  }
  for (; x < columns; ++x) add(x, 0);
  return {norm[0] + norm[1] + norm[2] + norm[3], lost[0] + lost[1] + lost[2] + lost[3]};
}

}  // namespace

ByteQuery PutQuery(const float* values, std::int64_t columns, std::int8_t* bytes) {
  ByteQuery query{.bytes = bytes};
  // As integers magnitudes have the same order, NaN above all.
  std::int32_t largest = 0;
  for (std::int64_t x = 0; x < columns; ++x) {
    largest = std::max(largest, std::bit_cast<std::int32_t>(values[x]) & 0x7FFFFFFF);
  }
  const float most = std::bit_cast<float>(largest);
  const bool usual = most > 1e-30f && most < 1e30f;
  std::fill_n(bytes + columns, ByteColumns(columns) - columns, std::int8_t{0});
  Squares squares;
  if (usual) {
    query.step = most / 127.0f;
    squares = RoundUsual(values, columns, query.step, bytes);
  } else {
    float finite = 0.0f;
    for (std::int64_t x = 0; x < columns; ++x) finite = std::max(finite, std::abs(values[x]));
    query.step = finite / 127.0f;
    squares = RoundAny(values, columns, query.step, bytes);
  }
  for (std::int64_t x = 0; x < columns; ++x) query.sum += bytes[x];
  query.norm = Up(std::sqrt(squares.norm));
  query.lost = Up(std::sqrt(squares.lost));
  return query;
}

float PutKey(const float* values, std::int64_t columns, std::int64_t slot, std::byte* page) {
  const std::int64_t width = ByteColumns(columns);
  std::int8_t bytes[512];
  const ByteQuery key = PutQuery(values, columns, bytes);
  std::byte* group = page + slot / 16 * 16 * width + slot % 16 * 4;
  std::int32_t norm = 0;
  for (std::int64_t x = 0; x < width; ++x) norm += std::int32_t{bytes[x]} * bytes[x];
  for (std::int64_t x = 0; x < width; x += 4) {
    std::uint32_t word;
    std::memcpy(&word, bytes + x, sizeof word);
    word ^= 0x80808080U;  // each byte + 128
    std::memcpy(group + x * 16, &word, sizeof word);
  }
  auto* tail = reinterpret_cast<float*>(page + ByteTailAt(columns)) + slot;
  const bool finite = std::isfinite(key.norm) && std::isfinite(key.lost);
  tail[0] = finite ? key.step : 0.0f;
  tail[kPage] = finite ? key.lost : std::numeric_limits<float>::infinity();
  tail[2 * kPage] = finite ? Up(static_cast<double>(key.step) * std::sqrt(norm)) : 0.0f;
  return std::isfinite(key.norm) ? key.norm : std::numeric_limits<float>::infinity();
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
