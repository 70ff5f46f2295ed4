// Schemas of the operators. Implementations register themselves in their own files.
#include <torch/library.h>

#include <string>
#include <tuple>
#include <vector>

#include "core/version.h"
#include "torch/attention.h"
#include "torch/attention_settings.h"
#include "tsallis/cpu.h"
#include "tsallis/cuda.h"

namespace tsallis {

// Settings of the maps: unused ones are ignored by a map that has no such setting; `coefficients`
// and `threshold` None mean the defaults of AdaptiveTemperature, `sigmoid_bias` None means -ln n.
#define TSALLIS_SETTINGS                                                                       \
  "str map=\"entmax\", float alpha=1.5, int dim=-1, float temperature=1.0, float budget=2.0, " \
  "float[]? coefficients=None, float? threshold=None, int top_k=0, float top_k_fraction=0.0, " \
  "float? sigmoid_bias=None"

TORCH_LIBRARY(tsallis, m) {
  m.def("version() -> str", [] { return std::string(Version()); });
  m.def("git_commit() -> str", [] { return std::string(GitCommit()); });
  m.def("processor() -> str", [] { return QueryCpu().processor; });
  m.def("cpu_target() -> str", [] { return QueryCpu().chosen_target; });
  m.def(
      "cuda_info() -> (str[] architectures, str compiler, str why_not_compiled, str[] devices, "
      "str why_no_devices)",
      [] {
        const CudaInfo info = QueryCuda();
        std::vector<std::string> devices;
        for (const CudaDevice& device : info.devices) devices.push_back(Describe(device));
        return std::make_tuple(info.architectures, info.compiler, info.why_not_compiled, devices,
                               info.why_no_devices);
      });
  m.def("row_map(Tensor scores, Tensor? alpha_rows=None, *, " TSALLIS_SETTINGS ") -> Tensor");
  m.def("row_map_stats(Tensor scores, Tensor? alpha_rows=None, *, " TSALLIS_SETTINGS
        ") -> (Tensor probabilities, Tensor tau, Tensor support_size, Tensor entropy)");
  // `scores` is read where BackwardReadsScores (rows.h) says so; else the probabilities may be
  // given in its place.
  // The second result has no elements unless want_alpha.
  m.def(
      "row_map_backward(Tensor d_probabilities, Tensor scores, Tensor probabilities, "
      "Tensor? alpha_rows, bool want_alpha, *, " TSALLIS_SETTINGS
      ") -> (Tensor d_scores, Tensor d_alpha)");
  m.def(
      "fit_adaptive_temperature(Tensor scores, Tensor targets, int degree=4, float theta_max=10.0, "
      "float theta_step=0.1) -> (Tensor coefficients, int samples, float rms_error)");
  m.def(
      "fenchel_young_loss(Tensor scores, Tensor targets, *, str map=\"entmax\", "
      "float alpha=1.5, float temperature=1.0, int ignore_index=-100) -> Tensor");
  // Losses and, if wanted, the gradient p - e_y (else no elements); for the autograd of the above.
  m.def(
      "fenchel_young_loss_forward(Tensor scores, Tensor targets, bool want_gradient, *, "
      "str map=\"entmax\", float alpha=1.5, float temperature=1.0, int ignore_index=-100) "
      "-> (Tensor losses, Tensor gradient)");
  const std::string settings = ", *, " + AttentionSettingsSchema() + ") -> ";
  const auto define = [&](const std::string& arguments, const std::string& results) {
    m.def(torch::schema((arguments + settings + results).c_str()));
  };
  define("attention(Tensor q, Tensor k, Tensor v", "Tensor");
  define("attention_stats(Tensor q, Tensor k, Tensor v",
         "(Tensor out, Tensor tau, Tensor support_size, Tensor entropy, Tensor maximum)");
  // For the autograd of the two above. tau: float64; saved: uint8, contents are the library's; the
  // last three have no elements unless want_stats.
  define("attention_forward(Tensor q, Tensor k, Tensor v, bool want_stats",
         "(Tensor out, Tensor tau, Tensor saved, Tensor support_size, Tensor entropy, "
         "Tensor maximum)");
  // wanted: which results, in their order; the others have no elements.
  std::string gradients = "(Tensor dq, Tensor dk, Tensor dv";
  for (const std::string& name : AttentionGradientNames()) gradients += ", Tensor " + name;
  define(
      "attention_backward(Tensor d_out, Tensor q, Tensor k, Tensor v, Tensor tau, Tensor saved, "
      "bool[" +
          std::to_string(kInputs) + "] wanted",
      gradients + ")");
  // lengths is needed; the last four have no elements unless want_stats. Without autograd.
  define(
      "attention_on_pages(Tensor q, Tensor k_pages, Tensor v_pages, Tensor block_table, "
      "bool want_stats",
      "(Tensor out, Tensor tau, Tensor support_size, Tensor entropy, Tensor maximum)");
  // The weights > 0 as CSR with batch heads q_len rows. Their number depends on the data.
  define("attention_weights(Tensor q, Tensor k",
         "(Tensor row_offsets, Tensor columns, Tensor values)");
}

#undef TSALLIS_SETTINGS

}  // namespace tsallis
