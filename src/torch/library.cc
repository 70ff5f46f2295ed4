// Schemas of the operators. Implementations register themselves in their own files.
#include <torch/library.h>

#include <string>

#include "core/version.h"
#include "tsallis/cpu.h"

namespace tsallis {

// Settings of the maps: unused ones are ignored by a map that has no such setting; `coefficients`
// and `threshold` None mean the defaults of AdaptiveTemperature, `sigmoid_bias` None means -ln n.
#define TSALLIS_SETTINGS                                                                       \
  "str map=\"entmax\", float alpha=1.5, int dim=-1, float temperature=1.0, float budget=2.0, " \
  "float[]? coefficients=None, float? threshold=None, int top_k=0, float top_k_fraction=0.0, " \
  "float? sigmoid_bias=None"

// Attention's: AttentionOptions in operators.h says what they mean.
#define TSALLIS_ATTENTION_SETTINGS                                                            \
  "Tensor? alpha_heads=None, Tensor? length_scale=None, Tensor? alibi_slopes=None, "          \
  "Tensor? bias=None, Tensor? mask=None, Tensor? block_mask=None, Tensor? lengths=None, "     \
  "Tensor? query_lengths=None, Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, "        \
  "str map=\"entmax\", float alpha=1.5, float? scale=None, float? scale_invariant=None, "     \
  "bool causal=False, str alignment=\"end\", int left=-1, int right=-1, int block_q=0, "      \
  "int block_k=0, str padding=\"right\", float[]? coefficients=None, float? threshold=None, " \
  "int saved_budget=268435456, Tensor? sink=None, int top_k=0, float top_k_fraction=0.0, "    \
  "float? sigmoid_bias=None"

TORCH_LIBRARY(tsallis, m) {
  m.def("version() -> str", [] { return std::string(Version()); });
  m.def("git_commit() -> str", [] { return std::string(GitCommit()); });
  m.def("processor() -> str", [] { return QueryCpu().processor; });
  m.def("cpu_target() -> str", [] { return QueryCpu().chosen_target; });
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
      "fenchel_young_loss(Tensor scores, Tensor targets, *, str map=\"entmax\", "
      "float alpha=1.5, float temperature=1.0, int ignore_index=-100) -> Tensor");
  // Losses and, if wanted, the gradient p - e_y (else no elements); for the autograd of the above.
  m.def(
      "fenchel_young_loss_forward(Tensor scores, Tensor targets, bool want_gradient, *, "
      "str map=\"entmax\", float alpha=1.5, float temperature=1.0, int ignore_index=-100) "
      "-> (Tensor losses, Tensor gradient)");
  m.def("attention(Tensor q, Tensor k, Tensor v, *, " TSALLIS_ATTENTION_SETTINGS ") -> Tensor");
  m.def("attention_stats(Tensor q, Tensor k, Tensor v, *, " TSALLIS_ATTENTION_SETTINGS
        ") -> (Tensor out, Tensor tau, Tensor support_size, Tensor entropy, Tensor maximum)");
  // For the autograd of the two above. tau: float64; saved: uint8, contents are the library's; the
  // last three have no elements unless want_stats.
  m.def(
      "attention_forward(Tensor q, Tensor k, Tensor v, bool want_stats, "
      "*, " TSALLIS_ATTENTION_SETTINGS
      ") -> (Tensor out, Tensor tau, Tensor saved, Tensor support_size, Tensor entropy, "
      "Tensor maximum)");
  // wanted: which results, in their order; the others have no elements.
  m.def(
      "attention_backward(Tensor d_out, Tensor q, Tensor k, Tensor v, Tensor tau, Tensor saved, "
      "bool[8] wanted, *, " TSALLIS_ATTENTION_SETTINGS
      ") -> (Tensor dq, Tensor dk, Tensor dv, Tensor d_alpha, Tensor d_length_scale, "
      "Tensor d_slopes, Tensor d_bias, Tensor d_sink)");
  // The weights > 0 as CSR with batch heads q_len rows. Their number depends on the data.
  m.def("attention_weights(Tensor q, Tensor k, *, " TSALLIS_ATTENTION_SETTINGS
        ") -> (Tensor row_offsets, Tensor columns, Tensor values)");
}

#undef TSALLIS_SETTINGS
#undef TSALLIS_ATTENTION_SETTINGS

}  // namespace tsallis
