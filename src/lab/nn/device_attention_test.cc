// Attention of torch's operations against the kernels' own, values and gradients.
#include "lab/nn/device_attention.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lab/base/device.h"
#include "lab/testing/decoder_variants.h"
#include "tsallis/error.h"

namespace tsallis::lab {
namespace {

using at::Tensor;

constexpr std::int64_t kHeads = 3, kDim = 8;

struct Case {
  const char* name;
  RowMap map;
  // Sets more, of sequences of a number of rows; [batch, heads, rows].
  std::function<void(AttentionOptions&, std::int64_t batch, std::int64_t rows)> set = nullptr;
};

Tensor Leaf(const Tensor& values) { return values.to(at::kFloat).requires_grad_(true); }

std::vector<Case> Cases(bool causal) {
  std::vector<Case> cases = {
      {"softmax", RowMap::kSoftmax},
      {"entmax", RowMap::kEntmax},
      {"sparsemax", RowMap::kEntmax, [](auto& o, auto, auto) { o.alpha = 2.0; }},
      {"entmax-1", RowMap::kEntmax, [](auto& o, auto, auto) { o.alpha = 1.0; }},
      {"entmax-3", RowMap::kEntmax, [](auto& o, auto, auto) { o.alpha = 3.0; }},
      {"entmax-1.05", RowMap::kEntmax, [](auto& o, auto, auto) { o.alpha = 1.05; }},
      {"alphas", RowMap::kEntmax,
       [](auto& o, auto, auto) {
         o.alpha_heads = Leaf(at::tensor({1.2, 1.5, 1.9}));
       }},
      {"adaptive-temperature", RowMap::kAdaptiveTemperature},
      {"top-k", RowMap::kTopKSoftmax,
       [](auto& o, auto, auto) {
         o.top_k = {3, 0.4};
       }},
      {"sigmoid", RowMap::kSigmoid},
      {"sigmoid-bias", RowMap::kSigmoid, [](auto& o, auto, auto) { o.sigmoid_bias = -1.5; }},
      {"softpick", RowMap::kSoftpick},
      {"sink", RowMap::kEntmax,
       [](auto& o, auto, auto) {
         o.sink = Leaf(at::tensor({0.5, -1.0, 1.0}));
       }},
      {"no-sink", RowMap::kSoftmax,
       [](auto& o, auto, auto) {
         o.sink = Leaf(at::tensor({0.5, -INFINITY, 1.0}));
       }},
  };
  if (!causal) return cases;
  const std::vector<Case> ordered = {
      {"stick-breaking", RowMap::kStickBreaking},
      {"slopes", RowMap::kEntmax,
       [](auto& o, auto, auto) {
         o.alibi_slopes = Leaf(at::tensor({1.0, 0.3, 0.0}));
       }},
      {"scale-invariant", RowMap::kSoftmax,
       [](auto& o, auto, auto) {
         o.terms.scale_invariant = 3.0;
         o.terms.scale_invariant_alpha = 2.0;
         o.terms.scale_invariant_beta = 3.0;
       }},
      // B = A ln A, which may be missed by rounding: a_0 is 0.
      {"scale-invariant-from-0", RowMap::kSoftmax,
       [](auto& o, auto, auto) {
         o.terms.scale_invariant = 3.0;
         o.terms.scale_invariant_alpha = 2.0;
         o.terms.scale_invariant_beta = 2.0 * std::log(2.0) * (1.0 - 5e-13);
       }},
      {"length-scale", RowMap::kEntmax,
       [](auto& o, auto batch, auto rows) {
         o.length_scale = Leaf(at::rand({batch, kHeads, rows}) + 0.5);
       }},
  };
  cases.insert(cases.end(), ordered.begin(), ordered.end());
  return cases;
}

void ExpectAlike(const Case& one, std::int64_t batch, std::int64_t rows, std::int64_t keys,
                 const std::function<void(AttentionOptions&)>& set,
                 const LongestSequence& longest) {
  SCOPED_TRACE(one.name);
  at::manual_seed(3);
  std::vector<Tensor> inputs = {Leaf(2.0 * at::randn({batch, kHeads, rows, kDim})),
                                Leaf(2.0 * at::randn({batch, kHeads, keys, kDim})),
                                Leaf(at::randn({batch, kHeads, keys, kDim}))};
  AttentionOptions options;
  options.map = one.map;
  if (one.set) one.set(options, batch, rows);
  set(options);
  for (const auto& tensor :
       {options.alpha_heads, options.length_scale, options.alibi_slopes, options.sink}) {
    if (tensor) inputs.push_back(*tensor);
  }
  const Tensor by = at::randn({batch, kHeads, rows, kDim});
  const auto run = [&](const Tensor& out) {
    (out * by).sum().backward();
    std::vector<Tensor> results = {out.detach()};
    for (Tensor& input : inputs) {
      results.push_back(input.grad().clone());
      input.mutable_grad().reset();
    }
    return results;
  };
  const auto expected = run(Attention(inputs[0], inputs[1], inputs[2], options));
  const auto plain = run(PlainAttention(inputs[0], inputs[1], inputs[2], options, longest));
  // Beyond alpha = 2 gradients are divided by weights, p^(2 - alpha).
  const double close = options.alpha > 2.0 ? 1e-4 : 2e-5;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double size = std::max(1e-3, expected[i].abs().max().item<double>());
    EXPECT_LT((plain[i] - expected[i]).abs().max().item<double>(), close * size) << "result " << i;
  }
}

TEST(DeviceAttention, PlainIsTheKernelsAttention) {
  const OneThread one_thread;
  for (const bool causal : {false, true}) {
    for (const Case& one : Cases(causal)) {
      ExpectAlike(one, 2, 9, 9, [&](AttentionOptions& options) { options.causal = causal; }, {});
    }
  }
}

TEST(DeviceAttention, AndSoItIsOfPackedSequences) {
  const OneThread one_thread;
  const Tensor queries = at::tensor({0, 4, 5, 12}, at::kLong);
  const Tensor keys = at::tensor({0, 6, 7, 14}, at::kLong);
  for (const bool causal : {false, true}) {
    for (const Case& one : Cases(causal)) {
      ExpectAlike(one, 1, 12, 14,
                  [&](AttentionOptions& options) {
                    options.causal = causal;
                    options.cu_seqlens_q = queries;
                    options.cu_seqlens_k = keys;
                  },
                  {7, 7});
    }
  }
}

TEST(DeviceAttention, AndSoItIsUnderMasks) {
  const OneThread one_thread;
  // The first key is always there, so that all rows have one.
  const Tensor mask = at::arange(9 * 11).view({9, 11}).remainder(3).eq(0);
  mask.select(1, 0).fill_(true);
  const Tensor of_heads = at::stack({mask, mask.logical_or(mask.roll(1)), at::ones_like(mask)});
  const Tensor blocks = at::tensor({1, 1, 0, 1, 0, 1}).view({2, 3}).to(at::kBool);
  for (const bool causal : {false, true}) {
    const auto masked = [&](const std::optional<Tensor>& pairs,
                            const std::optional<Tensor>& of_blocks) {
      for (const Case& one : Cases(causal)) {
        ExpectAlike(one, 2, 9, 11,
                    [&](AttentionOptions& options) {
                      options.causal = causal;
                      options.mask = pairs;
                      options.block_mask = of_blocks;
                      options.block_q = 5, options.block_k = 4;
                    },
                    {});
      }
    };
    masked(mask, std::nullopt);
    masked(of_heads, std::nullopt);
    masked(mask.select(0, 2), std::nullopt);  // every query sees the same keys
    masked(std::nullopt, blocks);
    masked(of_heads, blocks.unsqueeze(0));
  }
}

// By the kernels that read pages in place, and on a copy of the keys.
TEST(DeviceAttention, OnPagesRowsSeeTheKeysOfTheirSequences) {
  const OneThread one_thread;
  const c10::NoGradGuard no_gradient;
  at::manual_seed(3);
  const std::vector<std::int64_t> lengths = {1, 4, 7, 6, 11};
  const auto rows = static_cast<std::int64_t>(lengths.size());
  const RowPages pages{.table = at::randperm(15, at::kInt).view({rows, 3}),
                       .lengths = at::tensor(lengths, at::kInt),
                       .longest = 11};
  const Tensor q = 2.0 * at::randn({rows, kHeads, kDim});
  // Heads of a call may be some of those that the pages have.
  const Tensor k = 2.0 * at::randn({15, 4, kHeads + 2, kDim}).narrow(2, 1, kHeads);
  const Tensor v = at::randn({15, 4, kHeads + 2, kDim}).narrow(2, 1, kHeads);
  Tensor shown = at::arange(rows * 12).view({rows, 12}).remainder(3).eq(0);
  for (std::int64_t r = 0; r < rows; ++r) shown[r][lengths[static_cast<std::size_t>(r)] - 1] = true;
  AttentionConfig heads;
  heads.map = "entmax";  // not what torch has a function for
  const auto attention = [&](const c10::Device& device) {
    return DeviceAttention(heads, kDim, at::kFloat, false, false, device);
  };
  const DeviceAttention in_place = attention(c10::kCPU), copies = attention(DeviceNamed("pretend"));
  for (const bool causal : {false, true}) {
    for (const Case& one : Cases(causal)) {
      SCOPED_TRACE(one.name);
      AttentionOptions options;
      options.map = one.map;
      options.causal = causal;
      if (one.set) one.set(options, rows, 1);
      for (const Tensor& visible : {Tensor(), shown}) {
        const Tensor found[] = {in_place.OnPages(q, k, v, pages, visible, options),
                                copies.OnPages(q, k, v, pages, visible, options)};
        for (std::int64_t r = 0; r < rows; ++r) {
          const std::int64_t length = lengths[static_cast<std::size_t>(r)];
          const auto keys_of = [&](const Tensor& from) {
            const Tensor own = from.index_select(0, pages.table[r]).flatten(0, 1);
            return own.narrow(0, 0, length).transpose(0, 1).unsqueeze(0);
          };
          AttentionOptions alone = options;
          if (options.length_scale) alone.length_scale = options.length_scale->narrow(0, r, 1);
          if (visible.defined()) alone.mask = visible[r].narrow(0, 0, length);
          const Tensor expected =
              Attention(q[r].view({1, kHeads, 1, kDim}), keys_of(k), keys_of(v), alone)
                  .view({kHeads, kDim});
          for (const Tensor& out : found) {
            EXPECT_TRUE(at::allclose(out[r], expected, 2e-5, 2e-5)) << r << visible.defined();
          }
        }
      }
    }
  }
}

TEST(DeviceAttention, RefusesWhatNoModelAsksFor) {
  const Tensor x = at::randn({1, 2, 4, 8});
  AttentionOptions options;
  options.left = 2;
  EXPECT_THROW(PlainAttention(x, x, x, options), InvalidArgument);
  options = {};
  options.mask = at::ones({4, 4}, at::kBool);
  options.cu_seqlens_q = options.cu_seqlens_k = at::tensor({0, 4}, at::kLong);
  EXPECT_THROW(PlainAttention(x, x, x, options, {4, 4}), InvalidArgument);
  options = {};
  options.map = RowMap::kStickBreaking;
  EXPECT_THROW(PlainAttention(x, x, x, options), InvalidArgument);
}

}  // namespace
}  // namespace tsallis::lab
