// Maps from rows of scores to rows of probabilities (docs/definitions.md, M1-M7) and to the weights
// of the sparse baselines (A8): one row in, one row out.
//
// Notation: a row has `length` scores s; alpha > 0; z = (alpha - 1) s;
// p = [z - tau]_+^{1/(alpha - 1)} with sum p = 1 (for alpha < 1 every z exceeds tau, so that no
// finite score has p = 0, unless the storage type cannot hold p); the support is {j : p_j > 0};
// logarithms are natural. Sources: alpha-entmax, Peters, Niculae and Martins 2019, eq. 8-9;
// gradient in alpha, Correia, Niculae and Martins 2019, prop. 1; adaptive temperature, Velickovic
// et al. 2024, eq. 15-18 and appendix G; normmax and budget, the `entmax` package; the baselines at
// RowMap.
//
// Behaviour at the edges, for every map:
//   a score of -inf       probability 0, gradient 0, as if the entry were absent
//   a row of -inf only    probabilities 0, gradients 0, tau = -inf, support size 0, entropy 0
//   NaN or +inf in a row  NaN throughout that row, other rows untouched; its support size is -1
//   rows or length = 0    nothing but the statistics is written (as for a row of -inf only)
//
// On a CUDA device (Context) every array is the device's, also alphas of rows and targets. Whether
// these are in range cannot be seen without waiting: a row with an alpha or a target out of range
// is NaN, its loss too. Rows have at most 2^30 entries and read fastest with stride 1. Adaptive
// temperature takes at most 32 coefficients there.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tsallis/types.h"

namespace tsallis {

// A matrix in memory that belongs to the caller; strides count elements and may be anything (0 and
// negative for inputs too). data: [rows, length].
struct ConstRows {
  const void* data = nullptr;
  DType dtype = DType::kFloat32;
  std::int64_t rows = 0;
  std::int64_t length = 0;
  std::int64_t row_stride = 0;
  std::int64_t stride = 1;
};

struct MutableRows {
  void* data = nullptr;
  DType dtype = DType::kFloat32;
  std::int64_t rows = 0;
  std::int64_t length = 0;
  std::int64_t row_stride = 0;
  std::int64_t stride = 1;

  operator ConstRows() const { return {data, dtype, rows, length, row_stride, stride}; }
};

enum class RowMap : std::uint8_t {
  kSoftmax,  // M1
  kEntmax,   // M2 (alpha = 2, sparsemax), M3, M4; alpha = 1 is softmax
  kNormmax,  // M5: argmax <s, p> - ||p||_alpha over the simplex, alpha > 1
  kBudget,   // M5: p = clip(s - tau, 0, 1) with sum p = min(budget, finite entries), budget > 0
  kAdaptiveTemperature,  // M7: softmax(beta s), beta from the entropy of softmax(s)
  // Softmax over the largest scores of a row, see TopK (Gupta et al. 2021; a baseline of Vasylenko
  // et al. 2025). All scores that tie with the least kept one are kept, so that the order of a row
  // does not matter. The gradient is softmax's on what is kept.
  kTopKSoftmax,
  // p_j = 1 / (1 + e^{-(s_j + b)}) (Ramapuram et al. 2024). Rows do not sum to 1.
  kSigmoid,
  // p_j = [e^{s_j} - 1]_+ / (sum_m |e^{s_m} - 1| + kSoftpickEpsilon) (Zuhri et al. 2025). Rows sum
  // to at most 1; scores <= 0 have weight 0, but a gradient.
  kSoftpick,
  // Each entry, from the last to the first, breaks sigmoid(s_j) off what is left of a stick of
  // length 1: p_j = sigmoid(s_j) prod_{m > j} sigmoid(-s_m) (Tan et al. 2024). Rows sum to at most
  // 1; their order matters.
  kStickBreaking,
};

// beta(H) = max(1, sum_i coefficients[i] H^i) where H > threshold, else 1 (Velickovic et al. 2024,
// eq. 18). Lowest degree first. The gradient goes through beta as well.
struct AdaptiveTemperature {
  std::vector<double> coefficients = {-1.791, 4.917, -2.3, 0.481, -0.037};
  double threshold = 0.5;
};

// kTopKSoftmax keeps the max(k, floor(fraction n)) largest of n finite scores; all if that is more.
struct TopK {
  std::int64_t k = 0;     // >= 1
  double fraction = 0.0;  // in [0, 1]
};

inline constexpr double kSoftpickEpsilon = 1e-6;

// Lower-case name as users write it: "softmax", "entmax", "normmax", "budget",
// "adaptive_temperature", "top_k_softmax", "sigmoid", "softpick", "stick_breaking".
const char* Name(RowMap map);

// Every map there is, in the order of the enum, and those that attention takes.
const std::vector<RowMap>& AllRowMaps();
const std::vector<RowMap>& AttentionMaps();

// Whether every row with a finite score has weights that sum to 1.
bool SumsToOne(RowMap map);
// Whether attention may add a sink to the rows of this map (AttentionTerms::sink).
bool TakesSink(RowMap map);

// A map and its numbers, for rows and for attention. Structs that have a map derive from this one.
struct MapSetting {
  RowMap map = RowMap::kEntmax;
  double alpha = 1.5;  // kEntmax: finite and > 0; kNormmax: finite and > 1
  AdaptiveTemperature adaptive;
  TopK top_k;  // kTopKSoftmax
  // b of kSigmoid, finite; none: -ln n for n finite scores (in attention: n visible keys).
  std::optional<double> sigmoid_bias;

  // This part of a struct that derives from it: `params.setting() = options` copies all numbers.
  MapSetting& setting() { return *this; }
  const MapSetting& setting() const { return *this; }
};

// The map of one row.
struct RowSpec : MapSetting {
  // Divides every score before the map; finite and > 0.
  double temperature = 1.0;
  double budget = 2.0;  // kBudget: > 0
};

// The map of every row.
struct RowMapParams : RowSpec {
  const double* alpha_per_row = nullptr;  // [rows], in place of alpha; or null
};

// Optional outputs of the forward pass, each [rows] or null.
//   tau           the threshold in z = (alpha - 1) s / temperature for kEntmax with alpha != 1;
//                 the log-sum-exp of the (tempered) scores for softmax, alpha = 1 and
//                 kAdaptiveTemperature, and of the kept ones for kTopKSoftmax; the threshold in s
//                 for kNormmax and kBudget; -b for kSigmoid, where p = 1/2; the logarithm of the
//                 denominator for kSoftpick, and of what is left of the stick for kStickBreaking,
//                 sum_j ln sigmoid(-s_j)
//   support_size  number of entries with p > 0
//   entropy       -sum p ln p of the output, in nats, also where it does not sum to 1
struct RowStats {
  double* tau = nullptr;
  std::int64_t* support_size = nullptr;
  double* entropy = nullptr;
};

// p = map(scores). `probabilities` has the shape and dtype of `scores` and may be the same memory.
// float32, bfloat16 and float16 are computed in float32, float64 in float64. For alpha <= 2 and
// float32, |sum p - 1| <= 1e-6. Throws InvalidArgument.
void RowsForward(const Context& context, const RowMapParams& params, const ConstRows& scores,
                 const MutableRows& probabilities, const RowStats& stats = {});

// Whether RowsBackward reads the scores. Otherwise the probabilities determine the gradient, and a
// caller that keeps tensors for the backward pass may drop the scores (and pass the probabilities
// in their place). Scores are needed for adaptive temperature, softpick and stick-breaking, and
// where 16-bit probabilities have too few digits: for p^{2 - alpha}, alpha > 2, and 1 - p of a
// sigmoid.
bool BackwardReadsScores(const RowMapParams& params, DType dtype);

// Vector-Jacobian product of RowsForward: d_scores = J^T d_probabilities.
//   scores          the input of the forward pass (read where p alone does not determine the
//                   gradient)
//   probabilities   its output
//   d_alpha         [rows] or null: the gradient in each row's alpha (kEntmax only; continuous at
//                   alpha = 1)
// All matrices share one shape and dtype. `d_scores` may be the memory of `d_probabilities`.
void RowsBackward(const Context& context, const RowMapParams& params, const ConstRows& scores,
                  const ConstRows& probabilities, const ConstRows& d_probabilities,
                  const MutableRows& d_scores, double* d_alpha = nullptr);

// Fenchel-Young loss of one row each (M6): losses[i] = H(p*) + <p* - e_y, s>, p* = map(s), for
// kSoftmax, kEntmax and kNormmax (Blondel, Martins and Niculae 2020). targets: [rows], in [0,
// length) or equal to `ignore_index` (any value, also a valid class), whose rows get loss 0 and
// gradient 0. s are the scores divided by the temperature. d_scores (data null: not wanted) gets
// (p* - e_y) / temperature; it is float32 for 16-bit scores, else their dtype. losses: [rows].
// Throws InvalidArgument, also for a target out of range.
void FenchelYoungLoss(const Context& context, const RowMapParams& params, const ConstRows& scores,
                      const std::int64_t* targets, std::int64_t ignore_index, double* losses,
                      const MutableRows& d_scores = {});

// Entropy of softmax(s) in one pass and O(1) memory: the recurrences for m, Lambda and K of
// Velickovic et al. 2024, appendix G, with K kept relative to the running maximum, so that large
// offsets cost no digits.
class StreamedEntropy {
 public:
  void Add(double score);
  void Merge(const StreamedEntropy& other);
  double LogSumExp() const;  // -inf before the first finite score
  double Entropy() const;    // nats; 0 before the first finite score

 private:
  double max_ = -__builtin_inf();
  double sum_ = 0.0;       // Lambda = sum exp(s - m)
  double weighted_ = 0.0;  // sum exp(s - m) (s - m)
};

// Fits the polynomial of kAdaptiveTemperature as the paper's appendix F does: for each row of
// scores (float32 or float64) whose target does not already have the largest score, the theta of a
// grid that gives the target its highest probability; then least squares of 1/theta on powers of
// the entropy of softmax(scores). Rows that the rule discards are not counted in `samples`.
struct AdaptiveTemperatureFit {
  std::vector<double> coefficients;  // lowest degree first
  std::int64_t samples = 0;
  double rms_error = 0.0;  // of 1/theta
};
struct AdaptiveTemperatureFitOptions {
  int degree = 4;
  double theta_max =
      10.0;  // grid: step, 2 step, ... theta_max (theta = 0 never is the best of a kept row)
  double theta_step = 0.1;
};
AdaptiveTemperatureFit FitAdaptiveTemperature(const Context& context, const ConstRows& scores,
                                              const std::int64_t* targets,
                                              const AdaptiveTemperatureFitOptions& options = {});

}  // namespace tsallis
