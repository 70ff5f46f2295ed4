#include <ATen/ATen.h>

#include <algorithm>
#include <ctime>

#include "lab/nn/layer_view.h"
#include "lab/nn/maps.h"
#include "lab/nn/row_chain.h"
#include "lab/studies/analyses/sparsefinder.h"
#include "tsallis/attention.h"

namespace tsallis::lab::sparsefinder {
namespace {

using at::Tensor;

// Tokens that are read at a time, about: masks of all heads stand in memory.
constexpr std::int64_t kTokens = 2048;

RestrictedRun Run(Subject& subject, const Samples& samples, const Subject::Joined& joined) {
  RestrictedRun run;
  const std::int64_t tokens = samples.Draw(samples.training, 1).tokens.size(1);
  const std::int64_t chunk = std::max<std::int64_t>(1, kTokens / tokens);
  for (std::int64_t done = 0; done < samples.test; done += chunk) {
    const std::int64_t count = std::min(chunk, samples.test - done);
    run.sums.AddSums(subject.Evaluate(samples.Draw(samples.training + done, count), joined));
  }
  return run;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

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
  return Median(std::move(measured));
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
  const double all = 0.5 * static_cast<double>(n * (n + 1)) * static_cast<double>(mask.size(0));
  return 1.0 - static_cast<double>(pairs.sum().item<std::int64_t>()) / all;
}

}  // namespace

RestrictedRun RunRestricted(Subject& subject, const Samples& samples, const Predictors& predictors,
                            std::size_t way) {
  double joined = 0.0, pairs = 0.0;
  RestrictedRun run = Run(subject, samples, [&](const LayerQueriesKeys& own) {
    const auto& heads = predictors[own.layer];
    const Sight sight = subject.Layers()[own.layer].sight;
    const double seen = Visible(sight, own.q.size(1), own.k.size(1)).sum().item<double>();
    std::vector<Tensor> of_heads;
    for (std::size_t h = 0; h < heads.size(); ++h) {
      const auto head = static_cast<std::int64_t>(h);
      of_heads.push_back(heads[h][way].edges(own.q[head], own.k[head]));
      pairs += seen;
    }
    Tensor visible = at::stack(of_heads);
    joined += visible.sum().item<double>();
    return visible;
  });
  run.sparsity = 1.0 - joined / pairs;
  return run;
}

RestrictedRun RunFree(Subject& subject, const Samples& samples) {
  return Run(subject, samples, nullptr);
}

std::vector<Timing> TimeBlocks(SequenceModel& model, const TokenBatch& sample,
                               const Predictors& predictors, const std::vector<std::size_t>& ways,
                               const std::vector<std::int64_t>& block, int times) {
  std::vector<Timing> timings(ways.size());
  const Context one{.threads = 1};
  model.VisitLayers(sample, [&](const LayerView& view) {
    const HeadArrays arrays = view.Arrays(0);
    const Tensor q = arrays.q.to(at::kFloat), k = arrays.k.to(at::kFloat);
    const auto& heads = predictors[static_cast<std::size_t>(view.layer)];
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
        for (std::size_t h = 0; h < heads.size(); ++h) {
          const auto head = static_cast<std::int64_t>(h);
          of_heads.push_back(BlocksOf(heads[h][ways[w]], q[head], k[head], block[w]));
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
      const auto layers = static_cast<double>(predictors.size());
      timing.sparsity += LeftOut(mask, n, block[w]) / layers;
      const Tensor wanted = exact_out.to(at::kFloat);
      timing.error +=
          ((out.to(at::kFloat) - wanted).norm() / wanted.norm()).item<double>() / layers;
    }
  });
  return timings;
}

}  // namespace tsallis::lab::sparsefinder
