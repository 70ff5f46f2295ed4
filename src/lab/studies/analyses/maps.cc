#include "lab/studies/analyses/maps.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "lab/base/random.h"
#include "lab/nn/parameters.h"

namespace tsallis::lab {
namespace {

// `next` of a stream of their own, `count` times.
template <class Next>
std::vector<double> Drawn(const AnalysisContext& context, std::uint64_t what, std::int64_t draw,
                          std::int64_t count, const Next& next) {
  RandomStream random(context.seed, Purpose::kStudy, (what << 32) | draw);
  std::vector<double> values(count);
  for (double& value : values) value = next(random);
  return values;
}

}  // namespace

std::string AlphaLabel(double alpha) {
  return alpha == 1.0 ? "softmax" : fmt::format("α = {:g}", alpha);
}

RowMapParams EntmaxParams(double alpha, double theta) {
  RowMapParams params;
  params.map = RowMap::kEntmax;
  params.alpha = alpha;
  params.temperature = theta;
  return params;
}

Row MapRow(const AnalysisContext& context, const RowMapParams& params,
           const std::vector<double>& scores) {
  Row row;
  const auto n = static_cast<std::int64_t>(scores.size());
  row.weights.resize(scores.size());
  RowStats stats;
  stats.tau = &row.tau;
  stats.support_size = &row.support;
  stats.entropy = &row.entropy;
  RowsForward(context.kernels, params, {scores.data(), DType::kFloat64, 1, n, n, 1},
              {row.weights.data(), DType::kFloat64, 1, n, n, 1}, stats);
  return row;
}

std::vector<double> Normals(const AnalysisContext& context, std::uint64_t what, std::int64_t draw,
                            std::int64_t count, double deviation) {
  return Drawn(context, what, draw, count,
               [&](RandomStream& random) { return Normal(random, deviation); });
}

std::vector<double> Uniforms(const AnalysisContext& context, std::uint64_t what, std::int64_t draw,
                             std::int64_t count, double low, double high) {
  return Drawn(context, what, draw, count,
               [&](RandomStream& random) { return low + (high - low) * random.Uniform(); });
}

double Polynomial(const std::vector<double>& coefficients, double x) {
  double value = 0.0;
  for (auto c = coefficients.rbegin(); c != coefficients.rend(); ++c) value = value * x + *c;
  return value;
}

double Mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / values.size();
}

double StandardDeviation(const std::vector<double>& values) {
  if (values.size() < 2) return 0.0;
  const double mean = Mean(values);
  double squares = 0.0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return std::sqrt(squares / (values.size() - 1));
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return 0.5 * (values[(values.size() - 1) / 2] + values[values.size() / 2]);
}

std::vector<double> LogSpaced(double low, double high, int count) {
  std::vector<double> values;
  for (int i = 0; i < count; ++i) {
    values.push_back(low * std::pow(high / low, 1.0 * i / (count - 1)));
  }
  return values;
}

}  // namespace tsallis::lab
