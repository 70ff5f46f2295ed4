// Refits the polynomial of adaptive temperature (Velickovic et al. 2024, appendix F).
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "core/elements.h"
#include "core/parallel.h"
#include "simplex/check.h"
#include "tsallis/error.h"
#include "tsallis/rows.h"

namespace tsallis {
namespace {

struct Sample {
  bool kept = false;
  double entropy = 0.0, beta = 0.0;
};

// ln softmax(s / theta)_target.
double LogProbability(const std::vector<double>& depth, double theta, std::int64_t target) {
  double sum = 0.0;
  for (double d : depth) sum += std::exp(-d / theta);
  return -depth[target] / theta - std::log(sum);
}

// s: [n]. Rows with NaN, infinities or a target that nothing beats are not kept.
Sample SampleOfRow(std::vector<double>& s, std::int64_t target,
                   const AdaptiveTemperatureFitOptions& options) {
  Sample sample;
  double maximum = -INFINITY;
  for (double value : s) {
    if (!std::isfinite(value) && value != -INFINITY) return sample;
    maximum = std::max(maximum, value);
  }
  if (s.empty() || !(s[target] > -INFINITY) || s[target] >= maximum) return sample;
  StreamedEntropy entropy;
  for (double& value : s) {
    entropy.Add(value);
    value = maximum - value;
  }
  const int steps = static_cast<int>(std::floor(options.theta_max / options.theta_step + 1e-9));
  double best = -INFINITY, best_theta = 0.0;
  for (int i = 1; i <= steps; ++i) {
    const double theta = i * options.theta_step;
    const double value = LogProbability(s, theta, target);
    // ln p is concave in 1/theta, so it rises and then falls along the grid.
    if (value < best) break;
    if (value > best) {
      best = value;
      best_theta = theta;
    }
  }
  return {true, entropy.Entropy(), 1.0 / best_theta};
}

// Least squares by Householder reflections: a: [rows, columns] row-major, b: [rows], both
// destroyed. Columns without information (fewer samples than coefficients) get coefficient 0.
std::vector<double> LeastSquares(std::vector<double>& a, std::vector<double>& b, int columns) {
  const std::int64_t rows = static_cast<std::int64_t>(b.size());
  std::vector<double> x(columns, 0.0);
  const int usable = static_cast<int>(std::min<std::int64_t>(columns, rows));
  std::vector<double> diagonal(columns, 0.0);
  double largest = 0.0;
  for (int k = 0; k < usable; ++k) {
    double norm = 0.0;
    for (std::int64_t i = k; i < rows; ++i) norm = std::hypot(norm, a[i * columns + k]);
    if (norm == 0.0) continue;
    const double head = a[k * columns + k];
    diagonal[k] = head > 0.0 ? -norm : norm;
    a[k * columns + k] = head - diagonal[k];
    double square = 0.0;
    for (std::int64_t i = k; i < rows; ++i) square += a[i * columns + k] * a[i * columns + k];
    const auto reflect = [&](auto&& value) {
      double dot = 0.0;
      for (std::int64_t i = k; i < rows; ++i) dot += a[i * columns + k] * value(i);
      for (std::int64_t i = k; i < rows; ++i) value(i) -= 2.0 * dot / square * a[i * columns + k];
    };
    for (int c = k + 1; c < columns; ++c) {
      reflect([&](std::int64_t i) -> double& { return a[i * columns + c]; });
    }
    reflect([&](std::int64_t i) -> double& { return b[i]; });
    largest = std::max(largest, std::abs(diagonal[k]));
  }
  for (int k = usable - 1; k >= 0; --k) {
    if (std::abs(diagonal[k]) <= 1e-13 * largest) continue;
    double value = b[k];
    for (int c = k + 1; c < columns; ++c) value -= a[k * columns + c] * x[c];
    x[k] = value / diagonal[k];
  }
  return x;
}

}  // namespace

AdaptiveTemperatureFit FitAdaptiveTemperature(const Context& context, const ConstRows& scores,
                                              const std::int64_t* targets,
                                              const AdaptiveTemperatureFitOptions& options) {
  CheckRows("scores", scores);
  if (SizeOf(scores.dtype) < 4) {
    throw InvalidArgument("scores", "float32 or float64", Name(scores.dtype));
  }
  if (options.degree < 0 || options.degree > 16) {
    throw InvalidArgument("degree", "0 to 16", std::to_string(options.degree));
  }
  if (!(std::isfinite(options.theta_step) && options.theta_step > 0.0)) {
    throw InvalidArgument("theta_step", "a finite number > 0", std::to_string(options.theta_step));
  }
  if (!(options.theta_max >= options.theta_step && options.theta_max / options.theta_step <= 1e6)) {
    throw InvalidArgument("theta_max", "1 to 1e6 times theta_step",
                          std::to_string(options.theta_max));
  }
  if (scores.rows > 0 && targets == nullptr) throw InvalidArgument("targets", "data", "null");
  for (std::int64_t row = 0; row < scores.rows; ++row) {
    if (targets[row] >= 0 && targets[row] < scores.length) continue;
    throw InvalidArgument("targets[" + std::to_string(row) + "]",
                          "a class in [0, " + std::to_string(scores.length) + ")",
                          std::to_string(targets[row]));
  }
  std::vector<Sample> samples(scores.rows);
  ParallelFor(context, scores.rows, 16, [&](std::int64_t begin, std::int64_t end) {
    std::vector<double> s(scores.length);
    for (std::int64_t row = begin; row < end; ++row) {
      for (std::int64_t j = 0; j < scores.length; ++j) {
        s[j] = LoadElement<double>(scores.data, scores.dtype,
                                   row * scores.row_stride + j * scores.stride);
      }
      samples[row] = SampleOfRow(s, targets[row], options);
    }
  });
  std::erase_if(samples, [](const Sample& sample) { return !sample.kept; });
  AdaptiveTemperatureFit fit;
  fit.samples = static_cast<std::int64_t>(samples.size());
  const int columns = options.degree + 1;
  fit.coefficients.assign(columns, 0.0);
  if (samples.empty()) return fit;
  // Powers of H / max H are far better conditioned than powers of H.
  double scale = 0.0;
  for (const Sample& sample : samples) scale = std::max(scale, sample.entropy);
  if (scale == 0.0) scale = 1.0;
  std::vector<double> a, b;
  for (const Sample& sample : samples) {
    double power = 1.0;
    for (int c = 0; c < columns; ++c, power *= sample.entropy / scale) a.push_back(power);
    b.push_back(sample.beta);
  }
  fit.coefficients = LeastSquares(a, b, columns);
  double power = 1.0;
  for (double& c : fit.coefficients) {
    c /= power;
    power *= scale;
  }
  double square = 0.0;
  for (const Sample& sample : samples) {
    double value = 0.0;
    for (auto c = fit.coefficients.rbegin(); c != fit.coefficients.rend(); ++c) {
      value = value * sample.entropy + *c;
    }
    square += (value - sample.beta) * (value - sample.beta);
  }
  fit.rms_error = std::sqrt(square / static_cast<double>(samples.size()));
  return fit;
}

}  // namespace tsallis
