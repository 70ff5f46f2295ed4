// For tests: drawn calls of rows.h, and what is wrong with the results of kernels against those of
// the definitions in double.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/cuda/testing/copies.h"
#include "core/elements.h"
#include "simplex/cuda/run.h"
#include "simplex/map.h"
#include "simplex/reference.h"
#include "tsallis/rows.h"

namespace tsallis::cuda {

// A matrix of the host, on a device.
template <class Device>
MutableRows RowsOn(Copies<Device>& device, const ConstRows& rows, bool written) {
  return {
      device.Stretch(rows.data, static_cast<std::int64_t>(SizeOf(rows.dtype)),
                     {rows.row_stride, rows.stride, 0, 0}, {rows.rows, rows.length, 1, 1}, written),
      rows.dtype,
      rows.rows,
      rows.length,
      rows.row_stride,
      rows.stride};
}

// The calls of rows.h on arrays of a device.
struct RowCalls {
  std::function<void(const RowMapParams&, const ConstRows&, const MutableRows&, const RowStats&)>
      forward;
  std::function<void(const RowMapParams&, const ConstRows&, const ConstRows&, const ConstRows&,
                     const MutableRows&, double*)>
      backward;
  std::function<void(const RowMapParams&, const ConstRows&, const std::int64_t*, std::int64_t,
                     double*, const MutableRows&)>
      loss;
};

// run.operator()<Type>() for the type of a call's arrays.
template <class Run>
void ForRowType(DType dtype, const Run& run) {
  switch (dtype) {
    case DType::kFloat32: return run.template operator()<Float32>();
    case DType::kBFloat16: return run.template operator()<BFloat16>();
    case DType::kFloat16: return run.template operator()<Float16>();
    case DType::kFloat64: return run.template operator()<Float64>();
  }
}

// The kernels on the emulation; they throw simt::Fault for their mistakes.
inline const RowCalls kEmulatedRows = {
    .forward =
        [](const RowMapParams& params, const ConstRows& scores, const auto&... more) {
          ForRowType(scores.dtype,
                     [&]<class Type>() { RunRowsForward<Type>({}, params, scores, more...); });
        },
    .backward =
        [](const RowMapParams& params, const ConstRows& scores, const auto&... more) {
          ForRowType(scores.dtype,
                     [&]<class Type>() { RunRowsBackward<Type>({}, params, scores, more...); });
        },
    .loss =
        [](const RowMapParams& params, const ConstRows& scores, const auto&... more) {
          ForRowType(scores.dtype,
                     [&]<class Type>() { RunFenchelYoungLoss<Type>({}, params, scores, more...); });
        }};

// A matrix of the host in a storage type, with any strides.
struct RowsMemory {
  std::vector<char> bytes;
  MutableRows rows;

  RowsMemory(DType dtype, std::int64_t count, std::int64_t length, std::int64_t row_stride,
             std::int64_t stride)
      : bytes(static_cast<std::size_t>(count * row_stride + length * stride + 1) * SizeOf(dtype),
              char{0x7F}),
        rows{bytes.data(), dtype, count, length, row_stride, stride} {}
  std::int64_t Place(std::int64_t row, std::int64_t j) const {
    return row * rows.row_stride + j * rows.stride;
  }
  double At(std::int64_t row, std::int64_t j) const {
    return LoadElement<double>(rows.data, rows.dtype, Place(row, j));
  }
  void Set(std::int64_t row, std::int64_t j, double value) {
    StoreElement(rows.data, rows.dtype, Place(row, j), value);
  }
  std::vector<double> Row(std::int64_t row) const {
    std::vector<double> out(static_cast<std::size_t>(rows.length));
    for (std::int64_t j = 0; j < rows.length; ++j) out[j] = At(row, j);
    return out;
  }
};

// What a run left behind.
struct RowsResults {
  RowsMemory p, ds;
  std::vector<double> tau, entropy, d_alpha, losses;
  std::vector<std::int64_t> support;
  RowsMemory loss_gradient;

  bool SameBits(const RowsResults& other) const {
    const auto same = [](const auto& a, const auto& b) {
      return std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0;
    };
    return p.bytes == other.p.bytes && ds.bytes == other.ds.bytes &&
           loss_gradient.bytes == other.loss_gradient.bytes && same(tau, other.tau) &&
           same(entropy, other.entropy) && same(d_alpha, other.d_alpha) &&
           same(losses, other.losses) && same(support, other.support);
  }
};

class RowsProblem {
 public:
  // length 0: a drawn one.
  RowsProblem(std::uint64_t seed, std::int64_t length)
      : seed_(seed), engine_(seed), scores_(Draw(length)), dp_(Like(scores_)) {
    Fill(Pick({0.01, 1.0, 1.0, 4.0, 30.0}), Pick({0.0, 0.0, 300.0}));
  }
  // Rows of float32 under entmax that keep most of their entries.
  static RowsProblem Flat(double alpha, std::int64_t length) {
    return {DType::kFloat32, alpha, length};
  }

  const RowMapParams& params() const { return params_; }
  std::string Describe() const {
    const MutableRows& rows = scores_.rows;
    return "seed " + std::to_string(seed_) + ": " + Name(params_.map) + ", alpha " +
           (per_row_ ? "of rows" : std::to_string(params_.alpha)) + ", temperature " +
           std::to_string(params_.temperature) + ", " + Name(rows.dtype) + " [" +
           std::to_string(rows.rows) + ", " + std::to_string(rows.length) + "], strides " +
           std::to_string(rows.row_stride) + " and " + std::to_string(rows.stride);
  }

  template <class Device>
  RowsResults Run(const RowCalls& calls) const {
    const std::int64_t count = scores_.rows.rows, length = scores_.rows.length;
    const auto n = static_cast<std::size_t>(count);
    const DType wide = scores_.rows.dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
    RowsResults out = {Like(scores_),
                       Like(scores_),
                       std::vector<double>(n, 7.0),
                       std::vector<double>(n, 7.0),
                       std::vector<double>(n, 7.0),
                       std::vector<double>(n, 7.0),
                       std::vector<std::int64_t>(n, 7),
                       RowsMemory(wide, count, length, length, 1)};
    Copies<Device> device;
    RowMapParams there = params_;
    if (per_row_) there.alpha_per_row = device.Numbers(alphas_.data(), count, false);
    const ConstRows s = RowsOn(device, scores_.rows, false), dp = RowsOn(device, dp_.rows, false);
    const MutableRows p = RowsOn(device, out.p.rows, true), ds = RowsOn(device, out.ds.rows, true);
    calls.forward(there, s, p,
                  {device.Numbers(out.tau.data(), count, true),
                   device.Numbers(out.support.data(), count, true),
                   device.Numbers(out.entropy.data(), count, true)});
    const bool scores = BackwardReadsScores(params_, scores_.rows.dtype) ||
                        (per_row_ && SizeOf(scores_.rows.dtype) == 2);
    calls.backward(there, scores ? s : ConstRows(p), p, dp, ds,
                   HasAlpha() ? device.Numbers(out.d_alpha.data(), count, true) : nullptr);
    if (FindMap(params_.map).generator != nullptr) {
      calls.loss(there, s, device.Numbers(targets_.data(), count, false), kIgnored,
                 device.Numbers(out.losses.data(), count, true),
                 RowsOn(device, out.loss_gradient.rows, true));
    }
    device.CopyBack();
    return out;
  }

  // Empty, or what is wrong.
  std::string Check(const RowsResults& got) const {
    ReferenceScratch scratch;
    for (std::int64_t r = 0; r < scores_.rows.rows; ++r) {
      const std::string wrong = CheckRow(got, r, scratch);
      if (!wrong.empty()) return "row " + std::to_string(r) + ": " + wrong;
    }
    return {};
  }

 private:
  static constexpr std::int64_t kIgnored = -100;

  std::int64_t Uniform(std::int64_t least, std::int64_t most) {
    return least +
           static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(most - least + 1));
  }
  template <class T>
  T Pick(std::initializer_list<T> values) {
    return values.begin()[Uniform(0, static_cast<std::int64_t>(values.size()) - 1)];
  }
  static RowsMemory Like(const RowsMemory& other) {
    const MutableRows& rows = other.rows;
    return {rows.dtype, rows.rows, rows.length, rows.row_stride, rows.stride};
  }
  RowsProblem(DType dtype, double alpha, std::int64_t length)
      : seed_(1), engine_(1), scores_(dtype, 2, length, length, 1), dp_(Like(scores_)) {
    params_.alpha = alpha;
    Fill(0.01, 0.0);
  }

  void Fill(double spread, double offset) {
    std::normal_distribution<double> normal;
    for (std::int64_t r = 0; r < scores_.rows.rows; ++r) {
      const double row_offset = offset * normal(engine_);
      for (std::int64_t j = 0; j < scores_.rows.length; ++j) {
        scores_.Set(r, j, row_offset + spread * normal(engine_));
        dp_.Set(r, j, normal(engine_));
      }
      Spoil(r);
      alphas_.push_back(Pick({1.5, 1.0, 2.0, 1.25, 1.07, 0.7, 3.0}));
      targets_.push_back(Uniform(0, std::max<std::int64_t>(scores_.rows.length - 1, 0)));
      if (Uniform(0, 9) == 0) targets_.back() = kIgnored;
    }
    if (params_.map == RowMap::kNormmax) {
      for (double& alpha : alphas_) alpha = std::max(alpha, 1.02) + 0.5;
    }
  }

  // Draws the map and the matrix.
  RowsMemory Draw(std::int64_t length) {
    const std::vector<RowMap>& maps = AllRowMaps();
    params_.map =
        seed_ % 2 == 0 ? RowMap::kEntmax : maps[static_cast<std::size_t>(seed_ / 2) % maps.size()];
    params_.alpha = Pick({1.5, 1.5, 2.0, 1.0, 1.25, 1.01, 0.5, 2.5, 4.0, 64.0});
    if (params_.map == RowMap::kNormmax) params_.alpha = Pick({1.5, 2.0, 4.0});
    params_.temperature = Pick({1.0, 1.0, 0.7, 2.0});
    params_.budget = Pick({0.5, 2.0, 6.5});
    params_.top_k = {Uniform(1, 9), Pick({0.0, 0.1})};
    if (Uniform(0, 1) == 0) params_.sigmoid_bias = -1.0;
    per_row_ =
        (params_.map == RowMap::kEntmax || params_.map == RowMap::kNormmax) && Uniform(0, 3) == 0;
    const auto dtype = static_cast<DType>(Uniform(0, 3));
    if (length == 0) {
      length = seed_ % 16 == 0  ? Uniform(4090, 4300)
               : seed_ % 4 == 0 ? Uniform(500, 900)
               : seed_ % 4 == 1 ? Uniform(1, 4)
                                : Uniform(5, 100);
    }
    const std::int64_t rows = length > 1000 ? 2 : Uniform(1, 9);
    if (Uniform(0, 3) == 0) return {dtype, rows, length, 1, rows + 1};  // columns
    return {dtype, rows, length, length + Uniform(0, 2), 1};
  }

  // Puts entries that are absent, ties or no numbers into some rows.
  void Spoil(std::int64_t row) {
    const std::int64_t n = scores_.rows.length;
    const auto some = [&] { return Uniform(0, n - 1); };
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    switch (Uniform(0, 11)) {
      case 0:
        for (std::int64_t i = 0; i < (n + 1) / 2; ++i) {
          const std::int64_t j = some();
          scores_.Set(row, j, -kInfinity);
          dp_.Set(row, j, std::nan(""));  // nobody looks at it
        }
        break;
      case 1:
        for (std::int64_t j = 0; j < n; ++j) scores_.Set(row, j, -kInfinity);
        break;
      case 2: scores_.Set(row, some(), std::nan("")); break;
      case 3: scores_.Set(row, some(), kInfinity); break;
      case 4:
        for (std::int64_t j = 0; j < n; ++j) {
          scores_.Set(row, j, static_cast<double>(j % 3) * (j % 2 == 0 ? 1.0 : -1.0));
        }
        break;
      default: break;
    }
  }

  bool HasAlpha() const { return params_.map == RowMap::kEntmax; }

  // Of a result: the share of its size, and of the largest one of the row, that is left to
  // rounding.
  double Relative() const {
    switch (scores_.rows.dtype) {
      case DType::kFloat64: return 1e-9;
      case DType::kFloat32: return 1e-5;
      case DType::kFloat16: return 1e-3;
      default: return 8e-3;
    }
  }
  double Largest() const {
    switch (scores_.rows.dtype) {
      case DType::kFloat64: return std::numeric_limits<double>::max();
      case DType::kFloat16: return 65504.0;
      default: return 3.38e38;
    }
  }
  static bool Near(double got, double expected, double most) {
    if (std::isnan(expected) || std::isinf(expected)) {
      return std::isnan(expected) ? std::isnan(got) : got == expected;
    }
    return std::abs(got - expected) <= most;
  }
  static std::string Wrong(const char* name, std::int64_t j, double got, double expected) {
    char text[160];
    std::snprintf(text, sizeof(text), "%s[%lld] is %.9g, expected %.9g", name,
                  static_cast<long long>(j), got, expected);
    return text;
  }

  std::string CheckRow(const RowsResults& got, std::int64_t r, ReferenceScratch& scratch) const {
    const std::int64_t n = scores_.rows.length;
    RowSpec spec = params_;
    if (per_row_) spec.alpha = alphas_[r];
    const double share = Relative(), tight = scores_.rows.dtype == DType::kFloat64 ? 1e-9 : 2e-6;
    const std::vector<double> s = scores_.Row(r);
    std::vector<double> p(s.size()), ds(s.size());
    const RowResult stats = ReferenceForward(spec, s.data(), n, p.data(), scratch);
    double largest = 0.0, sum = 0.0;
    std::int64_t sure = 0, possible = 0;
    for (std::int64_t j = 0; j < n; ++j) {
      if (!Near(got.p.At(r, j), p[j], share * std::abs(p[j]) + tight)) {
        return Wrong("p", j, got.p.At(r, j), p[j]);
      }
      sure += p[j] > 1e-6 ? 1 : 0;
      possible += p[j] > 0.0 || got.p.At(r, j) > 0.0 ? 1 : 0;
      sum += got.p.At(r, j);
    }
    const bool whole = SumsToOne(params_.map) && spec.alpha <= 2.0 && stats.support_size > 0;
    if (whole && scores_.rows.dtype == DType::kFloat32 && !(std::abs(sum - 1.0) <= 1e-6)) {
      return Wrong("the sum of p", r, sum, 1.0);
    }
    const double size = 1.0 + std::abs(stats.tau);
    if (!Near(got.tau[r], stats.tau, tight * size)) return Wrong("tau", r, got.tau[r], stats.tau);
    if (stats.support_size < 0 ? got.support[r] != -1
                               : got.support[r] < sure || got.support[r] > possible) {
      return Wrong("support", r, static_cast<double>(got.support[r]),
                   static_cast<double>(stats.support_size));
    }
    if (!Near(got.entropy[r], stats.entropy, 50 * tight)) {
      return Wrong("entropy", r, got.entropy[r], stats.entropy);
    }
    // Gradients of the weights that the kernels had.
    const bool recomputed = SizeOf(scores_.rows.dtype) == 2 &&
                            (per_row_ || BackwardReadsScores(params_, scores_.rows.dtype)) &&
                            (params_.map == RowMap::kEntmax || params_.map == RowMap::kNormmax ||
                             params_.map == RowMap::kSigmoid);
    if (!recomputed) p = got.p.Row(r);
    if (params_.map == RowMap::kSoftmax || params_.map == RowMap::kTopKSoftmax) {
      double stored = 0.0;  // 1 but for rounding
      for (const double weight : p) stored += weight;
      for (double& weight : p) weight /= stored > 0.0 ? stored : 1.0;
    }
    const std::vector<double> dp = dp_.Row(r);
    double d_alpha = 0.0;
    ReferenceBackward(spec, s.data(), p.data(), dp.data(), n, ds.data(),
                      HasAlpha() ? &d_alpha : nullptr, scratch);
    for (const double d : ds) largest = std::max(largest, std::abs(d));
    for (std::int64_t j = 0; j < n; ++j) {
      const double most = share * (std::abs(ds[j]) + 0.01 * largest) + tight * (1.0 + largest);
      if (std::abs(ds[j]) > Largest()) {
        ds[j] = std::copysign(std::numeric_limits<double>::infinity(), ds[j]);
      }
      if (!Near(got.ds.At(r, j), ds[j], most)) return Wrong("ds", j, got.ds.At(r, j), ds[j]);
    }
    if (HasAlpha() && !Near(got.d_alpha[r], d_alpha, 1e-5 * (1.0 + std::abs(d_alpha)))) {
      return Wrong("d_alpha", r, got.d_alpha[r], d_alpha);
    }
    return FindMap(params_.map).generator != nullptr ? CheckLoss(got, r, spec, s, scratch) : "";
  }

  std::string CheckLoss(const RowsResults& got, std::int64_t r, const RowSpec& spec,
                        const std::vector<double>& s, ReferenceScratch& scratch) const {
    const std::int64_t n = scores_.rows.length, target = targets_[r];
    std::vector<double> p(s.size(), 0.0);
    double loss = 0.0;
    if (target != kIgnored) {
      ReferenceForward(spec, s.data(), n, p.data(), scratch);
      loss = ReferenceLoss(spec, s.data(), p.data(), n, target);
      if (s[target] > -std::numeric_limits<double>::infinity()) p[target] -= 1.0;
    }
    const double tight = scores_.rows.dtype == DType::kFloat64 ? 1e-9 : 5e-6;
    if (!Near(got.losses[r], loss, tight * (1.0 + std::abs(loss)))) {
      return Wrong("loss", r, got.losses[r], loss);
    }
    for (std::int64_t j = 0; j < n; ++j) {
      const double d = p[j] / spec.temperature;
      if (!Near(got.loss_gradient.At(r, j), d, tight)) {
        return Wrong("gradient of the loss", j, got.loss_gradient.At(r, j), d);
      }
    }
    return {};
  }

  std::uint64_t seed_;
  std::mt19937_64 engine_;
  RowMapParams params_;
  bool per_row_ = false;
  RowsMemory scores_, dp_;
  std::vector<double> alphas_;
  std::vector<std::int64_t> targets_;
};

}  // namespace tsallis::cuda
