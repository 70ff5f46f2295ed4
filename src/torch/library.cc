// Schemas of the operators. Implementations register themselves in their own files.
#include <hwy/targets.h>
#include <torch/library.h>

#include <cstdint>
#include <string>

namespace tsallis {

namespace {

// Name of the instruction set that the kernels' dispatch picks on this machine: of those compiled,
// the best that it supports, which has the lowest bit.
std::string CpuTarget() {
  const std::int64_t usable = hwy::SupportedTargets() & HWY_TARGETS;
  return hwy::TargetName(usable & -usable);
}

}  // namespace

// Settings of the maps: unused ones are ignored by a map that has no such setting; `coefficients`
// and `threshold` None mean the defaults of AdaptiveTemperature.
#define TSALLIS_SETTINGS                                                                       \
  "str map=\"entmax\", float alpha=1.5, int dim=-1, float temperature=1.0, float budget=2.0, " \
  "float[]? coefficients=None, float? threshold=None"

TORCH_LIBRARY(tsallis, m) {
  m.def("cpu_target() -> str", CpuTarget);
  m.def("row_map(Tensor scores, Tensor? alpha_rows=None, *, " TSALLIS_SETTINGS ") -> Tensor");
  m.def("row_map_stats(Tensor scores, Tensor? alpha_rows=None, *, " TSALLIS_SETTINGS
        ") -> (Tensor probabilities, Tensor tau, Tensor support_size, Tensor entropy)");
  // `scores` is read by adaptive_temperature only; other maps take the probabilities in its place.
  // The second result has no elements unless want_alpha.
  m.def(
      "row_map_backward(Tensor d_probabilities, Tensor scores, Tensor probabilities, "
      "Tensor? alpha_rows, bool want_alpha, *, " TSALLIS_SETTINGS
      ") -> (Tensor d_scores, Tensor d_alpha)");
  m.def(
      "fenchel_young_loss(Tensor scores, Tensor targets, *, str map=\"entmax\", "
      "float alpha=1.5, float temperature=1.0, int ignore_index=-100) -> Tensor");
  // Losses and, if wanted, the gradient p - e_y (else no elements); for the autograd of the above.
  m.def(
      "fenchel_young_loss_forward(Tensor scores, Tensor targets, bool want_gradient, *, "
      "str map=\"entmax\", float alpha=1.5, float temperature=1.0, int ignore_index=-100) "
      "-> (Tensor losses, Tensor gradient)");
}

#undef TSALLIS_SETTINGS

}  // namespace tsallis
