// Tests the operators on CUDA tensors, up to the kernels: CPU tensors stand for a device's, and the
// kernels run on the emulation. Without a GPU there are no other tensors.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "attention/cuda/testing/emulation.h"
#include "attention/geometry.h"
#include "simplex/cuda/testing/drawn_rows.h"
#include "stable/attention.h"
#include "stable/rows.h"
#include "torch/attention.h"
#include "torch/tensors.h"

namespace tsallis {
namespace {

using at::Tensor;

stable::AttentionPasses EmulatedPasses() {
  return {.reader = stable::Reader::kDevice,
          .forward =
              [](const AttentionParams& params, const AttentionOutputs& outputs) {
                cuda::EmulatedForward({}, params, outputs);
              },
          .backward =
              [](const AttentionParams& params, const AttentionGradients& gradients) {
                cuda::EmulatedBackward({}, params, gradients);
              },
          .saved_bytes = cuda::EmulatedSavedBytes,
          .weight_counts = [](const AttentionParams& params,
                              std::int64_t* counts) { cuda::EmulatedWeightCounts(params, counts); },
          .weights =
              [](const AttentionParams& params, const std::int64_t* row_offsets,
                 std::int64_t* columns, float* values) {
                const std::int64_t rows = ArrayBatch(params) * params.heads * params.q_len;
                cuda::EmulatedWeights(params, row_offsets, row_offsets[rows], columns, values);
              },
          .on_pages = [](const auto&... call) { cuda::EmulatedOnPages({}, call...); }};
}

struct Inputs {
  Tensor q, k, v, d_out;

  static Inputs Draw(std::int64_t batch, std::int64_t length) {
    at::manual_seed(5);
    const auto draw = [&](std::int64_t heads) {
      return at::randn({batch, heads, length, 16}).to(at::kBFloat16);
    };
    return {2 * draw(4), draw(2), draw(2), draw(4)};
  }
};

// The largest difference, relative to the largest number.
double Difference(const Tensor& ours, const Tensor& theirs) {
  const Tensor a = ours.to(at::kDouble), b = theirs.to(at::kDouble);
  if (a.sizes() != b.sizes()) return 1e9;
  if (a.numel() == 0) return 0.0;
  const double size = b.abs().max().item<double>();
  return (a - b).abs().max().item<double>() / (size > 0.0 ? size : 1.0);
}

// What the passes of one device return: the output, statistics, gradients and weights.
struct Answers {
  std::int64_t saved_bytes = 0;
  Tensor out, tau, support_size, entropy;
  std::vector<Tensor> gradients;
  Tensor row_offsets, columns, values;

  Answers(const stable::AttentionPasses& passes, const Inputs& in, const AttentionOptions& options,
          stable::Saves saves = stable::Saves::kUseful) {
    const stable::Tensor q = Handle(in.q), k = Handle(in.k), v = Handle(in.v);
    const auto arguments = [&](const auto& call) {
      stable::AttentionArguments taken;
      TakeOptions(options, taken);
      return call(taken);
    };
    auto forward = arguments([&](auto& taken) {
      return stable::AttentionForward(passes, q, k, v, taken,
                                      {.tau = true, .stats = true, .saves = saves});
    });
    const stable::AttentionWanted wanted = {true,
                                            true,
                                            true,
                                            options.alpha_heads.has_value(),
                                            options.length_scale.has_value(),
                                            options.alibi_slopes.has_value(),
                                            options.bias.has_value(),
                                            options.sink.has_value()};
    auto backward = arguments([&](auto& taken) {
      return stable::AttentionBackward(passes, Handle(in.d_out), q, k, v, forward.tau,
                                       forward.saved, taken, wanted);
    });
    auto weights =
        arguments([&](auto& taken) { return stable::AttentionWeights(passes, q, k, taken); });
    saved_bytes = forward.saved.numel();
    out = FromHandle(std::move(forward.out));
    tau = FromHandle(std::move(forward.tau));
    support_size = FromHandle(std::move(forward.support_size));
    entropy = FromHandle(std::move(forward.entropy));
    for (std::size_t i = 0; i < backward.size(); ++i) {
      EXPECT_EQ(backward[i].defined(), wanted[i]) << i;
      gradients.push_back(FromHandle(std::move(backward[i])));
    }
    row_offsets = FromHandle(std::move(weights.row_offsets));
    columns = FromHandle(std::move(weights.columns));
    values = FromHandle(std::move(weights.values));
  }
};

// Everything that both passes return against the CPU kernels', on the same tensors.
void Compare(const Inputs& in, const AttentionOptions& options) {
  const Answers ours(EmulatedPasses(), in, options), theirs(stable::CpuPasses(), in, options);
  EXPECT_EQ(ours.out.strides(), theirs.out.strides());
  EXPECT_LE(Difference(ours.out, theirs.out), 1e-2);
  const Tensor seen = theirs.tau.isfinite();
  EXPECT_TRUE(at::equal(ours.tau.isfinite(), seen));
  EXPECT_LE(Difference(ours.tau.where(seen, 0.0), theirs.tau.where(seen, 0.0)), 1e-5);
  EXPECT_LE(Difference(ours.entropy, theirs.entropy), 1e-4);
  EXPECT_TRUE(at::equal(ours.support_size, theirs.support_size));
  for (std::size_t i = 0; i < ours.gradients.size(); ++i) {
    if (!theirs.gradients[i].defined()) continue;
    EXPECT_EQ(ours.gradients[i].scalar_type(), theirs.gradients[i].scalar_type()) << i;
    EXPECT_LE(Difference(ours.gradients[i], theirs.gradients[i]), 1e-2) << "gradient " << i;
  }
  EXPECT_TRUE(at::equal(ours.row_offsets, theirs.row_offsets));
  EXPECT_TRUE(at::equal(ours.columns, theirs.columns));
  EXPECT_LE(Difference(ours.values, theirs.values), 1e-4);
}

TEST(AttentionCuda, Causal) {
  AttentionOptions options;
  options.causal = true;
  Compare(Inputs::Draw(2, 20), options);
}

// Whatever memory lists get, gradients have the same bits.
TEST(AttentionCuda, ListsAreSavedWithinTheBudget) {
  const Inputs in = Inputs::Draw(2, 20);
  constexpr std::int64_t kRows = 2 * 4 * 20;
  AttentionOptions options;
  options.causal = true;
  const Answers plain(EmulatedPasses(), in, options, stable::Saves::kNothing);
  EXPECT_EQ(plain.saved_bytes, 0);
  const auto check = [&](stable::Saves saves, std::int64_t bytes) {
    const Answers with(EmulatedPasses(), in, options, saves);
    EXPECT_EQ(with.saved_bytes, bytes);
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(with.gradients[i], plain.gradients[i])) << i;
  };
  check(stable::Saves::kUseful, 64 + kRows * (4 + 512));
  check(stable::Saves::kReserved, kRows * 512);
  options.saved_budget = 5000;
  check(stable::Saves::kUseful, 5000);
  check(stable::Saves::kReserved, 5000);
}

TEST(AttentionCuda, TermsHaveTheirGradients) {
  AttentionOptions options;
  options.causal = true;
  options.alpha_heads = at::tensor({1.5, 1.25, 2.0, 1.0});
  options.length_scale = at::linspace(0.5, 1.5, 20);
  options.alibi_slopes = at::tensor({0.1, 0.0, 0.3, 0.2});
  options.sink = at::tensor({0.5, -0.5, 0.0, 1.0});
  Compare(Inputs::Draw(2, 20), options);
}

// Contents of these tensors are not read by the host.
TEST(AttentionCuda, PaddedBatchesOfBothSides) {
  for (const Padding padding : {Padding::kRight, Padding::kLeft}) {
    AttentionOptions options;
    options.causal = true;
    options.padding = padding;
    options.lengths = at::tensor({7, 20}, at::kInt);
    options.query_lengths = options.lengths;
    Compare(Inputs::Draw(2, 20), options);
  }
}

// Rows that belong to no sequence become 0.
TEST(AttentionCuda, PackedSequencesWithGaps) {
  AttentionOptions options;
  options.causal = true;
  options.cu_seqlens_q = at::tensor({2, 9, 9, 17}, at::kLong);
  Compare(Inputs::Draw(1, 20), options);
}

// Autograd's gradient of a sum repeats one number; projections have rows before heads; a slice may
// begin anywhere.
TEST(AttentionCuda, AnyStrides) {
  Inputs in = Inputs::Draw(2, 20);
  in.q = in.q.transpose(1, 2).contiguous().transpose(1, 2);
  in.k = at::cat({in.k.narrow(3, 0, 1), in.k}, 3).narrow(3, 1, 16);
  in.v = in.v.transpose(2, 3).contiguous().transpose(2, 3);
  in.d_out = at::ones({}, at::kBFloat16).expand(in.d_out.sizes());
  AttentionOptions options;
  options.causal = true;
  Compare(in, options);
}

// Pages of either layout, a table of either type, terms of either device's.
TEST(AttentionCuda, Pages) {
  at::manual_seed(5);
  const Tensor q = 2 * at::randn({3, 4, 2, 16}).to(at::kBFloat16).transpose(0, 1).contiguous();
  const Tensor rows = q.transpose(0, 1);  // strides in another order
  const Tensor k = at::randn({9, 2, 8, 16}).to(at::kBFloat16).transpose(1, 2);
  const Tensor v = at::randn({9, 8, 2, 24}).to(at::kBFloat16);
  const Tensor table = at::randperm(9).view({3, 3});
  AttentionOptions options;
  options.causal = true;
  options.lengths = at::tensor({17, 0, 24}, at::kInt);
  options.alpha_heads = at::tensor({1.5, 1.25, 2.0, 1.0});
  options.length_scale = at::linspace(0.5, 1.5, 2);
  options.alibi_slopes = at::tensor({0.1, 0.0, 0.3, 0.2});
  options.sink = at::tensor({0.5, -0.5, 0.0, 1.0});
  struct Decoded {
    Tensor out, tau, support_size;
  };
  const auto decode = [&](const stable::AttentionPasses& passes, const Tensor& pages_of) {
    stable::AttentionArguments arguments;
    TakeOptions(options, arguments);
    const stable::Tensor queries = Handle(rows), keys = Handle(k), values = Handle(v),
                         pages = Handle(pages_of), none;
    auto results = stable::AttentionOnPages(passes, {queries, keys, values, pages, none, none},
                                            arguments, true);
    return Decoded{FromHandle(std::move(results.out)), FromHandle(std::move(results.tau)),
                   FromHandle(std::move(results.support_size))};
  };
  const Decoded ours = decode(EmulatedPasses(), table);
  const Decoded theirs = decode(stable::CpuPasses(), table.to(at::kInt));
  EXPECT_EQ(ours.out.strides(), theirs.out.strides());
  EXPECT_LE(Difference(ours.out, theirs.out), 1e-2);
  const Tensor seen = theirs.tau.isfinite();
  EXPECT_TRUE(at::equal(ours.tau.isfinite(), seen));
  EXPECT_LE(Difference(ours.tau.where(seen, 0.0), theirs.tau.where(seen, 0.0)), 1e-5);
  EXPECT_TRUE(at::equal(ours.support_size, theirs.support_size));
}

// Masks and a bias in the shapes that callers give them.
TEST(AttentionCuda, MasksAndABias) {
  const Inputs in = Inputs::Draw(2, 20);
  AttentionOptions options;
  options.mask = at::rand({2, 1, 1, 20}) < 0.7;
  options.block_mask = at::tensor({1, 0, 1, 1}).reshape({2, 2}).to(at::kBool);
  options.block_q = options.block_k = 10;
  options.alpha = 1.25;
  Compare(in, options);
  const std::vector<std::vector<std::int64_t>> shapes = {
      {4, 20, 20}, {1, 4, 1, 20}, {2, 1, 20, 20}};
  for (const std::vector<std::int64_t>& shape : shapes) {
    options.bias = at::randn(shape);
    Compare(in, options);
  }
}

TEST(AttentionCuda, AlphasOfAllKinds) {
  AttentionOptions options;
  options.causal = true;
  options.alpha_heads = at::tensor({0.7, 1.0, 1.5, 3.0});
  Compare(Inputs::Draw(2, 20), options);
}

TEST(AttentionCuda, EmptyBatches) { Compare(Inputs::Draw(0, 20), {}); }

// ---- row maps

stable::RowPasses EmulatedRowPasses() {
  // The call's params with alphas of the device's.
  const auto numbers = [](cuda::Copies<cuda::Emulation>& device, RowMapParams params,
                          std::int64_t rows) {
    params.alpha_per_row = device.Numbers(params.alpha_per_row, rows, false);
    return params;
  };
  return {.reader = stable::Reader::kDevice,
          .forward =
              [=](const RowMapParams& params, const ConstRows& scores, const MutableRows& p,
                  const RowStats& stats) {
                cuda::Copies<cuda::Emulation> device;
                cuda::kEmulatedRows.forward(numbers(device, params, scores.rows),
                                            RowsOn(device, scores, false), RowsOn(device, p, true),
                                            {device.Numbers(stats.tau, scores.rows, true),
                                             device.Numbers(stats.support_size, scores.rows, true),
                                             device.Numbers(stats.entropy, scores.rows, true)});
                device.CopyBack();
              },
          .backward =
              [=](const RowMapParams& params, const ConstRows& scores, const ConstRows& p,
                  const ConstRows& dp, const MutableRows& ds, double* d_alpha) {
                cuda::Copies<cuda::Emulation> device;
                cuda::kEmulatedRows.backward(
                    numbers(device, params, scores.rows), RowsOn(device, scores, false),
                    RowsOn(device, p, false), RowsOn(device, dp, false), RowsOn(device, ds, true),
                    device.Numbers(d_alpha, scores.rows, true));
                device.CopyBack();
              },
          .loss =
              [=](const RowMapParams& params, const ConstRows& scores, const std::int64_t* targets,
                  std::int64_t ignored, double* losses, const MutableRows& d_scores) {
                cuda::Copies<cuda::Emulation> device;
                cuda::kEmulatedRows.loss(params, RowsOn(device, scores, false),
                                         device.Numbers(targets, scores.rows, false), ignored,
                                         device.Numbers(losses, scores.rows, true),
                                         RowsOn(device, d_scores, true));
                device.CopyBack();
              }};
}

// Everything that both passes return, for scores in any order of dimensions.
void CompareRows(const Tensor& scores, const std::optional<Tensor>& alpha, std::int64_t dim) {
  const Tensor dp = at::randn_like(scores);
  const auto run = [&](const stable::RowPasses& passes) {
    const auto arguments = [&] {
      return stable::RowArguments{.params = {}, .dim = dim, .mistake = {}};
    };
    const auto alphas = [&]() -> std::optional<stable::Tensor> {
      if (!alpha) return std::nullopt;
      return Handle(*alpha);
    };
    stable::RowArguments forward = arguments(), backward = arguments();
    auto mapped = stable::MapRows(passes, Handle(scores), alphas(), forward, true);
    auto gradients =
        stable::MapRowsBackward(passes, Handle(dp), Handle(scores), mapped.probabilities, alphas(),
                                backward, alpha.has_value());
    std::vector<Tensor> results;
    for (stable::Tensor* tensor : {&mapped.probabilities, &mapped.tau, &mapped.support_size,
                                   &mapped.entropy, &gradients.d_scores}) {
      results.push_back(FromHandle(std::move(*tensor)));
    }
    if (alpha) results.push_back(FromHandle(std::move(gradients.d_alpha)));
    return results;
  };
  const std::vector<Tensor> ours = run(EmulatedRowPasses()), theirs = run(stable::CpuRowPasses());
  for (std::size_t i = 0; i < ours.size(); ++i) {
    EXPECT_TRUE(at::allclose(ours[i].to(at::kDouble), theirs[i].to(at::kDouble), 1e-4, 1e-5)) << i;
  }
}

TEST(RowsCuda, AnyDimensionAndStrides) {
  at::manual_seed(5);
  const Tensor scores = 2 * at::randn({3, 7, 5});
  for (const std::int64_t dim : {0, 1, 2}) {
    CompareRows(scores, std::nullopt, dim);
    CompareRows(scores.transpose(0, 2), std::nullopt, dim);
    CompareRows(scores.narrow(1, 1, 4), std::nullopt, dim);
    CompareRows(scores.narrow(0, 0, 1).expand({2, 7, 5}), std::nullopt, dim);
  }
}

TEST(RowsCuda, AlphasThatRepeat) {
  at::manual_seed(5);
  const Tensor scores = 2 * at::randn({3, 4, 5}), alphas = at::tensor({1.5, 1.0, 1.2, 2.0});
  CompareRows(scores, alphas.view({4, 1}), 2);
  CompareRows(scores, alphas.view({4, 1}).to(at::kFloat), 0);
  CompareRows(scores, at::tensor({1.3, 1.6, 2.0}).view({3, 1, 1}), 1);
  CompareRows(scores, at::tensor(1.3), 2);
}

TEST(RowsCuda, Losses) {
  at::manual_seed(5);
  const Tensor scores = at::randn({2, 3, 9}),
               targets = at::tensor({0, 8, -100, 3, 3, 1}).view({2, 3});
  const auto run = [&](const stable::RowPasses& passes) {
    stable::LossArguments arguments;
    auto results =
        stable::FenchelYoungLosses(passes, Handle(scores), Handle(targets), arguments, true);
    return std::pair{FromHandle(std::move(results.losses)),
                     FromHandle(std::move(results.gradient))};
  };
  const auto ours = run(EmulatedRowPasses()), theirs = run(stable::CpuRowPasses());
  EXPECT_TRUE(at::allclose(ours.first, theirs.first, 1e-5, 1e-6));
  EXPECT_TRUE(at::allclose(ours.second, theirs.second, 1e-5, 1e-6));
}

}  // namespace
}  // namespace tsallis
