#include "lab/generate/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "lab/base/errors.h"
#include "lab/base/random.h"
#include "tsallis/rows.h"

namespace tsallis::lab {
namespace {

void Normalise(std::vector<double>& p) {
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& value : p) value /= sum;
}

// Tokens by weight, the heaviest first; of equals the first.
std::vector<std::size_t> ByWeight(const std::vector<double>& p) {
  std::vector<std::size_t> order(p.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return p[a] > p[b]; });
  return order;
}

// Keeps the first `count` of an order.
void Keep(std::vector<double>& p, const std::vector<std::size_t>& order, std::size_t count) {
  for (std::size_t i = count; i < order.size(); ++i) p[order[i]] = 0.0;
  Normalise(p);
}

void Check(bool good, const char* option, const char* expected, double got) {
  if (!good) throw UsageError(fmt::format("{}: expected {}, got {}", option, expected, got));
}

}  // namespace

void CheckSampler(const SamplerOptions& options) {
  Check(std::isfinite(options.temperature) && options.temperature >= 0.0, "--temperature",
        "a number of 0 or more", options.temperature);
  Check(options.top_k >= 0, "--top-k", "0 or more", static_cast<double>(options.top_k));
  Check(options.top_p > 0.0 && options.top_p <= 1.0, "--top-p", "a number above 0, up to 1",
        options.top_p);
  Check(options.min_p >= 0.0 && options.min_p <= 1.0, "--min-p", "a number from 0 to 1",
        options.min_p);
  if (options.temperature == 0.0) {
    const auto refuse = [](bool given, const char* option) {
      if (!given) return;
      throw UsageError(fmt::format(
          "{}: expected with a --temperature above 0; at 0, the default for a task, the likeliest "
          "token is taken",
          option));
    };
    refuse(options.top_k > 0, "--top-k");
    refuse(options.top_p < 1.0, "--top-p");
    refuse(options.min_p > 0.0, "--min-p");
  }
  if (!options.entmax) return;
  Check(std::isfinite(*options.entmax) && *options.entmax > 1.0, "--entmax", "a number above 1",
        *options.entmax);
  if (options.top_k > 0 || options.top_p < 1.0 || options.min_p > 0.0) {
    throw UsageError(
        "--entmax: expected without --top-k, --top-p and --min-p: its zeros are the "
        "cut");
  }
  Check(options.temperature > 0.0, "--temperature", "a number above 0 with --entmax",
        options.temperature);
}

void CheckLogits(const float* logits, std::int64_t vocabulary) {
  for (std::int64_t i = 0; i < vocabulary; ++i) {
    if (logits[i] < std::numeric_limits<float>::infinity()) continue;
    throw std::runtime_error(
        fmt::format("the model's logit of token {} is {}: nothing can be chosen", i, logits[i]));
  }
}

std::vector<double> TokenWeights(const float* logits, std::int64_t vocabulary,
                                 const SamplerOptions& options) {
  CheckLogits(logits, vocabulary);
  std::vector<double> p(logits, logits + vocabulary);
  const auto best = std::max_element(p.begin(), p.end());
  if (options.temperature == 0.0) {
    const auto index = static_cast<std::size_t>(best - p.begin());
    std::fill(p.begin(), p.end(), 0.0);
    p[index] = 1.0;
    return p;
  }
  if (options.entmax) {
    RowMapParams map;
    map.alpha = *options.entmax;
    map.temperature = options.temperature;
    const MutableRows row{p.data(), DType::kFloat64, 1, vocabulary, vocabulary, 1};
    RowsForward({.threads = 1}, map, row, row);
    Normalise(p);  // to the last digit
    return p;
  }
  const double top = *best;
  for (double& value : p) value = std::exp((value - top) / options.temperature);
  Normalise(p);
  const auto count = static_cast<std::size_t>(vocabulary);
  const auto top_k = static_cast<std::size_t>(options.top_k);
  if (top_k == 0 && options.top_p == 1.0 && options.min_p == 0.0) return p;
  const std::vector<std::size_t> order = ByWeight(p);
  std::size_t kept = top_k > 0 ? std::min(top_k, count) : count;
  if (kept < count) Keep(p, order, kept);
  if (options.top_p < 1.0) {
    double sum = 0.0;
    std::size_t enough = 0;
    while (enough < kept && sum < options.top_p) sum += p[order[enough++]];
    kept = enough;
    Keep(p, order, kept);
  }
  if (options.min_p > 0.0) {
    const double least = options.min_p * p[order[0]];
    while (kept > 1 && p[order[kept - 1]] < least) --kept;
    Keep(p, order, kept);
  }
  return p;
}

std::int64_t TokenAt(const std::vector<double>& weights, double u) {
  double sum = 0.0;
  std::int64_t last = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] == 0.0) continue;
    sum += weights[i];
    last = static_cast<std::int64_t>(i);
    if (u < sum) break;
  }
  return last;  // rounding may leave the sum below 1
}

double SampleNumber(std::uint64_t seed, std::int64_t sequence, std::int64_t step) {
  const std::uint64_t index =
      (static_cast<std::uint64_t>(sequence) << 36) | static_cast<std::uint64_t>(step);
  RandomStream random(seed, Purpose::kSample, index);
  const std::uint64_t high = random.Next() >> 5, low = random.Next() >> 6;
  return static_cast<double>((high << 26) | low) * 0x1.0p-53;
}

}  // namespace tsallis::lab
