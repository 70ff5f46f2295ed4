// The threshold sweep with every engine on every instruction set: rows long enough for guesses,
// lists that overflow, rows that are swept again, and the tile unit without a tile unit. Short rows
// and the whole space of options: random_test.cc.
#include "attention/cpu/sweep/sweep.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "attention/testing/compare.h"
#include "attention/testing/problem.h"
#include "core/every_target.h"

namespace tsallis {
namespace {

// Every sweep that can run here, once for each instruction set that has its own version.
void ForEachSweep(const std::function<void(const AttentionKernel&)>& body) {
  std::set<std::string> done;
  ForEachTarget([&](const std::string& target) {
    for (const AttentionKernel* kernel :
         {&kSweepFloat, &kSweepInt8, &kSweepInt7, &kSweepAmx, &kEmulatedSweep}) {
      const std::string set = kernel->instruction_set();
      if (set.empty() || !done.insert(kernel->name + (" " + set)).second) continue;
      SCOPED_TRACE(std::string(kernel->name) + " on " + set + ", target " + target);
      body(*kernel);
    }
  });
}

// Rows [0, 40), around the block edges, and the last: enough of a long problem to be sure of it.
void CheckRows(const Problem& problem, const Results& got, double tolerance) {
  const AttentionParams& wide = problem.wide();
  ReferenceRow row;
  for (std::int64_t b = 0; b < wide.batch; ++b) {
    const Sequence sequence = Sequence::Of(wide, b);
    for (std::int64_t h = 0; h < wide.heads; ++h) {
      for (std::int64_t i = sequence.q.begin; i < sequence.q.end; ++i) {
        const std::int64_t from = i - sequence.q.begin;
        const bool look =
            from < 20 || from % 128 == 127 || from % 131 == 0 || i + 1 == sequence.q.end;
        if (!look) continue;
        row.Compute(wide, sequence, h, i);
        const std::int64_t index = RowIndex(wide, sequence, h, i);
        const double scale = 1.0 + std::abs(row.result.tau);
        ASSERT_NEAR(got.tau[index], row.result.tau, tolerance * scale) << "row " << i;
        // Entries within rounding of the threshold may be in or out.
        std::int64_t open = 0;
        for (const double score : row.scores) {
          const double z = (AlphaOf(wide, h) - 1.0) * score;
          open += std::abs(z - row.result.tau) < tolerance * scale ? 1 : 0;
        }
        ASSERT_NEAR(static_cast<double>(got.support_size[index]),
                    static_cast<double>(row.result.support_size), static_cast<double>(open));
        for (std::int64_t x = 0; x < wide.value_dim; ++x) {
          double out = 0.0, size = 0.0;
          for (std::int64_t j = 0; j < row.keys.size(); ++j) {
            const double v = LoadElement<double>(wide.v.data, wide.v.dtype,
                                                 Offset(wide.v.strides, sequence.array_batch,
                                                        KvHead(wide, h), row.keys.begin + j, x));
            out += row.p[j] * v;
            size += row.p[j] * std::abs(v);
          }
          const double unit = problem.spec().dtype == DType::kBFloat16  ? 0x1p-8
                              : problem.spec().dtype == DType::kFloat16 ? 0x1p-10
                                                                        : 0.0;
          ASSERT_NEAR(got.out[index * wide.value_dim + x], out,
                      tolerance * scale * size * 4.0 + unit * std::abs(out) + 1e-12)
              << "row " << i << " column " << x;
        }
      }
    }
  }
}

ProblemSpec Long(std::int64_t n, DType dtype) {
  ProblemSpec spec;
  spec.dtype = dtype;
  spec.q_len = spec.k_len = n;
  spec.head_dim = spec.value_dim = 64;
  spec.causal = true;
  return spec;
}

// Replaces the elements of an input of one head by value(row, column, as drawn).
void Replace(Problem* problem, ConstArray4 AttentionParams::*array,
             const std::function<double(std::int64_t, std::int64_t, double)>& value) {
  const bool keys = array == &AttentionParams::k;
  const std::int64_t rows = keys ? problem->spec().k_len : problem->spec().q_len;
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t x = 0; x < problem->spec().head_dim; ++x) {
      const ConstArray4& from = problem->params().*array;
      const double before =
          LoadElement<double>(from.data, from.dtype, Offset(from.strides, 0, 0, i, x));
      const auto after = static_cast<double>(static_cast<float>(value(i, x, before)));
      for (AttentionParams* params : {&problem->params(), &problem->wide()}) {
        const ConstArray4& to = params->*array;
        StoreElement(const_cast<void*>(to.data), to.dtype, Offset(to.strides, 0, 0, i, x), after);
      }
    }
  }
}

TEST(Sweep, LongRowsMatchTheReference) {
  ForEachSweep([&](const AttentionKernel& kernel) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      ProblemSpec spec = Long(1500, dtype);
      const Problem problem(spec);
      const Results one = problem.Run(&kernel, 1, 0, false);
      CheckRows(problem, one, 4e-6);
      EXPECT_EQ(FirstDifference(one, problem.Run(&kernel, 3, 0, false)), "");
    }
  });
}

// Gradients of two kernels, which round in different places.
void ExpectAlike(const Results& a, const Results& b, DType dtype, double in_float = 3e-5) {
  const double tolerance = dtype == DType::kBFloat16 ? 0x1p-8 : in_float;
  for (const auto& [x, y] : {std::pair{&a.dq, &b.dq},
                             {&a.dk, &b.dk},
                             {&a.dv, &b.dv},
                             {&a.d_alpha, &b.d_alpha},
                             {&a.d_length_scale, &b.d_length_scale},
                             {&a.d_sink, &b.d_sink}}) {
    double largest = 0.0, error = 0.0;
    for (std::size_t i = 0; i < x->size(); ++i) {
      largest = std::max(largest, std::abs((*y)[i]));
      error = std::max(error, std::abs((*x)[i] - (*y)[i]));
    }
    EXPECT_LE(error, tolerance * largest);
  }
}

TEST(Sweep, GradientsDoNotDependOnThreadsOrOnWhatWasSaved) {
  // From a few keys to half of them: lists, dense rows backward only, dense rows in both passes.
  // Without the gradient of alpha dense rows of bfloat16 run on the tile unit, where there is one.
  struct Case {
    DType dtype;
    double spread;
    unsigned wanted = kWantAll;
  };
  constexpr unsigned kNoAlpha = kWantAll & ~static_cast<unsigned>(kWantDAlpha);
  const Case cases[] = {{DType::kFloat32, 1.0},
                        {DType::kFloat32, 0.4},
                        {DType::kBFloat16, 0.4},
                        {DType::kBFloat16, 0.2},
                        {DType::kBFloat16, 0.2, kNoAlpha},
                        {DType::kBFloat16, 0.1, kNoAlpha}};
  ForEachSweep([&](const AttentionKernel& kernel) {
    for (const Case& drawn : cases) {
      SCOPED_TRACE(std::string(Name(drawn.dtype)) + ", spread " + std::to_string(drawn.spread));
      ProblemSpec spec = Long(1300, drawn.dtype);
      spec.spread = drawn.spread;
      // 1 300 keys of 64 floats are two panels of those that rows gather together.
      const bool panels = drawn.dtype == DType::kFloat32 && drawn.spread == 0.4;
      spec.head_dim = spec.value_dim = panels ? 64 : 32;
      spec.group = drawn.spread == 1.0 ? 2 : 1;
      spec.length_scale = true;
      const Problem problem(spec);
      const auto run = [&](const AttentionKernel& runs, int threads, std::size_t bytes) {
        return problem.Run(&runs, threads, bytes, true, drawn.wanted);
      };
      const Results plain = run(kernel, 1, 0);
      const std::size_t bytes = kernel.saved_bytes(problem.params());
      EXPECT_EQ(FirstDifference(plain, run(kernel, 3, bytes)), "");
      EXPECT_EQ(FirstDifference(plain, run(kernel, 2, bytes / 6)), "");
      // The dense kernel computes the same without a sweep.
      ExpectAlike(plain, run(kDenseAttention, 2, 0), drawn.dtype);
    }
  });
}

TEST(Sweep, SinksThatTakeLittleOrAllOfARow) {
  constexpr unsigned kNoStatistics = kWantAll & ~static_cast<unsigned>(kWantStatistics);
  ForEachSweep([&](const AttentionKernel& kernel) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      for (const double sink : {-3.0, 1.0, 4.0, 30.0}) {
        SCOPED_TRACE(std::string(Name(dtype)) + ", sink " + std::to_string(sink));
        ProblemSpec spec = Long(1100, dtype);
        spec.head_dim = spec.value_dim = 32;
        spec.sink = true;
        Problem problem(spec);
        std::ranges::fill(problem.Wide("sink"), sink);
        CheckRows(problem, problem.Run(&kernel, 2, 0, false), 1e-5);
        // Rows of the sink alone stay with the sweep where nobody asks for their largest score.
        const auto run = [&](const AttentionKernel& runs, int threads, std::size_t bytes) {
          return problem.Run(&runs, threads, bytes, true, kNoStatistics);
        };
        const Results plain = run(kernel, 1, 0);
        EXPECT_EQ(FirstDifference(plain, run(kernel, 3, kernel.saved_bytes(problem.params()))), "");
        // The weights that a sink leaves are small, and their roots inexact.
        ExpectAlike(plain, run(kDenseAttention, 2, 0), dtype, 1e-4);
      }
    }
  });
}

// Guesses assume scores that spread like normal ones: none of these do.
TEST(Sweep, ScoresUnlikeAnyGuess) {
  using V = ProblemSpec::Values;
  ForEachSweep([&](const AttentionKernel& kernel) {
    for (const V values : {V::kFlat, V::kTies, V::kDominant, V::kTiny, V::kZero}) {
      ProblemSpec spec = Long(1200, DType::kFloat32);
      spec.values = values;
      spec.head_dim = spec.value_dim = 16;
      const Problem problem(spec);
      CheckRows(problem, problem.Run(&kernel, 2, 0, false), values == V::kDominant ? 2e-4 : 1e-5);
    }
  });
}

// Keys of a real model lie around a common point and change little from one to the next, so that a
// row keeps those near it; and the first key, which every row keeps.
TEST(Sweep, RowsThatKeepTheNearestAndTheFirstKeys) {
  ForEachSweep([&](const AttentionKernel& kernel) {
    ProblemSpec spec = Long(2300, DType::kFloat32);
    spec.head_dim = 32;
    spec.value_dim = 8;
    Problem problem(spec);
    const std::int64_t d = spec.head_dim;
    std::vector<double> walk(static_cast<std::size_t>(spec.k_len * d));
    Replace(&problem, &AttentionParams::k, [&](std::int64_t i, std::int64_t x, double value) {
      double& at = walk[static_cast<std::size_t>(i * d + x)];
      at = i == 0 ? value : 0.97 * walk[static_cast<std::size_t>((i - 1) * d + x)] + 0.25 * value;
      return (x == 3 ? 20.0 : 1.0) + (i == 0 && x == 5 ? 9.0 : at);
    });
    Replace(&problem, &AttentionParams::q, [&](std::int64_t i, std::int64_t x, double) {
      return x == 5 ? 1.5 : 2.0 * walk[static_cast<std::size_t>(i * d + x)];
    });
    const Results one = problem.Run(&kernel, 1, 0, false);
    CheckRows(problem, one, 2e-5);
    EXPECT_EQ(FirstDifference(one, problem.Run(&kernel, 3, 0, false)), "");
  });
}

// Guesses above all that a row has by no more than the rounding that bounds allow for: the row's
// largest scores are listed, many that tie, and the guess leaves none of them. Queries whose other
// scores spread a little more from each to the next, so that guesses pass the ties in steps of that
// rounding; those that guesses are learned from, the last of each quarter, have normal scores.
TEST(Sweep, GuessesJustAboveManyTies) {
  ForEachSweep([&](const AttentionKernel& kernel) {
    for (const double least : {14.5, 15.07}) {
      ProblemSpec spec = Long(1500, DType::kFloat32);
      spec.q_len = 8192;
      spec.causal = false;
      spec.value_dim = 4;
      Problem problem(spec);
      Replace(&problem, &AttentionParams::k, [](std::int64_t i, std::int64_t x, double value) {
        const bool ties = i % 20 == 0;
        if (x == 32) return ties ? 1.0 : 0.0;
        if (x == 33 && ties) return 0.0;
        return value < 0.0 ? -1.0 : 1.0;
      });
      Replace(&problem, &AttentionParams::q, [&](std::int64_t i, std::int64_t x, double value) {
        if (i % 2048 >= 2000) return x < 32 ? 1.5 * value : 0.0;
        const double others = least + 7e-5 * static_cast<double>(i);
        return x == 32 ? 40.0 : x == 33 ? others : 0.0;
      });
      CheckRows(problem, problem.Run(&kernel, 1, 0, false), 2e-5);
    }
  });
}

// A dimension of the keys, a key and a dimension of the queries far larger than the rest: what is
// rounded to few bits may list too much, never too little.
TEST(Sweep, OutliersDoNotHideTheSupport) {
  ForEachSweep([&](const AttentionKernel& kernel) {
    for (const std::int64_t outlier : {0, 1, 2, 3}) {
      ProblemSpec spec = Long(900, DType::kFloat32);
      spec.head_dim = 37;
      spec.value_dim = 8;
      spec.spread = 0.5;
      Problem problem(spec);
      // Multiplies a row or a column (the other is -1) of one input.
      const auto scale = [&](ConstArray4 AttentionParams::*array, std::int64_t row,
                             std::int64_t column, double factor) {
        Replace(&problem, array, [&](std::int64_t i, std::int64_t x, double value) {
          return (row < 0 || i == row) && (column < 0 || x == column) ? factor * value : value;
        });
      };
      if (outlier == 1) {
        scale(&AttentionParams::k, -1, 5, 1000.0);
        scale(&AttentionParams::q, -1, 5, 1e-3);
      }
      if (outlier == 2) scale(&AttentionParams::k, 300, -1, 20.0);
      if (outlier == 3) scale(&AttentionParams::q, -1, 7, 15.0);
      SCOPED_TRACE(outlier);
      CheckRows(problem, problem.Run(&kernel, 2, 0, false), 3e-5);
    }
  });
}

// Distance stretches a product, and with it what a sum of bytes may be off by.
TEST(Sweep, AnOutlierAmongScoresThatDistanceStretches) {
  ForEachSweep([&](const AttentionKernel& kernel) {
    for (const std::int64_t head_dim : {1, 2, 20}) {
      ProblemSpec spec = Long(600, DType::kFloat32);
      spec.q_len = 66;
      spec.head_dim = head_dim;
      spec.value_dim = 8;
      spec.scale_invariant = 1.0;
      Problem problem(spec);
      Replace(&problem, &AttentionParams::k,
              [&](std::int64_t i, std::int64_t, double value) { return i == 300 ? 1e5 : value; });
      SCOPED_TRACE(head_dim);
      CheckRows(problem, problem.Run(&kernel, 2, 0, false), 3e-5);
    }
  });
}

// Products as large as norms allow, of either sign, where sums of few bits would overflow first:
// queries along and against keys whose norm lies in all dimensions, in some or in one.
TEST(Sweep, SumsAsLargeAsTheirNormsAllow) {
  ForEachSweep([&](const AttentionKernel& kernel) {
    for (const std::int64_t d : {1, 7, 63, 64, 65, 130, 320, 512}) {
      for (int variant = 0; variant < 5; ++variant) {
        SCOPED_TRACE("head size " + std::to_string(d) + ", variant " + std::to_string(variant));
        ProblemSpec spec = Long(150, DType::kFloat32);
        spec.head_dim = d;
        spec.value_dim = 4;
        spec.seed = static_cast<std::uint64_t>(10 * d + variant);
        Problem problem(spec);
        std::vector<double> key(static_cast<std::size_t>(spec.k_len * d));
        Replace(&problem, &AttentionParams::k, [&](std::int64_t i, std::int64_t x, double value) {
          double& k = key[static_cast<std::size_t>(i * d + x)];
          k = value < 0.0 ? -1.0 : 1.0;
          if (variant == 1) k *= x % 64 < 9 ? 1.0 : 0.03;
          if (variant == 2) k *= x == d / 2 ? 1.0 : 1e-3;
          if (variant == 3) k = 1.0;  // all the same
          if (variant == 4) k *= i % 50 == 49 ? 1.0 : 0.01;
          return k;
        });
        // The score of the key that a query goes along is 12, or -12.
        Replace(&problem, &AttentionParams::q, [&](std::int64_t i, std::int64_t x, double) {
          const double* k = key.data() + i / 2 * d;
          double squared = 0.0;
          for (std::int64_t y = 0; y < d; ++y) squared += k[y] * k[y];
          const double sign = variant == 3 || i % 3 == 0 ? -1.0 : 1.0;
          return sign * 12.0 * std::sqrt(static_cast<double>(d)) / squared * k[x];
        });
        CheckRows(problem, problem.Run(&kernel, 1, 0, false), 2e-5);
      }
    }
  });
}

TEST(Sweep, MapsShapesAndTerms) {
  ForEachSweep([&](const AttentionKernel& kernel) {
    for (int variant = 0; variant < 14; ++variant) {
      ProblemSpec spec = Long(1100, variant % 2 == 0 ? DType::kFloat32 : DType::kBFloat16);
      spec.seed = static_cast<std::uint64_t>(variant) + 10;
      spec.head_dim = 40;
      spec.value_dim = 24;
      switch (variant) {
        case 0: spec.alpha = 1.25; break;
        case 1: spec.alpha = 2.0; break;
        case 2:
          spec.alpha = 1.7;
          spec.causal = false;
          break;
        case 3:
          spec.spread = 0.25;
          spec.q_len = 300;
          break;
        case 4:
          spec.spread = 4.0;
          spec.left = 700;
          break;
        case 5: spec.slopes = true; break;
        case 6: spec.scale_invariant = 10.0; break;
        case 7:
          spec.slopes = true;
          spec.scale_invariant = 5.0;
          spec.causal = false;
          break;
        case 9:
          spec.softcap = 3.0;
          spec.slopes = true;
          break;
        case 10:
          spec.softcap = 1.0;
          spec.scale_invariant = 5.0;
          break;
        case 11:
        case 12:  // a_0 = 0; scores that distance lifts at first
          spec.scale_invariant = 5.0;
          spec.scale_invariant_alpha = 2.0;
          spec.scale_invariant_beta = variant == 11 ? 2.0 * std::log(2.0) : 6.0;
          break;
        case 8:
          spec.ragged = ProblemSpec::Ragged::kPacked;
          spec.batch = 3;
          break;
        default:
          spec.alpha_per_head = true;
          spec.kv_heads = 4;
          spec.batch = 2;
          break;
      }
      const Problem problem(spec);
      SCOPED_TRACE(spec.Describe());
      CheckRows(problem, problem.Run(&kernel, 2, 0, false), 2e-5);
    }
  });
}

TEST(Sweep, FlatRowsOfEveryLengthAreDense) {
  for (const std::int64_t n : {511, 512, 1025, 16384, 65536}) {
    ProblemSpec spec = Long(n, DType::kFloat32);
    spec.values = ProblemSpec::Values::kFlat;
    spec.q_len = 2;
    spec.head_dim = spec.value_dim = 8;
    const Problem problem(spec);
    CheckRows(problem, problem.Run(&kSweepFloat, 2, 0, false), 1e-5);
  }
}

TEST(Sweep, EmulatedTilesEqualRealOnes) {
  if (kSweepAmx.instruction_set().empty()) GTEST_SKIP() << "no matrix unit here";
  const Problem problem(Long(700, DType::kBFloat16));
  const Results real = problem.Run(&kSweepAmx), emulated = problem.Run(&kEmulatedSweep);
  // The unit adds in an order of its own.
  ASSERT_EQ(real.tau.size(), emulated.tau.size());
  for (std::size_t i = 0; i < real.tau.size(); ++i) {
    ASSERT_NEAR(real.tau[i], emulated.tau[i], 2e-6 * (1.0 + std::abs(real.tau[i])));
  }
}

TEST(ThresholdCurve, RisesWithTheNumberOfKeys) {
  for (const double alpha : {1.1, 1.25, 1.5, 2.0}) {
    const ThresholdCurve curve(alpha);
    double before = -13.0;
    for (double mass = -20.0; mass < 60.0; mass += 0.5) {
      const double g = curve.At(mass);
      EXPECT_GE(g, before);
      before = g;
    }
    // Far out E[(x - g)_+^b] is about phi(g) Gamma(b + 1) / g^(b + 1).
    const double b = 1.0 / (alpha - 1.0), g = 8.0;
    const double moment = std::exp(-0.5 * g * g) / std::sqrt(2.0 * M_PI) * std::tgamma(b + 1.0) /
                          std::pow(g, b + 1.0);
    if (b <= 4.0) {
      EXPECT_NEAR(curve.At(-std::log(moment)), g, 0.3);
    }
  }
}

}  // namespace
}  // namespace tsallis
