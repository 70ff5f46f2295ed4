// Schemas of the operators. Implementations register themselves in their own files.
#include <torch/library.h>

#include <string>

#include "tsallis/cpu.h"

namespace tsallis {

// Settings of the maps: unused ones are ignored by a map that has no such setting; `coefficients`
// and `threshold` None mean the defaults of AdaptiveTemperature.
#define TSALLIS_SETTINGS                                                                       \
  "str map=\"entmax\", float alpha=1.5, int dim=-1, float temperature=1.0, float budget=2.0, " \
  "float[]? coefficients=None, float? threshold=None"

TORCH_LIBRARY(tsallis, m) {
  m.def("cpu_target() -> str", [] { return QueryCpu().chosen_target; });
  m.def("row_map(Tensor scores, Tensor? alpha_rows=None, *, " TSALLIS_SETTINGS ") -> Tensor");
  m.def("row_map_stats(Tensor scores, Tensor? alpha_rows=None, *, " TSALLIS_SETTINGS
        ") -> (Tensor probabilities, Tensor tau, Tensor support_size, Tensor entropy)");
  // `scores` is read by adaptive_temperature and for 16-bit tensors; else the probabilities may be
  // given in its place.
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
