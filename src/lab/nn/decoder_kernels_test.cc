#include "lab/nn/decoder_kernels.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "core/every_target.h"

namespace tsallis::lab {
namespace {

using Doubles = std::vector<double>;

// Numbers stored as a kernel takes them, and what they are.
class Stored {
 public:
  Stored(std::int64_t count, bool half)
      : half_(half), floats_(half ? 0 : count), halves_(half ? count : 0) {}
  Stored(const Doubles& values, bool half)
      : Stored(static_cast<std::int64_t>(values.size()), half) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto value = static_cast<float>(values[i]);
      if (half) {
        halves_[i] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
      } else {
        floats_[i] = value;
      }
    }
  }

  Cells cells() { return {half_ ? static_cast<void*>(halves_.data()) : floats_.data(), half_}; }
  double operator[](std::size_t i) const {
    return half_ ? std::bit_cast<float>(std::uint32_t{halves_[i]} << 16) : floats_[i];
  }
  Doubles values() const {
    Doubles all;
    for (std::size_t i = 0; i < floats_.size() + halves_.size(); ++i) all.push_back((*this)[i]);
    return all;
  }
  // How far a result may be off that was rounded once when it was stored.
  double Tolerance(double size) const { return (half_ ? 0x1p-8 : 4e-6) * (std::abs(size) + 0.1); }

 private:
  bool half_;
  std::vector<float> floats_;
  std::vector<std::uint16_t> halves_;
};

Doubles Draw(std::int64_t count, unsigned seed, double deviation = 1.0) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0.0, deviation);
  Doubles values(static_cast<std::size_t>(count));
  for (double& value : values) value = static_cast<float>(normal(random));
  return values;
}

std::vector<float> Floats(const Doubles& values) { return {values.begin(), values.end()}; }

void ForWidths(const std::function<void(std::int64_t width, bool half)>& check) {
  ForEachTarget([&](const std::string&) {
    for (const bool half : {false, true}) {
      for (const std::int64_t width : {1, 5, 16, 48, 67}) {
        SCOPED_TRACE(testing::Message() << "width " << width << (half ? " bfloat16" : " float32"));
        check(width, half);
      }
    }
  });
}

constexpr std::int64_t kRows = 3;

// Gradient of sum(weight * f(x)) in x[i] by central differences.
double Slope(const std::function<double(const Doubles&)>& f, Doubles x, std::size_t i) {
  const double h = 1e-5 * (1.0 + std::abs(x[i]));
  const double start = x[i];
  x[i] = start + h;
  const double above = f(x);
  x[i] = start - h;
  return (above - f(x)) / (2.0 * h);
}

// One row of RmsNorm.
Doubles Norm(const double* x, const Doubles& w) {
  double squares = 0.0;
  for (std::size_t k = 0; k < w.size(); ++k) squares += x[k] * x[k];
  const double scale = 1.0 / std::sqrt(squares / static_cast<double>(w.size()) + 1e-6);
  Doubles y;
  for (std::size_t k = 0; k < w.size(); ++k) y.push_back(x[k] * scale * (1.0 + w[k]));
  return y;
}

TEST(DecoderKernels, NormsFollowTheFormula) {
  ForWidths([](std::int64_t width, bool half) {
    const Doubles w = Draw(width, 1, 0.5);
    const Doubles x = Draw(kRows * width, 2);
    const Stored branch(Draw(kRows * width, 3, 2.0), half);
    const std::vector<float> gain = Floats(w), input = Floats(x);
    Stored y(kRows * width, half);
    std::vector<float> scale(kRows), sum(input.size());
    RowKernels().rms_norm(input.data(), gain.data(), kRows, width, y.cells(), scale.data());
    Stored from = branch;
    RowKernels().add_rms_norm(input.data(), from.cells(), gain.data(), kRows, width, sum.data(),
                              scale.data());
    const Doubles added = branch.values();
    for (std::int64_t r = 0; r < kRows; ++r) {
      const Doubles plain = Norm(x.data() + r * width, w);
      const Doubles normal = Norm(added.data() + r * width, w);
      for (std::int64_t k = 0; k < width; ++k) {
        const auto i = static_cast<std::size_t>(r * width + k);
        EXPECT_NEAR(y[i], plain[k], y.Tolerance(plain[k]));
        EXPECT_NEAR(sum[i], x[i] + normal[k], 1e-5);
      }
    }
  });
}

TEST(DecoderKernels, GradientsOfNormsAreSlopes) {
  ForWidths([](std::int64_t width, bool half) {
    const Doubles w = Draw(width, 1, 0.5);
    const Doubles x = Draw(kRows * width, 2);
    Stored dy(Draw(kRows * width, 3), half);
    Stored branch(Draw(kRows * width, 4), half);
    Stored y(kRows * width, half), d_branch(kRows * width, half);
    const std::vector<float> gain = Floats(w), input = Floats(x);
    std::vector<float> scale(kRows), dx(input.size(), 1.0F), dw(gain.size(), 1.0F);
    std::vector<float> out(input.size()), dw_branch(gain.size(), 0.0F);
    RowKernels().rms_norm(input.data(), gain.data(), kRows, width, y.cells(), scale.data());
    const Doubles once = y.values();
    RowKernels().rms_norm_backward(input.data(), scale.data(), gain.data(), dy.cells(), kRows,
                                   width, dx.data(), dw.data(), y.cells());
    EXPECT_EQ(y.values(), once);
    const Doubles along = Draw(kRows * width, 5);
    const std::vector<float> d_out = Floats(along);
    RowKernels().add_rms_norm(input.data(), branch.cells(), gain.data(), kRows, width, out.data(),
                              scale.data());
    RowKernels().add_rms_norm_backward(branch.cells(), scale.data(), gain.data(), d_out.data(),
                                       kRows, width, d_branch.cells(), dw_branch.data());
    // sum of weight * norm over all rows, for any x and w
    const auto total = [&](const Doubles& weight, const Doubles& at, const Doubles& by) {
      double sum = 0.0;
      for (std::int64_t r = 0; r < kRows; ++r) {
        const Doubles normal = Norm(at.data() + r * width, by);
        for (std::int64_t k = 0; k < width; ++k) sum += weight[r * width + k] * normal[k];
      }
      return sum;
    };
    const Doubles weight = dy.values(), middle = branch.values();
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double expected = Slope([&](const Doubles& at) { return total(weight, at, w); }, x, i);
      EXPECT_NEAR(dx[i], 1.0 + expected, 2e-4) << i;
      const double through =
          Slope([&](const Doubles& at) { return total(along, at, w); }, middle, i);
      EXPECT_NEAR(d_branch[i], through, d_branch.Tolerance(through) + 2e-4) << i;
    }
    for (std::size_t k = 0; k < w.size(); ++k) {
      const double expected = Slope([&](const Doubles& by) { return total(weight, x, by); }, w, k);
      EXPECT_NEAR(dw[k], 1.0 + expected, 2e-4);
      const double through =
          Slope([&](const Doubles& by) { return total(along, middle, by); }, w, k);
      EXPECT_NEAR(dw_branch[k], through, 2e-4);
    }
  });
}

double Gelu(double x) {
  return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
}

double Silu(double x) { return x / (1.0 + std::exp(-x)); }

template <class Forward, class Backward>
void ExpectGated(double (*gate)(double), Forward forward, Backward backward) {
  ForWidths([&](std::int64_t width, bool half) {
    Doubles values = Draw(kRows * 2 * width, 6, 2.0);
    values[0] = 40.0, values.back() = -40.0;
    Stored gate_up(values, half);
    Stored dh(Draw(kRows * width, 7), half);
    Stored h(kRows * width, half), again(kRows * width, half);
    Stored d_gate_up(kRows * 2 * width, half);
    (RowKernels().*forward)(gate_up.cells(), kRows, width, h.cells());
    (RowKernels().*backward)(gate_up.cells(), dh.cells(), kRows, width, d_gate_up.cells(),
                             again.cells());
    EXPECT_EQ(h.values(), again.values());
    for (std::int64_t r = 0; r < kRows; ++r) {
      for (std::int64_t k = 0; k < width; ++k) {
        const auto g = static_cast<std::size_t>(r * 2 * width + k), u = g + width;
        const auto i = static_cast<std::size_t>(r * width + k);
        const double x = gate_up[g], up = gate_up[u];
        EXPECT_NEAR(h[i], gate(x) * up, h.Tolerance(gate(x) * up));
        const double slope = dh[i] * up * (gate(x + 1e-5) - gate(x - 1e-5)) / 2e-5;
        EXPECT_NEAR(d_gate_up[g], slope, d_gate_up.Tolerance(slope) + 1e-5);
        EXPECT_NEAR(d_gate_up[u], dh[i] * gate(x), d_gate_up.Tolerance(dh[i] * gate(x)));
      }
    }
  });
}

TEST(DecoderKernels, GatedGeluAndItsGradient) {
  ExpectGated(Gelu, &RowKernelTable::gated_gelu, &RowKernelTable::gated_gelu_backward);
}
TEST(DecoderKernels, GatedSiluAndItsGradient) {
  ExpectGated(Silu, &RowKernelTable::gated_silu, &RowKernelTable::gated_silu_backward);
}

TEST(DecoderKernels, SquaredReluAndItsGradient) {
  ForWidths([](std::int64_t width, bool half) {
    Stored up(Draw(kRows * width, 16, 2.0), half);
    Stored dh(Draw(kRows * width, 17), half);
    Stored h(kRows * width, half), again(kRows * width, half), d_up(kRows * width, half);
    RowKernels().squared_relu(up.cells(), kRows, width, h.cells());
    RowKernels().squared_relu_backward(up.cells(), dh.cells(), kRows, width, d_up.cells(),
                                       again.cells());
    EXPECT_EQ(h.values(), again.values());
    for (std::size_t i = 0; i < static_cast<std::size_t>(kRows * width); ++i) {
      const double x = std::max(up[i], 0.0);
      EXPECT_NEAR(h[i], x * x, h.Tolerance(x * x));
      EXPECT_NEAR(d_up[i], 2.0 * x * dh[i], d_up.Tolerance(2.0 * x * dh[i]));
    }
  });
}

TEST(DecoderKernels, HeadsAreNormedInPlace) {
  ForWidths([](std::int64_t head_dim, bool half) {
    const std::int64_t heads = 2, stride = heads * head_dim + 5;
    const Stored before(Draw(kRows * stride, 18, 3.0), half);
    const Stored dy(Draw(kRows * stride, 19), half);
    Stored y = before, dx = dy;
    std::vector<float> scale(static_cast<std::size_t>(kRows * heads));
    RowKernels().norm_heads(y.cells(), stride, kRows, heads, head_dim, scale.data());
    RowKernels().norm_heads_backward(y.cells(), stride, scale.data(), kRows, heads, head_dim,
                                     dx.cells());
    for (std::int64_t r = 0; r < kRows; ++r) {
      for (std::int64_t i = heads * head_dim; i < stride; ++i) {  // what is no head's stays
        const auto at = static_cast<std::size_t>(r * stride + i);
        EXPECT_EQ(y[at], before[at]);
        EXPECT_EQ(dx[at], dy[at]);
      }
      for (std::int64_t h = 0; h < heads; ++h) {
        const auto first = static_cast<std::size_t>(r * stride + h * head_dim);
        double squares = 0.0, along = 0.0;
        for (std::int64_t k = 0; k < head_dim; ++k)
          squares += before[first + k] * before[first + k];
        const double factor = 1.0 / std::sqrt(squares / static_cast<double>(head_dim) + 1e-6);
        for (std::int64_t k = 0; k < head_dim; ++k) along += dy[first + k] * y[first + k];
        along /= static_cast<double>(head_dim);
        for (std::int64_t k = 0; k < head_dim; ++k) {
          const double normed = before[first + k] * factor;
          EXPECT_NEAR(y[first + k], normed, y.Tolerance(normed));
          const double slope = factor * (dy[first + k] - y[first + k] * along);
          EXPECT_NEAR(dx[first + k], slope, dx.Tolerance(slope));
        }
      }
    }
  });
}

TEST(DecoderKernels, RotationTurnsPairsAndBack) {
  ForWidths([](std::int64_t pairs, bool half) {
    const std::int64_t heads = 2, stride = heads * 2 * pairs + 3;
    const Doubles angle = Draw(4 * pairs, 8);
    std::vector<float> cosine, sine;
    for (const double a : angle) {
      cosine.push_back(static_cast<float>(std::cos(a)));
      sine.push_back(static_cast<float>(std::sin(a)));
    }
    const std::vector<std::int32_t> position = {3, 0, 2};
    Stored x(Draw(kRows * stride, 9), half);
    const Stored before = x;
    RowKernels().rotate(x.cells(), stride, kRows, heads, 2 * pairs, cosine.data(), sine.data(),
                        position.data(), 1.0F);
    for (std::int64_t r = 0; r < kRows; ++r) {
      for (std::int64_t i = 0; i < stride; ++i) {
        const std::int64_t k = i % (2 * pairs);
        const auto at = static_cast<std::size_t>(r * stride + i);
        double expected = before[at];
        if (i < heads * 2 * pairs) {
          const double a = angle[static_cast<std::size_t>(position[r] * pairs + k % pairs)];
          expected = k < pairs ? before[at] * std::cos(a) - before[at + pairs] * std::sin(a)
                               : before[at] * std::cos(a) + before[at - pairs] * std::sin(a);
        }
        EXPECT_NEAR(x[at], expected, x.Tolerance(expected));
      }
    }
    RowKernels().rotate(x.cells(), stride, kRows, heads, 2 * pairs, cosine.data(), sine.data(),
                        position.data(), -1.0F);
    for (std::int64_t i = 0; i < kRows * stride; ++i) {
      EXPECT_NEAR(x[i], before[i], 3.0 * x.Tolerance(2.0));
    }
  });
}

TEST(DecoderKernels, AdaptiveScaleAndItsGradient) {
  ForWidths([](std::int64_t heads, bool half) {
    for (const bool biased : {false, true}) {
      const std::int64_t stride = 2 * heads + 1, c_stride = heads + 2;
      Stored in(Draw(kRows * stride, 10, 2.0), half);
      Stored d_in(kRows * stride, half);
      const std::vector<float> bias = Floats(Draw(2 * heads, 11));
      const std::vector<float> log_log = {-0.3665F, 0.9F, 2.3F};
      const std::vector<float> dc = Floats(Draw(kRows * c_stride, 12));
      std::vector<float> c(dc.size(), 0.0F), d_bias(bias.size(), 0.5F);
      std::vector<float> delta;
      for (std::int64_t h = 0; h < heads; ++h)
        delta.push_back(0.75F + 0.1F * static_cast<float>(h));
      const AdaptiveScale scale{heads, delta.data(), 2.0F, biased ? bias.data() : nullptr,
                                biased ? bias.data() + heads : nullptr};
      RowKernels().adaptive_scale(scale, in.cells(), in.cells() + heads, stride, log_log.data(),
                                  kRows, c.data(), c_stride);
      RowKernels().adaptive_scale_backward(scale, in.cells(), in.cells() + heads, stride,
                                           log_log.data(), kRows, dc.data(), c_stride, d_in.cells(),
                                           d_in.cells() + heads, biased ? d_bias.data() : nullptr,
                                           biased ? d_bias.data() + heads : nullptr);
      for (std::int64_t h = 0; h < heads; ++h) {
        double sum_b = 0.5, sum_g = 0.5;
        for (std::int64_t r = 0; r < kRows; ++r) {
          const double b = in[r * stride + h] + (biased ? bias[h] : 0.0);
          const double g = in[r * stride + heads + h] + (biased ? bias[heads + h] : 0.0);
          const double power = std::exp(2.0 * std::tanh(g) * log_log[r]);
          const double softplus = std::log1p(std::exp(b));
          const double expected = delta[h] + softplus * power;
          EXPECT_NEAR(c[r * c_stride + h], expected, 4e-6 * expected);
          const double d = dc[r * c_stride + h];
          const double to_b = d * power / (1.0 + std::exp(-b));
          const double to_g =
              d * softplus * power * 2.0 * log_log[r] * (1.0 - std::tanh(g) * std::tanh(g));
          EXPECT_NEAR(d_in[r * stride + h], to_b, d_in.Tolerance(to_b));
          EXPECT_NEAR(d_in[r * stride + heads + h], to_g, d_in.Tolerance(to_g) + 2e-5);
          sum_b += to_b, sum_g += to_g;
        }
        if (biased) {
          EXPECT_NEAR(d_bias[h], sum_b, 1e-5 * (1.0 + std::abs(sum_b)));
          EXPECT_NEAR(d_bias[heads + h], sum_g, 1e-4 * (1.0 + std::abs(sum_g)));
        }
      }
    }
  });
}

TEST(DecoderKernels, CrossEntropyItsGradientAndTheFirstOfTheLargest) {
  ForWidths([](std::int64_t columns, bool) {
    Doubles values = Draw(kRows * columns, 13, 3.0);
    for (std::int64_t k = 0; k < columns; ++k) values[2 * columns + k] = 1.0;  // ties
    std::vector<float> logits = Floats(values), loss(kRows);
    std::vector<std::int64_t> label = {0, columns / 2, columns - 1}, best(kRows);
    RowKernels().cross_entropy(logits.data(), kRows, columns, label.data(), 0.0F, loss.data(),
                               best.data());
    EXPECT_EQ(logits, Floats(values));  // no gradient wanted
    RowKernels().cross_entropy(logits.data(), kRows, columns, label.data(), 0.25F, loss.data(),
                               best.data());
    EXPECT_EQ(best[2], 0);
    for (std::int64_t r = 0; r < kRows; ++r) {
      const double* row = values.data() + r * columns;
      double sum = 0.0;
      for (std::int64_t k = 0; k < columns; ++k) sum += std::exp(row[k]);
      EXPECT_NEAR(loss[r], std::log(sum) - row[label[r]], 4e-6 * (1.0 + std::abs(loss[r])));
      for (std::int64_t k = 0; k < columns; ++k) {
        EXPECT_LE(row[k], row[best[r]]);
        const double expected = 0.25 * (std::exp(row[k]) / sum - (k == label[r] ? 1.0 : 0.0));
        EXPECT_NEAR(logits[r * columns + k], expected, 1e-6);
      }
    }
  });
}

TEST(DecoderKernels, TransposesAnySize) {
  ForEachTarget([](const std::string&) {
    for (const std::int64_t rows : {1, 7, 8, 24, 37}) {
      for (const std::int64_t columns : {1, 8, 19, 64}) {
        const std::int64_t stride = rows + 3;
        std::vector<std::uint16_t> in, out(columns * stride, 7);
        for (std::int64_t i = 0; i < rows * columns; ++i) {
          in.push_back(static_cast<std::uint16_t>(1000 + i));
        }
        RowKernels().transpose_halves(in.data(), rows, columns, out.data(), stride);
        for (std::int64_t c = 0; c < columns; ++c) {
          for (std::int64_t r = 0; r < stride; ++r) {
            ASSERT_EQ(out[c * stride + r], r < rows ? in[r * columns + c] : 7) << r << " " << c;
          }
        }
      }
    }
  });
}

}  // namespace
}  // namespace tsallis::lab
