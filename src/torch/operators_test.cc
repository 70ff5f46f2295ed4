#include "torch/operators.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <optional>
#include <vector>

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
  params.alpha = 0.0;
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

struct Inputs {
  Tensor q, k, v;

  // Two query heads for every key head.
  Inputs() {
    at::manual_seed(1);
    q = at::randn({2, 4, 5, 3}, at::kDouble).requires_grad_();
    k = at::randn({2, 2, 6, 3}, at::kDouble).requires_grad_();
    v = at::randn({2, 2, 6, 4}, at::kDouble).requires_grad_();
  }
  std::vector<Tensor> Gradients(const Tensor& out) {
    const Tensor tensors[] = {q, k, v};
    for (const Tensor& tensor : tensors) tensor.mutable_grad() = Tensor();
    out.square().sum().backward();
    return {q.grad(), k.grad(), v.grad()};
  }
};

TEST(Attention, AgreesWithTorchOnSoftmax) {
  Inputs in;
  AttentionOptions options;
  options.map = RowMap::kSoftmax;
  options.causal = true;
  options.alignment = Alignment::kStart;
  AttentionStatTensors stats;
  const Tensor ours = Attention(in.q, in.k, in.v, options, &stats);
  const Tensor theirs = at::scaled_dot_product_attention(
      in.q, in.k.repeat_interleave(2, 1), in.v.repeat_interleave(2, 1), {}, 0.0, true);
  EXPECT_TRUE(at::allclose(ours, theirs));
  EXPECT_TRUE(at::equal(stats.support_size[0][0], at::arange(1, 6)));
  EXPECT_FALSE(stats.tau.requires_grad());
  const auto expected = in.Gradients(theirs);
  const auto gradients = in.Gradients(ours);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(at::allclose(gradients[i], expected[i])) << i;
}

TEST(Attention, TensorsAmongTheOptionsGetGradients) {
  const Inputs in;
  AttentionOptions options;
  options.alpha_heads = at::full({4}, 1.4, at::kDouble).requires_grad_();
  options.length_scale = at::ones({5}, at::kDouble).requires_grad_();
  options.alibi_slopes = at::rand({4}, at::kDouble).requires_grad_();
  options.bias = at::randn({1, 1, 5, 6}, at::kDouble).requires_grad_();
  options.sink = at::randn({4}, at::kDouble).requires_grad_();
  Attention(in.q, in.k, in.v, options).square().sum().backward();
  for (const auto* tensor : {&options.alpha_heads, &options.length_scale, &options.alibi_slopes,
                             &options.bias, &options.sink}) {
    EXPECT_EQ((*tensor)->grad().sizes(), (*tensor)->sizes());
    EXPECT_GT((*tensor)->grad().abs().max().item<double>(), 0.0);
  }
}

TEST(Attention, OtherDevicesAreRefusedByName) {
  const Inputs in;
  const auto meta = [](const Tensor& tensor) { return tensor.detach().to(at::kMeta); };
  try {
    Attention(meta(in.q), meta(in.k), meta(in.v));
    FAIL() << "meta tensors have no memory";
  } catch (const c10::ValueError& error) {
    EXPECT_STREQ(error.what_without_backtrace(),
                 "q: expected a tensor on the CPU or on a CUDA device, got meta");
  }
  EXPECT_THROW(MapRows(meta(in.q), RowMapParams{}), c10::ValueError);
}

TEST(Attention, MistakesAreValueErrors) {
  const Inputs in;
  AttentionOptions options;
  options.alpha = 0.0;
  EXPECT_THROW(Attention(in.q, in.k, in.v, options), c10::ValueError);
  EXPECT_THROW(Attention(in.q, in.v, in.v), c10::ValueError);
  options = {};
  options.map = RowMap::kStickBreaking;
  EXPECT_THROW(Attention(in.q, in.k, in.v, options), c10::ValueError);
}

}  // namespace
}  // namespace tsallis
