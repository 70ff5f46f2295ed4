#include "torch/operators.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <optional>

namespace tsallis {
namespace {

using at::Tensor;

// Seeded: a row whose support is one entry has no gradient in alpha, and unseeded ones came up.
Tensor Scores() {
  at::manual_seed(1);
  return at::randn({6, 9}, at::kDouble).requires_grad_();
}

// d (map(x) weight).sum() / dx
Tensor Gradient(const Tensor& probabilities, const Tensor& x, const Tensor& weight) {
  x.mutable_grad() = Tensor();
  (probabilities * weight).sum().backward();
  return x.grad();
}

TEST(MapRows, SoftmaxAndItsGradientAgreeWithTorch) {
  const Tensor x = Scores();
  const Tensor weight = at::randn_like(x).detach();
  for (std::int64_t dim : {-1, 0}) {
    const Tensor ours = Entmax(x, 1.0, dim);
    const Tensor theirs = at::softmax(x, dim);
    EXPECT_TRUE(at::allclose(ours, theirs));
    EXPECT_TRUE(at::allclose(Gradient(ours, x, weight), Gradient(theirs, x, weight)));
  }
}

TEST(MapRows, AlphaOfATensorIsTheSameNumberAndGetsAGradient) {
  const Tensor x = Scores();
  const Tensor alpha = at::full({6, 1}, 1.5, at::kDouble).requires_grad_();
  const Tensor p = MapRows(x, RowMapParams{}, alpha);
  EXPECT_TRUE(at::equal(p, Entmax(x)));
  p.square().sum().backward();
  EXPECT_EQ(alpha.grad().sizes(), alpha.sizes());
  EXPECT_GT(alpha.grad().min().item<double>(), 0.0);  // sparser rows have larger squares
}

TEST(MapRows, StatisticsCarryNoGradient) {
  const Tensor x = Scores();
  RowStatTensors stats;
  const Tensor p = MapRows(x, RowMapParams{}, std::nullopt, -1, &stats);
  EXPECT_TRUE(p.requires_grad());
  EXPECT_FALSE(stats.tau.requires_grad());
  EXPECT_TRUE(at::equal(stats.support_size, p.gt(0).sum(-1)));
}

TEST(MapRows, MistakesAreValueErrors) {
  RowMapParams params;
  params.alpha = 0.5;
  EXPECT_THROW(MapRows(Scores(), params), c10::ValueError);
  EXPECT_THROW(MapRows(Scores(), RowMapParams{}, std::nullopt, 2), c10::IndexError);
}

TEST(FenchelYoungLosses, GradientIsProbabilitiesLessTarget) {
  const Tensor x = Scores();
  const Tensor targets = at::arange(6);
  FenchelYoungLosses(x, targets, RowMapParams{}).sum().backward();
  const Tensor expected = Entmax(x.detach()) - at::one_hot(targets, 9);
  EXPECT_TRUE(at::allclose(x.grad(), expected));
}

}  // namespace
}  // namespace tsallis
