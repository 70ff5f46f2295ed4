// E22, second part: what zeros buy. Time of attention against the share of keys without weight,
// beside PyTorch's dense attention on the same tensors (AdaSplash's figure: run time against
// sparsity).
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "lab/studies/analyses/maps.h"
#include "tsallis/attention.h"

namespace tsallis::lab {
namespace {

constexpr std::int64_t kDim = 64;
constexpr double kFactors[] = {0.1, 0.2, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0};

double Milliseconds(const std::function<void()>& act, int times) {
  double best = 1e30;
  for (int i = 0; i < times; ++i) {
    const auto start = std::chrono::steady_clock::now();
    act();
    best = std::min(
        best, std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
                  .count());
  }
  return best;
}

at::Tensor Drawn(const AnalysisContext& context, std::uint64_t what, std::int64_t n) {
  const std::vector<double> values = Normals(context, what, 0, n * kDim);
  return at::tensor(at::ArrayRef<double>(values.data(), values.size()))
      .to(at::kFloat)
      .reshape({1, 1, n, kDim});
}

}  // namespace

AnalysisResult SparsityTime(const AnalysisContext& context) {
  DataTable table("time", {"map", "factor", "share_zero", "support", "milliseconds"});
  const std::int64_t n = context.quick ? 512 : 4096;
  const int times = context.quick ? 2 : 7;
  const at::Tensor q = Drawn(context, 80, n), k = Drawn(context, 81, n), v = Drawn(context, 82, n);
  at::Tensor out = at::empty_like(q);
  std::vector<std::int64_t> support(static_cast<std::size_t>(n));
  double done = 0.0;
  for (const double alpha : {1.25, 1.5, 2.0}) {
    for (const double factor : kFactors) {
      const at::Tensor scaled = (q * factor).contiguous();
      const auto view = [&](const at::Tensor& tensor) {
        return ConstArray4{
            tensor.const_data_ptr<float>(), DType::kFloat32, {n * kDim, n * kDim, kDim, 1}};
      };
      AttentionParams params;
      params.batch = params.heads = params.kv_heads = 1;
      params.q_len = params.k_len = n;
      params.head_dim = params.value_dim = kDim;
      params.q = view(scaled);
      params.k = view(k);
      params.v = view(v);
      params.alpha = alpha;
      AttentionOutputs outputs;
      outputs.out = {out.mutable_data_ptr<float>(), DType::kFloat32, {n * kDim, n * kDim, kDim, 1}};
      outputs.support_size = support.data();
      const double time =
          Milliseconds([&] { AttentionForward(context.kernels, params, outputs); }, times);
      const double kept =
          static_cast<double>(std::accumulate(support.begin(), support.end(), std::int64_t{0})) /
          static_cast<double>(n);
      table.Add({AlphaLabel(alpha), factor, 1.0 - kept / static_cast<double>(n), kept, time});
      context.Done((done += 1.0) / 31.0);
    }
  }
  const double dense = Milliseconds([&] { at::scaled_dot_product_attention(q, k, v); }, times);
  DataTable peer("dense", {"support", "milliseconds"});
  const DataTable& measured = table;
  for (const double kept : {1.0, static_cast<double>(n)}) peer.Add({kept, dense});
  AnalysisResult result;
  result.facts = {
      {fmt::format("PyTorch's dense attention, {} keys (ms)", n), dense},
      {"ours, α = 1.5, scores N(0, 1) (ms)", measured.At({"α = 1.5", 1.0}, "milliseconds")},
      {"ours, α = 1.5, scores N(0, 4²) (ms)", measured.At({"α = 1.5", 4.0}, "milliseconds")}};
  result.finding = fmt::format(
      "Of {} keys entmax (α = 1.5) keeps {:.0f} where scores have deviation 1 and {:.0f} where "
      "they "
      "have 4; attention then takes {:.1f} and {:.1f} ms, PyTorch's dense one {:.1f} ms whatever "
      "the "
      "scores are.",
      n, measured.At({"α = 1.5", 1.0}, "support"), measured.At({"α = 1.5", 4.0}, "support"),
      measured.At({"α = 1.5", 1.0}, "milliseconds"), measured.At({"α = 1.5", 4.0}, "milliseconds"),
      dense);
  result.setup = {
      fmt::format("one head, {} queries and keys of 64 dimensions, float32, no mask, normal q, k "
                  "and v; q times 0.1 to 4; the fastest of {} calls",
                  n, times),
      "the dense peer is at::scaled_dot_product_attention of the same build, in the same process"};
  result.figures = {
      {.name = "time",
       .title = "Time of attention against how many keys have weight",
       .caption = "Forward pass. Grey: PyTorch's dense attention, which has no zeros.",
       .panels = {{.title = fmt::format("{} keys, float32", n),
                   .x_label = "keys with weight, mean of a row",
                   .y_label = "milliseconds",
                   .x_scale = "log2",
                   .y_scale = "log",
                   .curves = {Curve("time", "support", "milliseconds").By("map"),
                              Curve("dense", "support", "milliseconds")
                                  .Named("PyTorch, dense")
                                  .Look("reference")}}}}};
  result.tables = {std::move(table), std::move(peer)};
  return result;
}

}  // namespace tsallis::lab
