#include "lab/studies/analyses/maps.h"

#include <fmt/format.h>

#include <cmath>
#include <numeric>

#include "lab/base/random.h"
#include "lab/nn/parameters.h"

namespace tsallis::lab {
namespace {

RandomStream Stream(const AnalysisContext& context, std::uint64_t what, std::int64_t draw) {
  return {context.seed, Purpose::kStudy, (what << 32) | static_cast<std::uint64_t>(draw)};
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
  RandomStream random = Stream(context, what, draw);
  std::vector<double> values(static_cast<std::size_t>(count));
  for (double& value : values) value = Normal(random, deviation);
  return values;
}

std::vector<double> Uniforms(const AnalysisContext& context, std::uint64_t what, std::int64_t draw,
                             std::int64_t count, double low, double high) {
  RandomStream random = Stream(context, what, draw);
  std::vector<double> values(static_cast<std::size_t>(count));
  for (double& value : values) value = low + (high - low) * random.Uniform();
  return values;
}

double Mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double StandardDeviation(const std::vector<double>& values) {
  if (values.size() < 2) return 0.0;
  const double mean = Mean(values);
  double squares = 0.0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return std::sqrt(squares / static_cast<double>(values.size() - 1));
}

std::vector<double> LogSpaced(double low, double high, int count) {
  std::vector<double> values;
  for (int i = 0; i < count; ++i) {
    values.push_back(low * std::pow(high / low, static_cast<double>(i) / (count - 1)));
  }
  return values;
}

}  // namespace tsallis::lab
