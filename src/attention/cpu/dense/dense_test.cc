// The dense kernel against the double-precision reference, on every instruction set.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "attention/testing/problem.h"
#include "core/every_target.h"

namespace tsallis {
namespace {

struct Field {
  const char* name;
  std::vector<double> Results::*values;
  bool stored;  // in the problem's dtype
};
constexpr Field kFields[] = {{"out", &Results::out, true},
                             {"tau", &Results::tau, false},
                             {"entropy", &Results::entropy, false},
                             {"maximum", &Results::maximum, false},
                             {"dq", &Results::dq, true},
                             {"dk", &Results::dk, true},
                             {"dv", &Results::dv, true},
                             {"d_length_scale", &Results::d_length_scale, false},
                             {"d_alpha", &Results::d_alpha, false},
                             {"d_slopes", &Results::d_slopes, false},
                             {"d_sink", &Results::d_sink, false},
                             {"d_bias", &Results::d_bias, false}};

double Largest(const std::vector<double>& values) {
  double largest = 0.0;
  for (double value : values) {
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  }
  return largest;
}

double LargestDifference(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::isfinite(a[i]) && std::isfinite(b[i])) {
      largest = std::max(largest, std::abs(a[i] - b[i]));
    }
  }
  return largest;
}

// The loss from rounding inputs to float32: the reference's results change by so much if q, k and v
// change by `relative`. An ill-conditioned problem (scores of thousands, a steep map) earns its
// tolerance here.
class Conditioning {
 public:
  explicit Conditioning(const ProblemSpec& spec) : spec_(spec) {}

  double Of(const Field& field, const Results& exact) {
    double largest = 0.0;
    for (const Results& results : Moved()) {
      largest = std::max(largest, LargestDifference(results.*field.values, exact.*field.values));
    }
    return largest;
  }

  const std::vector<Results>& Moved() {
    constexpr double kRelative = 0x1p-22;
    for (std::uint64_t run = 0; moved_.size() < 3; ++run) {
      Problem problem(spec_);
      std::mt19937_64 engine(run + 77);
      std::uniform_real_distribution<double> uniform(-kRelative, kRelative);
      for (const char* name : {"q", "k", "v", "bias"}) {
        for (double& value : problem.Wide(name)) value *= 1.0 + uniform(engine);
      }
      moved_.push_back(problem.Run(nullptr));
    }
    return moved_;
  }

 private:
  ProblemSpec spec_;
  std::vector<Results> moved_;
};

double HalfUlp(DType dtype, double value) {
  if (dtype == DType::kBFloat16) return 0x1p-8 * std::abs(value) + 1e-38;
  if (dtype == DType::kFloat16) return 0x1p-11 * std::abs(value) + 0x1p-25;
  return 0.0;
}

void ExpectClose(const ProblemSpec& spec, const Field& field, const Results& got,
                 const Results& exact, Conditioning& conditioning, const std::string& where) {
  const std::vector<double>& a = got.*field.values;
  const std::vector<double>& e = exact.*field.values;
  ASSERT_EQ(a.size(), e.size()) << field.name;
  const DType dtype = field.stored ? spec.dtype : DType::kFloat32;
  const double largest = Largest(e);
  // A result that is not stored may be a sum that cancels: each row's part of d_alpha is a
  // difference of terms the size of d_out . v, with few digits left of it.
  double magnitude = largest;
  if (!field.stored) magnitude += 1e-3;
  // The gradient of a query is a multiple of sum ds = 0 if all keys are alike.
  if (spec.values == ProblemSpec::Values::kFlat) magnitude += 1.0;
  const bool cancels = !field.stored && spec.map == RowMap::kSoftpick;
  if (field.values == &Results::d_alpha || cancels) magnitude += std::sqrt(spec.value_dim);
  // Products below float's smallest normal numbers are lost.
  double tolerance = 3e-6 * magnitude + 1e-37;
  bool moved = false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(e[i]) || std::isinf(e[i])) {
      ASSERT_TRUE(std::isnan(e[i]) ? std::isnan(a[i]) : a[i] == e[i])
          << field.name << "[" << i << "] is " << a[i] << ", not " << e[i] << ": "
          << spec.Describe() << " on " << where;
      continue;
    }
    if (dtype == DType::kFloat16 && std::abs(e[i]) > 65000.0) continue;
    const double rounding = HalfUlp(dtype, e[i]);
    if (std::abs(a[i] - e[i]) <= tolerance + rounding) continue;
    if (!moved) tolerance += 16.0 * conditioning.Of(field, exact);
    moved = true;
    ASSERT_LE(std::abs(a[i] - e[i]), tolerance + rounding)
        << field.name << "[" << i << "] is " << a[i] << ", not " << e[i] << ", largest " << largest
        << ": " << spec.Describe() << " on " << where;
  }
}

void ExpectSame(const Results& a, const Results& b, const std::string& where) {
  for (const Field& field : kFields) {
    const std::vector<double>&x = a.*field.values, &y = b.*field.values;
    ASSERT_EQ(x.size(), y.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      ASSERT_TRUE(x[i] == y[i] || (std::isnan(x[i]) && std::isnan(y[i])))
          << field.name << "[" << i << "]: " << x[i] << " and " << y[i] << ", " << where;
    }
  }
  EXPECT_EQ(a.support_size, b.support_size) << where;
}

// Supports are equal but for entries that a change of the last digits moves in or out.
void ExpectSupports(const ProblemSpec& spec, const Results& got, const Results& exact,
                    Conditioning& conditioning, const std::string& where) {
  // Where weights only fade, float loses the smallest.
  const bool fades = spec.map != RowMap::kEntmax || spec.alpha_per_head || spec.alpha < 1.2;
  for (std::size_t i = 0; i < exact.support_size.size(); ++i) {
    const std::int64_t a = got.support_size[i], e = exact.support_size[i];
    if (a == e) continue;
    // Scores about 0 may lie on either side of it; a sink may leave the keys nothing.
    if (spec.map == RowMap::kSoftpick) continue;
    ASSERT_TRUE(spec.sink || (a > 0 && e > 0)) << a << ", not " << e << ": " << spec.Describe();
    if (fades) continue;
    std::int64_t least = e, most = e;
    for (const Results& results : conditioning.Moved()) {
      least = std::min(least, results.support_size[i]);
      most = std::max(most, results.support_size[i]);
    }
    // Rows at a tie's threshold hold as many as tie; others one or two.
    const std::int64_t slack = 2 + 2 * (most - least);
    const bool ties = spec.values == ProblemSpec::Values::kTies;
    EXPECT_TRUE(ties || (a >= least - slack && a <= most + slack))
        << "support " << a << ", not " << e << ": " << spec.Describe() << " on " << where;
  }
}

void Check(const ProblemSpec& spec, const Results& exact, const std::string& where) {
  Conditioning conditioning(spec);
  const Results got = Problem(spec).Run(&kDenseAttention);
  for (const Field& field : kFields) ExpectClose(spec, field, got, exact, conditioning, where);
  ExpectSupports(spec, got, exact, conditioning, where);
}

void CheckOnEveryTarget(const ProblemSpec& spec) {
  const Results exact = Problem(spec).Run(nullptr);
  ForEachTarget([&](const std::string& target) { Check(spec, exact, target); });
}

TEST(DenseAttention, RunsOnEveryTarget) {
  ForEachTarget(
      [](const std::string& target) { EXPECT_EQ(kDenseAttention.instruction_set(), target); });
}

// A drawn problem whose errors moving the inputs by 2^-22 can tell; random_test.cc bounds the
// others'.
ProblemSpec DrawTame(std::uint64_t seed, std::int64_t most) {
  ProblemSpec spec = DrawSpec(seed, most);
  spec.alpha = std::min(spec.alpha, 4.0);
  using V = ProblemSpec::Values;
  // Far below the winner, weights of alpha < 1 fade to powers near float's smallest; no key has
  // none.
  const bool fades = spec.values == V::kVast && (spec.alpha_per_head || spec.alpha < 1.0);
  if (spec.values == V::kHuge || fades) spec.values = V::kNormal;
  return spec;
}

TEST(DenseAttention, DrawnProblemsMatchTheReference) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    CheckOnEveryTarget(DrawTame(seed, seed % 4 == 0 ? 200 : 70));
    if (HasFatalFailure()) return;
  }
}

TEST(DenseAttention, ThreadsDoNotChangeABit) {
  for (std::uint64_t seed = 1; seed <= 120; ++seed) {
    const ProblemSpec spec = DrawSpec(seed, 200);
    const Problem problem(spec);
    const Results one = problem.Run(&kDenseAttention, 1);
    for (int threads : {2, 3, 7}) {
      ExpectSame(one, problem.Run(&kDenseAttention, threads), spec.Describe());
      if (HasFatalFailure()) return;
    }
  }
}

// One problem on many threads works in slabs, several key_heads on few threads do not.
TEST(DenseAttention, SlabsAndProblemsGiveTheSameBits) {
  ProblemSpec spec;
  spec.kv_heads = 2;
  spec.group = 2;
  spec.q_len = spec.k_len = 700;
  spec.head_dim = 40;
  spec.value_dim = 24;
  spec.causal = spec.slopes = spec.bias = spec.length_scale = true;
  spec.scale_invariant = 10.0;
  for (int broadcast = 0; broadcast < 8; ++broadcast) {
    spec.bias_broadcast = broadcast;
    const Problem problem(spec);
    const Results two = problem.Run(&kDenseAttention, 2);
    for (int threads : {1, 3, 5}) {
      ExpectSame(two, problem.Run(&kDenseAttention, threads),
                 "broadcast " + std::to_string(broadcast));
    }
  }
}

TEST(DenseAttention, LengthsAroundTiles) {
  for (std::int64_t k_len : {1, 5, 6, 7, 63, 64, 65, 127, 129, 203}) {
    for (std::int64_t q_len : {1, 2, 3, 5, 6, 11, 12, 13, 47, 48, 49, 113}) {
      ProblemSpec spec;
      spec.seed = static_cast<std::uint64_t>(k_len * 1000 + q_len);
      spec.q_len = q_len;
      spec.k_len = k_len;
      spec.head_dim = 1 + (q_len * 7 + k_len) % 70;
      spec.value_dim = 1 + (q_len * 5 + k_len * 3) % 130;
      spec.causal = (q_len + k_len) % 2 == 0;
      CheckOnEveryTarget(spec);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(DenseAttention, WidestHeads) {
  for (std::int64_t dim : {511, 512}) {
    ProblemSpec spec;
    spec.q_len = 9;
    spec.k_len = 70;
    spec.head_dim = dim;
    spec.value_dim = 1023 - dim;
    CheckOnEveryTarget(spec);
  }
}

TEST(DenseAttention, EveryKindOfValues) {
  using V = ProblemSpec::Values;
  for (V values : {V::kFlat, V::kTies, V::kDominant, V::kHuge, V::kTiny, V::kNaN}) {
    for (double alpha : {1.0, 1.25, 1.5, 2.0}) {
      for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
        ProblemSpec spec;
        spec.values = values;
        spec.alpha = alpha;
        spec.dtype = dtype;
        spec.q_len = 113;
        spec.k_len = 203;
        spec.length_scale = true;
        CheckOnEveryTarget(spec);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// A key of NaN under every mask: the rows that see it, and the gradients they reach, are NaN.
TEST(DenseAttention, NaNReachesWhatTheReferenceSays) {
  for (std::uint64_t seed = 2001; seed <= 2120; ++seed) {
    ProblemSpec spec = DrawSpec(seed, 130);
    spec.values = ProblemSpec::Values::kNaN;
    Check(spec, Problem(spec).Run(nullptr), "the best target");
    if (HasFatalFailure()) return;
  }
}

// All keys alike: every weight is 1 / n, and sums of as many equal terms must not drift.
TEST(DenseAttention, FlatRowsOfAnyLength) {
  for (std::int64_t n : {1, 2, 100, 1000, 4097, 65536}) {
    for (double alpha : {1.0, 1.5, 2.0}) {
      const std::vector<float> q(3, 0.5f), ones(static_cast<std::size_t>(n), 1.0f);
      std::vector<float> out(3), dv(ones.size());
      std::vector<double> tau(3);
      std::vector<std::int64_t> support(3);
      AttentionParams params;
      params.batch = params.heads = params.kv_heads = params.head_dim = params.value_dim = 1;
      params.q_len = 3;
      params.k_len = n;
      params.alpha = alpha;
      params.q = {q.data(), DType::kFloat32, {3, 3, 1, 1}};
      params.k = params.v = {ones.data(), DType::kFloat32, {n, n, 1, 1}};
      RunForward(KernelsFrom(kDenseAttention), {}, params,
                 {.out = {out.data(), DType::kFloat32, {3, 3, 1, 1}},
                  .tau = tau.data(),
                  .support_size = support.data()});
      AttentionGradients gradients;
      gradients.d_out = params.q;
      gradients.tau = tau.data();
      gradients.dv = {dv.data(), DType::kFloat32, {n, n, 1, 1}};
      RunBackward(KernelsFrom(kDenseAttention), {}, params, gradients);
      for (int i = 0; i < 3; ++i) {
        EXPECT_NEAR(out[i], 1.0, 2e-6) << n << " " << alpha;
        EXPECT_EQ(support[i], n);
      }
      EXPECT_NEAR(dv[n / 2] * static_cast<double>(n), 1.5, 1e-5) << n << " " << alpha;
    }
  }
}

// Nothing is read or written where no query looks.
TEST(DenseAttention, HiddenKeysMayHoldAnything) {
  ProblemSpec spec;
  spec.q_len = spec.k_len = 150;
  spec.bias = true;
  const Problem clean(spec);
  AttentionParams params = clean.params();
  std::vector<float> k(150 * 16), v(150 * 16), bias(150);
  const auto* k_from = static_cast<const float*>(params.k.data);
  const auto* v_from = static_cast<const float*>(params.v.data);
  std::copy_n(k_from, k.size(), k.begin());
  std::copy_n(v_from, v.size(), v.begin());
  std::vector<float> out[2], dq[2], dv[2];
  std::vector<std::uint8_t> visible(150, 1);
  for (int hidden : {3, 64, 65, 149}) visible[hidden] = 0;
  params.terms.bias = {};
  params.mask.visible = visible.data();
  for (std::int64_t& stride : params.mask.visible_strides) stride = 0;
  params.mask.visible_strides[3] = 1;
  for (int spoiled = 0; spoiled < 2; ++spoiled) {
    for (int hidden : {3, 64, 65, 149}) {
      if (spoiled == 1) {
        std::fill_n(k.begin() + hidden * 16, 16, hidden % 2 == 0 ? NAN : INFINITY);
        std::fill_n(v.begin() + hidden * 16, 16, hidden % 2 == 0 ? INFINITY : NAN);
      }
    }
    params.k.data = k.data();
    params.v.data = v.data();
    out[spoiled].resize(150 * 16);
    dq[spoiled].resize(150 * 16);
    dv[spoiled].resize(150 * 16);
    std::vector<double> tau(150);
    const std::int64_t s[4] = {2400, 2400, 16, 1};
    const auto array = [&](std::vector<float>& to) {
      return MutableArray4{to.data(), DType::kFloat32, {s[0], s[1], s[2], s[3]}};
    };
    RunForward(KernelsFrom(kDenseAttention), {}, params,
               {.out = array(out[spoiled]), .tau = tau.data()});
    AttentionGradients gradients;
    gradients.d_out = params.q;
    gradients.tau = tau.data();
    gradients.dq = array(dq[spoiled]);
    gradients.dv = array(dv[spoiled]);
    RunBackward(KernelsFrom(kDenseAttention), {}, params, gradients);
  }
  for (std::size_t i = 0; i < out[0].size(); ++i) {
    ASSERT_NEAR(out[1][i], out[0][i], 1e-6);
    ASSERT_NEAR(dq[1][i], dq[0][i], 1e-6);
    ASSERT_NEAR(dv[1][i], dv[0][i], 1e-6);
  }
}

// Through the checks and the list, as users call it.
TEST(DenseAttention, TheListServesDrawnProblems) {
  for (std::uint64_t seed = 1001; seed <= 1060; ++seed) {
    const ProblemSpec spec = DrawTame(seed, 130);
    const Problem problem(spec);
    const Results exact = problem.Run(nullptr);
    const Results got = problem.RunAsUser(2);
    Conditioning conditioning(spec);
    for (const Field& field : kFields) ExpectClose(spec, field, got, exact, conditioning, "list");
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace tsallis
