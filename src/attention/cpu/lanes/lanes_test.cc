// The lane kernel against the double-precision definition, on every instruction set.
#include "attention/cpu/lanes/lanes.h"

#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "attention/kernels.h"
#include "attention/testing/problem.h"
#include "core/target.h"

namespace tsallis {
namespace {

void ForEachLanesTarget(const std::function<void(const std::string&)>& body) {
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    if (*LanesTarget() != 0) body(LanesTarget());
  }
  hwy::SetSupportedTargetsForTest(0);
}

// The kernel on each instruction set, and, for bfloat16 where code for tiles is compiled, on
// emulated tiles too. tiles: whether it has any.
void ForEachLanes(
    DType dtype,
    const std::function<void(const AttentionKernel&, const std::string&, bool tiles)>& body) {
  ForEachLanesTarget([&](const std::string& target) {
    const bool here = dtype == DType::kBFloat16 && HasVectorsOf16Floats();
    body(kLanesAttention, target, here && RealTileFunctions() != nullptr);
    if (here) body(kEmulatedLanes, target + ", emulated tiles", true);
  });
}

double Largest(const std::vector<double>& values) {
  double largest = 0.0;
  for (double value : values) {
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  }
  return largest;
}

double Furthest(const std::vector<double>& a, const std::vector<double>& b) {
  double furthest = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::isfinite(a[i]) && std::isfinite(b[i])) {
      furthest = std::max(furthest, std::abs(a[i] - b[i]));
    }
  }
  return furthest;
}

// Results as rounding changes them in a plain float32 implementation, which depends on the
// problem's condition (scores of 1000 have an error of 1e-4): those of the reference with every
// query component and key component off by up to 2^-22 of itself.
Results Perturbed(Problem& problem, std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::uniform_real_distribution<double> uniform(-0x1p-22, 0x1p-22);
  const std::vector<double> q = problem.Wide("q"), k = problem.Wide("k");
  for (double& value : problem.Wide("q")) value *= 1.0 + uniform(engine);
  for (double& value : problem.Wide("k")) value *= 1.0 + uniform(engine);
  Results results = problem.Run(nullptr);
  problem.Wide("q") = q;
  problem.Wide("k") = k;
  return results;
}

// Rows whose threshold and an entry lie within rounding of each other: there the gradient of alpha
// above 1.5 jumps or is steep, and the support's size is open.
struct Margins {
  bool gradients_are_open = false;
  std::vector<std::int64_t> least, most;  // of the support, by row

  explicit Margins(const Problem& problem) {
    const AttentionParams& params = problem.wide();
    least.assign(ArrayBatch(params) * params.heads * params.q_len, 0);
    most = least;
    ReferenceRow row;
    for (std::int64_t b = 0; b < params.batch; ++b) {
      const Sequence sequence = Sequence::Of(params, b);
      for (std::int64_t h = 0; h < params.heads; ++h) {
        const double alpha = params.map == RowMap::kEntmax ? AlphaOf(params, h) : 1.0;
        for (std::int64_t i = sequence.q.begin; i < sequence.q.end; ++i) {
          row.Compute(params, sequence, h, i);
          const std::int64_t index = RowIndex(params, sequence, h, i);
          double largest = 0.0;
          for (double z : row.scores) {
            if (std::isfinite(z)) largest = std::max(largest, std::abs(z));
          }
          // In p and not in z: a power of 20 sends p below float long before z meets tau.
          const double slack = 3e-6 * (1.0 + largest);
          for (std::size_t j = 0; j < row.scores.size(); ++j) {
            const double depth =
                alpha == 1.0 ? row.p[j] : (alpha - 1.0) * row.scores[j] - row.result.tau;
            const bool is_in = alpha == 1.0 ? row.p[j] > 1e-30 : depth > slack && row.p[j] > 1e-30;
            const bool may_be = alpha == 1.0 ? row.p[j] > 0.0 : depth > -slack;
            least[index] += is_in;
            most[index] += may_be;
            if (alpha > 1.5 && is_in != may_be) gradients_are_open = true;
          }
        }
      }
    }
  }
};

double Epsilon(DType dtype) {
  return dtype == DType::kBFloat16 ? 0x1p-8 : dtype == DType::kFloat16 ? 0x1p-11 : 0x1p-24;
}

void ExpectClose(const std::vector<double>& got, const std::vector<double>& want, double absolute,
                 double relative, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(want[i]) || std::isinf(want[i])) {
      ASSERT_TRUE(std::isnan(want[i]) ? std::isnan(got[i]) : got[i] == want[i])
          << what << "[" << i << "]: " << got[i] << " instead of " << want[i];
    } else {
      ASSERT_NEAR(got[i], want[i], absolute + relative * std::abs(want[i]))
          << what << "[" << i << "]";
    }
  }
}

// Everything that the kernel writes, on every instruction set.
void CheckProblem(const ProblemSpec& spec) {
  Problem problem(spec);
  ASSERT_EQ(RefusalOf(kLanesAttention, problem), "") << spec.Describe();
  const Results want = problem.Run(nullptr);
  const Results off[2] = {Perturbed(problem, 1), Perturbed(problem, 2)};
  const Margins margins(problem);
  // Gradients of alpha in (1.5, 2) are p^{2 - alpha}, whose slope at p = 0 is infinite: how far two
  // perturbations move them says less about the furthest that rounding can.
  const bool steep = spec.alpha_per_head || (spec.alpha > 1.5 && spec.alpha < 2.0);
  ForEachLanes(
      spec.dtype, [&](const AttentionKernel& kernel, const std::string& target, bool on_tiles) {
        const Results got = problem.Run(&kernel);
        const std::string name = spec.Describe() + " on " + target;
        const auto check = [&](std::vector<double> Results::*field, const char* what, bool stored,
                               bool wide_sum = false) {
          const std::vector<double>& expected = want.*field;
          const double condition =
              std::max(Furthest(off[0].*field, expected), Furthest(off[1].*field, expected));
          // Sums of terms around 1 that may cancel; those over rows and keys have more of them.
          const double base = wide_sum ? 2e-5 : 4e-6;
          // Sums over keys may cancel (flat keys), sums over queries do so less.
          const double products = field == &Results::dq ? Largest(want.dk) : 0.0;
          // Weights and their gradients are rounded to bfloat16 before products on tiles.
          const bool from_product = field == &Results::out || field == &Results::dq ||
                                    field == &Results::dk || field == &Results::dv;
          const double rounded =
              on_tiles && from_product ? 0x1p-8 * (Largest(expected) + products) : 0.0;
          const double absolute =
              (steep ? 4.0 : 2.0) * condition + base * (1.0 + Largest(expected)) + rounded;
          ExpectClose(got.*field, expected, absolute, stored ? Epsilon(spec.dtype) : 1e-6,
                      name + ": " + what);
        };
        check(&Results::out, "out", true);
        check(&Results::tau, "tau", false);
        check(&Results::entropy, "entropy", false);
        check(&Results::maximum, "maximum", false);
        for (std::size_t i = 0; i < got.support_size.size(); ++i) {
          if (want.support_size[i] < 0) {
            ASSERT_EQ(got.support_size[i], -1) << name;
          } else if (margins.most[i] > 0) {
            ASSERT_GE(got.support_size[i], margins.least[i]) << name << " row " << i;
            ASSERT_LE(got.support_size[i], margins.most[i]) << name << " row " << i;
          } else {
            ASSERT_EQ(got.support_size[i], want.support_size[i]) << name << " row " << i;
          }
        }
        check(&Results::dv, "dv", true);
        if (margins.gradients_are_open) return;
        check(&Results::dq, "dq", true);
        check(&Results::dk, "dk", true);
        check(&Results::d_length_scale, "d_length_scale", false);
        check(&Results::d_slopes, "d_slopes", false, true);
        check(&Results::d_alpha, "d_alpha", false, true);
      });
}

// A drawn problem within the kernel's terms; false if there is none near.
bool Admit(ProblemSpec& spec) {
  spec.visible = 1.0;
  spec.block = 0;
  spec.bias = false;
  if (spec.alpha > 2.0) spec.alpha = 1.8;
  if (spec.map != RowMap::kEntmax) spec.map = RowMap::kSoftmax;
  spec.sink = false;
  // Beyond what moving the inputs by 2^-22 can tell; random_test.cc bounds their errors.
  if (spec.values == ProblemSpec::Values::kVast) spec.values = ProblemSpec::Values::kNormal;
  return RefusalOf(kLanesAttention, Problem(spec)).empty();
}

TEST(LanesAttention, RunsOnSeveralInstructionSets) {
  int count = 0;
  ForEachLanesTarget([&](const std::string&) { ++count; });
  EXPECT_GE(count, 1);
#ifdef HWY_COMPILE_ALL_ATTAINABLE
  EXPECT_GT(count, 1);
#endif
}

TEST(LanesAttention, LengthsAroundTheLanes) {
  for (const std::int64_t n : {1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 511, 512}) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      for (const double alpha : {1.0, 1.5, 1.4, 2.0}) {
        ProblemSpec spec;
        spec.seed = static_cast<std::uint64_t>(n);
        spec.dtype = dtype;
        spec.alpha = alpha;
        spec.q_len = spec.k_len = n;
        spec.head_dim = 32;
        spec.value_dim = 40;
        spec.causal = alpha != 1.4;
        if (n > 300 && dtype != DType::kFloat32) continue;
        CheckProblem(spec);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(LanesAttention, UnusualValues) {
  using V = ProblemSpec::Values;
  for (const V values : {V::kFlat, V::kTies, V::kDominant, V::kHuge, V::kTiny, V::kNaN}) {
    for (const double alpha : {1.0, 1.05, 1.25, 1.5, 1.6, 2.0}) {
      for (const bool causal : {false, true}) {
        ProblemSpec spec;
        spec.values = values;
        spec.alpha = alpha;
        spec.causal = causal;
        spec.batch = spec.group = 2;
        spec.q_len = spec.k_len = 70;
        spec.slopes = spec.length_scale = causal;
        CheckProblem(spec);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// The bound that tells whether a block needs care once forgot a NaN that a number followed.
TEST(LanesAttention, NaNAmongLengthScales) {
  constexpr std::int64_t kN = 20, kD = 16;
  const std::vector<float> ones(kN * kD, 1.0f);
  std::vector<float> c(kN, 2.0f), out(kN * kD);
  c[3] = std::nanf("");
  const ConstArray4 rows = {ones.data(), DType::kFloat32, {0, 0, kD, 1}};
  AttentionParams params;
  params.batch = params.heads = params.kv_heads = 1;
  params.q_len = params.k_len = kN;
  params.head_dim = params.value_dim = kD;
  params.q = params.k = params.v = rows;
  params.terms.length_scale = {c.data(), DType::kFloat32, {0, 0, 1, 1}};
  AttentionOutputs outputs;
  outputs.out = {out.data(), DType::kFloat32, {0, 0, kD, 1}};
  ForEachLanesTarget([&](const std::string& target) {
    RunForward(KernelsFrom(kLanesAttention), {}, params, outputs);
    for (std::int64_t i = 0; i < kN; ++i) {
      if (i == 3) {
        EXPECT_TRUE(std::isnan(out[i * kD])) << target;
      } else {
        EXPECT_NEAR(out[i * kD], 1.0f, 1e-6) << target << " row " << i;
      }
    }
  });
}

TEST(LanesAttention, TheNumberOfThreadsDoesNotMatter) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    ProblemSpec spec = DrawSpec(seed, 70);
    spec.batch = 3;
    if (!Admit(spec)) continue;
    const Problem problem(spec);
    const Results one = problem.Run(&kLanesAttention, 1);
    for (const int threads : {2, 3}) {
      const Results more = problem.Run(&kLanesAttention, threads);
      const auto same = [&](std::vector<double> Results::*field) {
        for (std::size_t i = 0; i < (one.*field).size(); ++i) {
          ASSERT_EQ(std::bit_cast<std::uint64_t>((one.*field)[i]),
                    std::bit_cast<std::uint64_t>((more.*field)[i]))
              << spec.Describe();
        }
      };
      for (const auto field : {&Results::out, &Results::tau, &Results::entropy, &Results::maximum,
                               &Results::dq, &Results::dk, &Results::dv, &Results::d_length_scale,
                               &Results::d_alpha, &Results::d_slopes}) {
        same(field);
        if (HasFatalFailure()) return;
      }
      EXPECT_EQ(one.support_size, more.support_size);
    }
  }
}

// A key and a value that hold NaN or infinity, with a weight of 0 for some queries and unseen by
// others, must not reach those.
TEST(LanesAttention, WhatNobodyUsesMayHoldAnything) {
  constexpr std::int64_t n = 40, size = 16;
  std::vector<float> q(n * size, 0.1f), k(n * size, 0.1f), v(n * size, 1.0f), g(n * size, 1.0f);
  for (std::int64_t x = 0; x < size; ++x) {
    k[5 * size + x] = -100.0f;  // weight 0 for everyone that sees another key
    v[5 * size + x] = x % 2 == 0 ? NAN : INFINITY;
    k[30 * size + x] = NAN;  // seen from query 30 on
    q[35 * size + x] = NAN;
    g[36 * size + x] = NAN;
  }
  std::vector<float> out(n * size), dq(n * size), dk(n * size), dv(n * size);
  std::vector<double> tau(n);
  AttentionParams params;
  params.batch = params.heads = params.kv_heads = 1;
  params.q_len = params.k_len = n;
  params.head_dim = params.value_dim = size;
  const auto array = [&](std::vector<float>& data) {
    return MutableArray4{data.data(), DType::kFloat32, {n * size, n * size, size, 1}};
  };
  params.q = array(q);
  params.k = array(k);
  params.v = array(v);
  params.mask.causal = true;
  const auto run = [&] {
    RunForward(KernelsFrom(kLanesAttention), {}, params, {.out = array(out), .tau = tau.data()});
    AttentionGradients gradients;
    gradients.d_out = array(g);
    gradients.tau = tau.data();
    gradients.dq = array(dq);
    gradients.dk = array(dk);
    gradients.dv = array(dv);
    RunBackward(KernelsFrom(kLanesAttention), {}, params, gradients);
  };
  ForEachLanesTarget([&](const std::string& target) {
    run();
    for (std::int64_t i = 0; i < n; ++i) {
      const bool broken = i >= 30;
      EXPECT_EQ(std::isnan(out[i * size]), broken) << target << " query " << i;
      if (!broken) {
        EXPECT_NEAR(out[i * size], 1.0f, 1e-5f) << target << " query " << i;
      }
      EXPECT_EQ(std::isnan(dq[i * size]), broken) << target << " query " << i;
      // Queries from 30 on see keys up to themselves, and spoil them.
      EXPECT_TRUE(std::isnan(dk[i * size])) << target << " key " << i;
      EXPECT_TRUE(std::isnan(dv[i * size])) << target << " key " << i;
    }
  });
  // Without the broken key, query and gradient, nothing is NaN.
  for (std::int64_t x = 0; x < size; ++x)
    k[30 * size + x] = q[35 * size + x] = g[36 * size + x] = 0.1f;
  ForEachLanesTarget([&](const std::string& target) {
    run();
    for (const auto* values : {&out, &dq, &dk, &dv}) {
      for (const float value : *values) ASSERT_TRUE(std::isfinite(value)) << target;
    }
  });
}

// One query, one key: out = v, through loading and storing. Every 16-bit pattern.
TEST(LanesAttention, SixteenBitValuesPassUnchanged) {
  constexpr std::int64_t columns = 128, rows = 65536 / columns;
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    std::vector<std::uint16_t> q(rows * 8), v(65536), out(65536);
    for (std::size_t i = 0; i < v.size(); ++i) v[i] = static_cast<std::uint16_t>(i);
    AttentionParams params;
    params.batch = rows;
    params.heads = params.kv_heads = params.q_len = params.k_len = 1;
    params.head_dim = 8;
    params.value_dim = columns;
    params.q = params.k = {q.data(), dtype, {8, 8, 8, 1}};
    params.v = {v.data(), dtype, {columns, columns, columns, 1}};
    ForEachLanes(dtype, [&](const AttentionKernel& kernel, const std::string& target, bool tiles) {
      RunForward(TestedFrom(kernel), {}, params,
                 {.out = {out.data(), dtype, {columns, columns, columns, 1}}});
      for (std::size_t i = 0; i < v.size(); ++i) {
        const double value = LoadElement<double>(v.data(), dtype, static_cast<std::int64_t>(i));
        if (std::isnan(value)) {
          ASSERT_TRUE(
              std::isnan(LoadElement<double>(out.data(), dtype, static_cast<std::int64_t>(i))));
        } else if (std::abs(value) < 0x1p-126 && tiles) {
          // Tiles take subnormal numbers for 0.
          ASSERT_LE(std::abs(LoadElement<double>(out.data(), dtype, static_cast<std::int64_t>(i))),
                    std::abs(value));
        } else {
          // -0 plus 0 is 0.
          ASSERT_EQ(value, LoadElement<double>(out.data(), dtype, static_cast<std::int64_t>(i)))
              << target << " pattern " << i;
        }
      }
    });
  }
}

TEST(LanesAttention, Refuses) {
  const auto refusal = [](auto&& change) {
    ProblemSpec spec;
    change(spec);
    return RefusalOf(kLanesAttention, Problem(spec));
  };
  EXPECT_EQ(refusal([](ProblemSpec&) {}), "");
  EXPECT_NE(refusal([](ProblemSpec& s) { s.dtype = DType::kFloat64; }), "");
  EXPECT_NE(refusal([](ProblemSpec& s) { s.alpha = 2.01; }), "");
  EXPECT_NE(refusal([](ProblemSpec& s) { s.map = RowMap::kAdaptiveTemperature; }), "");
  EXPECT_NE(refusal([](ProblemSpec& s) { s.visible = 0.5; }), "");
  EXPECT_NE(refusal([](ProblemSpec& s) { s.block = 4; }), "");
  EXPECT_NE(refusal([](ProblemSpec& s) { s.bias = true; }), "");
  EXPECT_NE(refusal([](ProblemSpec& s) { s.head_dim = kLanesMostColumns + 1; }), "");
  EXPECT_NE(refusal([](ProblemSpec& s) { s.k_len = kLanesMostKeys + 1; }), "");
}

}  // namespace
}  // namespace tsallis
