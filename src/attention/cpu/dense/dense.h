// Shared by the dense kernel's drivers (dense.cc) and its vector code (rows.cc).
//
// Work comes in groups of query rows of one head, at most kMostRows, which meet the keys in panels
// of kPanel. A group's scores are stored: (rows + 1) rows of one float per key, and room for a
// sink's behind them. Every size here follows from the call alone, never from the number of
// threads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "attention/cpu/padding.h"
#include "attention/geometry.h"
#include "attention/kernels.h"
#include "attention/terms.h"
#include "core/memory.h"
#include "simplex/scratch.h"
#include "tsallis/attention.h"

namespace tsallis::dense {

using Floats = hwy::AlignedFreeUniquePtr<float[]>;

inline constexpr std::int64_t kPanel = 64;  // keys: one word of bits
inline constexpr std::int64_t kMostRows = 48;
// Rows that one load of a key panel serves at least, however long the scores get. With 12, the
// panels of 16 384 keys cost a quarter of the time.
inline constexpr std::int64_t kLeastRows = 24;
// Scores of a group: a part of the second-level cache, as the map passes over them several times.
inline constexpr std::int64_t kScoreFloats = 1 << 18;
// Converted or transposed panels that a thread keeps from group to group; when a head's do not fit,
// every group makes its own, which costs a tenth of its products.
inline constexpr std::int64_t kCacheFloats = 1 << 22;

// Floats of a row of scores. A group's keys are taken from whole panels at both ends; 16 more keep
// rows from meeting in the same sets of the first-level cache.
inline std::int64_t ScorePitch(std::int64_t keys) { return RoundUp(keys, kPanel) + kPanel + 16; }
inline std::int64_t GroupRows(std::int64_t keys) {
  return std::clamp(kScoreFloats / ScorePitch(keys) / 6 * 6, kLeastRows, kMostRows);
}

// Query rows of one head that are worked on together.
struct RowGroup {
  Sequence sequence;
  std::int64_t h = 0;
  Span q;
  Span keys;  // all that one of the rows may see by causal rule and window
};

// The group that begins at `q_row` and ends before `q_end`.
RowGroup GroupAt(const AttentionParams& params, const Sequence& sequence, std::int64_t h,
                 std::int64_t q_row, std::int64_t q_end);

// The sizes that memory has to hold.
struct Most {
  std::int64_t keys = 0;  // that a group can meet
  std::int64_t rows = 0;  // keys of a sequence

  void Include(const AttentionParams& params, const Sequence& sequence);
};

// One call; shared by its threads.
struct PanelCall {
  PanelCall(const AttentionParams& params, const AttentionOutputs* outputs,
            const AttentionGradients* gradients);

  const AttentionParams& params;
  const AttentionOutputs* outputs;
  const AttentionGradients* gradients;
  const WeightReceiver* receiver = nullptr;  // takes the weights in place of outputs
  DistanceTable distances;
  // Whether anything is wanted that needs the gradient of the scores.
  bool wants_ds = false;
};

// Panels of the keys or values of one head: rows [64 p, 64 p + 64) of its sequence as floats,
// either [64][pitch] as they are or transposed to [columns][64] with zeros behind the last key.
class PanelCache {
 public:
  // For groups that meet up to most_keys keys, in sequences of up to most_rows of them.
  PanelCache(std::int64_t columns, bool transposed, std::int64_t most_keys, std::int64_t most_rows);
  static std::size_t Bytes(std::int64_t columns, std::int64_t most_keys, std::int64_t most_rows);

  // From now on: key head kv of this sequence, whose rows these are.
  void Point(const HeadRows& rows, const Sequence& sequence, std::int64_t kv);

  // Filled by the vector code. In place: nothing is copied, only looked at for NaN.
  HeadRows source;  // from the sequence's first key on
  std::int64_t keys = 0;
  std::int64_t columns;
  bool transposed;
  bool in_place = false;
  std::int64_t pitch = 0;  // floats of a row of a panel
  std::int64_t slots = 0;
  std::vector<std::int32_t> held;    // [slots]: the panel there, -1: none
  std::vector<std::uint8_t> finite;  // [slots]
  Floats memory;                     // [slots][panel_floats]
  std::int64_t panel_floats = 0;

 private:
  std::int64_t most_slots_;
  std::int64_t batch_ = -1, kv_ = -1;  // where it points
};

// A group's scores and weights.
struct GroupBuffers {
  GroupBuffers(const AttentionParams& params, std::int64_t most_keys, bool backward);
  static std::size_t Bytes(const AttentionParams& params, std::int64_t most_keys, bool backward);

  void Point(const RowGroup& group);

  RowGroup at;
  std::int64_t first_panel = 0, panels = 0;  // of the sequence
  std::int64_t pitch = 0;
  Floats scores;  // [rows + 1][pitch]: scores of row r in r + 1, its weights in r
  Floats ds;  // [rows][pitch]: gradient of the weights, then of the scores, then of c scale <q, k>
  Floats q;   // [rows][Padded(head_dim)] times c scale
  Floats d_out;                     // [rows][Padded(value_dim)]
  std::vector<std::uint64_t> bits;  // [rows][panels]: which weights are not 0
  bool q_finite = true, d_out_finite = true;
  HeadSums sums;  // over the rows
};

// Memory of one thread.
struct Thread {
  Thread(const AttentionParams& params, const Most& most, bool backward);
  static std::size_t Bytes(const AttentionParams& params, const Most& most, bool backward);

  // Makes the caches those of a key head.
  void Point(const AttentionParams& params, const Sequence& sequence, std::int64_t kv);

  RowScratch row;
  PanelCache k_columns, v_rows;        // for scores and outputs
  PanelCache v_columns, k_rows;        // for the gradients of weights and queries; backward only
  Floats sum, total;                   // [kMostRows][Padded(larger of head_dim and value_dim)]
  Floats line;                         // [kPanel][the same] or a row's bias
  Floats derivatives;                  // of a row's scores in c scale <q, k>; backward only
  std::vector<std::uint32_t> support;  // of a row, for a receiver
  std::vector<float> weights;
};

// Sums over queries for one key head. dk: [keys][dk_pitch], dv: [keys][dv_pitch] from the
// sequence's first key on; null: not wanted.
struct KeySums {
  float* dk = nullptr;
  float* dv = nullptr;
  std::ptrdiff_t dk_pitch = 0, dv_pitch = 0;
};

// The vector code, chosen for this machine at the time of the call.
struct VectorCode {
  const char* target;
  void (*forward)(const PanelCall& call, GroupBuffers& group, Thread& thread);
  // Weights and gradients of the group's rows; writes dq and what belongs to rows.
  void (*backward_rows)(const PanelCall& call, GroupBuffers& group, Thread& thread);
  // Adds the groups' parts to the sums of one panel of keys, in their order.
  void (*backward_keys)(const PanelCall& call, const std::vector<GroupBuffers*>& groups,
                        std::int64_t panel, const KeySums& sums);
};
VectorCode ChooseVectorCode();

}  // namespace tsallis::dense
