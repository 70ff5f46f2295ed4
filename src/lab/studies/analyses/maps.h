// Rows of scores through the kernel library's maps, in double precision, and draws of scores.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/parallel.h"
#include "lab/studies/analyses/analysis.h"
#include "tsallis/rows.h"

namespace tsallis::lab {

// "softmax" for alpha = 1, else "α = 1.5".
std::string AlphaLabel(double alpha);

// alpha-entmax of scores / theta; alpha = 1 is softmax.
RowMapParams EntmaxParams(double alpha, double theta = 1.0);

struct Row {
  std::vector<double> weights;
  double tau = 0.0;  // as RowStats
  std::int64_t support = 0;
  double entropy = 0.0;  // nats
};

Row MapRow(const AnalysisContext& context, const RowMapParams& params,
           const std::vector<double>& scores);

// Numbers of a stream of their own: the same for every map, size and number of threads. `what`
// tells an analysis's draws apart.
std::vector<double> Normals(const AnalysisContext& context, std::uint64_t what, std::int64_t draw,
                            std::int64_t count, double deviation = 1.0);
std::vector<double> Uniforms(const AnalysisContext& context, std::uint64_t what, std::int64_t draw,
                             std::int64_t count, double low, double high);

// What `of` gives for every draw of [0, draws), several at a time.
template <class Of>
auto ForDraws(const AnalysisContext& context, std::int64_t draws, const Of& of) {
  std::vector<decltype(of(draws))> values(draws);
  ParallelFor(context.kernels, draws, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t draw = begin; draw < end; ++draw) values[draw] = of(draw);
  });
  return values;
}

// Coefficients with the lowest degree first, as AdaptiveTemperature has them.
double Polynomial(const std::vector<double>& coefficients, double x);

double Mean(const std::vector<double>& values);
double StandardDeviation(const std::vector<double>& values);  // of a sample; 0 for one value
double Median(std::vector<double> values);

// `count` numbers from `low` to `high` whose logarithms are equally far apart.
std::vector<double> LogSpaced(double low, double high, int count);

}  // namespace tsallis::lab
