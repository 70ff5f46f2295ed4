// The judge of the other tests: it accepts what float32 does and notices what it does not.
#include "attention/testing/compare.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "attention/testing/problem.h"

namespace tsallis {
namespace {

ProblemSpec Spec() {
  ProblemSpec spec;
  spec.kv_heads = 2;
  spec.q_len = spec.k_len = 24;
  spec.causal = spec.ones = spec.slopes = true;
  return spec;
}

// The comparison's answer to exact results that `spoil` has changed.
template <typename Spoil>
std::string Verdict(const ProblemSpec& spec, const Spoil& spoil) {
  const Problem problem(spec);
  const Expectation expectation(problem);
  Results results = expectation.exact();
  spoil(results);
  return expectation.Check(results);
}

TEST(Compare, AcceptsTheExactResults) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    ProblemSpec spec = DrawSpec(seed, 17, /*broken=*/true);
    spec.dtype = DType::kFloat32;
    EXPECT_EQ(Verdict(spec, [](Results&) {}), "") << spec.Describe();
  }
}

TEST(Compare, BoundsHoldForPlainFloat32) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    const Problem problem(DrawSpec(seed, 17));
    const Results exact = problem.Run(nullptr);
    const PlainResults<float> plain = RunPlain<float>(problem);
    const PlainResults<Bounded> bound = RunPlain<Bounded>(problem);
    const auto check = [&](const char* name, const std::vector<double>& x,
                           const std::vector<float>& y, const std::vector<Bounded>& b) {
      ASSERT_EQ(x.size(), y.size()) << name;
      ASSERT_EQ(x.size(), b.size()) << name;
      for (std::size_t i = 0; i < x.size(); ++i) {
        if (x[i] == y[i]) continue;
        const double tolerance = b[i].error + std::abs(b[i].value - x[i]);
        ASSERT_LE(std::abs(y[i] - x[i]), tolerance + 0x1p-24 * std::abs(x[i]))
            << name << "[" << i << "]: " << problem.spec().Describe();
        ASSERT_LE(std::abs(b[i].value - x[i]), b[i].error + 0x1p-24 * std::abs(x[i]))
            << name << "[" << i << "]: " << problem.spec().Describe();
      }
    };
    check("out", exact.out, plain.out, bound.out);
    check("tau", exact.tau, plain.tau, bound.tau);
    check("entropy", exact.entropy, plain.entropy, bound.entropy);
    check("maximum", exact.maximum, plain.maximum, bound.maximum);
    check("dq", exact.dq, plain.dq, bound.dq);
    check("dk", exact.dk, plain.dk, bound.dk);
    check("dv", exact.dv, plain.dv, bound.dv);
    check("d_length_scale", exact.d_length_scale, plain.d_length_scale, bound.d_length_scale);
    check("d_alpha", exact.d_alpha, plain.d_alpha, bound.d_alpha);
    check("d_slopes", exact.d_slopes, plain.d_slopes, bound.d_slopes);
    check("d_bias", exact.d_bias, plain.d_bias, bound.d_bias);
  }
}

TEST(Compare, NoticesWrongElements) {
  const ProblemSpec spec = Spec();
  EXPECT_EQ(Verdict(spec, [](Results&) {}), "");
  const auto noticed = [&](const std::string& array, auto&& spoil) {
    const std::string verdict = Verdict(spec, spoil);
    EXPECT_TRUE(verdict.starts_with(array)) << array << ": \"" << verdict << "\"";
  };
  noticed("out[1, 3]", [](Results& r) { r.out[19] += 1e-4; });
  noticed("dq[40, 2]", [](Results& r) { r.dq[642] += 1e-4; });
  noticed("dk[0, 0]", [](Results& r) { r.dk[0] = NAN; });
  noticed("dv[47, 15]", [](Results& r) { r.dv.back() += 1e-4; });
  noticed("tau[5, 0]", [](Results& r) { r.tau[5] += 1e-4; });
  noticed("maximum[5, 0]", [](Results& r) { r.maximum[5] -= 1e-4; });
  noticed("entropy[7, 0]", [](Results& r) { r.entropy[7] = -INFINITY; });
  noticed("support_size[9, 0]", [](Results& r) { ++r.support_size[9]; });
  noticed("d_alpha[1, 0]", [](Results& r) { r.d_alpha[1] *= 1.01; });
  noticed("d_slopes[0, 0]", [](Results& r) { r.d_slopes[0] *= 1.01; });
  noticed("dq has another size", [](Results& r) { r.dq.pop_back(); });
  noticed("wrote outside", [](Results& r) { r.overrun = true; });
}

// Each element within its bound, all of them together not.
TEST(Compare, NoticesWastedPrecision) {
  const std::string verdict = Verdict(Spec(), [](Results& r) {
    for (double& value : r.dq) value *= 1.0 + 1e-6;
  });
  EXPECT_TRUE(verdict.starts_with("dq: mean error")) << verdict;
}

TEST(Compare, NoticesAMissingNaN) {
  ProblemSpec spec = Spec();
  spec.values = ProblemSpec::Values::kNaN;
  EXPECT_EQ(Verdict(spec, [](Results&) {}), "");
  EXPECT_NE(Verdict(spec,
                    [](Results& r) {
                      for (double& value : r.out) value = std::isnan(value) ? 0.0 : value;
                    }),
            "");
}

TEST(Compare, EveryBitCounts) {
  const Problem problem(Spec());
  const Results a = problem.Run(nullptr);
  Results b = a;
  EXPECT_EQ(FirstDifference(a, b), "");
  b.dv[3] = std::nextafter(b.dv[3], std::numeric_limits<double>::infinity());
  EXPECT_TRUE(FirstDifference(a, b).starts_with("dv[3]"));
  b.dv.clear();  // not wanted
  EXPECT_EQ(FirstDifference(a, b), "");
}

}  // namespace
}  // namespace tsallis
