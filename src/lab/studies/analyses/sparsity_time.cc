// E22, second part: what zeros buy. Time of attention against the share of keys without weight,
// beside PyTorch's dense attention on the same tensors (AdaSplash's figure: run time against
// sparsity).
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "lab/studies/analyses/maps.h"
#include "torch/operators.h"

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
  return at::tensor(values).to(at::kFloat).reshape({1, 1, n, kDim});
}

}  // namespace

AnalysisResult SparsityTime(const AnalysisContext& context) {
  AnalysisResult result;
  DataTable& table =
      result.AddTable("time", {"map", "factor", "share_zero", "support", "milliseconds"});
  DataTable& peer = result.AddTable("dense", {"support", "milliseconds"});
  const std::int64_t n = context.quick ? 512 : 4096;
  const int times = context.quick ? 2 : 7;
  const at::Tensor q = Drawn(context, 80, n), k = Drawn(context, 81, n), v = Drawn(context, 82, n);
  AttentionOptions options;
  options.threads = context.kernels.threads;
  double done = 0.0;
  for (const double alpha : {1.25, 1.5, 2.0}) {
    options.alpha = alpha;
    for (const double factor : kFactors) {
      const at::Tensor scaled = q * factor;
      AttentionStatTensors stats;
      const double time = Milliseconds([&] { Attention(scaled, k, v, options, &stats); }, times);
      const double kept = stats.support_size.to(at::kDouble).mean().item<double>();
      table.Add({AlphaLabel(alpha), factor, 1.0 - kept / n, kept, time});
      context.Done((done += 1.0) / 31.0);
    }
  }
  const double dense = Milliseconds([&] { at::scaled_dot_product_attention(q, k, v); }, times);
  for (const double kept : {1.0, 1.0 * n}) peer.Add({kept, dense});
  const auto measured = [&](double factor, const char* column) {
    return table.At({"α = 1.5", factor}, column);
  };
  result.facts = {{fmt::format("PyTorch's dense attention, {} keys (ms)", n), dense},
                  {"ours, α = 1.5, scores N(0, 1) (ms)", measured(1.0, "milliseconds")},
                  {"ours, α = 1.5, scores N(0, 4²) (ms)", measured(4.0, "milliseconds")}};
  result.finding = fmt::format(
      "Of {} keys entmax (α = 1.5) keeps {:.0f} where scores have deviation 1 and {:.0f} where "
      "they "
      "have 4; attention then takes {:.1f} and {:.1f} ms, PyTorch's dense one {:.1f} ms whatever "
      "the "
      "scores are.",
      n, measured(1.0, "support"), measured(4.0, "support"), measured(1.0, "milliseconds"),
      measured(4.0, "milliseconds"), dense);
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
  return result;
}

}  // namespace tsallis::lab
