#include <ATen/ATen.h>

#include <algorithm>
#include <ctime>

#include "lab/nn/layer_view.h"
#include "lab/nn/maps.h"
#include "lab/nn/row_chain.h"
#include "lab/studies/analyses/maps.h"
#include "lab/studies/analyses/sparsefinder.h"
#include "tsallis/attention.h"

namespace tsallis::lab::sparsefinder {
namespace {

using at::Tensor;

// Tokens that are read at a time, about: masks of all heads stand in memory.
constexpr std::int64_t kTokens = 2048;

// Measures time of the processor, not of the clock: calls of one thread, which may share a core
// with others.
double Milliseconds(int times, const std::function<void()>& act) {
  const auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return 1e3 * static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_nsec);
  };
  std::vector<double> measured;
  for (int i = 0; i < times; ++i) {
    const double start = now();
    act();
    measured.push_back(now() - start);
  }
  return Median(measured);
}

// The causal attention of all heads of a layer on one sequence.
AttentionParams ParamsOf(const HeadArrays& arrays) {
  AttentionParams params;
  params.batch = 1;
  params.heads = params.kv_heads = arrays.q.size(0);
  params.q_len = params.k_len = arrays.q.size(1);
  params.head_dim = params.value_dim = arrays.q.size(2);
  const auto view = [](const Tensor& tensor) {
    return ConstArray4{
        tensor.const_data_ptr(), DTypeOf(tensor), {0, tensor.stride(0), tensor.stride(1), 1}};
  };
  params.q = view(arrays.q);
  params.k = view(arrays.k);
  params.v = view(arrays.v);
  params.map = MapNamed(arrays.map);
  params.alpha = arrays.alpha[0].item<double>();
  if (!arrays.alpha.eq(params.alpha).all().item<bool>()) {
    params.alpha_per_head = arrays.alpha.const_data_ptr<double>();
  }
  params.mask.causal = true;
  if (arrays.slopes.defined()) {
    params.terms.alibi_slopes = {
        arrays.slopes.const_data_ptr<float>(), DType::kFloat32, {0, 1, 0, 0}};
  }
  if (arrays.sinks.defined()) params.terms.sink = arrays.sinks.const_data_ptr<double>();
  params.terms.scale_invariant = arrays.scale_invariant.value_or(0.0);
  return params;
}

// Blocks of `block` tokens with an edge, [blocks, blocks] bool.
Tensor BlocksOf(const Predictor& way, const Tensor& q, const Tensor& k, std::int64_t block) {
  if (way.chunk == block) return way.blocks(q, k);
  const std::int64_t n = q.size(0), blocks = (n + block - 1) / block;
  const Tensor padded = at::constant_pad_nd(way.edges(q, k).to(at::kByte),
                                            {0, blocks * block - n, 0, blocks * block - n});
  return padded.view({blocks, block, blocks, block}).amax({1, 3}).to(at::kBool);
}

// The share of the pairs j <= i of n tokens in blocks that are not there; mean over heads.
double LeftOut(const Tensor& mask, std::int64_t n, std::int64_t block) {
  const Tensor ids = at::arange(n).floor_divide(block);
  const Tensor pairs =
      mask.index_select(1, ids).index_select(2, ids).logical_and(Visible(Sight::kBefore, n, n));
  return 1.0 - pairs.sum().item<double>() / (0.5 * n * (n + 1) * mask.size(0));
}

}  // namespace

SequenceScore Run(SequenceModel& model, const Samples& samples, const Joined& joined) {
  SequenceScore sums;
  const std::int64_t tokens = samples.Draw(samples.training, 1).tokens.size(1);
  const std::int64_t chunk = std::max<std::int64_t>(1, kTokens / tokens);
  for (std::int64_t done = 0; done < samples.test; done += chunk) {
    const std::int64_t count = std::min(chunk, samples.test - done);
    sums.AddSums(Evaluate(model, samples.Draw(samples.training + done, count), joined));
  }
  return sums;
}

RestrictedRun RunRestricted(SequenceModel& model, const Samples& samples,
                            const Predictors& predictors, std::size_t way) {
  double joined = 0.0, pairs = 0.0;
  const std::vector<LayerPlace> layers = model.Places();
  RestrictedRun run;
  run.sums = Run(model, samples, [&](const LayerQueriesKeys& own) {
    std::vector<Tensor> of_heads;
    for (std::int64_t h = 0; h < own.q.size(0); ++h) {
      of_heads.push_back(predictors[own.layer][h][way].edges(own.q[h], own.k[h]));
    }
    Tensor visible = at::stack(of_heads);
    joined += visible.sum().item<double>();
    pairs += visible.size(0) *
             Visible(layers[own.layer].sight, own.q.size(1), own.k.size(1)).sum().item<double>();
    return visible;
  });
  run.sparsity = 1.0 - joined / pairs;
  return run;
}

std::vector<Timing> TimeBlocks(SequenceModel& model, const TokenBatch& sample,
                               const Predictors& predictors, const std::vector<std::size_t>& ways,
                               const std::vector<std::int64_t>& block, int times) {
  std::vector<Timing> timings(ways.size());
  const Context one{.threads = 1};
  model.VisitLayers(sample, [&](const LayerView& view) {
    const HeadArrays arrays = view.Arrays(0);
    const Tensor q = arrays.q.to(at::kFloat), k = arrays.k.to(at::kFloat);
    const auto& heads = predictors[view.layer];
    const std::int64_t n = q.size(1);
    AttentionParams params = ParamsOf(arrays);
    const Tensor exact_out = at::empty_like(arrays.v), out = at::empty_like(arrays.v);
    const auto attend = [&](const Tensor& to) {
      AttentionForward(one, params,
                       {.out = {to.data_ptr(), DTypeOf(to), {0, to.stride(0), to.stride(1), 1}}});
    };
    const double exact = Milliseconds(times, [&] { attend(exact_out); });
    const std::string kernel = ChooseAttentionKernel(params).forward;
    for (std::size_t w = 0; w < ways.size(); ++w) {
      Timing& timing = timings[w];
      Tensor mask;
      const double foretelling = Milliseconds(times, [&] {
        std::vector<Tensor> of_heads;
        for (std::int64_t h = 0; h < q.size(0); ++h) {
          of_heads.push_back(BlocksOf(heads[h][ways[w]], q[h], k[h], block[w]));
        }
        mask = at::stack(of_heads);
      });
      if (!heads[0][ways[w]].fixed) timing.foretelling += foretelling;
      params.mask.blocks = reinterpret_cast<const std::uint8_t*>(mask.const_data_ptr<bool>());
      params.mask.block_q = params.mask.block_k = block[w];
      const std::int64_t strides[] = {0, mask.stride(0), mask.stride(1), 1};
      std::copy(std::begin(strides), std::end(strides), params.mask.block_strides);
      timing.masked += Milliseconds(times, [&] { attend(out); });
      timing.exact += exact;
      timing.kernel = kernel;
      timing.masked_kernel = ChooseAttentionKernel(params).forward;
      params.mask.blocks = nullptr;
      const double layers = predictors.size();
      timing.sparsity += LeftOut(mask, n, block[w]) / layers;
      const Tensor wanted = exact_out.to(at::kFloat);
      timing.error +=
          ((out.to(at::kFloat) - wanted).norm() / wanted.norm()).item<double>() / layers;
    }
  });
  return timings;
}

}  // namespace tsallis::lab::sparsefinder
